"""The notebooks run, show what they are committed with, and are pages of the site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.howto import differences
from tools.notebooks import listed, printed, run
from tools.website.notebook import page_of_notebook

MOST_BYTES = 1_000_000
NAMES = ("collaboration-emerges", "compare-and-choose", "invent-a-method")


def test_there_are_three() -> None:
    assert tuple(file.stem for file in listed()) == NAMES


@pytest.mark.parametrize("file", listed(), ids=lambda file: file.stem)
def test_it_is_kept_with_what_its_cells_showed_in_order(file: Path) -> None:
    cells = [cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    assert all(output["output_type"] != "error" for output in outputs)
    assert file.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("file", listed(), ids=lambda file: file.stem)
def test_as_a_page_it_has_its_code_and_its_pictures(file: Path) -> None:
    page, pictures = page_of_notebook(file, file.name)
    assert page.startswith("# ")
    assert "```python\n" in page
    assert pictures
    assert all(f"]({name})" in page and picture.startswith(b"<svg") for name, picture in pictures.items())


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("file", listed(), ids=lambda file: file.stem)
def test_it_prints_what_it_is_kept_with(file: Path) -> None:
    import nbformat

    kept = printed(nbformat.read(file, as_version=4))
    assert kept
    assert list(differences(kept, printed(run(file)))) == []
