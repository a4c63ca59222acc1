"""Carrying on with a run that was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coterie.errors import CoterieError
from coterie.experiment.directory import RunDirectory
from coterie.experiment.experiment import Experiment, experiment_from
from coterie.experiment.extend import extend
from coterie.experiment.result import Result
from coterie.experiment.run import finish, watched
from coterie.rounds.listeners import GivenListener
from coterie.typed import typed


@typed
def resume(
    path: str | Path,
    listeners: Sequence[GivenListener] = (),
    progress: bool = False,
    experiment: Experiment | None = None,
    rounds: int | None = None,
) -> Result:
    """Carry a killed or stopped run on from its last checkpoint; it ends bit-identical to one never interrupted.

    That holds for the same machine and build of PyTorch, and for the same number of threads: other kernels round
    otherwise. `listeners` and `progress` are as for `Experiment.run`. A run that used Python objects of its own (data,
    model) needs the same `experiment` again.

    With `rounds`, a run that planned fewer goes on until there are so many in all, also if it was finished. It then
    ends as if it had planned them from the start; where that cannot be, because the rounds that are done depend on how
    many were planned (a cosine schedule, pFedSim's warm-up), it is refused.
    """
    directory = RunDirectory.open(Path(path))
    if directory.finished and rounds is None:
        raise CoterieError(f"run = {path}: is finished; there is nothing to resume, but more rounds can be added")
    config = directory.own_config()
    experiment = experiment or experiment_from(config)
    # An engine chosen by trial stays chosen: another could round differently. And a run may have been extended.
    experiment = replace(experiment, **{key: config[key] for key in ("engine", "threads", "memory", "rounds")})
    with watched(listeners, progress) as told:
        whole = replace(experiment, partition=directory.partition(), held_out=0, test=None, validation=None).prepare()
        prepared = replace(whole, experiment=experiment)
        if rounds is not None:
            prepared = extend(directory, prepared, rounds)
        directory.carry_on()
        return finish(prepared, directory, told)
