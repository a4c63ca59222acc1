"""What clients compute is counted where they compute it, and is the same whoever trains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.client.effort import FORWARD, STEPS, Effort, EffortColumns, joined_columns
from coterie.client.model import MountedModel
from coterie.client.problem import Problem
from coterie.engines.base import Engine
from coterie.engines.processes import Processes
from coterie.engines.serial import Serial
from coterie.engines.stacked.engine import Stacked
from coterie.methods import METHODS, Method
from coterie.methods.ditto import Ditto
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedpac import FedPAC
from coterie.methods.fedrep import FedRep
from coterie.methods.moon import MOON
from coterie.methods.per_fedavg import PerFedAvg
from coterie.methods.pfedme import PFedMe
from coterie.privacy.steps import PrivateSteps
from coterie.rounds.judge import Judge
from coterie.rounds.listeners import RoundReport
from coterie.rounds.round import Rounds
from coterie.runs.experiment import Experiment
from coterie.testing.toys import ROUNDS, toy_experiment
from support import tiny

BATCH, EPOCHS = 10, 2


def reports(make: Callable[[Problem, Method, int], Engine], experiment: Experiment) -> list[RoundReport]:
    prepared = experiment.prepare()
    engine = make(prepared.problem(), prepared.method, 0)
    try:
        rounds = prepared.rounds(engine)
        return [rounds.run_round() for _ in range(experiment.rounds)]
    finally:
        engine.close()


def sizes_and_batches(experiment: Experiment) -> list[tuple[int, int]]:
    sizes = [len(own) for own in experiment.prepare().problem().train]
    return [(size, math.ceil(size / BATCH)) for size in sizes]


def by_client(columns: EffortColumns) -> list[Effort]:
    steps = {name.removeprefix(STEPS): counts for name, counts in columns.items() if name != FORWARD}
    return [
        Effort({moves: counts[place] for moves, counts in steps.items()}, forward)
        for place, forward in enumerate(columns[FORWARD])
    ]


def last_efforts(method: Method, make: Callable[[Problem, Method, int], Engine] = Serial, **more: Any) -> Any:
    experiment = tiny(method, rounds=2, epochs=EPOCHS, batch=BATCH, **more)
    return zip(by_client(reports(make, experiment)[-1].efforts), sizes_and_batches(experiment), strict=True)


@pytest.mark.parametrize("make", [Serial, Stacked])
def test_by_hand(make: Callable[[Problem, Method, int], Engine]) -> None:
    """E epochs are so many steps and passes for each model that trains; a frozen extractor's pass is one for all."""
    e = EPOCHS
    for effort, (size, batches) in last_efforts(METHODS["fedavg"](), make):
        assert effort == Effort({"model": e * batches}, e * size)
    for effort, (size, batches) in last_efforts(Ditto(), make):
        assert effort == Effort({"model": e * batches, "personal": e * batches}, 2 * e * size)
    for effort, (size, batches) in last_efforts(Ditto(personal_epochs=1), make):
        assert effort == Effort({"model": e * batches, "personal": batches}, (e + 1) * size)
    for effort, (size, batches) in last_efforts(FedRep(head_epochs=5), make):
        assert effort == Effort({"classifier": 5 * batches, "extractor": e * batches}, (1 + e) * size)
    # Statistics and classifier share a pass; class means are taken of the trained extractor, once more.
    for effort, (size, batches) in last_efforts(FedPAC(), make):
        assert effort == Effort({"classifier": e * batches, "extractor": e * batches}, (2 + e) * size)
    for effort, (size, batches) in last_efforts(MOON(), make):
        assert effort == Effort({"model": e * batches}, 3 * e * size)
    for effort, (size, batches) in last_efforts(PFedMe(steps=4), make):
        assert effort == Effort({"personal + model": 4 * e * batches}, 4 * e * size)


