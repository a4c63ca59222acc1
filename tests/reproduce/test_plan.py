"""What would settle a claim: seeds by the published effect and the noise seen, hours by what has run."""

from __future__ import annotations

from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from tests.cli.cli_tools import call
from tests.reproduce.toy import toy_table

from coterie.core.evidence import further_seeds
from coterie.reproduce.cells import Amount, TableCell
from coterie.reproduce.paper import PaperTable
from coterie.reproduce.plan import Plan, TablePlans
from coterie.reproduce.store import Results


def with_records(table: PaperTable, folder: Path, **scores: list[float]) -> list[Plan]:
    """The plans of a table whose first column ran so, a cell a seed, each in 36 seconds."""
    results, column = Results(table, folder), table.columns[0]
    for row, values in scores.items():
        for seed, value in enumerate(values):
            cell = TableCell(table, table.row(row), column, seed)
            every = {moment: {"weighted": {"last": value}} for moment in ("received", "trained", "stored")}
            record: dict[str, Any] = dict.fromkeys(("upload", "download", "seconds", "period", "first"), 0.0)
            record |= {"row": row, "column": column.key, "seed": seed, "rounds": None, "share": 1.0, "data": ""}
            record |= {
                "config": cell.config,
                "scores": every,
                "runtime": 36.0,
                "diverged": {},
                "partition": "",
                "machine": {},
            }
            results.add(cell, record)
    return [plan for plan in TablePlans(table, folder) if plan.column == column.title]


def test_seeds_follow_from_the_published_effect_and_the_noise_seen(tmp_path: Path) -> None:
    lead = next(iter(with_records(toy_table(), tmp_path, pfedsim=[0.70, 0.71], local=[0.50, 0.60])))
    # Published: 60 against 55, of a method that is not here; what is here spreads by 20 and 11 points.
    assert lead.published == pytest.approx(5.0)
    assert lead.noise == pytest.approx(stdev([20.0, 11.0]))
    assert lead.word.startswith("needs ")
    assert not lead.open


def test_hours_are_those_of_the_cells_that_are_missing(tmp_path: Path) -> None:
    plans = with_records(toy_table(), tmp_path, pfedsim=[0.70, 0.71], local=[0.50, 0.60], fedavg=[0.40])
    claim = next(plan for plan in plans if plan.published == pytest.approx(10.0))  # Local 50, FedAvg 40
    seeds = further_seeds(0, 10.0, stdev([20.0, 11.0]))
    assert claim.seeds == seeds
    assert seeds is not None
    assert claim.seeds_run == 1
    assert claim.hours == pytest.approx(((seeds - 2) + (seeds - 1)) * 36.0 / 3600)
    assert claim.word == "points the same way (1 seed)"
    assert claim.open


def test_nothing_is_foreseen_of_what_never_ran(tmp_path: Path) -> None:
    plans = list(TablePlans(toy_table(), tmp_path))
    assert plans
    assert all((plan.noise, plan.seeds, plan.hours, plan.seeds_run) == (None, None, None, 0) for plan in plans)


def test_a_short_run_is_scaled_to_a_whole_one(tmp_path: Path) -> None:
    table = toy_table()
    results, cell = Results(table, tmp_path), TableCell(table, table.row("local"), table.columns[0], 0, Amount(1, 0.5))
    record = {"row": "local", "column": table.columns[0].key, "seed": 0, "rounds": 1, "share": 0.5, "runtime": 10.0}
    results.cells[cell.digest] = record
    plans = TablePlans(table, tmp_path)
    rounds = TableCell(table, table.row("local"), table.columns[0], 0).experiment.rounds
    assert plans._whole(record) == pytest.approx(10.0 * rounds / 0.5)


def test_the_command_says_it_of_every_claim(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = call(capsys, "reproduce", "fedtc-table2", "--plan", "--results", str(tmp_path))
    assert answer.code == 0, answer.err
    assert "FedTC leads" in answer.out
    assert "given the noise" in answer.out
