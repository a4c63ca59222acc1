"""A client whose measurement is not what it can be is left out like one that diverged: of all methods, everywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from coterie.client.measures import ClassMeans, sound
from coterie.client.recipe import Keep, Measure, Phase, Recipe
from coterie.client.scores import Seen
from coterie.client.views import ClientView
from coterie.client.worker import Worker
from coterie.core.exchange import Action, ClientRows, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import uniform
from coterie.deployment.messages import Packed
from coterie.deployment.wire import Parcel, pack, unpack
from coterie.engines import base
from coterie.errors import CoterieError
from coterie.methods import APPLE, FedAP, FedAvg, FedDistill, FedFomo, FedGH, FedPAC, FedProto, FedReMa, Method
from coterie.runs.run import Run
from coterie.testing.together import SITES, Together, agreed, simulated
from coterie.testing.toys import toy_experiment
from support import tiny, warnings_in

BAD, ROUND, NAN, INF = 1, 2, torch.nan, torch.inf
MEASURING = {
    "fedpac": FedPAC(),
    "fedrema F": FedReMa(variant="F"),
    "fedproto": FedProto(),
    "fedproto by samples": FedProto(average="samples"),
    "feddistill": FedDistill(),
    "feddistill of others": FedDistill(leave_out_own=True),
    "fedgh": FedGH(),
    "fedap": FedAP(warm_up=0.3),
    "fedfomo": FedFomo(),
    "apple, which keeps its own": APPLE(),
}


def first_number(value: float) -> Callable[[Tensor], Tensor]:
    """One number of what the client measured, of a class that it has, becomes another."""

    def spoil(values: Tensor) -> Tensor:
        spoilt = values.clone().flatten()
        spoilt[spoilt.isfinite().nonzero()[0]] = value
        return spoilt.view(values.shape)

    return spoil


def all_numbers(values: Tensor) -> Tensor:
    return torch.full_like(values, NAN)


SPOILT = {"one is inf": first_number(INF), "one is NaN": first_number(NAN), "all are NaN": all_numbers}


def run(
    method: Method, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Tensor], Tensor] | None, **options: Any
) -> Run:
    """A run in which a client's measurements are spoilt in one round; without `spoil`, its model is."""
    train = base.train

    def trained(worker: Worker, recipe: Recipe, seen: Seen | None = None) -> dict[str, Tensor]:
        measured = train(worker, recipe, seen)
        if recipe and (worker.client, worker.federation.round) == (BAD, ROUND):
            if spoil is None:
                worker.model("model").row[0] = NAN
                return measured
            return {name: spoil(values) for name, values in measured.items()}
        return measured

    with monkeypatch.context() as patched:
        patched.setattr(base, "train", trained)
        return toy_experiment(method, clients=5, rounds=4, engine="serial", **options).run()


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("method", MEASURING.values(), ids=MEASURING)
def test_it_is_as_if_its_model_had_diverged(
    method: Method, spoil: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, diverged = (run(method, monkeypatch, one) for one in (spoil, None))
    assert ours.summary["diverged"] == diverged.summary["diverged"] == {str(BAD): [ROUND]}
    state = dict(diverged.federation.state())
    for name, tensor in ours.federation.state():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True)
class SpoiltMeans(ClassMeans):
    """Class means of which a client's overflow in one round."""

    def __call__(self, worker: ClientView) -> Tensor:
        means = super().__call__(worker)
        return first_number(INF)(means) if (worker.client, worker.federation.round) == (BAD, ROUND) else means


@dataclass(frozen=True)
class SpoiltProto(FedProto):
    """FedProto with such a client."""

    def recipe(self, federation: Federation) -> Recipe:
        *steps, _ = super().recipe(federation)
        return (*steps, Measure(SpoiltMeans()))


