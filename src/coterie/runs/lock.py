"""One process at a time is at a run directory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path

from coterie.errors import CoterieError, require
from coterie.files import LockedError, locked, resolved

log = logging.getLogger("coterie")

_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""The directories at which this thread is already: who holds one may begin or carry on the run in it."""


def lock_of(directory: Path) -> Path:
    """The file beside a run directory that says who is at it; whoever was killed there leaves it behind.

    >>> lock_of(Path("/runs/mine")).as_posix()
    '/runs/.mine.lock'
    """
    whole = resolved(directory)
    require(bool(whole.name), f"run = {directory}: is no directory for a run; name one within it")
    return whole.with_name(f".{whole.name}.lock")


@contextmanager
def alone(directory: Path, wait: bool = False) -> Iterator[None]:
    """Be the only process at a run directory while inside; where another one is, wait for it or raise an error."""
    place = resolved(directory)
    if place in _held.get():
        yield
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock_of(place)))
        except LockedError:
            if not wait:
                raise CoterieError(f"run = {directory}: another process is at it; wait until that has ended") from None
            log.warning("%s: another process is at this run; waiting for it", directory)
            stack.enter_context(locked(lock_of(place), wait=True))
        before = _held.set(_held.get() | {place})
        try:
            yield
        finally:
            _held.reset(before)
