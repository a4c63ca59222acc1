"""What stands below a table: unequal work, rows that still rise, rows that are the same, choices at an edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.compare.grid import Grid, chosen_columns, same_remark
from coterie.compare.remarks import edge_remark, effort_remark, rising_remark
from coterie.compare.table import compare
from coterie.core.numbers import ACCURACY, Scale
from coterie.methods.ditto import Ditto
from coterie.report.tables import as_markdown, grid_lines
from coterie.report.terminal import summary_lines
from coterie.runs.run import Run
from support import tiny

LOSS = Scale("loss", higher_is_better=False)


def scored(
    last: float, five: float | None = None, moment: str = "received", metric: str = "accuracy"
) -> dict[str, Any]:
    return {metric: {moment: {"mean": {"best": last, "last": last, "last5": last if five is None else five}}}}


def test_a_comparison_says_whose_work_is_more() -> None:
    pair = {
        "fedavg": tiny(epochs=2),
        "ditto": tiny(Ditto(), epochs=2),
        "starved": tiny(Ditto(personal_epochs=1), epochs=2),
    }
    comparison = compare(pair, seeds=[0], jobs=1)
    steps = {name: comparison.mean(name, "steps_per_client_round") for name in pair}
    assert steps["ditto"] == 2 * steps["fedavg"]
    assert steps["starved"] == 1.5 * steps["fedavg"]
    forward = {name: comparison.mean(name, "forward_per_client_round") for name in pair}
    assert forward["ditto"] == 2 * forward["fedavg"] == 2 * 2 * (150 - 36) / 4
    (line,) = [line for line in grid_lines(comparison.grid) if line.startswith("Gradients")]
    base = f"{steps['fedavg']:.1f}".removesuffix(".0")
    assert f"{base} model (fedavg)" in line
    assert f"{base} model, {base} personal (ditto)" in line
    assert "| steps per client round |" in as_markdown(comparison.grid)


def test_nothing_is_said_where_all_work_alike_or_nobody_tells() -> None:
    alike = compare({"one": tiny("fedavg"), "other": tiny("fedper")}, seeds=[0], jobs=1)
    assert not any(line.startswith("Gradients") for line in alike.grid.remarks())
    assert effort_remark({"old": {0: {}}, "older": {0: {}}}) == ""
    assert effort_remark({"old": {0: {}}, "new": {0: {"effort": {"steps": {"model": 3.0}}}}}) == ""


def test_a_run_says_what_it_took(tmp_path: Path) -> None:
    result: Run = tiny(Ditto(), epochs=2).run(tmp_path / "run")
    (line,) = [line for line in summary_lines(result.summary) if "gradients" in line]
    assert " personal" in line
    assert "samples forward" in line


@pytest.mark.parametrize(
    ("last", "five", "said"),
    [([0.7, 0.71], [0.69, 0.7], True), ([0.7, 0.71], [0.699, 0.709], False), ([0.7, 0.7], [0.6, 0.71], False)],
)
def test_rising(last: list[float], five: list[float], said: bool) -> None:
    runs = {"method": {seed: scored(one, other) for seed, (one, other) in enumerate(zip(last, five, strict=True))}}
    assert ("method (received +" in rising_remark(runs, ACCURACY)) is said


def test_of_losses_those_that_fall_get_better() -> None:
    falling, growing = ({"m": {0: scored(last, 1.0, metric="loss")}} for last in (0.9, 1.1))
    assert "m (received +" in rising_remark(falling, LOSS)
    assert rising_remark(growing, LOSS) == ""


def test_runs_without_numbers_do_not_rise() -> None:
    assert rising_remark({"m": {0: {"accuracy": {}}}}, ACCURACY) == ""
    assert (
        rising_remark({"m": {0: {"accuracy": {"received": {"mean": {"last": None, "last5": None}}}}}}, ACCURACY) == ""
    )


def test_rows_with_the_same_numbers() -> None:
    columns = chosen_columns({}, ["received.mean.last", "bytes"]).values()
    runs = {
        "fedavg": {0: scored(0.8), 1: scored(0.7)},
        "fedprox": {0: scored(0.8 + 1e-6), 1: scored(0.7)},
        "other": {0: scored(0.8), 1: scored(0.75)},
    }
    assert same_remark(runs, columns) == "The same numbers, so that they count once: fedavg and fedprox."
    assert same_remark({"a": {0: {}}, "b": {0: {}}}, columns) == ""
    assert "fedavg and fedprox" in " ".join(Grid(runs, ["received.mean.last"]).remarks())


@pytest.mark.parametrize(
    ("names", "best", "said"),
    [
        (["m:lr=0.1", "m:lr=0.2", "m:lr=0.4"], "m:lr=0.2", ""),
        (["m:lr=0.1", "m:lr=0.2", "m:lr=0.4"], "m:lr=0.1", "lr = 0.1 is the smallest"),
        (["m:a=x,lr=1", "m:a=y,lr=10", "m:a=y,lr=2"], "m:a=y,lr=10", "lr = 10 is the largest"),
        (["m:a=x", "m:a=y"], "m:a=y", ""),
        (["m:lr=1"], "m:lr=1", ""),
        (["m:mu=0", "m:mu=1"], "m:mu=0", ""),
    ],
)
def test_a_choice_at_the_end_of_what_was_tried(names: list[str], best: str, said: str) -> None:
    assert edge_remark(names, best).startswith(said)
    assert bool(edge_remark(names, best)) is bool(said)
