"""The engine of many cores: persistent worker processes that share data and rows, one PyTorch thread each."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.engines.agenda import Agenda, Pace
from coterie.engines.crew import Crew
from coterie.engines.engine import Engine, Trained, Work
from coterie.engines.seat import Call, Done, Job, Task
from coterie.engines.shared import Bound, Buffer, shared_job
from coterie.errors import CoterieError, require
from coterie.federation import Federation
from coterie.local import TEST_BATCH, Problem, Score
from coterie.methods.method import Method

Item = TypeVar("Item")


class Processes(Engine):
    """Clients train at `workers` processes at the same time (0: one per core); the largest clients go first.

    Rows and data lie in shared memory: the workers read the federation's slots and write trained rows in
    place. They start with the first call and live until `close`; a worker that dies is replaced and its
    client trained again. Each uses one PyTorch thread. Unless told otherwise (`threads`), so does the main
    process while it runs an experiment with this engine: results are bit-identical to the serial engine's
    with one thread. Workers import the method's and the model's classes, so these must live in a module,
    and a script must guard what it does with `if __name__ == "__main__":`.

    Workers work out the method's recipe and probes by themselves: the work given must be the method's own.
    A `crew` can be shared by engines that are used one after the other; it is theirs to stop then.
    """

    name = "processes"
    main_threads: ClassVar[int] = 1

    def __init__(self, problem: Problem, method: Method, seed: int, workers: int = 0, crew: Crew | None = None) -> None:
        require(workers >= 0, f"workers = {workers}: must not be negative (0: one per core)")
        self._problem, self._method, self._seed = problem, method, seed
        self._owns_crew = crew is None
        self.crew = crew or Crew(min(workers or _cores(), len(problem.train)))
        self._train_pace, self._test_pace = Pace(), Pace()
        self._base: Job | None = None
        self._bound: Bound | None = None
        self._buffers: dict[int, Buffer] = {}
        self._buffers_made = 0

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        """Have every client of the cohort do the work."""
        self._require_own_work(federation, work)
        clients = cohort.tolist()
        bound = self._bind(federation)
        known = set(self._buffers)
        rows, numbers = self._room(federation, work, len(clients))
        call = Call(
            "train",
            federation.round,
            tuple(clients),
            with_probes=bool(work.probes),
            test_trained=work.test,
            rows=numbers,
            buffers=frozenset(self._buffers),
            new_buffers={number: self._buffers[number].base for number in self._buffers.keys() - known},
        )
        begin = time.perf_counter()
        samples = [len(self._problem.train[client]) for client in clients]
        results = self._perform(bound, call, samples, self._train_pace)
        lasted = time.perf_counter() - begin
        probes, scores = _by_client(results, [len(self._problem.test[client]) for client in clients])
        trained = Trained(rows, {probe.name: torch.stack(probes[probe.name]) for probe in work.probes}, scores)
        busy = sum(done.seconds for _, done in results)
        tested = sum(done.test_seconds for _, done in results)
        trained.test_seconds = lasted * tested / busy if busy else 0.0
        return trained

    def test(self, federation: Federation, clients: Tensor, keep_scores: bool = False) -> list[Score]:
        """Score the clients' models; a model that all share is run once, in the serial engine's batches."""
        chosen = clients.tolist()
        sizes = [len(self._problem.test[client]) for client in chosen]
        together = federation.is_uniform and not self._method.tune(federation)
        call = Call(
            "batches" if together else "test",
            federation.round,
            tuple(chosen),
            keep_scores=keep_scores,
            buffers=frozenset(self._buffers),
        )
        if together:
            total = sum(sizes)
            batches = [min(TEST_BATCH, total - start) for start in range(0, total, TEST_BATCH)]
            results = self._perform(self._bind(federation), call, batches, self._test_pace)
            parts = _by_client(results, batches)[1]
            return _join(parts).split(sizes)
        return _by_client(self._perform(self._bind(federation), call, sizes, self._test_pace), sizes)[1]

    def close(self) -> None:
        """End the workers."""
        if self._owns_crew:
            self.crew.stop()
        self._buffers.clear()
        self._bound = None

    def _perform(self, bound: Bound, call: Call, samples: Sequence[int], pace: Pace) -> list[tuple[Task, Done]]:
        def name(position: int) -> str:
            what = f"test batch {position}" if call.action == "batches" else f"client {call.clients[position]}"
            return f"round {call.round}, {what}"

        def everything() -> Call:
            buffers = {number: buffer.base for number, buffer in self._buffers.items()}
            return replace(news, new_buffers=buffers, new_values=_packed(bound.federation.values))

        values = bound.federation.values
        news = replace(call, values=frozenset(values), new_values=_packed(bound.changed_values()))
        agenda = Agenda(samples, name, pace, self.crew.size)
        self.crew.perform(bound.job, news, everything, agenda)
        return agenda.results

    def _bind(self, federation: Federation) -> Bound:
        """Put a federation into shared memory, unless it is there already."""
        if self._bound is None or not self._bound.still(federation):
            if self._base is None:
                self._base = shared_job(self._problem, self._method, self._seed, federation)
            self._bound = Bound(federation, self._base)
        return self._bound

    def _room(self, federation: Federation, work: Work, count: int) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Room for the trained rows `[count, slot width]` in shared memory, and the numbers of the buffers.

        A buffer is used again once nobody holds the rows any longer that were last handed out.
        """
        widths = {slot: federation[slot].width for slot in work.slots}
        for number in [n for n, b in self._buffers.items() if b.free and b.base.shape[1] not in widths.values()]:
            del self._buffers[number]
        rows: dict[str, Tensor] = {}
        numbers: dict[str, int] = {}
        for slot, width in widths.items():
            number = next((n for n, b in self._buffers.items() if b.free and b.fits(count, width)), self._buffers_made)
            if number == self._buffers_made:
                self._buffers[number] = Buffer(count, width)
                self._buffers_made += 1
            rows[slot], numbers[slot] = self._buffers[number].lend(count), number
        return rows, numbers

    def _require_own_work(self, federation: Federation, work: Work) -> None:
        method = self._method
        own = Work(method.recipe(federation), method.probes(federation) if work.probes else ())
        if _outline(own) != _outline(work):
            raise CoterieError(
                f"engine = 'processes': workers do the recipe of {type(method).__name__} itself; for another use "
                "engine='serial'"
            )


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _packed(values: dict[str, Tensor]) -> bytes:
    return save({name: value.contiguous().clone() for name, value in values.items()}) if values else b""


