"""The engine of many cores: persistent worker processes that share data and rows, one PyTorch thread each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from coterie.client.problem import Problem
from coterie.core.federation import Federation
from coterie.engines.base import EngineOptions, Work
from coterie.engines.processes.pool import ProcessPool
from coterie.engines.processes.shared import Bound, Buffer, shared_job
from coterie.engines.remote.engine import RemoteEngine, packed, position_names
from coterie.engines.remote.queue import Pace, TaskQueue
from coterie.engines.remote.worker import Call, Done, Job, Positions
from coterie.errors import require
from coterie.methods.base import Method
from coterie.processes import cores


class Processes(RemoteEngine):
    """Clients train at `workers` processes at the same time (0: one per core); the largest clients go first.

    Rows and data lie in shared memory: the workers read the federation's slots and write trained rows in
    place. They start with the first call and live until `close`; a worker that dies is replaced and its
    client trained again. Each uses one PyTorch thread. Unless told otherwise (`threads`), so does the main
    process while it runs an experiment with this engine: results are bit-identical to the serial engine's
    with one thread. Workers import the method's and the model's classes, so these must live in a module,
    and a script must guard what it does with `if __name__ == "__main__":`.

    Workers work out the method's recipe by themselves: the work given must be the method's own.
    A `pool` can be shared by engines that are used one after the other; it is theirs to stop then.
    """

    name = "processes"

    def __init__(
        self, problem: Problem, method: Method, seed: int, workers: int = 0, pool: ProcessPool | None = None
    ) -> None:
        require(workers >= 0, f"workers = {workers}: must not be negative (0: one per core)")
        super().__init__(problem, method, seed)
        self._owns_pool = pool is None
        self.pool = pool or ProcessPool(min(workers or cores(), len(problem.train)))
        self.mixing_threads = self.pool.size
        self._base: Job | None = None
        self._bound: Bound | None = None
        self._buffers: dict[int, Buffer] = {}
        self._buffers_made = 0
        self._buffers_told: set[int] = set()
        self._numbers: dict[str, int] = {}  # slot -> number of the buffer that was last lent for it

    @classmethod
    def create(cls, problem: Problem, method: Method, seed: int, options: EngineOptions) -> Processes:
        """The engine with what the run says about it."""
        return cls(problem, method, seed, options.workers)

    def prepare(self, federation: Federation) -> bool:
        """Have the workers get ready for a federation while other things go on; whether all of them are."""
        return self.pool.prepare(self._bind(federation).job)

    def close(self) -> None:
        """End the workers."""
        if self._owns_pool:
            self.pool.stop()
        self._buffers.clear()
        self._bound = None

    def _perform(
        self, federation: Federation, call: Call, samples: Sequence[int], pace: Pace, rows: dict[str, Tensor]
    ) -> list[tuple[Positions, Done]]:
        bound = self._bind(federation)
        bases = {number: buffer.base for number, buffer in self._buffers.items()}
        values = federation.values
        news = replace(
            call,
            rows={slot: self._numbers[slot] for slot in rows},
            buffers=frozenset(bases),
            new_buffers={number: base for number, base in bases.items() if number not in self._buffers_told},
            values=frozenset(values),
            new_values=packed(bound.changed_values()),
        )
        self._buffers_told = set(bases)

        def everything() -> Call:
            return replace(news, new_buffers=bases, new_values=packed(values))

        tell = self.tell if call.action == "train" else None
        queue = TaskQueue(samples, position_names(call), pace, self.pool.size, tell=tell)
        self.pool.perform(bound.job, news, everything, queue)
        return queue.results

    def _bind(self, federation: Federation) -> Bound:
        """Put a federation into shared memory, unless it is there already."""
        if self._bound is None or not self._bound.still(federation):
            if self._base is None:
                self._base = shared_job(self._problem, self._method, self._seed, federation)
            self._bound = Bound(federation, self._base)
        return self._bound

    def _room(self, federation: Federation, work: Work, count: int) -> dict[str, Tensor]:
        """Room for trained rows in shared memory.

        A buffer is used again once nobody holds the rows any longer that were last handed out.
        """
        widths = {slot: federation[slot].width for slot in work.slots}
        for number in [n for n, b in self._buffers.items() if b.free and b.base.shape[1] not in widths.values()]:
            del self._buffers[number]
        rows: dict[str, Tensor] = {}
        for slot, width in widths.items():
            number = next((n for n, b in self._buffers.items() if b.free and b.fits(count, width)), self._buffers_made)
            if number == self._buffers_made:
                self._buffers[number] = Buffer(count, width)
                self._buffers_made += 1
            rows[slot], self._numbers[slot] = self._buffers[number].lend(count), number
        return rows
