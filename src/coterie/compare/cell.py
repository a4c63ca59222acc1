"""One run among others that are kept together: begun, carried on or read, whichever is left to do."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, require
from coterie.experiment.config import PLUGINS, Config, complete
from coterie.experiment.directory import RunDirectory
from coterie.experiment.experiment import Experiment
from coterie.experiment.kept import ABOUT, CONFIG, MIXES, PARTITION, ROUNDS
from coterie.experiment.resume import resume
from coterie.files import LockedError, locked
from coterie.rounds.listeners import GivenListener, StopAfter

log = logging.getLogger("coterie")

Summary = dict[str, Any]

# How a run is carried out and what it leaves on disk: a run that differs in these alone is the same run. One that was
# begun is carried on the way it was begun.
HOW = {
    "engine",
    "device",
    "workers",
    "ray_address",
    "ray_gpus",
    "threads",
    "memory",
    "record_every",
    "checkpoint_every",
}


def perform(
    experiment: Experiment, directory: Path | None, listeners: Sequence[GivenListener] = (), until: int | None = None
) -> Summary:
    """The summary of an experiment that is kept in a directory: whatever of it is there already is not run again.

    With `until`, the run stops after that round and can be carried on later; if it is that far already, nothing is run.
    Only one process at a time is at a directory; others wait, and find the run finished.
    """
    listeners = listeners if until is None else [*listeners, StopAfter(until)]
    if directory is None:
        return experiment.run(None, listeners).summary
    with _alone(directory):
        if not (directory / CONFIG).is_file():
            _clear(directory)
            return experiment.run(directory, listeners).summary
        kept = RunDirectory.open(directory)
        require_same_run(directory, kept.config(), complete(experiment))
        if kept.finished or (until is not None and kept.stopped and len(kept.lines()) >= until):
            found: Summary = json.loads(kept.summary_text())
            return found
        given = any(str(value).startswith("given (") for value in kept.config().values())
        return resume(directory, listeners, experiment=experiment if given else None).summary


def finished(directory: Path | None) -> bool:
    """Whether a directory holds a whole run."""
    return directory is not None and RunDirectory(directory).finished


def require_same_run(directory: Path, kept: Config, wanted: Config) -> None:
    """An error if a directory holds another run than the one that is wanted there."""
    ours, theirs = (
        {key: value for key, value in config.items() if key not in HOW | {PLUGINS}} for config in (wanted, kept)
    )
    differing = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    require(
        not differing,
        f"out = {directory}: holds a run with other settings ({', '.join(differing)}); name another directory",
    )


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = directory.with_name(f".{directory.name}.lock")
    try:
        with locked(lock):
            yield
    except LockedError:
        log.warning("%s: another process is at this run; waiting for it", directory)
        with locked(lock, wait=True):
            yield


def _clear(directory: Path) -> None:
    """Take away what a process left that was killed before its run had begun."""
    if not directory.is_dir():
        return
    left = {entry.name.removesuffix(".partial") for entry in directory.iterdir()}
    if not left <= {MIXES, PARTITION, ROUNDS, ABOUT, CONFIG}:
        raise CoterieError(f"out = {directory}: is not empty and holds no run; name another directory")
    shutil.rmtree(directory)
