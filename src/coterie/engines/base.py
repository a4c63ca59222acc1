"""What every engine does: have the cohort train, have clients tested. Engines differ in where that runs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.effort import EffortColumns, effort_columns
from coterie.client.problem import Problem
from coterie.client.recipe import Recipe, measures, trained_slots
from coterie.client.scores import Score, Seen, TrainingScores, TrainingSums
from coterie.client.trainer import train, tune
from coterie.client.worker import Worker
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.methods.base import Method

PeersOf = Mapping[int, Sequence[int]]
"""Whose models each client downloaded, by client."""
NOBODY: PeersOf = MappingProxyType({})


@dataclass(frozen=True)
class Work:
    """What each client of a cohort does in one round; `peers` are those whose models a client downloaded."""

    recipe: Recipe
    test: bool = False
    peers: PeersOf = field(default_factory=dict)

    def slots(self, federation: Federation) -> tuple[str, ...]:
        """The slots whose rows the recipe trains, and what is kept with them."""
        return federation.kept_with(trained_slots(self.recipe))

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of what the recipe measures."""
        return tuple(measure.name for measure in measures(self.recipe))


@dataclass
class Trained:
    """What came out of a round of local work, a row per client of the cohort."""

    rows: Mapping[str, Tensor]  # slot -> [m, slot width]
    measured: dict[str, Tensor] = field(default_factory=dict)  # name -> [m, ...]
    scores: list[Score] = field(default_factory=list)  # at the moment `trained`, if asked for
    test_seconds: float = 0.0
    training: list[TrainingSums] = field(default_factory=list)
    efforts: EffortColumns = field(default_factory=dict)  # none where it is not told


@dataclass(frozen=True)
class EngineOptions:
    """What a run says about its engine; each engine takes what concerns it.

    `workers` is how many train at the same time (0: one per core), `device` where tensors lie that are trained.
    """

    workers: int = 0
    device: str = "cpu"
    ray_address: str = ""
    ray_gpus: float = 0.0


class Engine(ABC):
    """Executes local work. Results do not depend on which engine does it, but for float rounding where stated."""

    name: str
    # Whether it can train elsewhere than on the processor.
    uses_device: ClassVar[bool] = False
    # Whether rows may lie on that device too: it takes them from the federation, and puts them there, by itself.
    rows_on_device: ClassVar[bool] = False
    # Whether it shares the cores out among workers of its own.
    has_workers: ClassVar[bool] = False
    # PyTorch threads of the main process unless the run says otherwise; 0: PyTorch's choice.
    main_threads: ClassVar[int] = 0
    # How many threads of the main process may mix rows while nobody trains.
    mixing_threads: int = 1
    # Whom to tell while the cohort trains: how many clients are done.
    on_client: Callable[[int], None] | None = None

    @classmethod
    @abstractmethod
    def create(cls, problem: Problem, method: Method, seed: int, options: EngineOptions) -> Engine:
        """The engine for a problem and a method, with what the run says about engines."""

    @abstractmethod
    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        """Have every client of the cohort do the work, starting from the federation's slots."""

    @abstractmethod
    def test(
        self, federation: Federation, clients: Tensor, keep_scores: bool = False, peers: PeersOf = NOBODY
    ) -> list[Score]:
        """Score the clients' models as the federation holds them, on their own test data.

        `peers` matter to methods alone that tune before they are tested.
        """

    def tell(self, done: int) -> None:
        """So many clients of the cohort are trained."""
        if self.on_client is not None:
            self.on_client(done)

    def close(self) -> None:  # noqa: B027 (engines without workers have nothing to release)
        """Release workers and memory."""


def empty_rows(federation: Federation, work: Work, count: int) -> dict[str, Tensor]:
    """Room for the trained rows of `count` clients."""
    return {slot: federation.initial.new_empty(count, federation[slot].width) for slot in work.slots(federation)}


def do_work(
    worker: Worker,
    federation: Federation,
    client: int,
    work: Work,
    rows: Iterable[tuple[str, Tensor]],
    seen: Seen | None = None,
) -> tuple[dict[str, Tensor], Score | None, float]:
    """One client's round: fills its `rows` (slot, `[slot width]`); returns what it measured, score and testing time.

    What it took is the worker's `effort` then, without tuning for the test, of which the score tells. `seen`, if given,
    is filled with what the model put out for its training samples.
    """
    worker.seat(federation, client, work.peers.get(client, ()))
    measured = train(worker, work.recipe, seen)
    for slot, row in rows:
        columns: Columns = federation[slot].columns
        row.copy_(columns.take(worker.model(slot).row))
    if not work.test:
        return measured, None, 0.0
    begin = time.perf_counter()
    effort = worker.effort.now()
    score = tuned_score(worker, keep_scores=False)
    worker.effort = effort
    return measured, score, time.perf_counter() - begin


def do_all(
    worker: Worker,
    federation: Federation,
    work: Work,
    clients: Sequence[int],
    rows: Mapping[str, Tensor],
    places: Sequence[int],
    tell: Callable[[int], None],
) -> Trained:
    """The round of several clients, one after the other: each fills its place of `rows` (slot, `[n, slot width]`).

    `tell` hears how many are done.
    """
    trained = Trained(rows)
    measured: dict[str, list[Tensor]] = {name: [] for name in work.measured}
    training, efforts = TrainingScores(worker.problem.task, len(clients)), []
    for done, (client, place) in enumerate(zip(clients, places, strict=True)):
        seen: Seen = []
        own_rows = [(slot, matrix[place]) for slot, matrix in rows.items()]
        values, score, seconds = do_work(worker, federation, client, work, own_rows, seen)
        training.take(done, seen)
        efforts.append(worker.effort)
        for name, value in values.items():
            measured[name].append(value)
        if score is not None:
            trained.scores.append(score)
        trained.test_seconds += seconds
        tell(done + 1)
    trained.scores = Score.brought_back(trained.scores)
    trained.measured = {name: torch.stack(values).cpu() for name, values in measured.items()}
    trained.training, trained.efforts = training.sums(), effort_columns(efforts)
    return trained


def do_test(
    worker: Worker, federation: Federation, clients: list[int], keep_scores: bool, peers: PeersOf = NOBODY
) -> list[Score]:
    """Test the clients' models as the federation holds them; a model that all share is run once, in large batches."""
    if federation.is_uniform and not worker.method.tune(federation):
        tests = [worker.problem.test[client] for client in clients]
        worker.seat(federation, clients[0])
        whole = worker.test(torch.cat(tests), keep_scores)
        return whole.split([len(index) for index in tests])
    scores = []
    for client in clients:
        worker.seat(federation, client, peers.get(client, ()))
        scores.append(tuned_score(worker, keep_scores))
    return scores


def tuned_score(worker: Worker, keep_scores: bool = False) -> Score:
    """Test the client in the seat, tuned if the method says so; a model that tuning ruined is tested as it was."""
    before = worker.effort.total
    tuned = tune(worker)
    steps = worker.effort.total - before
    score = worker.test(worker.problem.test[worker.client], keep_scores)
    return replace(score, untuned=not tuned, tuning=steps)
