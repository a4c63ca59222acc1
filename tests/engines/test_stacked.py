"""The stacked engine agrees with the serial one, or says why it does not stack."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.client.batch import Batch
from coterie.client.recipe import Phase, Recipe, phases, plain_steps
from coterie.client.terms import Proximal, task_loss
from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.core.training import OPTIMISERS as OPTIMISERS_OF_RUNS
from coterie.engines import Serial, Stacked, Work
from coterie.engines.stacked.model import BatchedNet
from coterie.engines.stacked.phase import StackedPhase
from coterie.engines.stacked.stack import Ground, PaddedIndices, Stack
from coterie.errors import CoterieError
from coterie.methods import METHODS, FedPer, FedTC, Method
from coterie.runs.experiment import Experiment
from coterie.setup.engine_choice import with_choice
from coterie.testing.toys import PlainNet, seeded
from support import rows_of, tiny, warnings_in

pytestmark = pytest.mark.thorough

TOLERANCE = 2e-5


def both(method: Method | str, model: str | nn.Module = "plain", **options: Any) -> tuple[Any, Any]:
    settings = {"momentum": 0.5, "weight_decay": 1e-3, "validation": None, "rounds": 4, **options}
    return tuple(tiny(method, model, engine=engine, **settings).run() for engine in ("serial", "stacked"))


def assert_alike(serial: Any, stacked: Any) -> None:
    for slot in serial.federation.slots:
        ours, theirs = rows_of(stacked.federation, slot), rows_of(serial.federation, slot)
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0, msg=slot)
    for name, value in serial.federation.values.items():
        torch.testing.assert_close(stacked.federation.values[name], value, atol=1e-4, rtol=1e-3, equal_nan=True)
    for ours, theirs in zip(stacked.lines, serial.lines, strict=True):
        assert ours.cohort == theirs.cohort
        for moment in ("received", "trained"):
            assert (ours.told(moment) is None) == (theirs.told(moment) is None)
            assert ours.values(moment, "loss") == pytest.approx(theirs.values(moment, "loss"), abs=1e-3)


# FedFomo needs validation data and SCAFFOLD refuses momentum; their rules and recipes are declined or covered below.
PLAIN = sorted(set(METHODS) - {"fedfomo", "scaffold"})


@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize("name", PLAIN)
def test_every_method_agrees_with_the_serial_engine(name: str, join: float) -> None:
    assert_alike(*both(METHODS[name](), join=join))


def test_scaffold_agrees_without_momentum() -> None:
    assert_alike(*both("scaffold", momentum=0.0))


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 7},
        {"batch": 1000},
        {"epochs": 3},
        {"clip": 0.05},
        {"schedule": "exponential", "decay": 0.5},
        {"clients": 1},
        {"evaluate_every": 3, "join": 0.5},
    ],
    ids=str,
)
def test_settings_agree_with_the_serial_engine(options: dict[str, Any]) -> None:
    assert_alike(*both("fedprox", **options))


def test_two_rates_agree() -> None:
    assert_alike(*both(FedTC(lr_classifier=0.3)))


class Conv(nn.Module):
    """Convolution, pooling and a layer that is not batched by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.GELU(), nn.Flatten()
        )
        self.classifier = nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedrep", "pfedcs", "moon"])
def test_convolutions_and_unknown_layers_agree(method: str) -> None:
    assert_alike(*both(method, seeded(Conv)))


def test_batched_models_give_each_client_its_own_output() -> None:
    module = seeded(Conv)
    layout = Layout(module, "classifier")
    net = BatchedNet(module, layout)
    rows = layout.row(module) + 0.1 * torch.randn(3, layout.width)
    x = torch.randn(3, 5, 6)
    tensors = net.tensors(rows)
    found = net.logits(tensors, net.features(tensors, x))
    for client in range(3):
        torch.testing.assert_close(found[client], layout.load(seeded(Conv), rows[client])(x[client]))


def test_most_methods_are_really_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The serial engine must not do the work behind our back."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained one by one")

    monkeypatch.setattr(Serial, "train", refuse)
    for name in PLAIN:
        method = METHODS[name]()
        prepared = tiny(method).prepare()
        federation = prepared.federation()
        federation.round = 2
        recipe = method.recipe(federation)
        stackable = all(phase.rule is plain_steps for phase in phases(recipe)) and name != "fedgen"
        engine = Stacked(prepared.problem(), method, 0)
        if stackable:
            engine.train(federation, Work(recipe), federation.everyone)
        else:
            with pytest.raises(AssertionError, match="one by one"):
                engine.train(federation, Work(recipe), federation.everyone)


