"""Tables as texts for elsewhere."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from coterie.compare.grid import Grid
from coterie.methods import METHODS
from coterie.report.tables import as_csv, as_latex, as_markdown, in_print

COLUMNS = ("received.mean.best", "bytes")


def summary_of(accuracy: float | None) -> dict[str, Any]:
    return {
        "accuracy": {"received": {"mean": {"best": accuracy}}},
        "bytes": {"per_client_round": {"up": 1000.0, "down": 500.0}},
    }


def grid_of(**accuracies: list[float | None]) -> Grid:
    rows = {name: {seed: summary_of(one) for seed, one in enumerate(each)} for name, each in accuracies.items()}
    return Grid(rows, COLUMNS)


CLEAR = grid_of(good_one=[0.9, 0.91, 0.92], bad=[0.1, 0.2, 0.3])


def test_winners_are_bold_and_others_are_not() -> None:
    assert as_markdown(CLEAR).splitlines() == [
        "| method | received mean best (%) | bytes per client round |",
        "|---|---:|---:|",
        "| good_one | **91.0±1.0** | 1.5 kB |",
        "| bad | 20.0±10.0 | 1.5 kB |",
    ]
    lines = as_latex(CLEAR).splitlines()
    assert lines[4:6] == [
        r"good\_one & \textbf{91.0$\pm$1.0} & 1.5 kB \\",
        r"bad & 20.0$\pm$10.0 & 1.5 kB \\",
    ]
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[2] == r"method & received mean best (\%) & bytes per client round \\"


def test_latex_calls_methods_as_their_papers_do() -> None:
    """As the titles of their pages spell them."""
    pages = Path(__file__).parents[2] / "docs" / "methods"
    for name in METHODS:
        title = (pages / f"{name}.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert in_print(name) == title.split(" (")[0]
    assert r"PFedCS (beta = 4) & " in as_latex(grid_of(**{"pfedcs:beta=4": [0.5]}))


def test_csv_has_all_digits_and_leaves_out_what_is_no_number() -> None:
    third = grid_of(a=[1 / 3], b=[None])
    rows = list(csv.DictReader(as_csv({"one, with a comma": third}).splitlines()))
    assert [row["table"] for row in rows] == ["one, with a comma"] * 2
    assert float(rows[0]["received_mean_best"]) == 1 / 3
    assert rows[0]["received_mean_best_std"] == rows[1]["received_mean_best"] == ""
    assert "–" in as_markdown(third)


def test_only_seeds_that_two_methods_share_are_compared() -> None:
    rows = {"a": [0.9, 0.9, 0.9, 0.0], "b": [0.1, 0.2, 0.3]}
    grid = Grid(
        {name: {seed: summary_of(one) for seed, one in enumerate(each)} for name, each in rows.items()}, COLUMNS
    )
    assert grid.winner("received_mean_best") == "a"
    assert grid.note().endswith("Methods ran with different seeds; those that two share count.")
    apart = Grid({"a": {0: summary_of(0.9)}, "b": {1: summary_of(0.1)}}, COLUMNS)
    assert apart.winner("received_mean_best") is None
