"""Notebooks as pages: their text, their code, and what it showed when it was last run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SVG = "image/svg+xml"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
# A link in HTML: the page's own links to notebooks lead to pages.
NOTE = '*A notebook, with what it showed when it was run: <a href="{link}" download>{file}</a>.*'


def page_of_notebook(file: Path, link: str) -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown, and its pictures by name; `link` leads to the notebook itself."""
    pictures: dict[str, bytes] = {}
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    parts: list[str] = []
    for cell in cells:
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            if len(parts) == 1:
                parts.append(NOTE.format(file=file.name, link=link))
        else:
            parts.append(f"```python\n{source}\n```")
            parts.extend(_shown(cell["outputs"], file.stem, pictures))
    return "\n\n".join(parts) + "\n", pictures


def _shown(outputs: list[Mapping[str, Any]], name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """What a cell put out: text, pictures, and cards, which are HTML without scripts."""
    for output in outputs:
        if output["output_type"] == "stream":
            yield f"```text\n{ESCAPES.sub('', _text(output['text'])).rstrip()}\n```"
            continue
        data = output["data"]
        if SVG in data:
            picture = f"{name}-{len(pictures) + 1}.svg"
            pictures[picture] = _text(data[SVG]).encode()
            yield f"![a figure of {name}]({picture})"
        elif "text/html" in data:
            html = re.sub(r"<style[^>]*>.*?</style>", "", _text(data["text/html"]), flags=re.DOTALL)
            html = html.replace("<table style", '<table class="card" style')  # those without a class are the site's own
            yield f'<div class="output">{" ".join(html.split())}</div>'
        else:
            yield f"```text\n{_text(data['text/plain'])}\n```"


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)