# Adam's step is much the same however small a gradient is, so that where one is next to nothing, rounding decides.
OPTIMISERS = sorted(set(OPTIMISERS_OF_RUNS) - {"sgd"})


@pytest.mark.parametrize("optimizer", OPTIMISERS)
def test_optimisers_agree(optimizer: str, caplog: pytest.LogCaptureFixture) -> None:
    decay = 0.0 if optimizer == "rprop" else 1e-3
    with caplog.at_level(logging.WARNING, logger="coterie"):
        both_ran = both("fedprox", optimizer=optimizer, momentum=0.0, weight_decay=decay, lr=0.01, epochs=2)
    assert_alike(*both_ran)
    assert not [line for line in warnings_in(caplog) if "one by one" in line]
    assert not torch.equal(rows_of(both_ran[1].federation), rows_of(tiny("fedprox").prepare().federation()))


# In small steps: large ones blow rounding up, from round to round, whatever the engine.
GENTLY = {"lr": 0.02, "join": 0.75}


@pytest.mark.parametrize("options", [{"batch": 7}, {"epochs": 3, "clip": 0.05}], ids=str)
@pytest.mark.parametrize("method", ["fedavg", "fedrep", "pfedcs", "moon"])
@pytest.mark.parametrize("model", ["norm", "dropout", "image"])
def test_layers_that_change_in_training_agree(
    model: str, method: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie"):
        assert_alike(*both(method, seeded(ImageNet) if model == "image" else model, **GENTLY, **options))
    assert not [line for line in warnings_in(caplog) if "one by one" in line]


@pytest.mark.parametrize("options", [{"batch": 1}, {"optimizer": "adam", "momentum": 0.0}], ids=str)
def test_a_classifier_may_drop_too(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie"):
        assert_alike(*both("fedper", seeded(DroppingHead), **{**GENTLY, **options}))
    assert not [line for line in warnings_in(caplog) if "one by one" in line]


def test_a_loss_term_that_runs_such_a_classifier_is_left_to_the_serial_engine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie"):
        serial, stacked = both("pfedcs", seeded(DroppingHead), rounds=2)
    assert_alike(serial, stacked)
    assert [line for line in warnings_in(caplog) if "one by one" in line] == [
        "stacked engine: clients are trained one by one instead, since a loss term runs a classifier whose layers "
        "change in training"
    ]


def test_batches_of_one_sample_are_passed_over_as_in_the_serial_engine() -> None:
    """One client has a last batch of a single sample in every epoch."""
    smallest = min(len(index) for index in tiny(model="norm").prepare().problem().train)
    assert_alike(*both("fedavg", "norm", batch=smallest - 1, epochs=2, **GENTLY))


class ImageNet(nn.Module):
    """Convolutions, batch norm and both kinds of dropout within modules of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.channels, self.drop = nn.Dropout2d(0.3), nn.Dropout(0.4)
        self.last = nn.Linear(24, 8)
        self.classifier: nn.Module = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.channels(torch.tanh(self.norm(self.first(x.view(-1, 1, 2, 3)))))
        out: Tensor = self.classifier(torch.tanh(self.last(self.drop(maps.flatten(1)))))
        return out


class DroppingHead(ImageNet):
    """Dropout in the classifier as well."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 3))


class AlphaNet(PlainNet):
    """Dropout of a kind that is left to the serial engine."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(nn.AlphaDropout(0.1), self.classifier)


def test_what_is_not_stacked_is_said_and_trained_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie"):
        serial, stacked = both("fedper", seeded(AlphaNet))
    assert torch.equal(rows_of(serial.federation), rows_of(stacked.federation))
    assert [line for line in warnings_in(caplog) if "one by one" in line] == [
        "stacked engine: clients are trained one by one instead, since layer 'classifier.0' is AlphaDropout"
    ]


def harder_half(batch: Batch) -> Tensor:
    """Samples of that half of the batch count on which the model is worse."""
    losses = [task_loss(half) for half in batch.split(2)]
    heavier = torch.stack([half.sum() for half in losses]).argmax()
    return torch.cat([loss * float(number == heavier) for number, loss in enumerate(losses)])


@dataclass(frozen=True)
class HarderHalf(FedPer):
    """A method whose term splits the batch."""

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(terms=(harder_half,)),)


def test_a_term_that_splits_its_batch_is_said_and_trained_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie"):
        serial, stacked = both(HarderHalf())
    assert torch.equal(rows_of(serial.federation), rows_of(stacked.federation))
    assert warnings_in(caplog) == [
        "stacked engine: clients are trained one by one instead, since a loss term splits its batch into 2 pieces"
    ]


@dataclass(frozen=True)
class PulledBack(FedPer):
    """Trains as usual, then takes steps from nothing but a pull towards what was received."""

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(), Phase(terms=(), row_terms=(Proximal(0.5),)))


def test_row_terms_alone_are_an_objective(caplog: pytest.LogCaptureFixture) -> None:
    serial, stacked = both(PulledBack())
    assert_alike(serial, stacked)
    assert not warnings_in(caplog)
    plain = tiny("fedper", momentum=0.5, weight_decay=1e-3, rounds=4).run()
    assert not torch.allclose(rows_of(plain.federation), rows_of(serial.federation), atol=1e-3)


def test_a_method_with_a_rule_of_its_own_is_declined() -> None:
    prepared = tiny("per-fedavg").prepare()
    federation = prepared.federation()
    reason = Stacked(prepared.problem(), prepared.method, 0).declines(prepared.method.recipe(federation))
    assert reason == "the method has a step rule of its own"


def test_models_are_those_of_the_serial_engine_for_prediction() -> None:
    serial, stacked = both("fedper", seeded(PlainNet))
    inputs = torch.randn(9, 6)
    torch.testing.assert_close(serial.scores(1, inputs), stacked.scores(1, inputs), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("model", ["plain", "conv"])
@pytest.mark.parametrize("name", PLAIN)
def test_training_stays_on_its_device(name: str, model: str) -> None:
    """On the device `meta`, which computes shapes alone, an operand left on another device is an error."""
    method = METHODS[name]()
    prepared = tiny(method, seeded(Conv) if model == "conv" else model).prepare()
    federation = prepared.federation()
    federation.round = 2
    recipe = method.recipe(federation)
    problem = prepared.problem()
    if Stacked(problem, method, 0).declines(recipe) or name == "fedgen":
        return
    stack = Stack(Ground.of(problem, 0, "meta"), federation, federation.everyone)
    for number, phase in enumerate(phases(recipe)):
        StackedPhase(stack, phase, number).run()
    assert {rows.device.type for rows in stack.trained.values()} == {"meta"}


def test_another_device_means_the_stacked_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.setup.settings.require_device", lambda *_: None)  # as if it were here
    prepared = Experiment(device="cuda", engine="auto").prepare()
    chosen = with_choice(prepared)
    assert chosen.experiment.engine == "stacked"
    assert chosen.notes == ("engine auto: stacked, usual threads, contiguous (nothing else is left open)",)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_here_is_named() -> None:
    with pytest.raises(CoterieError, match=r"device = cuda: cannot be used here .* leave it out"):
        Experiment(device="cuda")
    with pytest.raises(CoterieError, match=r"device = cuda: engine 'processes' trains on the processor"):
        Experiment(device="cuda", engine="processes")


def test_padded_samples_are_those_of_the_clients_asked_for() -> None:
    own = [torch.tensor([5, 6, 7]), torch.tensor([8]), torch.tensor([9, 4])]
    indices = PaddedIndices(own)
    asked = torch.tensor([2, 1])
    for clients in (asked, torch.tensor([0, 2]), torch.tensor([0, 2]), asked):
        found = indices.of(clients)
        for row, client in zip(found.tolist(), clients.tolist(), strict=True):
            held = own[client].tolist()
            assert row == held + [0] * (found.shape[1] - len(held))
    asked[0] = 0  # what was asked for before may change afterwards
    assert indices.of(torch.tensor([2, 1])).tolist() == [[9, 4], [8, 0]]


def test_where_every_batch_is_a_single_sample_nobody_trains() -> None:
    serial, stacked = both("fedper", "norm", batch=1)
    assert torch.equal(rows_of(serial.federation), rows_of(stacked.federation))
