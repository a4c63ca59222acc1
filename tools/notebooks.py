"""`python -m tools.notebooks [NAME …]`: run the notebooks in `examples/notebooks` and keep what they show in them."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
MOST_SECONDS = 900  # for a cell, on a busy machine
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def listed() -> list[Path]:
    """The notebooks, in alphabetical order."""
    return sorted(FOLDER.glob("*.ipynb"))


def run(file: Path) -> Any:
    """The notebook with what its cells show when run in order, in an empty folder; a cell's error is one here."""
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory(prefix="coterie-notebook-") as folder:
        resources = {"metadata": {"path": folder}}
        # The kernel listens on this machine's own address alone, and answers nobody without its key.
        client = NotebookClient(
            notebook, timeout=MOST_SECONDS, startup_timeout=MOST_SECONDS, resources=resources, record_timing=False
        )
        client.execute()
    notebook.metadata = {"kernelspec": KERNEL}  # nothing of this machine
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            # Progress and warnings are of this machine and this hour.
            cell.outputs = list(_joined(one for one in cell.outputs if one.get("name") != "stderr"))
    return notebook


def _joined(outputs: Iterable[Any]) -> Iterator[Any]:
    """Pieces of text that follow each other are one: where they were cut is chance."""
    before = None
    for one in outputs:
        if one.output_type == "stream" and before is not None and before.output_type == "stream":
            before.text += one.text
            continue
        if before is not None:
            yield before
        before = one
    if before is not None:
        yield before


def printed(notebook: Any) -> str:
    """What the cells print, all together."""
    outputs = [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]
    return "".join(one.text for one in outputs if one.output_type == "stream")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all notebooks, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks without .ipynb; all, if none is named")
    names = parser.parse_args(arguments).names
    for file in listed():
        if not names or file.stem in names:
            print(f"{file.name} ...", file=sys.stderr, flush=True)
            nbformat.write(run(file), file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
