"""What a run leaves while it goes on: its history, warnings, and the run directory; without one, what memory holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from coterie.client.scores import TUNING_DIVERGED
from coterie.core.exchange import Applied
from coterie.partition import Partition
from coterie.rounds.listeners import Listener, Outcome, RoundReport, Start
from coterie.runs.about import about_run
from coterie.runs.directory import RunDirectory
from coterie.runs.history import History, as_line
from coterie.runs.reader import Record
from coterie.runs.record import Line, LinesDigest, RunAbout
from coterie.setup.config import Config, complete, method_name
from coterie.setup.prepared import Prepared

log = logging.getLogger("coterie")

# Seconds between checkpoints, unless rounds are counted: what a kill may cost.
USUAL = 60.0
MOST = 64 << 20
"""Bytes of weights that are remembered; older rounds make way."""


class MixSource(Protocol):
    """Where it stands who learned from whom."""

    def recorded_rounds(self) -> list[int]:
        """The rounds that there are, in order."""
        ...

    def mixes(self, round: int) -> list[Applied]:
        """One of them."""
        ...


class RememberedMixes:
    """Who learned from whom in the last rounds, as many as fit into the memory that they may have.

    >>> import torch
    >>> mix = Applied(torch.ones(1, 3), "all", "model", False, torch.arange(3), torch.arange(3))
    >>> kept = RememberedMixes(most=40)
    >>> for round in (1, 2, 3, 4):
    ...     kept.add(round, [mix])
    >>> kept.recorded_rounds()
    [2, 3, 4]
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._size = most, 0
        self._rounds: dict[int, list[Applied]] = {}

    def add(self, round: int, mixes: Sequence[Applied]) -> None:
        """Remember a round; the method may go on to change its tensors."""
        size = _size(mixes)
        if size > self._most:
            return
        self._rounds[round] = [replace(mix, weights=mix.weights.clone()) for mix in mixes]
        self._size += size
        while self._size > self._most:
            self._size -= _size(self._rounds.pop(min(self._rounds)))

    def recorded_rounds(self) -> list[int]:
        """The rounds that are remembered."""
        return sorted(self._rounds)

    def mixes(self, round: int) -> list[Applied]:
        """One of them."""
        return self._rounds[round]


def _size(mixes: Sequence[Applied]) -> int:
    return sum(mix.weights.nbytes for mix in mixes)


class Recorder(Listener):
    """Writes each round into the history and, where there is one, the run directory, with mixes and checkpoints.

    A run that stops, fails or is interrupted leaves a checkpoint of the last whole round. A process that is killed, or
    that an error or an impatient user ends while it mixes rows or tests them, falls back to an earlier one: about a
    minute old, or of the round that `checkpoint_every` says.
    """

    def __init__(self, prepared: Prepared, history: History, directory: RunDirectory | None) -> None:
        self._prepared, self._settings = prepared, prepared.experiment
        self._history, self._directory = history, directory
        self._remembered = RememberedMixes()
        self._recorded = self._saved = 0
        self._saved_at = time.monotonic()

    def begin(self, start: Start) -> None:
        """Write down what is known beforehand."""
        self._names, self._federation = start.clients, start.federation
        self._recorded = self._saved = start.first_round - 1
        self._lines = LinesDigest(self._settings.evaluate_every, self._history.lines)
        partition = self._prepared.partition
        for note in (*self._prepared.notes, *(f"partition: {note}" for note in partition.notes)):
            log.info("%s", note)

    def round(self, report: RoundReport) -> None:
        """Record a round."""
        line = as_line(report)
        self._history.lines.append(line)
        self._lines.add(line)
        for client in report.diverged:
            log.warning(
                "round %d: client %s diverged (its weights, or what it measured, are not finite); it is left out of "
                "the round and keeps its last good model. A smaller lr or clip= may help.",
                report.round,
                self._names[client],
            )
        for note in report.parts.values():
            for client, text in note.warnings():
                log.warning(f"round %d: {text}", report.round, self._names[client])
        for client in report.tuning_diverged:
            log.warning("round %d: client %s: %s", report.round, self._names[client], TUNING_DIVERGED)
        if self._directory is not None:
            self._directory.add_line(line)
        if report.mixes and self._settings.records(report.round):
            (self._remembered.add if self._directory is None else self._directory.add_mixes)(report.round, report.mixes)
        self._recorded = report.round
        if self._due(report.round):
            self.save()

    @property
    def recorded(self) -> MixSource:
        """Who learned from whom, as far as it was recorded: on disk, else in memory."""
        return self._remembered if self._directory is None else self._directory

    def _due(self, round: int) -> bool:
        """Whether it is time for a checkpoint."""
        every = self._settings.checkpoint_every
        if every is None:
            return time.monotonic() - self._saved_at > USUAL
        return every > 0 and round % every == 0

    def save(self) -> None:
        """Have a checkpoint of the last round, unless there is one or a round is half done.

        The federation's round is ahead of what is recorded from the moment at which a round begins to change it.
        """
        if self._directory is not None and self._federation.round == self._recorded > self._saved:
            self._directory.checkpoint(self._federation, self._prepared.method.tested, self._lines.text)
            self._saved = self._recorded
            self._saved_at = time.monotonic()

    def end(self, outcome: Outcome) -> None:
        """Record how the run ended."""
        if self._directory is None:
            return
        self._directory.write_quality(outcome.quality)
        if outcome.summary is None:
            self.save()
        elif outcome.stopped is not None:
            self._directory.stop(outcome.summary)
        else:
            tested = self._prepared.method.tested
            self._directory.finish(self._federation, tested, self._lines.text, outcome.summary)


class Remembered(Record):
    """A run that has just ended, as it is in memory. Its rows are the run's own."""

    def __init__(
        self,
        prepared: Prepared,
        history: History,
        summary: dict[str, Any],
        recorded: MixSource,
        path: Path | None,
        quality: Mapping[str, Tensor],
    ) -> None:
        self.path = path or Path(method_name(prepared.method))
        self._prepared, self._history, self._summary = prepared, history, summary
        self._recorded, self._quality = recorded, dict(quality)

    def config(self) -> Config:
        """The run's configuration."""
        return complete(self._prepared.experiment)

    def about(self) -> RunAbout:
        """What describes the run as a whole."""
        return about_run(self._prepared)

    def partition(self) -> Partition:
        """The run's partition."""
        return self._prepared.partition

    def lines(self) -> list[Line]:
        """The rounds."""
        return self._history.lines

    def recorded_rounds(self) -> list[int]:
        """The rounds whose mixes were recorded, in order."""
        return self._recorded.recorded_rounds()

    def mixes(self, round: int) -> list[Applied]:
        """The recorded mixes of a round."""
        return self._recorded.mixes(round)

    def quality(self) -> dict[str, Tensor]:
        """What was said of the clients' finished models."""
        return self._quality

    def summary(self) -> dict[str, Any]:
        """The summary."""
        return self._summary

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return not self.stopped

    @property
    def stopped(self) -> bool:
        """Whether a listener stopped the run."""
        return "stopped" in self._summary
