"""Only models that are proved alike are stacked: odd ones are trained one by one, and the log says why."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.client.belongings import ATTRIBUTE, Belongings, belongings, changed
from coterie.client.recipe import Phase
from coterie.core.layout import Layout
from coterie.data import Dataset
from coterie.engines import Stacked
from coterie.engines.stacked.phase import StackedPhase
from coterie.engines.stacked.proof import not_alike
from coterie.engines.stacked.stack import Ground
from coterie.models import MODELS
from coterie.runs.experiment import Experiment
from coterie.setup.trials import measure
from coterie.setup.workload import ways_of
from coterie.testing.toys import seeded, toy_partition
from odd_models import (
    ODD_MODELS,
    FreshNoise,
    FunctionalDropout,
    LouderInTraining,
    NumpyNoise,
    Odd,
    RarelySkipped,
    WarmUp,
)
from support import rows_of, tiny, warnings_in

STACKED = [kind for kind, reason in ODD_MODELS.items() if reason is None]


@pytest.fixture(autouse=True)
def _unrehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of these models are refused before any engine sees them (tests/client/test_rehearsal.py): not here."""
    monkeypatch.setattr("coterie.setup.prepared.rehearse", lambda *_: None)


def run(kind: type[nn.Module], method: str, engine: str) -> Any:
    random.seed(5)
    np.random.seed(5)
    return tiny(method, seeded(kind), engine=engine, validation=None, momentum=0.5).run()


def one_by_one(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in warnings_in(caplog) if "one by one" in line]


def losses(result: Any) -> list[list[float]]:
    moments = ("received", "trained")
    return [line.values(moment, "loss") for line in result.lines for moment in moments if line.told(moment) is not None]


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "fedrep", "pfedcs"])
@pytest.mark.parametrize("kind", ODD_MODELS, ids=lambda kind: kind.__name__)
def test_odd_models_train_and_are_tested_as_in_the_serial_engine(
    kind: type[nn.Module], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie"):
        serial, stacked = (run(kind, method, engine) for engine in ("serial", "stacked"))
    said, reason = one_by_one(caplog), ODD_MODELS[kind]
    if reason is None:
        assert not said
        torch.testing.assert_close(rows_of(stacked.federation), rows_of(serial.federation), atol=2e-5, rtol=0)
        for ours, theirs in zip(losses(stacked), losses(serial), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
        return
    assert len(said) == 1
    assert said[0].startswith("stacked engine: clients are trained one by one instead, since ")
    assert reason in said[0]
    if kind is not FreshNoise:  # which never comes out the same
        assert torch.equal(rows_of(stacked.federation), rows_of(serial.federation))
        assert losses(stacked) == losses(serial)


@pytest.mark.parametrize("kind", [FunctionalDropout, NumpyNoise, WarmUp], ids=lambda kind: kind.__name__)
def test_no_trial_lets_such_a_model_be_stacked(kind: type[nn.Module]) -> None:
    prepared = tiny("fedavg", seeded(kind), engine="auto").prepare()
    assert any(way.engine == "stacked" for way in ways_of(prepared))
    assert not any(way.engine == "stacked" for way in measure(prepared, ways_of(prepared)))


def test_a_trial_lets_a_plain_model_be_stacked() -> None:
    prepared = tiny("fedavg", engine="auto").prepare()
    assert any(way.engine == "stacked" for way in measure(prepared, ways_of(prepared)))


@pytest.mark.parametrize("kind", [NumpyNoise, RarelySkipped], ids=lambda kind: kind.__name__)
def test_a_proof_draws_nothing_from_anybody(kind: type[nn.Module]) -> None:
    prepared = tiny("fedavg", seeded(kind)).prepare()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = torch.rand(3), random.random(), np.random.rand()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    Stacked(prepared.problem(), prepared.method, 0)
    assert torch.equal(torch.rand(3), expected[0])
    assert (random.random(), np.random.rand()) == expected[1:]


@pytest.mark.parametrize("batch", [1, 2, 5, 1000])
@pytest.mark.parametrize("clients", [1, 2, 5])
@pytest.mark.parametrize("model", ["plain", "norm", "dropout", "relu"])
def test_usual_models_are_proved_alike(model: str, clients: int, batch: int) -> None:
    prepared = tiny("fedavg", model, clients, batch=batch).prepare()
    assert not_alike(Ground.of(prepared.problem(), 0, "cpu"), prepared.method) is None


def images(shape: tuple[int, ...], seed: int = 0) -> Dataset:
    stream = np.random.default_rng(seed)
    labels = stream.integers(10, size=150)
    labels[:10] = np.arange(10)
    inputs = torch.tensor(stream.normal(size=(150, *shape)), dtype=torch.float32)
    return Dataset("images", inputs, torch.tensor(labels), classes=10)


LARGE = ("alexnet_small", "resnet10", "resnet18", "mobilenet_v2")


@pytest.mark.thorough
@pytest.mark.parametrize("classifier", ["last", "all"])
@pytest.mark.parametrize("norm", [None, "group"])
@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in sorted(MODELS)]
)
@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
def test_registered_models_are_stacked(model: str, norm: Any, classifier: str, memory: Any) -> None:
    data = images((3, 32, 32))
    prepared = Experiment(
        "fedavg", data=data, partition=toy_partition(data), model=model, norm=norm, classifier=classifier, memory=memory
    ).prepare()
    assert not_alike(Ground.of(prepared.problem(), 0, "cpu"), prepared.method) is None


