"""A progress bar for the slow moments (a download, a first decoding), silent for the quick ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

PATIENCE_SECONDS = 2.0
"""Work that is done sooner than this shows no bar."""

Advance = Callable[[int], None]
"""Called from one thread with the number of items (or bytes) done since the last call."""


@contextmanager
def progress_bar(what: str, total: int | None, enabled: bool, *, in_bytes: bool = False) -> Iterator[Advance]:
    """A bar on stderr that appears after `PATIENCE_SECONDS`, and only where stderr is a terminal.

    >>> with progress_bar("decoding", 3, enabled=False) as advance:
    ...     advance(3)
    """
    shown = enabled and sys.stderr.isatty()
    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        count,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not shown,
    )
    task = bar.add_task(what, total=total)
    begin = time.monotonic()
    started = False

    def advance(amount: int) -> None:
        nonlocal started
        if shown and not started and time.monotonic() - begin > PATIENCE_SECONDS:
            bar.start()
            started = True
        bar.advance(task, amount)

    try:
        yield advance
    finally:
        if started:
            bar.stop()
