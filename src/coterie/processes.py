"""Worker processes: started, heard, and let go of when they die; how a process is one; and interrupts that wait."""

from __future__ import annotations

import _thread
import ast
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Generic, TypeVar

Said = TypeVar("Said")

# How a worker ends whose import of the main script would have started workers of its own.
UNGUARDED = 73
GUARD = "put what the script does under 'if __name__ == \"__main__\":'"
# Seconds that a process has to end by itself.
LAST_SECONDS = 5
# glibc's names for its settings (malloc.h), and what they are set to: bytes. Blocks up to the first come from the heap
# (it takes no larger value), and so much that is free at the heap's end is not given back.
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
LARGEST_BLOCK, KEPT = 32 << 20, 256 << 20
# Whoever has set anything of this knows better.
OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def cores() -> int:
    """The cores that this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most_threads() -> int:
    """As many threads or worker processes as anybody can want here: beyond, starting them ends in a crash.

    >>> most_threads() >= 256
    True
    """
    return max(256, 4 * cores())


def main_can_be_imported() -> bool:
    """Whether worker processes may import the main script: there is none, or it guards what it does.

    They import it as it is. What stands there without `if __name__ == "__main__":` would happen once more in each.
    """
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        return True
    try:
        return guards_itself(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return False


def guards_itself(source: str) -> bool:
    """Whether the text of a script asks whether it is the main one.

    >>> guards_itself("if __name__ == '__main__':\\n    main()"), guards_itself("main()")
    (True, False)
    """
    tests = [node.test for node in ast.parse(source).body if isinstance(node, ast.If)]
    return any(isinstance(part, ast.Name) and part.id == "__name__" for test in tests for part in ast.walk(test))


class CannotStartError(Exception):
    """No worker process can start here; the message says why."""


@dataclass(eq=False)
class WorkerProcess:
    """A worker process, and our end of the pipe to it."""

    process: BaseProcess
    connection: Connection

    def said(self, read: Callable[[Connection], Said]) -> Said | None:
        """What it said next, before it died if need be; nothing if it is dead and has no last words."""
        try:
            return read(self.connection) if self.connection.poll() else None
        except (EOFError, OSError):
            return None


Member = TypeVar("Member", bound=WorkerProcess)


class WorkerProcesses(Generic[Member]):
    """Processes that `serve` at the other ends of their pipes, each a `kind` here, until they are told to stop.

    They are fresh ones (nothing is forked), never see an interrupt, and end when this process does, if they
    `depend_on_parent`. What is said through the pipes is for their users to settle.
    """

    def __init__(
        self, name: str, serve: Callable[[Connection], None], kind: Callable[[BaseProcess, Connection], Member]
    ) -> None:
        self._name, self._serve, self._kind = name, serve, kind
        self.members: list[Member] = []

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that there are now."""
        return [pid for member in self.members if (pid := member.process.pid) is not None]

    def start(self) -> Member:
        """Start one more; a `CannotStartError` where none can be."""
        leave_if_imported_by_a_worker()
        main = sys.modules["__main__"]
        path = getattr(main, "__file__", None)
        if path is not None and getattr(main, "__spec__", None) is None and not Path(path).is_file():
            raise CannotStartError(f"they import the main script, and {path} is no file")
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=self._serve, args=(theirs,), name=self._name, daemon=True)
        try:
            with interrupts_held_back():
                process.start()
        except AssertionError as error:  # multiprocessing's own check of daemonic processes
            ours.close()
            raise CannotStartError(str(error)) from None
        finally:
            theirs.close()
        member = self._kind(process, ours)
        self.members.append(member)
        return member

    def heard(self, timeout: float | None = None) -> list[Member]:
        """Wait until something happens (or so many seconds); the workers that said something or died."""
        handles: list[Connection | int] = [member.connection for member in self.members]
        handles += [member.process.sentinel for member in self.members]
        happened = set(wait(handles, timeout))
        return [member for member in self.members if {member.connection, member.process.sentinel} & happened]

    def bury(self, member: Member) -> int | None:
        """Let go of a worker that died; its exit code, if it did not merely hang up."""
        member.process.join(LAST_SECONDS)
        code = member.process.exitcode
        self.end([member])
        return code

    def end(self, members: Sequence[Member]) -> None:
        """End some workers, busy or not: they own nothing."""
        for member in members:
            member.process.terminate()
        for member in members:
            member.process.join(LAST_SECONDS)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.connection.close()
            member.process.close()
        self.members = [member for member in self.members if member not in members]

    def stop(self) -> None:
        """End all workers."""
        self.end(self.members)


def ending(code: int | None) -> str:
    """How a process ended, in words.

    >>> ending(-9), ending(1)
    ('signal 9', 'exit code 1')
    """
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def leave_if_imported_by_a_worker() -> None:
    """End a worker process whose import of an unguarded main script has come to start workers by itself."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(UNGUARDED)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Processes started within never see Ctrl-C: the main process does, and stops them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Started with the first process otherwise, and that ends by letting interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def depend_on_parent() -> None:
    """Make this process a worker: Ctrl-C is for the main process, without which this one ends at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Do not outlive the main process, not even until the end of what is under way."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(0)


def use_one_core() -> None:
    """Train here as one of many processes: with a single thread, and with memory that is kept once it is there."""
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Keep what is freed instead of giving it back to the system; whether that could be arranged.

    By default glibc gives large blocks back at once, and the system fills new ones with zeros, page by page: testing
    `lenet5` in a fresh process took 1.4 times as long for that. A process that has ever freed something large does
    better by itself. Other allocators and systems are left alone.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN_SETTINGS):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    set_option.argtypes, set_option.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(set_option(MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(set_option(TRIM_THRESHOLD, KEPT))


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_wait(seconds: float) -> Iterator[None]:
    """What Ctrl-C or SIGTERM do is done after the block, or so many seconds after they came: whichever is earlier.

    A second one is not put off. Signals that end the process without a word, or that are ignored, stay as they are.

    >>> done = []
    >>> try:
    ...     with interrupts_wait(5):
    ...         signal.raise_signal(signal.SIGINT)
    ...         done.append("the block")
    ... except KeyboardInterrupt:
    ...     done
    ['the block']
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are for the main thread
        return
    before = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    came: list[signal.Signals] = []
    over, reminded = threading.Lock(), threading.Lock()

    def remind() -> None:
        if not over.acquire(timeout=seconds):
            _send(came[0])
        reminded.release()

    def put_off(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        if len(came) > 1:
            before[came[-1]](number, frame)
            return
        reminded.acquire()
        # Not threading.Thread: it takes a lock that what was interrupted here may hold.
        _thread.start_new_thread(remind, ())

    over.acquire()
    for number in before:
        signal.signal(number, put_off)
    try:
        try:
            yield
        finally:
            over.release()
            with reminded:  # nothing is sent from here on
                pass
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is put_off:  # whoever was called may have set another
                signal.signal(number, handler)
        if len(came) == 1:
            before[came[0]](came[0], None)


def _send(number: signal.Signals) -> None:
    """Send the main thread a signal, even while it waits for something."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        _thread.interrupt_main(number)
