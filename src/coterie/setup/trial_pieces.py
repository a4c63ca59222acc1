"""Small pieces of an experiment's round, on which engines can be tried, and what a whole round amounts to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.client.recipe import Phase, Recipe
from coterie.client.scores import TEST_BATCH
from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.core.pixels import as_memory, some
from coterie.core.training import MemoryFormat
from coterie.engines import Work
from coterie.methods import Method
from coterie.rounds.delivery import Delivery
from coterie.rounds.sampling import draw_cohort, draw_tested
from coterie.setup.cost import epochs_of
from coterie.setup.prepared import Prepared

# Test samples of a piece: more of them would not make the measurement any better.
MOST_TESTED = TEST_BATCH
# Epochs of a phase in a piece, where the method and not the run says how many: each is like the one before.
MOST_EPOCHS = 10


@dataclass(frozen=True)
class Round:
    """What a typical round amounts to: its cohort (ids of the partition), each one's batches, and test samples."""

    cohort: tuple[int, ...]
    batches: tuple[int, ...]  # of an epoch, by client of the cohort
    tests: float  # test samples, those of rounds without evaluation included as none

    @classmethod
    def of(cls, prepared: Prepared) -> Round:
        """The first round of an experiment."""
        experiment, participants = prepared.experiment, prepared.participants
        keys = torch.from_numpy(prepared.partition.keys)[participants]
        drawn = draw_cohort(keys, experiment.join, experiment.seed, 1).tolist()
        cohort = [participants[client] for client in drawn]
        train, test = prepared.partition.train, prepared.partition.test
        # Everybody (or a sample of them) is tested with what was received, the cohort with what it trained.
        received = draw_tested(keys, experiment.evaluate_clients, experiment.seed, 1).tolist()
        tests = sum(len(test[client]) for client in (*(participants[place] for place in received), *cohort))
        batches = [max(-(-len(train[client]) // experiment.batch), 1) for client in cohort]
        return cls(tuple(cohort), tuple(batches), tests / experiment.evaluate_every)

    def by_size(self) -> list[int]:
        """The cohort's clients, the largest first."""
        sizes = dict(zip(self.cohort, self.batches, strict=True))
        return sorted(self.cohort, key=lambda client: -sizes[client])

    def longest_share(self, workers: int) -> int:
        """Batches until the last of so many workers is done, the largest clients dealt out first.

        >>> Round((0, 1, 2), (5, 4, 3), 0.0).longest_share(2)
        7
        """
        busy = [0] * min(workers, len(self.batches))
        heapify(busy)
        for batches in sorted(self.batches, reverse=True):
            heapreplace(busy, busy[0] + batches)
        return max(busy)


@dataclass(frozen=True)
class Piece:
    """A few clients with a few batches each, for one epoch (or a few of a method's own): what an engine is tried on."""

    problem: Problem
    method: Method
    federation: Federation
    work: Work
    batches: tuple[int, ...]  # that each client trains on
    tests: int  # test samples
    epochs: float  # how many times as many a whole round has

    @property
    def everyone(self) -> Tensor:
        """The clients' ids."""
        return self.federation.everyone

    @classmethod
    def of(cls, prepared: Prepared, memory: MemoryFormat, clients: Sequence[int], batches: int) -> Piece:
        """Some clients of a partition, each with its first batches, in a memory format."""
        case, chosen = prepared, list(clients)
        base, layout = prepared.problem_base, prepared.problem_base.layout
        if layout.memory != memory:
            other = Layout(base.module, layout.classifier, layout.stats, memory)
            case = replace(prepared, problem_base=replace(base, layout=other))
        federation = case.federation(chosen)
        federation.round = 1
        whole = prepared.method.recipe(federation)
        recipe = _shortened(whole)
        samples, most = batches * prepared.experiment.batch, max(MOST_TESTED // len(chosen), 1)
        problem = _cut(case.problem(chosen), memory, samples, most)
        return cls(
            replace(problem, training=replace(problem.training, epochs=1)),
            prepared.method,
            federation,
            Work(recipe, peers=Delivery(prepared.method, federation, federation.everyone).peers()),
            tuple(max(-(-len(index) // prepared.experiment.batch), 1) for index in problem.train),
            sum(map(len, problem.test)),
            epochs_of(whole, prepared.experiment.epochs) / max(epochs_of(recipe, 1), 1),
        )


def _shortened(recipe: Recipe) -> Recipe:
    """The same recipe without most of the epochs of its longest phases."""
    return tuple(
        replace(step, epochs=min(step.epochs, MOST_EPOCHS))
        if isinstance(step, Phase) and step.epochs is not None
        else step
        for step in recipe
    )


def _cut(problem: Problem, memory: MemoryFormat, samples: int, tests: int) -> Problem:
    """The same problem with at most so many samples of each client, and no others."""
    parts = [
        [index[:most] for index in part]
        for part, most in ((problem.train, samples), (problem.validation, samples), (problem.test, tests))
    ]
    kept = torch.cat([index for part in parts for index in part])
    offset, cut = 0, list[tuple[Tensor, ...]]()
    for part in parts:
        places: list[Tensor] = []
        for index in part:
            places.append(torch.arange(offset, offset + len(index)))
            offset += len(index)
        cut.append(tuple(places))
    train, validation, test = cut
    inputs, labels = as_memory(some(problem.inputs, kept), memory), problem.labels[kept]
    return replace(problem, inputs=inputs, labels=labels, train=train, validation=validation, test=test)
