"""Ctrl-C and SIGTERM, put off for a moment: who is nearly through with something brings it to its end."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
