"""`coterie reproduce` as it is used: the list, a table, mistakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.reproduce.toy import toy_table

from coterie.cli import main
from coterie.reproduce.paper import paper_tables


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A toy table in place of the papers'."""
    monkeypatch.setattr("coterie.reproduce.paper.find_table", lambda key, besides: toy_table())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_list_names_every_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["reproduce", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for key in (*paper_tables(), "pfedsim-table2"):
        assert f"\n{key} " in shown


@pytest.mark.thorough
def test_a_table_is_run_printed_and_written(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "toy-table1", "--columns", "half", "--methods", "local,pfedsim", "--jobs", "1"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "Half (in full)" in shown.out
    assert "pFedSim leads those that ran (ours: against Local) points" in shown.out
    assert (toy / "results" / "toy-table1.md").read_text().startswith("# Toy, table 1: digits")
    assert (toy / "results" / "toy-table1.svg").is_file()
    shutil.rmtree(toy / "runs")
    assert main([*words, "--seeds", "0", "1"]) == 0
    told = capsys.readouterr().err
    assert "2 of 4 cells are in results already and are not run again; to run them yourself, give --results" in told
    ran = sorted(path.name.rpartition("-")[0] for path in (toy / "runs" / "cells").iterdir())
    assert ran == ["local-digits-s1", "pfedsim-digits-s1"]


def test_a_budget_names_what_it_leaves_out(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["reproduce", "toy-table1", "--columns", "tenth", "--methods", "local", "--jobs", "1", "--hours", "1e-9"])
        == 0
    )
    assert "left out for want of time: toy-table1, tenth, local, seed 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pfedsim-table4", "unknown table 'pfedsim-table4'; did you mean"),
        ("pfedsim-table1", "pfedsim-table2"),
        ("pfedsim-table3 --columns cifar10", "unknown column of pfedsim-table3 'cifar10'; did you mean"),
        ("pfedsim-table3 --methods fedpr", "unknown method of pfedsim-table3 'fedpr'; did you mean"),
        ("pfedsim-table3 --share 2", "share = 2: must be above 0 and at most 1"),
        ("pfedsim-table3 --rounds 0", "rounds = 0: must be at least 1"),
        ("pfedsim-table3 --jobs -1", "jobs = -1: must not be negative"),
        ("pfedsim-table3 --hours 0", "hours = 0: must be more than 0"),
        ("pfedsim-table3 --data cifar11", "unknown data set 'cifar11'"),
        ("--check --results nowhere", "results = nowhere: holds no results"),
    ],
)
def test_mistakes_are_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *words.split()]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
