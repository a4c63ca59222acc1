"""One run among others that are kept together: begun, carried on or read, whichever is left to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.data.load import placed
from coterie.errors import require
from coterie.experiment.alone import alone
from coterie.experiment.config import PLUGINS, Config, complete
from coterie.experiment.directory import RunDirectory, clear_unbegun
from coterie.experiment.experiment import Experiment
from coterie.experiment.kept import CONFIG
from coterie.experiment.resume import resume
from coterie.partition import Partition
from coterie.partition.npz import is_partition_file
from coterie.rounds.listeners import GivenListener, StopAfter

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
    with alone(directory, wait=True):
        summary = kept_summary(experiment, directory, until)
        if summary is not None:
            return summary
        if not (directory / CONFIG).is_file():
            return experiment.run(directory, listeners).summary
        kept = RunDirectory(directory).config()
        given = any(str(value).startswith("given (") for value in kept.values())
        how = {key: kept.get(key, getattr(Experiment, key)) for key in HOW}
        return resume(directory, listeners, experiment=replace(experiment, **how) if given else None).summary


def kept_summary(experiment: Experiment, directory: Path, until: int | None = None) -> Summary | None:
    """The summary of a run that is as far as it is wanted; nothing if there is something left to run.

    Whoever asks is alone at the directory. What was left there before a run began is taken away, and a directory that
    holds anything else, or another run, is an error.
    """
    if not (directory / CONFIG).is_file():
        clear_unbegun(directory)
        return None
    kept = RunDirectory.open(directory)
    require_same_run(directory, kept.config(), complete(experiment))
    if kept.finished or (until is not None and kept.stopped and len(kept.lines_in_order()) >= until):
        return kept.summary() or {}
    return None


def finished(directory: Path | None) -> bool:
    """Whether a directory holds a whole run."""
    return directory is not None and RunDirectory(directory).finished


def require_same_run(directory: Path, kept: Config, wanted: Config) -> None:
    """An error if a directory holds another run than the one that is wanted there."""
    ours, theirs = (
        {key: value for key, value in config.items() if key not in HOW | {PLUGINS}} | {"data": placed(config["data"])}
        for config in (wanted, kept)
    )
    if all(is_partition_file(config["partition"]) for config in (wanted, kept)) and Path(wanted["partition"]).is_file():
        # What stands in the file decides, not where it lies: an installation may move, and a file may be written anew.
        ours["partition"] = Partition.load(wanted["partition"]).parameters["sha256"]
        theirs["partition"] = RunDirectory(directory).partition().parameters.get("sha256")
    differing = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    require(
        not differing,
        f"out = {directory}: holds a run with other settings ({', '.join(differing)}); name another directory",
    )
