"""Files that pages show: a line that is nothing but a link to a how-to's file becomes the file, and what it prints."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

REPOSITORY = Path(__file__).parents[2]
ALONE = re.compile(r"^\[[^\]]*\]\(([^)\s]*examples/howto/\w+\.py)\)$", re.MULTILINE)


def shown_files(text: str, path: str) -> list[str]:
    """The files that the page at `path` shows, from the repository's root.

    >>> shown_files("[so](../../examples/howto/tune.py)\\n\\nas in [this](../x.py)\\n", "docs/howto/tune.md")
    ['examples/howto/tune.py']
    """
    return [_meant(target, path) for target in ALONE.findall(text)]


def with_files(text: str, path: str, repository: Path = REPOSITORY) -> str:
    """The page at `path` with these files in place of the links to them, and their outputs below."""

    def block(match: re.Match[str]) -> str:
        name = _meant(match[1], path)
        file = repository / name
        code = f'```python title="{name}"\n{file.read_text(encoding="utf-8").rstrip()}\n```'
        printed = file.with_suffix(".txt").read_text(encoding="utf-8").strip("\n")
        return f"{code}\n\nIt prints:\n\n```text\n{printed}\n```"

    return ALONE.sub(block, text)


def _meant(target: str, path: str) -> str:
    return os.path.normpath(PurePosixPath(path).parent / target)
