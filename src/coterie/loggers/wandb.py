"""A run in Weights & Biases: curves, histograms over clients, and who learned from whom as images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from coterie.errors import CoterieError, require
from coterie.files import write_whole
from coterie.loggers.contents import as_image, client_order, matrices, over_clients, scalars
from coterie.rounds.listeners import Listener, Outcome, RoundReport, Start
from coterie.runs.record import UNREADABLE
from coterie.setup.config import complete
from coterie.typed import typed

STATE = "wandb.json"
"""In a run's directory: its id at Weights & Biases, and the last round that was sent."""
FAILED = 1


class KnownRun(Struct, frozen=True):
    """What Weights & Biases knows of a run: under which id, and up to which round."""

    id: str
    told: int


class WandB(Listener):
    """Tells Weights & Biases how a run goes; `wandb login` or `mode="offline"` comes before.

    `options` go to `wandb.init` as they are; without `project`, it is `coterie` unless `WANDB_PROJECT` says otherwise.
    Files are kept in the run's directory, if there is one. A run that is resumed goes on under the same id: rounds that
    were told are not told again. Images are sent every `images_every` rounds and at the end (0: never).
    """

    @typed
    def __init__(self, project: str | None = None, images_every: int = 10, **options: Any) -> None:
        require(images_every >= 0, f"images_every = {images_every}: must not be negative (0: never)")
        try:
            import wandb
        except ImportError:
            raise CoterieError(
                "listener 'wandb' needs Weights & Biases, which is not installed: pip install \"coterie[wandb]\""
            ) from None
        self._wandb: Any = wandb
        self._project, self._images_every, self._options = project, images_every, options
        self._run: Any = None

    def begin(self, start: Start) -> None:
        """Begin a run there, or carry it on."""
        config = {} if start.prepared is None else complete(start.prepared.experiment)
        self._state = None if start.directory is None else start.directory / STATE
        known = _read(self._state)
        name = f"{start.method}-s{config.get('seed', 0)}" if start.directory is None else start.directory.resolve().name
        self._run = self._wandb.init(
            **{
                "project": self._project or os.environ.get("WANDB_PROJECT") or "coterie",
                "reinit": "create_new",  # whoever has a run of their own keeps it
                "id": None if known is None else known.id,
                "resume": None if known is None else "allow",
                "name": name,
                "config": config,
                "dir": None if start.directory is None else str(start.directory),
                **self._options,
            }
        )
        self._told = 0 if known is None else known.told
        self._clients, self._rounds, self._order = len(start.clients), start.rounds, client_order(start)
        self._note()

    def round(self, report: RoundReport) -> None:
        """Tell of a round, unless that was done before the run was resumed."""
        if report.round <= self._told:
            return
        what: dict[str, Any] = {**scalars(report)}
        what |= {name: self._wandb.Histogram(values) for name, values in over_clients(report).items()}
        every, last = self._images_every, report.round == self._rounds or report.stopped is not None
        if every and (last or report.round % every == 0):
            images = {name: as_image(matrix, self._order) for name, matrix in matrices(report, self._clients).items()}
            what |= {name: self._wandb.Image(pixels) for name, pixels in images.items()}
        self._run.log(what, step=report.round)
        self._told = report.round
        self._note()

    def end(self, outcome: Outcome) -> None:
        """Say how it ended."""
        if self._run is not None:
            self._run.finish(exit_code=0 if outcome.error is None else FAILED)
            self._run = None

    def _note(self) -> None:
        if self._state is not None:
            write_whole(self._state, msgspec.json.encode(KnownRun(self._run.id, self._told)))


def _read(path: Path | None) -> KnownRun | None:
    """What was noted when the run was told of before; nothing of a damaged note."""
    try:
        return None if path is None else msgspec.json.decode(path.read_bytes(), type=KnownRun)
    except (FileNotFoundError, *UNREADABLE):
        return None
