"""`coterie engines`: which there are, and which one a command line would get."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.cli_tools import SMALL, call

from coterie.engines import ENGINES
from coterie.setup import trials
from coterie.setup.workload import Way

FOUND = {Way("adaptive", 1, "contiguous"): 0.5, Way("stacked", 1, "contiguous"): 0.25}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_it_lists_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "engines")
    assert answer.code == 0
    assert all(f"\n{name} " in answer.out for name in ENGINES)


def test_a_short_run_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "engines", "fedper", *SMALL)
    assert answer.code == 0
    assert "A run would get: serial, 1 thread, contiguous" in answer.out
    assert "the run is short" in answer.out


def test_it_shows_what_was_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "measure", lambda prepared, ways: FOUND)
    command = "engines", "fedper", "--rounds", "1000000"
    answer = call(capsys, *command)
    assert answer.code == 0
    rows = [line.split() for line in answer.out.splitlines()]
    assert ["stacked", "1", "contiguous", "0.25", "1.00"] in rows
    assert ["adaptive", "1", "contiguous", "0.5", "2.00"] in rows
    assert "A run would get: stacked, 1 thread, contiguous" in answer.out
    assert "Measured 1 time in the last day" in answer.out
    told = call(capsys, *command, "--json").json
    assert (told["engine"], told["threads"], told["memory"]) == ("stacked", 1, "contiguous")
    assert len(told["measured_at"]) == 2
    assert told["seconds_a_round"]["stacked, 1 thread, contiguous"] == pytest.approx(0.25)


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "engines", "fedper", "--engine", "serail")
    assert answer.code == 2
    assert "unknown engine 'serail'" in answer.err
