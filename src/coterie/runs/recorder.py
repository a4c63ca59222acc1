"""The listener that keeps what a run leaves: its history, warnings in the log, and the run directory."""

from __future__ import annotations

import logging
import time

from coterie.client.scores import TUNING_DIVERGED
from coterie.runs.directory import RunDirectory
from coterie.runs.history import History, as_line
from coterie.runs.lines import LinesDigest
from coterie.setup.prepared import Prepared
from coterie.runs.remembered import MixSource, RememberedMixes
from coterie.rounds.listeners import Listener, Outcome, Start
from coterie.rounds.report import RoundReport

log = logging.getLogger("coterie")


# Seconds between checkpoints, unless rounds are counted: what a kill may cost.
USUAL = 60.0


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
