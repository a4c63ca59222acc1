"""The engine of many cores: persistent worker processes that share data and rows, one PyTorch thread each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Literal

from torch import Tensor

from coterie.client.problem import Problem
from coterie.core.federation import Federation
from coterie.engines.base import EngineOptions, Work
from coterie.engines.remote import (
    DEATHS,
    WAY_OUT,
    Pace,
    RemoteEngine,
    TaskQueue,
    WorkersFailError,
    cannot_import,
    packed,
    position_names,
    raised_here,
)
from coterie.engines.shared_memory import Bound, Buffer, shared_job
from coterie.engines.worker import Answer, Call, Done, Job, Positions, Ready, Refused, serve
from coterie.errors import require
from coterie.methods.base import Method
from coterie.processes import GUARD, UNGUARDED, CannotStartError, WorkerProcess, WorkerProcesses, cores, ending
from coterie.registry import FILES, PluginFile

log = logging.getLogger("coterie")


@dataclass(eq=False)
class _Trainer(WorkerProcess):
    """A worker that trains. It `starts`, is `joining` while it takes on a job, then `idle` or `busy` with a task.

    One that has `joined` knows the job, and nothing yet of its calls.
    """

    stage: Literal["starting", "joining", "joined", "idle", "busy"] = "starting"
    job: Job | None = None
    task: Positions = ()


class ProcessPool(WorkerProcesses[_Trainer]):
    """`size` worker processes that live until `stop`, whatever jobs they get; dead ones are replaced."""

    def __init__(self, size: int) -> None:
        super().__init__("coterie worker", serve, _Trainer)
        self.size = size
        self._failures = 0  # workers that died without a task since something was last done

    def perform(self, job: Job, call: Call, everything: Callable[[], Call], queue: TaskQueue) -> None:
        """Have an queue's positions done.

        Workers that know the job are told of the `call`, others of `everything()`: the call and all earlier
        news. After an error all workers are stopped; the next call starts new ones.
        """
        try:
            self._failures = 0
            for member in list(self.members):
                if member.stage == "joined" and member.job is job:
                    member.stage = "idle"
                    self._tell(member, everything(), queue)
                elif member.stage == "idle" and member.job is job:
                    self._tell(member, call, queue)
                elif member.stage in ("joined", "idle"):
                    self._introduce(member, job, queue)
            while not queue.finished:
                self._complete()
                self._deal(queue)
                for member in self.heard():
                    self._listen(member, job, everything, queue)
        except BaseException:
            self.stop()
            raise

    def prepare(self, job: Job) -> bool:
        """Have the workers start and take on a job while other things go on; whether all of them have.

        Nothing is waited for: ask again later. After an error all workers are stopped.
        """
        nothing = TaskQueue((), str, Pace(), self.size)
        try:
            self._complete()
            for member in self.heard(timeout=0):
                self._listen(member, job, None, nothing)
        except BaseException:
            self.stop()
            raise
        return len(self.members) == self.size and all(
            member.job is job and member.stage in ("joined", "idle") for member in self.members
        )

    def _complete(self) -> None:
        """Start as many workers as are missing."""
        try:
            while len(self.members) < self.size:
                self.start()
        except CannotStartError as error:
            raise WorkersFailError(
                f"engine = 'processes': workers cannot start here ({error}); use engine='serial'"
            ) from None

    def _deal(self, queue: TaskQueue) -> None:
        for member in list(self.members):
            if member.stage == "idle" and (task := queue.next_task()) is not None:
                member.stage, member.task = "busy", task
                self._tell(member, task, queue)

    def _listen(self, member: _Trainer, job: Job, everything: Callable[[], Call] | None, queue: TaskQueue) -> None:
        """Take in what a worker said; one that has joined is told `everything`, if there is a call."""
        answer = member.said(_unpickled)
        if answer is None:
            self._lose(member, queue)
        elif isinstance(answer, Ready):
            if member.stage == "starting" or member.job is not job:
                self._introduce(member, job, queue)
            elif everything is None:
                member.stage = "joined"
            else:
                member.stage = "idle"
                self._tell(member, everything(), queue)
        elif isinstance(answer, Done):
            queue.done(member.task, answer)
            member.stage, member.task = "idle", ()
            self._failures = 0
        elif isinstance(answer, Refused):
            raise cannot_import(answer.reason)
        else:
            raise raised_here(answer, queue)

    def _introduce(self, member: _Trainer, job: Job, queue: TaskQueue) -> None:
        member.stage, member.job = "joining", job
        # What was loaded from a file cannot be imported: the worker gets the files before the job that needs them.
        messages: list[PluginFile | Job] = [*FILES.values(), job]
        for message in messages:
            if member in self.members:
                self._tell(member, message, queue)

    def _tell(self, member: _Trainer, message: PluginFile | Job | Call | Positions, queue: TaskQueue) -> None:
        try:
            member.connection.send(message)
        except OSError:
            self._lose(member, queue)

    def _lose(self, member: _Trainer, queue: TaskQueue) -> None:
        """Let go of a worker that died; what it had to do is done elsewhere."""
        code = self.bury(member)
        how = ending(code)
        if member.stage == "busy":
            queue.lost(member.task, how)
            log.warning("%s: the worker process died (%s); done again by another", queue.named(member.task), how)
            return
        self._failures += 1
        if code == UNGUARDED:
            raise WorkersFailError(f"engine = 'processes': workers import the script; {GUARD}, {WAY_OUT}")
        if member.stage != "idle" and (code is None or code >= 0):
            raise WorkersFailError(
                f"engine = 'processes': a worker process could not start ({how}; see above); {GUARD}, {WAY_OUT}"
            )
        if self._failures == DEATHS:
            raise WorkersFailError(f"engine = 'processes': worker processes keep dying ({how}); {WAY_OUT[3:]}")


def _unpickled(connection: Connection) -> Answer:
    answer: Answer = connection.recv()
    return answer


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
        widths = {slot: federation[slot].width for slot in work.slots(federation)}
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
