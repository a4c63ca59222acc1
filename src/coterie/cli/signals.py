"""SIGTERM, which schedulers send before they kill: a run then keeps its last round, as with Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TerminationError(KeyboardInterrupt):
    """SIGTERM; whoever cleans up after Ctrl-C cleans up after it too."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """What a shell is told: 128 and the signal's number.

    >>> exit_code(KeyboardInterrupt()), exit_code(TerminationError())
    (130, 143)
    """
    return 128 + (signal.SIGTERM if isinstance(stop, TerminationError) else signal.SIGINT)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does. Further ones are ignored, so that what is being saved is saved."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise TerminationError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
