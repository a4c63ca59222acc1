"""How clients do on the samples they train on: the same whoever trains them, told by the outputs of training itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor
from torch.nn import functional

from coterie.client.recipe import Phase, Recipe
from coterie.client.scores import TrainingScores
from coterie.client.views import BatchView
from coterie.core.federation import Federation
from coterie.core.task import Classification
from coterie.engines.stacked import phase
from coterie.methods import METHODS, FedAvg
from coterie.runs.experiment import Experiment
from coterie.testing.toys import seeded
from support import MODELS, tiny

WHOLE = 1000  # a batch that holds all samples of a client


def told(experiment: Experiment) -> list[Mapping[str, list[float]]]:
    return [line.training for line in experiment.run().lines]


def by_hand(experiment: Experiment, epochs: int) -> tuple[list[float], list[float]]:
    """Loss and accuracy of every client in its last epoch of the first round, whole batches and plain descent."""
    problem = experiment.prepare().problem()
    losses, shares = [], []
    for own in problem.train:
        model = seeded(MODELS["plain"])
        for _ in range(epochs):
            outputs = model(problem.inputs[own])
            loss = functional.cross_entropy(outputs, problem.labels[own])
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, grad in zip(model.parameters(), grads, strict=True):
                    parameter -= experiment.lr * grad
        losses.append(float(loss.detach()))
        shares.append(float((outputs.argmax(1) == problem.labels[own]).double().mean()))
    return losses, shares


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_it_is_the_last_epoch_before_each_step(engine: str, epochs: int) -> None:
    experiment = tiny("fedavg", rounds=1, epochs=epochs, batch=WHOLE, engine=engine)
    (found,) = told(experiment)
    losses, shares = by_hand(experiment, epochs)
    assert_allclose(found["loss"], losses, rtol=1e-5)
    assert_allclose(found["accuracy"], shares)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fedavg", "fedrep", "moon", "fedtc", "ditto"])
def test_the_stacked_engine_tells_what_the_serial_one_tells(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether gradients are written out, the classifier trains alone, terms look elsewhere, or outputs are many."""
    settings = {"batch": 4, "epochs": 2, "clients": 5, "rounds": 2}
    serial, stacked = (told(tiny(METHODS[name](), engine=engine, **settings)) for engine in ("serial", "stacked"))
    monkeypatch.setattr(phase, "MOST_NUMBERS", 20)
    pieces = told(tiny(METHODS[name](), engine="stacked", **settings))
    for found in (stacked, pieces):
        for ours, theirs in zip(found, serial, strict=True):
            assert_allclose(ours["loss"], theirs["loss"], rtol=1e-4)
            assert_allclose(ours["accuracy"], theirs["accuracy"])


def test_who_is_scored_beside_a_client_does_not_show() -> None:
    """Clients that share a worker have the very sums that they have in one process, to the last bit."""
    task, stream = Classification(3), torch.Generator().manual_seed(0)
    for _ in range(300):  # what is left over after whole vectors is rounded otherwise, a few times in ten thousand
        seen = [(torch.randn(size, 3, generator=stream), torch.arange(size) % 3) for size in (40, 39)]
        together, alone = TrainingScores(task, 2), []
        for client, batch in enumerate(seen):
            together.take(client, [batch])
            by_itself = TrainingScores(task, 1)
            by_itself.take(0, [batch])
            alone += by_itself.sums()
        assert together.sums() == alone


def test_pulls_on_the_row_are_no_part_of_it() -> None:
    """Before the first step, a proximal term has moved nothing yet: the loss is the task's alone."""
    plain, pulled = (told(tiny(method, rounds=1, batch=WHOLE)) for method in ("fedavg", METHODS["fedprox"](mu=100.0)))
    assert plain == pulled


def features_only(batch: BatchView) -> Tensor:
    return batch.features.square().mean(1)


@dataclass(frozen=True)
class Shrinking(FedAvg):
    """Nobody asks for the outputs of its model."""

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(terms=(features_only,)),)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_who_never_puts_anything_out_has_no_number(engine: str) -> None:
    (found,) = told(tiny(Shrinking(), rounds=1, engine=engine))
    assert found == {"accuracy": [None] * 4, "loss": [None] * 4}


def test_only_the_cohort_is_told_of_and_a_diverged_client_too() -> None:
    result = tiny("fedavg", "relu", rounds=2, join=0.5, lr=1e30).run()
    for line in result.lines:
        assert line.diverged
        assert len(line.training["loss"]) == len(line.cohort) == 2
        assert all(value is None or np.isfinite(value) for value in line.training["loss"])