@pytest.mark.parametrize("engine", ["serial", "stacked", pytest.param("processes", marks=pytest.mark.processes)])
def test_every_engine_leaves_it_out(engine: str) -> None:
    options = {"workers": 2} if engine == "processes" else {}
    result = toy_experiment(SpoiltProto(), clients=5, engine=engine, **options).run()
    assert result.summary["diverged"] == {str(BAD): [ROUND]}
    assert bool(result.federation.values["prototypes"].isfinite().all())


def test_the_log_says_which_measurement(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coterie"):
        toy_experiment(SpoiltProto(), clients=5, engine="serial").run()
    said = [text for text in warnings_in(caplog) if f"round {ROUND}" in text]
    assert any("'class_means' of one client is not finite" in text for text in said)
    assert any(f"client {BAD} diverged" in text for text in said)


@dataclass(frozen=True)
class Unknown:
    """NaN where nothing is known."""

    of_classes: ClassVar[bool] = False
    name: ClassVar[str] = "unknown"

    def __call__(self, worker: ClientView) -> Tensor:
        return torch.tensor([1.0, NAN])


@dataclass(frozen=True)
class OfClasses(Unknown):
    """The same, said to be of classes."""

    of_classes: ClassVar[bool] = True


class TestWhatIsSound:
    MEANS = torch.tensor([[[1.0, 2.0], [NAN, NAN]], [[1.0, NAN], [3.0, 4.0]], [[NAN, NAN], [NAN, NAN]]])

    def test_rows_of_classes_are_finite_or_nan_as_a_whole(self) -> None:
        assert sound(Measure(ClassMeans()), self.MEANS).tolist() == [True, False, False]
        assert sound(Measure(ClassMeans()), torch.tensor([1.0, torch.nan, torch.inf])).tolist() == [True, False, False]

    def test_and_nan_just_for_the_classes_that_the_client_does_not_have(self) -> None:
        means = self.MEANS[[0, 0, 0]]
        counts = torch.tensor([[5, 0], [5, 1], [0, 5]])
        assert sound(Measure(ClassMeans()), means, counts).tolist() == [True, False, False]
        full = torch.ones(2, 2, 3)
        assert sound(Measure(ClassMeans()), full, torch.tensor([[5, 1], [5, 0]])).tolist() == [True, False]

    @pytest.mark.parametrize("shape", [(2,), (2, 4), (2, 2, 3, 4)])
    def test_of_any_shape(self, shape: tuple[int, ...]) -> None:
        values = torch.ones(shape)
        assert sound(Measure(Unknown()), values).tolist() == [True, True]
        values[1] = INF
        assert sound(Measure(Unknown()), values).tolist() == [True, False]
        assert sound(Measure(Unknown()), values[:0]).tolist() == []

    def test_a_number_for_each_class(self) -> None:
        values = torch.tensor([[1.0, NAN], [1.0, 2.0]])
        assert sound(Measure(Unknown()), values).tolist() == [False, True]
        assert sound(Measure(OfClasses()), values, torch.tensor([[3, 0], [3, 0]])).tolist() == [True, False]

    @pytest.mark.parametrize("kind", [torch.bool, torch.int64])
    def test_masks_and_whole_numbers_are_always(self, kind: torch.dtype) -> None:
        assert bool(sound(Measure(Unknown()), torch.ones(3, 5, dtype=kind)).all())

    def test_rows_that_are_not_those_of_the_classes_are_an_error(self) -> None:
        with pytest.raises(CoterieError, match="'class_means' says of_classes, and has 2 rows"):
            sound(Measure(ClassMeans()), self.MEANS, torch.ones(3, 5))


@dataclass(frozen=True)
class KeepsNothing(FedAvg):
    """What a client keeps besides is a quotient of zeros."""

    def init(self, federation: Federation) -> None:
        federation.add_slot("ratio", "parameters", fill=0.0)

    def recipe(self, federation: Federation) -> Recipe:
        def ratio(rows: ClientRows) -> Tensor:
            here = (rows.cohort == BAD) & (federation.round == ROUND)
            return rows.before("ratio", "parameters") / torch.where(here, 0.0, 1.0)[:, None]

        return (Phase(), Keep("ratio", ratio))

    def uploads(self, federation: Federation) -> dict[str, str]:
        return {"model": "all", "ratio": "parameters"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        yield from super().exchange(uploads)
        yield Mix(uniform(len(uploads.cohort)), "parameters", target="ratio", of="ratio", to="everyone")


def test_what_a_client_keeps_is_judged_too() -> None:
    result = tiny(KeepsNothing()).run()
    assert result.summary["diverged"] == {str(BAD): [ROUND]}
    assert bool(result.federation["ratio"].own.isfinite().all())


@pytest.mark.parametrize("method", ["fedproto", FedPAC(), FedGH(), FedReMa(variant="F"), FedDistill()], ids=str)
def test_a_site_says_so_itself_and_all_ends_as_in_a_simulation(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = base.train

    def trained(worker: Worker, recipe: Recipe, seen: Seen | None = None) -> dict[str, Tensor]:
        measured = train(worker, recipe, seen)
        here = recipe and (worker.client, worker.federation.round) == (BAD, ROUND)
        return {name: first_number(INF)(values) if here else values for name, values in measured.items()}

    monkeypatch.setattr(base, "train", trained)
    agreement = agreed(method)
    together = Together(agreement, tmp_path)
    together.run()
    assert [report.diverged for report in together.reports] == [[], [SITES[BAD]], []]
    serial = simulated(agreement).run()
    assert serial.summary["diverged"] == {SITES[BAD]: [ROUND]}
    theirs = together.server.federation.values
    for name, value in serial.federation.values.items():
        if serial.federation.kinds[name].held_by != "client":
            torch.testing.assert_close(theirs[name], value, rtol=1e-4, atol=1e-5, equal_nan=True)


def with_measurement(packed: Packed, expected: Any, name: str, spoil: Callable[[Tensor], Tensor]) -> Packed:
    """An answer in which a measurement is another."""
    answer = unpack(packed, expected)
    tensors = dict(answer.tensors)
    tensors[f"measured.{name}"] = spoil(tensors[f"measured.{name}"])
    return pack(Parcel(tensors, answer.note))


def first_class(values: Tensor) -> Tensor:
    return torch.cat([torch.full_like(values[:1], NAN), values[1:]])


SENT: dict[str, tuple[Method, str, Callable[[Tensor], Tensor], bool]] = {
    "no class at all": (FedProto(), "class_means", all_numbers, True),
    "half a class": (FedProto(), "class_means", first_number(NAN), True),
    "inf": (FedProto(), "class_means", first_number(INF), True),
    "a class less, and nobody has told the server who has what": (FedProto(), "class_means", first_class, False),
    "a class less than was told": (FedProto(average="samples"), "class_means", first_class, True),
    "a class less than fedpac's sites tell": (FedPAC(), "class_means", first_class, True),
    "NaN in statistics": (FedPAC(), "feature_statistics", first_number(NAN), True),
    "no logits": (FedDistill(), "class_logits", all_numbers, True),
    "no means": (FedGH(), "class_means", all_numbers, True),
}


@pytest.mark.parametrize(("method", "name", "spoil", "refused"), SENT.values(), ids=SENT)
def test_a_server_refuses_and_names_who_sends_such_a_measurement(
    method: Method, name: str, spoil: Callable[[Tensor], Tensor], refused: bool, tmp_path: Path
) -> None:
    together = Together(agreed(method), tmp_path)
    together.admit()
    together.round()
    server, bad = together.server, SITES[BAD]
    for site, task in server.open_round(list(SITES)).items():
        packed = together.answer(site, task)
        if site == bad:
            packed = with_measurement(packed, server.expected_answer(), name, spoil)
        server.receive(site, packed)
    report = server.close_round()
    assert list(report.refused) == [bad] * refused
    assert report.answered == [site for site in SITES if site != bad or not refused]
    if refused:
        assert name in report.refused[bad]
    assert server.federation.last_round.tolist() == [2, 1 if refused else 2, 2]
    assert together.round().answered == list(SITES)
