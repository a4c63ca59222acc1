"""Choosing the engine by measurement: a few real steps of this model, batch size and cohort on this machine.

The choice covers the engine, its threads and the memory format. It is logged with its reasons, kept per machine,
and written into the run's configuration, so that the run can be repeated as it was.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coterie.client.problem import Problem
from coterie.core.training import MemoryFormat
from coterie.data.locate import user_cache
from coterie.engines import Serial, Stacked, Work
from coterie.experiment.prepared import Prepared
from coterie.rounds.sampling import draw_cohort

log = logging.getLogger("coterie")

STEPS = 3  # batches that a trial trains
SECONDS = 0.25  # a trial repeats until it has taken this long …
REPEATS = 5  # … or has been repeated this often
START_UP = 4.0  # seconds until worker processes are ready
SHARING = 1.06  # how much slower a step is when every core runs one


@dataclass(frozen=True)
class Choice:
    """An engine with its threads and memory format, and the seconds that a round is expected to take."""

    engine: str
    threads: int
    memory: MemoryFormat
    seconds: float

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads != 1 else ''}"
        return f"{self.engine} ({threads}, {self.memory}): {self.seconds:.3g} s a round"


def choose(prepared: Prepared) -> tuple[Choice, str]:
    """The fastest engine for a prepared experiment, from the machine's memory or by measurement; and why."""
    path, key = _memory(), _fingerprint(prepared)
    known = {} if path is None else _read(path)
    if key in known:
        choice = Choice(**known[key])
        return choice, f"engine auto: {choice}, as measured before on this machine"
    trials = list(_trials(prepared))
    rounds = prepared.experiment.rounds
    best = min(trials, key=lambda one: rounds * one.seconds + (START_UP if one.engine == "processes" else 0.0))
    if path is not None:
        _remember(path, {**known, key: asdict(best)})
    return best, f"engine auto: {best}; measured: {'; '.join(map(str, trials))}"


def with_choice(prepared: Prepared) -> Prepared:
    """A prepared experiment whose engine `auto` is replaced by the choice; any other is left as it is."""
    if prepared.experiment.engine != "auto":
        return prepared
    device = prepared.experiment.device
    if device != "cpu":
        experiment = replace(prepared.experiment, engine="stacked")
        return replace(prepared, experiment=experiment, notes=(*prepared.notes, f"engine auto: stacked, on {device}"))
    choice, why = choose(prepared)
    chosen = prepared.in_memory(choice.memory)
    threads = prepared.experiment.threads or choice.threads
    experiment = replace(chosen.experiment, engine=choice.engine, threads=threads)
    return replace(chosen, experiment=experiment, notes=(*chosen.notes, why))


def _trials(prepared: Prepared) -> Iterator[Choice]:
    """Every way to train a round, with the seconds it should take."""
    cores = torch.get_num_threads()
    steps = _steps(prepared)
    for memory in _formats(prepared):
        case = prepared.in_memory(memory)
        alone = _seconds_a_step(case, threads=1)
        yield Choice("serial", 1, memory, sum(steps) * alone)
        if cores > 1:
            yield Choice("serial", cores, memory, sum(steps) * _seconds_a_step(case, cores))
            # Clients are dealt out largest first: nobody waits longer than the larger of share and longest client.
            makespan = max(sum(steps) / min(cores, len(steps)), max(steps))
            yield Choice("processes", 1, memory, makespan * alone * SHARING)
    stacked = _seconds_a_stacked_step(prepared.in_memory("contiguous"))
    if stacked is not None:
        yield Choice("stacked", 1, "contiguous", max(steps) * stacked)


def _formats(prepared: Prepared) -> tuple[MemoryFormat, ...]:
    """Channels-last is worth a trial where there are convolutions on images of several channels."""
    convolutions = any(len(entry.shape) == 4 for entry in prepared.problem_base.layout.entries)
    return ("contiguous", "channels_last") if convolutions else ("contiguous",)


def _cohort(prepared: Prepared) -> list[int]:
    keys = torch.from_numpy(prepared.partition.keys)[prepared.participants]
    return draw_cohort(keys, prepared.experiment.join, prepared.experiment.seed, 1).tolist()


def _steps(prepared: Prepared) -> list[int]:
    """How many steps each client of a typical cohort takes in a round."""
    experiment, sizes = prepared.experiment, prepared.partition.sizes[prepared.participants]
    return [experiment.epochs * -(-int(sizes[client]) // experiment.batch) for client in _cohort(prepared)]


def _shortened(problem: Problem) -> Problem:
    """The same problem with a few batches per client and a single epoch."""
    samples = STEPS * problem.training.batch
    return replace(
        problem,
        train=tuple(index[:samples] for index in problem.train),
        training=replace(problem.training, epochs=1),
    )


def _seconds_a_step(prepared: Prepared, threads: int) -> float:
    """A step of the serial engine, measured on the cohort's largest client."""
    sizes = prepared.partition.sizes[prepared.participants]
    client = max(_cohort(prepared), key=lambda one: int(sizes[one]))
    problem, federation = _shortened(prepared.problem()), prepared.federation()
    federation.round = 1
    engine = Serial(problem, prepared.method, seed=0)
    work = Work(prepared.method.recipe(federation))
    taken = -(-len(problem.train[client]) // problem.training.batch)
    with _threads(threads):
        return _repeated(lambda: engine.train(federation, work, torch.tensor([client]))) / taken


def _seconds_a_stacked_step(prepared: Prepared) -> float | None:
    """A step of the whole cohort together; nothing if the engine declines."""
    problem, federation = _shortened(prepared.problem()), prepared.federation()
    federation.round = 1
    engine = Stacked(problem, prepared.method, seed=0)
    recipe = prepared.method.recipe(federation)
    cohort = torch.tensor(_cohort(prepared))
    if engine.declines(recipe, federation.privacy) is not None:
        return None
    taken = max(-(-len(problem.train[client]) // problem.training.batch) for client in cohort.tolist())
    with _threads(1):
        return _repeated(lambda: engine.train(federation, Work(recipe), cohort)) / taken


def _repeated(trial: Callable[[], object]) -> float:
    """The least seconds of a trial's repetitions, after one that does not count."""
    trial()
    least, begin = float("inf"), time.perf_counter()
    for _ in range(REPEATS):
        start = time.perf_counter()
        trial()
        least = min(least, time.perf_counter() - start)
        if time.perf_counter() - begin > SECONDS:
            break
    return least


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before)


def _fingerprint(prepared: Prepared) -> str:
    """What a choice depends on: the machine, the model, the method and the shape of the work."""
    experiment, layout = prepared.experiment, prepared.problem_base.layout
    facts = [
        platform.machine(),
        platform.processor(),
        os.cpu_count(),
        torch.get_num_threads(),
        torch.__version__,
        [entry.shape for entry in layout.entries],
        prepared.data.shape,
        repr(prepared.method),
        (experiment.batch, experiment.optimizer, experiment.momentum, experiment.clip),
        sorted(_steps(prepared)),
        experiment.rounds,
    ]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:24]


def _memory() -> Path | None:
    """The file in which this machine's choices are kept, if it has a place for it."""
    folder = user_cache()
    return None if folder is None else folder / "coterie" / "engines.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(path: Path, known: dict[str, Any]) -> None:
    """Keep the choices; a cache that cannot be written is no reason to stop."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(known, indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        log.info("engine auto: the choice could not be kept (%s)", error)
