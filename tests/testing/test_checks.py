"""The checks for authors can fail. That our own methods pass them is tested in tests/methods/test_suite.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.client.problem import Problem
from coterie.core.exchange import Action
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.engines import Serial, Trained, Work
from coterie.engines.stacked.engine import Stacked
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.testing import METHOD_CHECKS, CheckFailedError, check_engine, check_method

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("name", ["fedavg", "fedcac"])
def test_all_checks_run_on_a_method(name: str) -> None:
    told: dict[str, Exception | None] = {}
    check_method(METHODS[name](), hear=told.__setitem__)
    assert told == dict.fromkeys(METHOD_CHECKS)


@dataclass(frozen=True)
class Peeking(ct.FedPer):
    """Mixes classifiers that never left their clients."""

    def exchange(self, uploads: ct.Uploads) -> Iterable[Action]:
        everybody = torch.full((1, uploads.federation.clients), 1 / uploads.federation.clients)
        yield from super().exchange(uploads)
        yield ct.Mix(everybody, "classifier", source="model", to="everyone")


@dataclass(frozen=True)
class ByPosition(ct.Method):
    """The first client of the cohort is worth three others."""

    def exchange(self, uploads: ct.Uploads) -> Iterable[Action]:
        weights = torch.ones(1, len(uploads.cohort), dtype=torch.float64)
        weights[0, 0] = 3
        yield ct.Mix(weights / weights.sum())


class Memory:
    """State outside of the federation."""

    rounds = 0


@dataclass(frozen=True)
class Remembering(ct.Method):
    """Counts its rounds where nobody saves them."""

    def exchange(self, uploads: ct.Uploads) -> Iterable[Action]:
        Memory.rounds += 1
        if Memory.rounds % 3:
            yield ct.Mix(by_size(uploads))


@dataclass(frozen=True)
class Spreading(ct.Method):
    """Overflows, and the server's own numbers with it."""

    shared: ClassVar[str] = ""

    def uploads(self, federation: Federation) -> dict[str, str]:
        return {"model": "all"}

    def exchange(self, uploads: ct.Uploads) -> Iterable[Action]:
        rows: Tensor = uploads.rows()
        apart = torch.cdist(1e30 * rows, 1e30 * rows)
        yield ct.Mix((apart / apart).double())


@dataclass(frozen=True)
class Halving(ct.Method):
    """Mixes in the first half of the rounds, and does not say how many these are."""

    def exchange(self, uploads: ct.Uploads) -> Iterable[Action]:
        if uploads.federation.round <= uploads.federation.rounds / 2:
            yield ct.Mix(by_size(uploads))


@dataclass(frozen=True)
class Comparing(ct.Method):
    """Weights by nearness, of which there is none where all rows are equal."""

    shared: ClassVar[str] = ""

    def uploads(self, federation: Federation) -> dict[str, str]:
        return {"model": "all"}

    def exchange(self, uploads: ct.Uploads) -> Iterable[Action]:
        apart = torch.cdist(uploads.rows(), uploads.rows()).double()
        near = apart.max() - apart
        yield ct.Mix(near / near.sum(1, keepdim=True))


BROKEN: dict[type[ct.Method], str] = {
    Peeking: "travel",
    ByPosition: "relabelling",
    Remembering: "resumption",
    Halving: "extension",
    Spreading: "sound",
    Comparing: "odd",
}


@pytest.mark.parametrize(("kind", "check"), BROKEN.items())
def test_a_broken_promise_is_found(kind: type[ct.Method], check: str) -> None:
    told: dict[str, Exception | None] = {}
    with pytest.raises(CheckFailedError, match=rf"{kind.__name__} fails 1 checks:\n{check}: "):
        check_method(kind(), only=[check], hear=told.__setitem__)
    assert isinstance(told[check], Exception)


def test_an_unknown_check_is_named() -> None:
    with pytest.raises(CoterieError, match="unknown check 'resumtion'; did you mean 'resumption'"):
        check_method(ct.FedAvg(), only=["resumtion"])


@pytest.mark.slow
def test_our_own_engines_agree_with_the_serial_one() -> None:
    check_engine(Serial)
    check_engine(Stacked, tolerance=1e-3)


class Forgetful(Serial):
    """Measures nothing and leaves the last client untrained."""

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        trained = super().train(federation, work, cohort)
        trained.rows["model"][-1] = federation["model"].rows(cohort[-1:])[0]
        return trained


def test_an_engine_that_differs_is_found() -> None:
    def make(problem: Problem, method: ct.Method, seed: int) -> Forgetful:
        return Forgetful(problem, method, seed)

    with pytest.raises(CheckFailedError, match=r"FedAvg, model 'plain', join 1: slot 'model' lies .* from the serial"):
        check_engine(make)
