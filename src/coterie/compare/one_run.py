"""One run among others that are kept together: begun, carried on or read, whichever is left to do."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from coterie.data.loading import placed
from coterie.errors import require
from coterie.files import silence
from coterie.partition import FromFile, Partition
from coterie.partition.partition import is_partition_file
from coterie.rounds.listeners import StopAfter
from coterie.runs.directory import RunDirectory, alone, clear_unbegun
from coterie.runs.experiment import Experiment
from coterie.runs.models import missing_objects
from coterie.runs.resume import resume
from coterie.runs.running import GivenListener
from coterie.runs.store import CONFIG
from coterie.setup.config import PLUGINS, Config, complete
from coterie.setup.identity import HOW, Identity, differences, on_any_machine, spoken

log = logging.getLogger("coterie")

Summary = dict[str, Any]
EARLIER = ".earlier"
"""The folder beside runs for those that were there before them: with the same settings, but not the same."""


def perform(
    experiment: Experiment,
    directory: Path | None,
    listeners: Sequence[GivenListener] = (),
    until: int | None = None,
    known: Identity | None = None,
) -> Summary:
    """The summary of an experiment that is kept in a directory: whatever of it is there already is not run again.

    With `until`, the run stops after that round and can be carried on later; if it is that far already, nothing is run.
    Only one process at a time is at a directory; others wait, and find the run finished. `known` is what the run is to
    another machine that asked for it and has looked at what it sent: here it must be the same.
    """
    listeners = listeners if until is None else [*listeners, StopAfter(until)]
    if known is not None:
        require_alike(experiment, known)
    if directory is None:
        return experiment.run(None, listeners).summary
    with alone(directory, wait=True):
        summary = kept_summary(experiment, directory, until, checked=known is not None)
        if summary is not None:
            return summary
        if not (directory / CONFIG).is_file():
            return experiment.run(directory, listeners).summary
        kept = RunDirectory(directory).config()
        given = any(str(value).startswith("given (") for value in kept.values()) or missing_objects(kept)
        how = {key: kept.get(key, getattr(Experiment, key)) for key in HOW}
        return resume(directory, listeners, experiment=replace(experiment, **how) if given else None).summary


def kept_summary(
    experiment: Experiment, directory: Path, until: int | None = None, checked: bool = False
) -> Summary | None:
    """The summary of a run that is as far as it is wanted; nothing if there is something left to run.

    Whoever asks is alone at the directory. What was left there before a run began is taken away, and a directory that
    holds anything else, or a run with other settings, is an error. A run with the same settings that is not the same
    for another reason is set aside, unless that was `checked` already.
    """
    if not (directory / CONFIG).is_file():
        clear_unbegun(directory)
        return None
    kept = RunDirectory.open(directory)
    require_same_run(directory, kept.config(), complete(experiment))
    differing = [] if checked else differences(kept.identity(), _identity_here(experiment, kept))
    if differing:
        words = "%s: is run anew, as it differs in %s; what was there is now %s"
        log.warning(words, directory, spoken(differing), set_aside(directory))
        return None
    if kept.finished or (until is not None and kept.stopped and len(kept.lines()) >= until):
        return kept.summary() or {}
    return None


def _identity_here(experiment: Experiment, kept: RunDirectory) -> Identity:
    """What the run is now, with these data, this code, and the partition of the kept one if its file is gone."""
    rule = experiment.partition
    with silence():  # what there is to say is said when it runs
        if not isinstance(rule, FromFile) or Path(rule.path).is_file():
            return experiment.prepare().identity
        parts: dict[str, Any] = {"partition": kept.partition(), "held_out": 0, "test": None, "validation": None}
        return replace(replace(experiment, **parts).prepare(), experiment=experiment).identity


def set_aside(directory: Path) -> Path:
    """Make room for a run where another one is kept; where that is now."""
    folder = directory.parent / EARLIER
    folder.mkdir(exist_ok=True)
    number = next(number for number in count(1) if not (folder / f"{directory.name}-{number}").exists())
    return directory.replace(folder / f"{directory.name}-{number}")


def require_alike(experiment: Experiment, known: Identity) -> None:
    """An error if an experiment is another here than on the machine that asked for it."""
    with silence():
        differing = differences(known, on_any_machine(experiment.prepare().identity))
    require(
        not differing,
        f"{socket.gethostname()}: here the run differs in {spoken(differing)}; every machine needs the same",
    )


def finished(directory: Path | None) -> bool:
    """Whether a directory holds a whole run."""
    return directory is not None and RunDirectory(directory).finished


def require_same_run(directory: Path, kept: Config, asked: Config) -> None:
    """An error if a directory holds another run than the one that is wanted there."""
    ours, theirs = (
        {key: value for key, value in config.items() if key not in HOW | {PLUGINS}} | {"data": placed(config["data"])}
        for config in (asked, kept)
    )
    if all(is_partition_file(config["partition"]) for config in (asked, kept)) and Path(asked["partition"]).is_file():
        # What stands in the file decides, not where it lies: an installation may move, and a file may be written anew.
        ours["partition"] = Partition.load(asked["partition"]).parameters["sha256"]
        theirs["partition"] = RunDirectory(directory).partition().parameters.get("sha256")
    differing = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    require(
        not differing,
        f"out = {directory}: holds a run with other settings ({', '.join(differing)}); name another directory",
    )
