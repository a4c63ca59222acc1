"""Worker processes: what all that start them, and all that are one, have in common."""

from __future__ import annotations

import ast
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path


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
