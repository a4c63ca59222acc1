"""The engine that reconsiders: whoever does the work, the bits are the same; the faster one does it."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from coterie.core.federation import Federation
from coterie.engines import Processes, Serial, adaptive
from coterie.engines.adaptive import Contest
from coterie.engines.remote import WorkersFailError
from coterie.engines.shared_memory import shared_memory_lacks
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.processes import guards_itself
from coterie.rounds.listeners import Listener, StopAfter
from coterie.runs.directory import RunDirectory
from coterie.runs.resume import resume
from coterie.runs.run import Run
from coterie.testing.toys import toy_data, toy_partition, with_validation
from support import eventually, final_rows, tiny, without_times


def raced(*turns: tuple[str, float]) -> Contest:
    """A contest after some turns of a hundred samples, the first of each contestant aside."""
    contest = Contest()
    for name in dict.fromkeys(name for name, _ in turns):
        contest.observe(name, 100, 0.1)
    for name, seconds in turns:
        contest.observe(name, 100, seconds)
    return contest


BOTH = ("serial", "processes")


def test_who_has_not_been_measured_is_tried_and_the_first_turn_does_not_count() -> None:
    contest = Contest()
    contest.observe("serial", 100, 4.0)
    assert contest.pace("serial") is None
    contest.observe("serial", 100, 2.0)
    assert contest.pace("serial") == 0.02
    assert contest.choose(BOTH) == "processes"
    contest.observe("processes", 100, 4.0)
    assert contest.choose(BOTH) == "processes"
    contest.observe("processes", 100, 3.0)
    assert contest.choose(BOTH) == "serial"


def test_a_long_first_turn_counts() -> None:
    contest = Contest()
    contest.observe("serial", 100, 60.0)
    assert contest.pace("serial") == 0.6


def test_one_disturbance_changes_nothing_and_a_lasting_change_does() -> None:
    contest = raced(*[("serial", 2.0)] * 3, *[("processes", 1.0)] * 3)
    contest.observe("processes", 100, 9.0)
    assert contest.leader(BOTH) == "processes"
    contest.observe("processes", 100, 9.0)
    assert contest.leader(BOTH) == "serial"


def test_the_slower_one_has_a_turn_once_that_costs_little() -> None:
    contest = raced(("processes", 2.0), ("serial", 1.0))
    turns = 0
    while contest.choose(BOTH) == "serial":
        contest.observe("serial", 100, 1.0)
        turns += 1
    # A turn costs one second more than the leader's: two percent of fifty.
    assert 45 <= turns <= 55
    contest.observe("processes", 100, 0.5)
    contest.observe("processes", 100, 0.5)
    assert contest.leader(BOTH) == "processes"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start whatever they save, and are waited for: toy rounds would be over before they are ready."""
    prepare = Processes.prepare

    def prepared(engine: Processes, federation: Federation) -> bool:
        return eventually(lambda: prepare(engine, federation))

    monkeypatch.setattr(adaptive, "WORTH", -1.0)
    monkeypatch.setattr(Processes, "prepare", prepared)


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As soon as both can do it, every piece of work is done by the one that did not do the last."""
    told: list[str] = []
    turns = itertools.cycle(BOTH[::-1])

    def choose(contest: Contest, names: Sequence[str]) -> str:
        told.append(next(turns) if len(names) > 1 else names[0])
        return told[-1]

    monkeypatch.setattr(Contest, "choose", choose)
    return told


def in_one_process(name: str = "fedavg", **settings: Any) -> Run:
    return tiny(METHODS[name](), engine="serial", threads=1, **settings).run()


def same(one: Run, other: Run) -> bool:
    told = [without_times(result.lines) for result in (one, other)]
    return torch.equal(final_rows(one), final_rows(other)) and told[0] == told[1]


@pytest.mark.processes
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("name", "join"), [("fedavg", 1.0), ("fedcac", 1.0), ("fedfomo", 0.5), ("scaffold", 0.5)])
def test_changes_between_rounds_change_no_bit(name: str, join: float, in_turns: list[str]) -> None:
    settings = {"rounds": 5, "join": join, "partition": with_validation(toy_partition(toy_data(), 6))}
    found = tiny(METHODS[name](), engine="adaptive", workers=2, **settings).run()
    assert {"serial", "processes"} <= set(in_turns)
    assert same(found, in_one_process(name, **settings))


@pytest.mark.processes
@pytest.mark.usefixtures("eager")
def test_a_run_that_is_carried_on_reconsiders_as_well(tmp_path: Path, in_turns: list[str]) -> None:
    tiny(engine="adaptive", workers=2, rounds=4).run(tmp_path / "run", listeners=[StopAfter(2)])
    assert RunDirectory.open(tmp_path / "run").config()["engine"] == "adaptive"
    del in_turns[:]
    experiment = tiny(engine="adaptive", workers=2, rounds=4)
    assert same(resume(tmp_path / "run", experiment=experiment), in_one_process(rounds=4))
    assert "processes" in in_turns


@pytest.mark.processes
@pytest.mark.usefixtures("eager")
def test_workers_that_die_are_done_without(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(engine: Processes, *_: object, **__: object) -> NoReturn:
        raise WorkersFailError("worker processes keep dying")

    monkeypatch.setattr(Processes, "train", fail)
    monkeypatch.setattr(Processes, "test", fail)
    with caplog.at_level(logging.INFO, logger="coterie"):
        assert same(tiny(engine="adaptive", workers=2).run(), in_one_process())
    told = [one.getMessage() for one in caplog.records if "engine adaptive" in one.getMessage()]
    assert told == ["engine adaptive: everything is done in this process (worker processes keep dying)"]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("what", "gives", "told"),
    [
        ("main_can_be_imported", False, "the script has no"),
        ("shared_memory_lacks", "shared memory has room for 1 MB of 9", "room for 1 MB of 9"),
    ],
)
def test_workers_are_not_started_where_they_would_not_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str, gives: object, told: str
) -> None:
    def never(*_: object) -> NoReturn:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(adaptive, what, lambda *_: gives)
    monkeypatch.setattr("coterie.processes.WorkerProcesses.start", never)
    with caplog.at_level(logging.INFO, logger="coterie"):
        assert same(tiny(engine="adaptive", workers=2).run(), in_one_process())
    assert any(told in one.getMessage() for one in caplog.records)


def test_a_run_with_little_to_do_starts_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> NoReturn:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("coterie.processes.WorkerProcesses.start", never)
    ticks = itertools.count()  # every piece of work takes a hundredth of a second, however busy the machine
    monkeypatch.setattr(adaptive, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 100))
    assert same(tiny(engine="adaptive", workers=2).run(), in_one_process())


def test_errors_of_the_work_itself_are_not_taken_for_those_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise CoterieError("a mistake in the method")

    monkeypatch.setattr(Serial, "train", fail)
    with pytest.raises(CoterieError, match="a mistake in the method"):
        tiny(engine="adaptive", workers=2).run()


def test_clients_are_counted_through_a_cohort_that_is_trained_in_parts() -> None:
    seen: list[int] = []

    class Count(Listener):
        def clients_done(self, round: int, done: int, total: int) -> None:
            seen.append(done)

    tiny(engine="adaptive", workers=2, rounds=1).run(listeners=[Count()])
    assert seen == [1, 2, 3, 4]


def test_too_little_shared_memory_is_said_with_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = tiny("local").prepare()
    problem, federation = prepared.problem(), prepared.federation()
    assert shared_memory_lacks(problem, federation) == ""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    assert re.fullmatch(r"shared memory has room for 0 MB of \d+", shared_memory_lacks(problem, federation))


@pytest.mark.parametrize(
    ("source", "guarded"),
    [
        ("import x\nif __name__ == '__main__':\n    x.run()\n", True),
        ('if "__main__" == __name__:\n    run()\n', True),
        ("run()\n", False),
        ("def f():\n    if __name__ == '__main__':\n        run()\n", False),
    ],
)
def test_a_script_guards_itself_or_not(source: str, guarded: bool) -> None:
    assert guards_itself(source) is guarded
