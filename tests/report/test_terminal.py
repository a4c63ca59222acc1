"""What the terminal shows of runs."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from tests.support import tiny

from coterie.experiment.opened import open_run
from coterie.report.terminal import metric_table
from coterie.rounds.listeners import StopAfter


def test_a_run_that_was_never_tested_says_so_instead_of_an_empty_table(tmp_path: Path) -> None:
    experiment = tiny(rounds=4, evaluate_every=3)
    experiment.run(tmp_path / "early", [StopAfter(2)])
    experiment.run(tmp_path / "later", [StopAfter(3)])
    early, later = (open_run(tmp_path / name, experiment=experiment).summary_so_far() for name in ("early", "later"))
    assert metric_table(early) == "no round has been tested yet"
    shown = metric_table(later)
    assert isinstance(shown, Table)
    assert shown.row_count == 4
