"""What the terminal shows of runs."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from tests.support import tiny

from coterie.report.terminal import metric_table, wrapped
from coterie.rounds.listeners import StopAfter
from coterie.runs.run import open_run


def test_a_run_that_was_never_tested_says_so_instead_of_an_empty_table(tmp_path: Path) -> None:
    experiment = tiny(rounds=4, evaluate_every=3)
    experiment.run(tmp_path / "early", [StopAfter(2)])
    experiment.run(tmp_path / "later", [StopAfter(3)])
    early, later = (open_run(tmp_path / name, experiment=experiment).summary for name in ("early", "later"))
    assert metric_table(early) == "no round has been tested yet"
    shown = metric_table(later)
    assert isinstance(shown, Table)
    assert shown.row_count == 4


def test_lines_end_between_words_and_commands_stay_whole() -> None:
    told = "The best is fedprox:lr=0.1; 'coterie run --config a/very/long/place/best.toml' runs it."
    for width in (20, 40, 60, 200):
        lines = wrapped(told, width).split("\n")
        assert " ".join(lines) == told
        assert any("'coterie run --config a/very/long/place/best.toml'" in line for line in lines)
        assert all(len(line) <= width or "'coterie" in line for line in lines)
    assert wrapped("", 20) == ""
    assert (
        wrapped("  ward A from ward B (50 %), ward C (50 %)", 20) == "  ward A from ward B\n  (50 %), ward C (50\n  %)"
    )
