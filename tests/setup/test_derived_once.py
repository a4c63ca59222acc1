"""What a run stands on is not derived again and again: at most there is one to check the settings with, and its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie import Experiment, Iid
from coterie.core.federation import Federation
from coterie.methods import METHODS, FedAvg
from coterie.partition.partition import Partition
from coterie.setup import prepared as prepared_module
from coterie.setup.settings import Settings

TIMES = {
    "data": 1,
    "settings": 2,  # as they were given, and with the engine that was chosen
    "federation": 2,  # an outline without clients' rows, to see before the first round what would not work; the run's
    "init": 2,  # of both
    "split": 1,
    "model": 1,
    "sampler": 3,  # for the checks, for the guess how long it takes, for the run
    "stages": 2,
}


def test_a_recorded_run_derives_nothing_more_often_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str, what: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            counts[what] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    counted(Federation, "__init__", "federation")
    counted(Settings, "__post_init__", "settings")
    counted(FedAvg, "init", "init")
    counted(Partition, "class_counts", "split")
    for name, what in {"load": "data", "make_model": "model", "sampler_of": "sampler", "stages_of": "stages"}.items():
        counted(prepared_module, name, what)
    Experiment(partition=Iid(clients=3), rounds=2, epochs=1).run(tmp_path / "run")
    assert counts == TIMES


@pytest.mark.parametrize("name", sorted(METHODS))
def test_what_is_seen_in_the_outline_is_what_the_run_does(name: str) -> None:
    """The outline is the federation without clients' rows: the method makes the same of it."""
    prepared = Experiment(name, partition=Iid(clients=3), rounds=4, validation=0.2).prepare()
    federation = prepared.federation()
    federation.round = 1
    assert prepared.epochs == prepared.epochs_of(prepared.method.recipe(federation))
    assert prepared.resolved == prepared.method.resolved(prepared.bare_federation())
