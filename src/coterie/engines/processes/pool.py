"""Worker processes from the main process's side: start them, hand out tasks, notice and replace the dead."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal, cast

import torch.multiprocessing

from coterie.engines.remote.queue import DEATHS, Pace, TaskQueue, WorkersFailError
from coterie.engines.remote.worker import Answer, Call, Done, Failed, Job, Positions, Ready, Refused, serve
from coterie.errors import CoterieError
from coterie.processes import interrupts_held_back
from coterie.registry import FILES, PluginFile

log = logging.getLogger("coterie")

# How a worker ends whose import of the main script would have started workers of its own.
UNGUARDED = 73
WAY_OUT = "or use engine='serial'"
GUARD = "put what the script does under 'if __name__ == \"__main__\":'"


@dataclass
class _WorkerProcess:
    """A worker process. It `starts`, is `joining` while it takes on a job, then `idle` or `busy` with a task.

    One that has `joined` knows the job, and nothing yet of its calls.
    """

    process: BaseProcess
    connection: Connection
    stage: Literal["starting", "joining", "joined", "idle", "busy"] = "starting"
    job: Job | None = None
    task: Positions = ()


class ProcessPool:
    """`size` worker processes that live until `stop`, whatever jobs they get; dead ones are replaced."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._members: list[_WorkerProcess] = []
        self._failures = 0  # workers that died without a task since something was last done

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that there are now."""
        return [pid for member in self._members if (pid := member.process.pid) is not None]

    def perform(self, job: Job, call: Call, everything: Callable[[], Call], queue: TaskQueue) -> None:
        """Have an queue's positions done.

        Workers that know the job are told of the `call`, others of `everything()`: the call and all earlier
        news. After an error all workers are stopped; the next call starts new ones.
        """
        try:
            self._failures = 0
            for member in list(self._members):
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
                for member in self._heard():
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
            for member in self._heard(timeout=0):
                self._listen(member, job, None, nothing)
        except BaseException:
            self.stop()
            raise
        return len(self._members) == self.size and all(
            member.job is job and member.stage in ("joined", "idle") for member in self._members
        )

    def stop(self) -> None:
        """End all workers, busy or not: they own nothing."""
        for member in self._members:
            member.process.terminate()
        for member in self._members:
            member.process.join(5)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.connection.close()
            member.process.close()
        self._members.clear()

    def _complete(self) -> None:
        """Start as many workers as are missing."""
        while len(self._members) < self.size:
            self._members.append(_start())

    def _deal(self, queue: TaskQueue) -> None:
        for member in list(self._members):
            if member.stage == "idle" and (task := queue.next_task()) is not None:
                member.stage, member.task = "busy", task
                self._tell(member, task, queue)

    def _heard(self, timeout: float | None = None) -> list[_WorkerProcess]:
        """Wait until something happens (or so many seconds); the workers that said something or died."""
        handles: list[Connection | int] = [member.connection for member in self._members]
        handles += [member.process.sentinel for member in self._members]
        happened = wait(handles, timeout)
        return [m for m in self._members if m.connection in happened or m.process.sentinel in happened]

    def _listen(
        self, member: _WorkerProcess, job: Job, everything: Callable[[], Call] | None, queue: TaskQueue
    ) -> None:
        """Take in what a worker said; one that has joined is told `everything`, if there is a call."""
        try:
            # What a worker said before it died still counts.
            answer: Answer | None = member.connection.recv() if member.connection.poll() else None
        except (EOFError, OSError):
            answer = None
        if answer is None:
            self._bury(member, queue)
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

    def _introduce(self, member: _WorkerProcess, job: Job, queue: TaskQueue) -> None:
        member.stage, member.job = "joining", job
        # What was loaded from a file cannot be imported: the worker gets the files before the job that needs them.
        messages: list[PluginFile | Job] = [*FILES.values(), job]
        for message in messages:
            if member in self._members:
                self._tell(member, message, queue)

    def _tell(self, member: _WorkerProcess, message: PluginFile | Job | Call | Positions, queue: TaskQueue) -> None:
        try:
            member.connection.send(message)
        except OSError:
            self._bury(member, queue)

    def _bury(self, member: _WorkerProcess, queue: TaskQueue) -> None:
        """Let go of a worker that died; what it had to do is done elsewhere."""
        member.process.join(5)
        code = member.process.exitcode
        if code is None:  # it hung up without ending
            member.process.kill()
            member.process.join()
        self._members.remove(member)
        member.connection.close()
        member.process.close()
        ending = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if member.stage == "busy":
            queue.lost(member.task, ending)
            log.warning("%s: the worker process died (%s); done again by another", queue.named(member.task), ending)
            return
        self._failures += 1
        if code == UNGUARDED:
            raise WorkersFailError(f"engine = 'processes': workers import the script; {GUARD}, {WAY_OUT}")
        if member.stage != "idle" and (code is None or code >= 0):
            raise WorkersFailError(
                f"engine = 'processes': a worker process could not start ({ending}; see above); {GUARD}, {WAY_OUT}"
            )
        if self._failures == DEATHS:
            raise WorkersFailError(f"engine = 'processes': worker processes keep dying ({ending}); {WAY_OUT[3:]}")


def cannot_import(reason: str, engine: str = "processes") -> CoterieError:
    """The error for classes that exist in the main process alone."""
    return WorkersFailError(
        f"engine = '{engine}': the workers cannot import the method or the model ({reason}); put its class into a "
        f"module of its own (a .py file) and import it, {WAY_OUT}"
    )


def raised_here(failed: Failed, queue: TaskQueue) -> Exception:
    """The error that a worker met, as the main process raises it."""
    message = f"{queue.named((failed.position,))}: {failed.message}"
    if failed.expected:
        return CoterieError(message)
    error = RuntimeError(message)
    error.add_note(f"In the worker process:\n{failed.details}")
    return error


def _start() -> _WorkerProcess:
    """Start a worker process."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # This is a worker that is importing a script which starts its run at once.
        raise SystemExit(UNGUARDED)
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), name="coterie worker", daemon=True)
    try:
        with interrupts_held_back():
            process.start()
    except AssertionError as error:  # multiprocessing's own check of daemonic processes
        raise WorkersFailError(
            f"engine = 'processes': workers cannot start here ({error}); use engine='serial'"
        ) from None
    finally:
        theirs.close()
    return _WorkerProcess(cast(BaseProcess, process), ours)
