"""The documentation shows what stands in `results/`, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.results import REPOSITORY, wanted, with_block


@pytest.mark.thorough
def test_pages_are_up_to_date() -> None:
    pages = wanted(REPOSITORY / "results", REPOSITORY / "docs")
    stale = [page for page, text in pages.items() if page.read_text(encoding="utf-8") != text]
    assert stale == [], "run 'python tools/results.py'"


def test_only_the_block_between_the_comments_changes() -> None:
    page = with_block("# Page\n\nWords.\n", ["old"])
    assert with_block(page, ["new", "lines"]) == page.replace("old", "new\nlines")
    assert with_block("# Page\n", []) == "# Page\n"


def test_committed_results_match_the_tables_files() -> None:
    from coterie.reproduce.paper import find_table
    from coterie.reproduce.store import Results

    for path in sorted(Path(REPOSITORY / "results").glob("*-table[0-9].json")):
        if path.stem != "pfedsim-table2":
            Results(find_table(path.stem), path.parent).require_current()
