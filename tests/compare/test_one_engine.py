"""Runs that are compared get one engine: chosen once, by the first of them, for all methods and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.compare import joint_runs as running
from coterie.compare.joint_runs import OneEngine
from coterie.compare.table import compare
from coterie.partition import Iid
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.setup.engine_choice import Choice
from coterie.setup.prepared import Prepared
from coterie.setup.workload import Way
from support import tiny

STACKED = Way("stacked", 1, "contiguous")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Way] | None]:
    """Whoever is asked to choose says `stacked`; the ways that were to be chosen from, each time."""
    told: list[Sequence[Way] | None] = []

    def choose(prepared: Prepared, ways: Sequence[Way] | None = None) -> Choice:
        told.append(ways)
        return Choice(STACKED, "it was told so")

    monkeypatch.setattr(running, "choose", choose)
    monkeypatch.setattr(running, "cores", lambda: 2)
    monkeypatch.setattr("coterie.setup.workload.cores", lambda: 2)
    return told


def small(method: str = "fedavg", **options: object) -> Experiment:
    return Experiment(method=method, **{"rounds": 2, "epochs": 1, "partition": Iid(clients=3), **options})


def ways(experiments: dict[str, Experiment]) -> set[tuple[str, int, str]]:
    return {(one.engine, one.threads, one.memory) for one in experiments.values()}


def test_all_methods_and_seeds_get_what_the_first_gets(asked: list[object]) -> None:
    three = {name: small(name) for name in ("fedavg", "fedper", "local")}
    assert ways(OneEngine([0, 1], jobs=0, folder=None).settle(three)) == {("stacked", 1, "contiguous")}
    assert asked == [[Way("serial", 1, "contiguous"), STACKED]]  # there are as many runs as cores: each gets one


def test_runs_that_follow_one_another_get_all_cores(asked: list[object]) -> None:
    OneEngine([0, 1], jobs=1, folder=None).settle({"one": small()})
    OneEngine([0], jobs=0, folder=None).settle({"one": small()})
    OneEngine([0, 1], jobs=0, folder=None).settle({"own": tiny()})  # which cannot run beside others
    assert asked == [None] * 3


def test_settings_that_are_no_more_work_do_not_matter_and_others_do(asked: list[object]) -> None:
    settle = OneEngine([0], jobs=1, folder=None).settle
    settle({f"lr={lr}": small(lr=lr) for lr in (0.01, 0.1)})
    settle({"momentum": small(momentum=0.9)})
    assert len(asked) == 1
    settle({"batch": small(batch=7)})
    assert len(asked) == 2


def test_what_is_named_is_left_alone(asked: list[object]) -> None:
    named = {"one": small(engine="serial", memory="contiguous")}
    assert OneEngine([0], jobs=0, folder=None).settle(named) == named
    assert asked == []


@pytest.mark.thorough
def test_a_comparison_goes_on_as_it_was_begun(asked: list[object], tmp_path: Path) -> None:
    compare({"fedavg": small()}, [0], tmp_path / "out", jobs=1)
    assert len(asked) == 1
    compare({"fedavg": small(), "local": small("local")}, [0, 1], tmp_path / "out", jobs=1)
    assert len(asked) == 1
    found = [RunDirectory.open(folder).config() for folder in (tmp_path / "out").iterdir() if folder.is_dir()]
    assert [(one["engine"], one["threads"]) for one in found] == [("stacked", 1)] * 4
