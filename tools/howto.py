"""`python -m tools.howto [NAME …]`: run the how-tos' files and write what they print beside them, as `NAME.txt`.

The pages under `docs/howto` show both; the tests run the files again and compare.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

FILES = Path(__file__).parents[1] / "examples" / "howto"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# Accuracies of small test sets jump by whole samples where another processor rounds otherwise.
APART = 0.03


def listed() -> list[Path]:
    """The files, in alphabetical order."""
    return sorted(FILES.glob("*.py"))


def output_of(file: Path) -> str:
    """What a file prints, run as a program in an empty folder."""
    printed, before = io.StringIO(), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="coterie-howto-") as folder, contextlib.redirect_stdout(printed):
        os.chdir(folder)
        try:
            runpy.run_path(str(file), run_name="__main__")
        finally:
            os.chdir(before)
    return printed.getvalue()


def differences(shown: str, printed: str) -> Iterator[str]:
    """Lines that say something else than shown: other words, or numbers that are farther apart than rounding explains.

    >>> list(differences("fedavg 0.91, 3 clients", "fedavg 0.92, 3 clients"))
    []
    >>> list(differences("fedavg 0.91, 3 clients", "fedavg 0.72, 4 clients"))
    ['fedavg 0.72, 4 clients']
    """
    lines, told = shown.splitlines(), printed.splitlines()
    if len(lines) != len(told):
        yield f"{len(told)} lines instead of {len(lines)}"
    for one, other in zip(lines, told, strict=False):
        numbers = zip(NUMBER.findall(one), NUMBER.findall(other), strict=False)
        alike = NUMBER.sub("#", one).split() == NUMBER.sub("#", other).split()
        if not alike or any(_far(*pair) for pair in numbers):
            yield other


def _far(one: str, other: str) -> bool:
    """Whole numbers must be equal; others within `APART`, absolutely or as a share."""
    if "." not in one and "." not in other:
        return one != other
    return abs(float(one) - float(other)) > APART * max(1.0, abs(float(one)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the outputs of all files, or of those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.howto", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="files without .py; all, if none is named")
    names = parser.parse_args(arguments).names
    for file in listed():
        if not names or file.stem in names:
            print(f"{file.name} ...", file=sys.stderr, flush=True)
            file.with_suffix(".txt").write_text(output_of(file), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
