"""Carrying on with a run that was stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coterie.errors import CoterieError
from coterie.experiment.directory import RunDirectory
from coterie.experiment.experiment import Experiment, experiment_from
from coterie.experiment.result import Result
from coterie.experiment.run import OnRound, finish


def resume(path: str | Path, on_round: OnRound | None = None, experiment: Experiment | None = None) -> Result:
    """Carry a killed run on from its last checkpoint; it ends bit-identical to one that was never interrupted.

    A run that used Python objects of its own (data, model) needs the same `experiment` again.
    """
    directory = RunDirectory.open(Path(path))
    if directory.finished:
        raise CoterieError(f"run = {path}: is finished; there is nothing to resume")
    config = directory.own_config()
    experiment = experiment or experiment_from(config)
    # An engine chosen by trial stays chosen: another could round differently.
    experiment = replace(experiment, **{key: config[key] for key in ("engine", "threads", "memory")})
    prepared = replace(experiment, partition=directory.partition(), held_out=0, test=None, validation=None).prepare()
    return finish(replace(prepared, experiment=experiment), directory, on_round)
