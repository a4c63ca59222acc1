"""What the rounds of an experiment amount to: the ways to carry them out, how long that takes, and pieces to try."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.client.problem import Problem
from coterie.client.recipe import Phase, Recipe, phases
from coterie.client.scores import TEST_BATCH
from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.core.pixels import as_memory, some
from coterie.core.training import MemoryFormat
from coterie.engines.base import Work
from coterie.methods.base import Method
from coterie.processes import cores
from coterie.rounds.delivery import Delivery
from coterie.rounds.sampler import drawn
from coterie.setup.prepared import Prepared

SMALL_MODEL = 100_000  # parameters
# Of an ordinary core, to the nearest round number: small models are bound by the first, large ones by the second.
SECONDS_A_LAYER_AND_STEP = 2e-4
MULTIPLICATIONS_A_SECOND = 1e10
# A training step passes forward once and backward with twice the work.
PASSES = 3
# The layers of stacked clients are batched products, which take longer to get going.
STACKED_LAYER = 4
# Test samples of a piece: more of them would not make the measurement any better.
MOST_TESTED = TEST_BATCH
# Epochs of a phase in a piece, where the method and not the run says how many: each is like the one before.
MOST_EPOCHS = 10

Timer = Literal["alone", "stacked"]
"""What a trial times: clients one by one, or all as one batch."""


@dataclass(frozen=True)
class Way:
    """An engine with its threads in the main process (0: as the model wants them) and its memory format.

    >>> str(Way("serial", 2, "channels_last"))
    'serial, 2 threads, channels-last'
    >>> Way.read("adaptive, 1 thread, contiguous")
    Way(engine='adaptive', threads=1, memory='contiguous')
    """

    engine: str
    threads: int
    memory: MemoryFormat

    def __str__(self) -> str:
        threads = f"{self.threads or 'usual'} thread{'s' if self.threads != 1 else ''}"
        return f"{self.engine}, {threads}, {self.memory.replace('_', '-')}"

    @classmethod
    def read(cls, text: str) -> Way:
        """The way that a text names as `str` would; a `ValueError` if it names none."""
        engine, threads, memory = text.rsplit(", ", 2)
        formats: dict[str, MemoryFormat] = {"contiguous": "contiguous", "channels-last": "channels_last"}
        if memory not in formats:
            raise ValueError(f"memory format '{memory}'")
        return cls(engine, int(threads.split()[0]), formats[memory])

    @property
    def timer(self) -> Timer:
        """What has to be timed to foresee its rounds."""
        return "stacked" if self.engine == "stacked" else "alone"

    @property
    def spreads(self) -> bool:
        """Whether clients may train at several places at the same time, with one thread each."""
        return self.engine in ("adaptive", "processes", "ray")


def ways_of(prepared: Prepared) -> list[Way]:
    """The ways that an experiment leaves open, the one that suits most first; a single one if it says everything."""
    experiment = prepared.experiment
    formats = _formats(prepared)
    if experiment.engine != "auto":
        memories = formats[:1] if experiment.engine == "stacked" else formats
        usual = torch.get_num_threads() if experiment.engine == "serial" else 1
        return [Way(experiment.engine, experiment.threads or usual, memory) for memory in memories]
    if experiment.device != "cpu":
        return [Way("stacked", experiment.threads, formats[0])]
    apart = [way for memory in formats for way in _with_clients_apart(prepared, memory)]
    stacked = [Way("stacked", experiment.threads or 1, "contiguous")] if "contiguous" in formats else []
    return [*apart, *stacked]


def ways_beside_others(prepared: Prepared) -> list[Way]:
    """The ways of `ways_of` that leave the other cores to other runs."""
    found = {Way("serial", 1, way.memory) if way.engine == "adaptive" else way: None for way in ways_of(prepared)}
    return [way for way in found if way.threads == 1 and way.engine in ("serial", "stacked")]


def fitting_threads(prepared: Prepared) -> int:
    """One thread for small models without convolutions, which lose more by sharing a step than they gain; else 0."""
    layout = prepared.problem_base.layout
    convolutions = any(len(entry.shape) > 2 for entry in layout.entries)
    return 0 if convolutions or layout.width > SMALL_MODEL else 1


def _formats(prepared: Prepared) -> list[MemoryFormat]:
    """Channels-last is worth a trial where there are convolutions on images."""
    wanted = prepared.experiment.memory
    if wanted != "auto":
        return [wanted]
    convolutions = any(len(entry.shape) == 4 for entry in prepared.problem_base.layout.entries)
    images = prepared.problem_base.inputs.ndim == 4
    tried = convolutions and images and prepared.experiment.device == "cpu"
    return ["contiguous", "channels_last"] if tried else ["contiguous"]


def _with_clients_apart(prepared: Prepared, memory: MemoryFormat) -> list[Way]:
    """One client after the other with some threads, or several at a time with one each."""
    wanted, most = prepared.experiment.threads, fitting_threads(prepared) or torch.get_num_threads()
    apart = Way("adaptive" if cores() > 1 else "serial", 1, memory)
    several = [Way("serial", count, memory) for count in dict.fromkeys((wanted or most,)) if count > 1]
    return [apart, *several] if wanted < 2 else several


def expected_seconds(prepared: Prepared) -> float:
    """The seconds that the local training of a whole run takes on one core, as a guess from sizes alone.

    >>> from coterie.runs.experiment import Experiment
    >>> short, long = (expected_seconds(Experiment(rounds=rounds).prepare()) for rounds in (2, 20))
    >>> round(long / short)
    10
    """
    experiment = prepared.experiment
    sizes = [int(prepared.partition.sizes[client]) for client in prepared.participants]
    steps = [-(-size // experiment.batch) for size in sizes]
    share = prepared.sampler.count(len(sizes)) / len(sizes)
    layers, multiplications = _cost_of_model(prepared.problem_base.module, prepared.problem_base.inputs[:1])
    dispatch = STACKED_LAYER * max(steps) if experiment.engine == "stacked" else share * sum(steps)
    arithmetic = share * sum(sizes) * PASSES * multiplications / MULTIPLICATIONS_A_SECOND
    return experiment.rounds * prepared.epochs * (SECONDS_A_LAYER_AND_STEP * layers * dispatch + arithmetic)


def _cost_of_model(module: nn.Module, sample: Tensor) -> tuple[int, int]:
    """How many layers have weights, and the multiplications of one `sample [1, ...]` on its way through them."""
    counts: list[int] = []

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        weights = sum(weight.numel() for weight in layer.parameters(recurse=False))
        # Each output is a sum over the weights of its channel.
        channels = output.shape[1] if output.ndim > 1 else 1
        counts.append(weights // channels * output.numel())

    copied = copy.deepcopy(module).eval()
    for layer in copied.modules():
        if next(layer.parameters(recurse=False), None) is not None:
            layer.register_forward_hook(count)
    with torch.no_grad():
        copied(sample)
    return len(counts), sum(counts)


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
        asked = drawn(keys, prepared.sampler.count(len(keys)), experiment.seed, "cohort", 1).tolist()
        cohort = [participants[client] for client in asked]
        train, test = prepared.partition.train, prepared.partition.test
        # Everybody (or a sample of them) is tested with what was received, the cohort with what it trained.
        count = min(experiment.evaluate_clients or len(keys), len(keys))
        received = drawn(keys, count, experiment.seed, "tested", 1).tolist()
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
            replace(problem, training=replace(problem.training, epochs=1, steps=0)),
            prepared.method,
            federation,
            Work(recipe, peers=Delivery(prepared.method, federation, federation.everyone).peers()),
            tuple(max(-(-len(index) // prepared.experiment.batch), 1) for index in problem.train),
            sum(map(len, problem.test)),
            prepared.epochs_of(whole) / max(sum(1 if one.epochs is None else one.epochs for one in phases(recipe)), 1),
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
