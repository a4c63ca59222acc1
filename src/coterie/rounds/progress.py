"""How far a run is, on stderr: bars in terminals and notebooks, plain lines elsewhere, and warnings above them."""

from __future__ import annotations

import importlib.util
import logging
import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.core.numbers import ACCURACY, NO_NUMBER, number_text, spoken_bytes
from coterie.rounds.listeners import Listener, RoundReport, Start

SECONDS_BETWEEN_LINES = 1.0
# A run that is over sooner leaves nothing on the screen; a round that lasts longer shows its clients.
PATIENCE = 1.0
SECONDS_BETWEEN_UPDATES = 0.1
MOST_WARNINGS = 20
# What a line holds besides bar and details: the time left, gaps, and so much of a bar that it can be seen.
SHORTEST_BAR, TIME_LEFT, GAPS = 5, 7, 4


class ProgressDisplay:
    """Bars in a terminal or notebook, plain lines about once a second elsewhere, and above or between them warnings.

    Use it as a context manager: while it is open, warnings in Coterie's log are shown on stderr too.
    """

    def __init__(self, total: int = 0) -> None:
        self.total, self._done = total, 0.0
        self._first_done: float | None = None
        self._opened = self._begin = self._last_line = time.monotonic()
        self._console = console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[received]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not _shows_bars(console),
        )
        self._handler = _WarningLines(self)

    def __enter__(self) -> Self:
        logging.getLogger("coterie").addHandler(self._handler)
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A bar that is transient goes when it is stopped.
        self._bar.live.transient = time.monotonic() - self._opened < PATIENCE
        self._bar.stop()
        logging.getLogger("coterie").removeHandler(self._handler)

    def print(self, line: str) -> None:
        """A line on stderr, above the bars where there are any."""
        if self._bar.disable:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(line, markup=False, soft_wrap=True)

    def _came_to(self, done: float, line: str) -> None:
        """So many of the total rounds are done; says so in a plain line, if it is time for one."""
        now = time.monotonic()
        if self._first_done is None:
            # A resumed run begins in the middle; the rounds before took none of our time.
            self._first_done, self._begin = done, now
        self._done = done
        self._say(line, now, last=done == self.total and now - self._opened >= PATIENCE)

    def _say(self, line: str, now: float, last: bool = False) -> None:
        if self._bar.disable and (last or now - self._last_line >= SECONDS_BETWEEN_LINES):
            self._last_line = now
            self.print(f"{line}, ETA {self._time_left(now)}")

    def _time_left(self, now: float) -> str:
        # Time runs from the end of the first round: what came before was preparation.
        timed = 0.0 if self._first_done is None else self._done - self._first_done
        if not timed:
            return "?"
        seconds = int((now - self._begin) / timed * (self.total - self._done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class RoundProgress(ProgressDisplay, Listener):
    """Shows how far a run is, and within a long round how many clients are trained."""

    def begin(self, start: Start) -> None:
        """Say how many rounds there are to be."""
        self.total, self._moved = start.rounds, start.moved
        self._metric, self._mean, self._worst, self._noted = ACCURACY.name, NO_NUMBER, NO_NUMBER, ""
        done = start.first_round - 1
        self._task = self._bar.add_task("round", total=start.rounds, completed=done, received=self._beside())
        self._round_began = self._updated = time.monotonic()

    def clients_done(self, round: int, done: int, total: int) -> None:
        """Some of the cohort's clients are trained."""
        now = time.monotonic()
        if now - self._round_began < PATIENCE or now - self._updated < SECONDS_BETWEEN_UPDATES:
            return
        self._updated, self._done = now, round - 1 + done / total
        self._bar.update(self._task, completed=self._done, received=self._beside(f"{done}/{total}"))
        self._say(f"round {round}/{self.total}, {done}/{total} clients trained, {self._told()}", now)

    def round(self, report: RoundReport) -> None:
        """A round is over."""
        if report.received is not None:
            self._metric = report.received.scale.name
            self._mean, self._worst = (number_text(one) for one in (report.received.mean, report.received.worst_decile))
            if report.received.sample is not None:
                self._mean += f" ± {number_text(report.received.error)}"
        self._moved += sum(report.bytes.values())
        shown = (note.shown for note in report.parts.values())
        self._noted = "".join(f", {text}" for text in shown if text)
        self._bar.update(self._task, completed=report.round, received=self._beside())
        self._came_to(report.round, f"round {report.round}/{self.total}, {self._told()}")
        self._round_began = time.monotonic()

    def _told(self) -> str:
        """What is known of the run so far, for a plain line."""
        text = f"received mean {self._mean}, worst tenth {self._worst}, {spoken_bytes(self._moved)} moved"
        return self._plain(text + self._noted)

    def _beside(self, clients: str = "") -> str:
        """The same beside a bar: as much of it as the terminal has room for."""
        room = self._console.width - len(f"round {self.total}/{self.total}") - SHORTEST_BAR - TIME_LEFT - GAPS
        mean, moved = f"{self._metric} {self._mean}", spoken_bytes(self._moved)
        worst, whose = f"worst {self._worst}", clients and f"{clients} clients"
        at_length = (whose, f"received {mean}", f"worst tenth {self._worst}", f"{moved} moved{self._noted}")
        short = ((whose, mean, worst, moved), (clients, mean, worst, moved), (clients, mean, worst), (clients, mean))
        texts = [", ".join(filter(None, at_length)), *(" ".join(filter(None, wish)) for wish in short)]
        return self._plain(next((text for text in texts if len(text) <= room), clients or self._mean))

    def _plain(self, text: str) -> str:
        """A text as the terminal can show it."""
        try:
            text.encode(self._console.encoding)
        except (UnicodeEncodeError, LookupError):
            return text.replace(NO_NUMBER, "-").encode("ascii", "replace").decode()
        return text


def received_mean(value: float | None) -> str:
    """The mean that is shown beside a bar.

    >>> received_mean(0.5), received_mean(None)
    ('received mean 0.5000', 'received mean –')
    """
    return f"received mean {number_text(value)}"


def _shows_bars(console: Console) -> bool:
    """In a terminal, and in a notebook that has what bars need there."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


class _WarningLines(logging.Handler):
    """Sends warnings to where the progress is shown."""

    def __init__(self, progress: ProgressDisplay) -> None:
        super().__init__(logging.WARNING)
        self._progress, self._shown = progress, 0

    def emit(self, record: logging.LogRecord) -> None:
        self._shown += 1
        if self._shown <= MOST_WARNINGS:
            self._progress.print(f"coterie: warning: {record.getMessage()}")
        elif self._shown == MOST_WARNINGS + 1:
            self._progress.print("coterie: warning: there are more; a run that is kept has them all in its log.txt")