@pytest.mark.parametrize("kind", STACKED, ids=lambda kind: kind.__name__)
def test_a_stacked_model_that_is_not_in_training_is_found_out(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that does otherwise in training would be trained as it is tested if its mode were not set."""
    monkeypatch.setattr("coterie.engines.stacked.model._set_mode", lambda module, training: module.eval())
    prepared = tiny("fedavg", seeded(kind)).prepare()
    found = not_alike(Ground.of(prepared.problem(), 0, "cpu"), prepared.method)
    assert (found is not None) == kind.__name__.startswith("Louder")


def test_a_gradient_that_is_wrong_for_some_clients_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """In passes that are written out, as in those that are not."""
    gradients = StackedPhase._step

    def lessened(phase: StackedPhase, grads: list[Tensor], k: int) -> None:
        gradients(phase, [torch.cat([grad[:1], 0.95 * grad[1:]]) for grad in grads], k)

    monkeypatch.setattr(StackedPhase, "_step", lessened)
    prepared = tiny("fedavg").prepare()
    reason = not_alike(Ground.of(prepared.problem(), 0, "cpu"), prepared.method)
    assert reason == "the model does otherwise together than alone: the gradient of 'body.0.weight' differs"


class Keeper(Odd):
    """Keeps things of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0, 1),
        (1, True),
        ([1, [2]], [1, [3]]),
        ({"a": {1}}, {"a": {2}}),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2), torch.zeros(3)),
        (np.zeros(2), np.ones(2)),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (random.Random(1), random.Random(2)),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
        (iter([1, 2]), iter([1])),
        (Dataset, Experiment),
        (Phase(), Phase(train="classifier")),
    ],
    ids=lambda kept: type(kept).__name__,
)
def test_whatever_a_model_keeps_is_seen_to_change(before: Any, after: Any) -> None:
    net = Keeper()
    layout = Layout(net, "classifier")

    def seen(value: Any) -> Belongings:
        net.kept = value
        return belongings({"": net}, layout)

    key = (ATTRIBUTE, "kept")
    assert changed(seen(before), seen(before)) is None
    assert changed(seen(before), seen(after)) == key
    without = dict(seen(before))
    del without[key]
    assert changed(without, seen(before)) == changed(seen(before), without) == key


def test_rows_may_change_under_any_name() -> None:
    net = Keeper()
    net.kept = [net.body, net.body.weight, {"again": net}]
    layout = Layout(net, "classifier")
    before = belongings({"": net}, layout)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    assert changed(before, belongings({"": net}, layout)) is None


def test_what_only_training_does_is_stacked_with_other_terms_too(caplog: pytest.LogCaptureFixture) -> None:
    """MOON looks at the model as it was received, which is not in training, and at the one that is."""
    with caplog.at_level(logging.WARNING, logger="coterie"):
        serial, stacked = (run(LouderInTraining, "moon", engine) for engine in ("serial", "stacked"))
    assert not one_by_one(caplog)
    torch.testing.assert_close(rows_of(stacked.federation), rows_of(serial.federation), atol=2e-5, rtol=0)
