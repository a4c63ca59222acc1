"""A run in TensorBoard: curves, histograms over clients, and who learned from whom as images."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import CoterieError, require
from coterie.loggers.contents import as_image, client_order, matrices, over_clients, scalars
from coterie.rounds.listeners import Listener, Outcome, RoundReport, Start
from coterie.setup.config import complete, to_toml
from coterie.typed import typed

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
"""Where a run's events are in its directory."""
# Event files are read in the order of their names, which begin with the second in which they were opened.
TICK = 0.05


class TensorBoard(Listener):
    """Writes TensorBoard's event files into `tensorboard` in the run's directory, or below `folder`, a folder a run.

    Images of who learned from whom are written every `images_every` rounds and at the end (0: never). A run that is
    resumed goes on in the same place: rounds that it runs again replace those that were written.
    """

    @typed
    def __init__(self, folder: str | Path | None = None, images_every: int = 10) -> None:
        require(images_every >= 0, f"images_every = {images_every}: must not be negative (0: never)")
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise CoterieError(
                "listener 'tensorboard' needs TensorBoard, which is not installed: pip install \"coterie[tensorboard]\""
            ) from None
        self._folder = None if folder is None else Path(folder)
        self._images_every = images_every
        self._writer: SummaryWriter | None = None

    def begin(self, start: Start) -> None:
        """Open a new event file; what earlier ones say of rounds that come again is withdrawn."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self._place(start)
        _wait_for_a_later_name(folder)
        again = start.first_round > 1 or any(folder.glob("events.*"))
        self._writer = SummaryWriter(str(folder), purge_step=start.first_round if again else None)
        self._clients, self._rounds, self._order = len(start.clients), start.rounds, client_order(start)
        if start.prepared is not None and start.first_round == 1:
            config = to_toml(complete(start.prepared.experiment))
            self._writer.add_text("config", "\n".join(f"    {line}" for line in config.splitlines()), 0)

    def _place(self, start: Start) -> Path:
        if self._folder is not None and start.directory is not None:
            return self._folder / start.directory.resolve().name
        if self._folder is not None:
            return _next(self._folder, start.method)
        if start.directory is None:
            raise CoterieError("listener 'tensorboard': say where to write: TensorBoard('folder'), or run with out=…")
        return start.directory / FOLDER

    def round(self, report: RoundReport) -> None:
        """Write a round."""
        assert self._writer is not None
        for name, number in scalars(report).items():
            self._writer.add_scalar(name, number, report.round)
        for name, values in over_clients(report).items():
            self._writer.add_histogram(name, values, report.round)
        every, last = self._images_every, report.round == self._rounds or report.stopped is not None
        if every and (last or report.round % every == 0):
            for name, matrix in matrices(report, self._clients).items():
                self._writer.add_image(name, as_image(matrix, self._order), report.round, dataformats="HWC")
        self._writer.flush()  # whoever watches sees it at once, and a kill loses nothing

    def end(self, outcome: Outcome) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _next(parent: Path, stem: str) -> Path:
    """A place for a run that has no directory, and so will not be carried on."""
    return next(place for number in count(1) if not (place := parent / f"{stem}-{number}").exists())


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait until a new file's name comes after those that are there: a second at most."""
    names = [file.name.split(".") for file in folder.glob("events.out.tfevents.*")]
    newest = max((int(parts[3]) for parts in names if len(parts) > 3 and parts[3].isdecimal()), default=0)
    until = min(newest + 1, time.time() + 1)  # another machine's clock may be ahead
    while time.time() < until:
        time.sleep(TICK)