def _outline(work: Work) -> list[object]:
    """What can be compared of a piece of work: terms and rules may be functions made for the round."""
    phases = [(phase.slot, phase.train, dict(phase.also), phase.epochs, phase.lr) for phase in work.recipe]
    return [phases, [probe.name for probe in work.probes]]


def _by_client(results: list[tuple[Task, Done]], tests: list[int]) -> tuple[dict[str, list[Tensor]], list[Score]]:
    """The probes (by name) and scores of every position, in order; `tests` says how many samples each was tested on."""
    probes: dict[str, dict[int, Tensor]] = {}
    scores: dict[int, Score] = {}
    for task, done in results:
        tensors = load(done.tensors) if done.tensors else {}
        if "correct" in tensors:
            whole = Score(tensors.pop("correct"), tensors.pop("losses"), tensors.pop("probabilities", None))
            scores |= zip(task, whole.split([tests[position] for position in task]), strict=True)
        for name, rows in tensors.items():
            probes.setdefault(name.removeprefix("probe."), {}).update(zip(task, rows, strict=True))
    return {name: _in_order(found) for name, found in probes.items()}, _in_order(scores)


def _in_order(found: dict[int, Item]) -> list[Item]:
    return [found[position] for position in sorted(found)]


def _join(scores: list[Score]) -> Score:
    kept = [score.probabilities for score in scores if score.probabilities is not None]
    return Score(
        torch.cat([score.correct for score in scores]),
        torch.cat([score.losses for score in scores]),
        torch.cat(kept) if kept else None,
    )