@pytest.mark.parametrize("make", [Serial, Stacked])
def test_every_pass_through_an_extractor_is_counted(
    make: Callable[[Problem, Method, int], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the seat's own extractors are really given, sample by sample, is what is told."""
    given: list[int] = []
    begin = MountedModel.__init__

    def listening(self: MountedModel, *rest: Any) -> None:
        begin(self, *rest)
        self.trunk.register_forward_pre_hook(lambda _, inputs: given.append(len(inputs[0])))

    for name in ("fedavg", "fedala", "fedap", "fedfomo", "feddistill", "pfedme", "per-fedavg", "apple"):
        experiment = toy_experiment(METHODS[name](), "plain")
        monkeypatch.undo()
        prepared = experiment.prepare()
        monkeypatch.setattr(MountedModel, "__init__", listening)  # after the rehearsal, which refuses such hooks
        engine = make(prepared.problem(), prepared.method, 0)
        if type(engine) is Stacked and engine.declines(prepared.method.recipe(prepared.federation())) is None:
            continue  # whose extractors are not called as modules
        federation = prepared.federation()
        judge = Judge(prepared.method, federation, engine, evaluate_every=99)
        rounds = Rounds(prepared.method, federation, engine, judge=judge)
        given.clear()
        report = rounds.run_round()
        assert sum(given) == sum(report.efforts[FORWARD]), name


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("model", ["plain", "norm"])
def test_stacked_counts_the_same(name: str, model: str) -> None:
    ours, theirs = (reports(make, toy_experiment(METHODS[name](), model, join=0.7)) for make in (Stacked, Serial))
    assert [(one.efforts, one.tuning) for one in ours] == [(one.efforts, one.tuning) for one in theirs]
    assert all(one.efforts for one in theirs)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["fedala", "fedpac", "per-fedavg"])
def test_processes_count_the_same(name: str) -> None:
    ours, theirs = (
        reports(make, toy_experiment(METHODS[name](), join=0.7))
        for make in (lambda *of: Processes(*of, workers=2), Serial)
    )
    assert [(one.efforts, one.tuning) for one in ours] == [(one.efforts, one.tuning) for one in theirs]


def test_tuning_before_a_test_is_told_apart() -> None:
    experiment = tiny(FedBABU(tune_epochs=3), rounds=2, epochs=EPOCHS, batch=BATCH)
    first, last = reports(Serial, experiment)
    assert first.tuning == (0, 0)
    tuned = 3 * sum(batches for _, batches in sizes_and_batches(experiment))
    assert last.tuning == (2 * tuned, 2 * 4)  # as trained, and as received
    assert first.efforts == last.efforts


def test_private_examples_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    samples = PrivateSteps.samples

    def recorded(self: PrivateSteps, count: int) -> Iterator[Tensor]:
        for part in samples(self, count):
            drawn.append(len(part))
            yield part

    monkeypatch.setattr(PrivateSteps, "samples", recorded)
    experiment = tiny(
        rounds=1, epochs=EPOCHS, batch=BATCH, privacy="example", privacy_noise=1.0, privacy_clip=1.0, size_noise=0.0
    )
    (report,) = reports(Serial, experiment)
    for effort, (_, batches) in zip(by_client(report.efforts), sizes_and_batches(experiment), strict=True):
        assert effort.steps == {"model": EPOCHS * batches}
    assert sum(report.efforts[FORWARD]) == sum(drawn) > 0


def test_a_run_tells_of_it() -> None:
    result = tiny(PerFedAvg(tune_epochs=4), rounds=ROUNDS, epochs=EPOCHS, batch=BATCH).run()
    told = result.summary["effort"]
    batches = [count for _, count in sizes_and_batches(tiny())]
    sizes = [size for size, _ in sizes_and_batches(tiny())]
    assert told["tuning"] == pytest.approx(4 * sum(batches) / len(batches))
    assert told["steps"].keys() == {"model"}
    # Two gradients a batch, each of one half; a batch of a single sample is passed over.
    assert 2 * EPOCHS * (sum(batches) - len(batches)) / len(batches) <= told["steps"]["model"]
    assert told["forward"] <= EPOCHS * sum(sizes) / len(sizes)
    (line, *_) = result.lines
    assert len(line.effort["forward"]) == len(line.cohort)


def test_parts_of_a_cohort_are_joined_in_order() -> None:
    """Who has not done what another did, did it 0 times."""
    first, second = {FORWARD: [8, 4], f"{STEPS}a": [2, 1]}, {FORWARD: [6], f"{STEPS}b": [3]}
    assert joined_columns([first, second]) == {FORWARD: [8, 4, 6], f"{STEPS}a": [2, 1, 0], f"{STEPS}b": [0, 0, 3]}


def test_nothing_is_told_where_nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    train = Serial.train

    def silent(self: Serial, *rest: Any) -> Any:
        trained = train(self, *rest)
        trained.efforts = {}
        return trained

    monkeypatch.setattr(Serial, "train", silent)
    result = tiny(engine="serial").run()
    assert "effort" not in result.summary
    assert all(not line.effort for line in result.lines)
    assert torch.isfinite(torch.tensor(result.summary["bytes"]["total"]))
