"""Carrying on with a run that was stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.data.dataset import fingerprint
from coterie.devices import PROCESSOR
from coterie.errors import CoterieError, require
from coterie.partition import Partition
from coterie.runs.about import described_model
from coterie.runs.directory import RunDirectory, alone
from coterie.runs.experiment import Experiment, experiment_from
from coterie.runs.record import plain
from coterie.runs.run import Run
from coterie.runs.running import GivenListener, finish, watched
from coterie.runs.store import ABOUT
from coterie.setup.config import complete, differences, method_name
from coterie.setup.prepared import Prepared
from coterie.setup.settings import Settings
from coterie.typed import typed

# Where a run is computed, and the engines between which it may change without a bit changing.
PLACE = ("engine", "workers", "ray_address", "ray_gpus")
ALIKE = {"processes", "ray"}


CHOSEN = ("engine", "threads", "memory")
"""Settings that a run may have been left to choose."""
MOVED = ("data",)
"""What a configuration may say otherwise than when the run began: where its data are, which their fingerprint tells."""


@typed
def resume(
    path: str | Path,
    listeners: Sequence[GivenListener] = (),
    progress: bool = False,
    experiment: Experiment | None = None,
    rounds: int | None = None,
    engine: str = "",
) -> Run:
    """Carry a killed or stopped run on from its last checkpoint; it ends bit-identical to one never interrupted.

    That holds for the same machine and build of PyTorch, and for the same number of threads: other kernels round
    otherwise. `listeners` and `progress` are as for `Experiment.run`. A run that used Python objects of its own (data,
    model) needs the same `experiment` again: one that differs in anything is refused, and so is a run whose
    `config.toml` was changed, except that data may have moved. What was left to be chosen (engine, threads, memory)
    stays as it was chosen.

    With `rounds`, a run that planned fewer goes on until there are so many in all, also if it was finished. It then
    ends as if it had planned them from the start; where that cannot be, because the rounds that are done depend on how
    many were planned (a cosine schedule, pFedSim's warm-up), it is refused.

    With `engine="processes"`, a run that was at a Ray cluster goes on here without it, or with `"ray"` the other way
    round on a Ray of this machine: they compute the same bits.

    >>> import tempfile
    >>> from coterie.runs.experiment import Experiment
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Experiment("fedavg", rounds=1, epochs=1, threads=1).run(f"{folder}/run")
    ...     len(resume(f"{folder}/run", rounds=2).lines)
    2
    """
    directory = RunDirectory.open(Path(path))
    with alone(directory.path):
        return _carried_on(directory, listeners, progress, experiment, rounds, engine)


def _carried_on(
    directory: RunDirectory,
    listeners: Sequence[GivenListener],
    progress: bool,
    experiment: Experiment | None,
    rounds: int | None,
    engine: str,
) -> Run:
    path = directory.path
    directory.require_complete()
    directory.require_as_begun(directory.about(), MOVED)
    if directory.finished and rounds is None:
        raise CoterieError(f"run = {path}: is finished; there is nothing to resume, but more rounds can be added")
    config = directory.own_config()
    if experiment is None:
        experiment = experiment_from(config)
    else:
        _require_same_experiment(directory, experiment, rounds)
    # An engine chosen by trial stays chosen: another could round differently. And a run may have been extended.
    experiment = replace(experiment, **{key: config[key] for key in ("engine", "threads", "memory", "rounds")})
    if engine:
        experiment = _moved(experiment, engine)
    with watched(listeners, progress) as watchers:
        whole = replace(experiment, partition=directory.partition(), held_out=0, test=None, validation=None).prepare()
        _require_same_data(directory, whole)
        _require_same_model(directory, whole)
        prepared = replace(whole, experiment=experiment)
        if engine:
            directory.write_config({**directory.config(), **{key: getattr(experiment, key) for key in PLACE}})
        if rounds is not None:
            prepared = _extended(directory, prepared, rounds)
        return finish(prepared, directory, watchers)


def _moved(experiment: Experiment, engine: str) -> Experiment:
    """The experiment with another engine that computes the same bits, on this machine alone."""
    before = experiment.engine
    require(
        engine == before or {engine, before} <= ALIKE,
        f"engine = '{engine}': the run was begun with '{before}', and only {' and '.join(sorted(ALIKE))} compute alike",
    )
    require(
        experiment.device == PROCESSOR and not experiment.ray_gpus,
        f"engine = '{engine}': the run trains on GPUs, where numbers round otherwise; bring its cluster back",
    )
    return replace(experiment, engine=engine, workers=0, ray_address="", ray_gpus=0.0)


def _require_same_experiment(directory: RunDirectory, given: Experiment, rounds: int | None) -> None:
    """An error if an experiment that is given again is not the one that the run began with."""
    begun, asked = directory.config(), complete(given)
    usual = {key: value for key in asked if (value := getattr(Settings, key, None)) is not None}
    chosen = {key for key in CHOSEN if asked[key] == usual[key]}
    # Settings that an older version did not know had their usual value.
    differing = differences(asked, {**usual, **begun}, {*chosen, "rounds"})
    partition = given.partition
    if isinstance(partition, Partition):
        seed = given.seed if given.partition_seed is None else given.partition_seed
        drawn = partition.with_held_out(given.held_out, seed) if given.held_out else partition
        differing += [] if drawn == directory.partition() else ["partition: other clients or samples"]
    require(
        not differing,
        f"run = {directory.path}: the experiment is not the one that it began with: {'; '.join(differing)}; carry "
        "it on with that one, or run this one in another directory",
    )
    most = begun["rounds"] if rounds is None else rounds
    require(
        given.rounds <= most,
        f"run = {directory.path}: the experiment has rounds = {given.rounds}, the run plans {most}; "
        f"coterie.resume(…, rounds={given.rounds}) adds more",
    )


def _require_same_model(directory: RunDirectory, prepared: Prepared) -> None:
    """An error if a model that was made in Python again is not shaped as it was."""
    differing = differences(plain(described_model(prepared)), plain(directory.about().model))
    require(
        not differing,
        f"run = {directory.path}: the model is not the one that it began with: {'; '.join(differing)}; bring it back, "
        "or run it again in another directory",
    )


def _require_same_data(directory: RunDirectory, prepared: Prepared) -> None:
    """An error if the data are not those that the run began with: it would go on as if nothing had happened."""
    known = directory.about().data.fingerprint
    if known is None:
        raise CoterieError(f"run = {directory.path}: {ABOUT} is damaged (it has no fingerprint of the data)")
    differing = [part for part, digest in fingerprint(prepared.data).items() if known.get(part) != digest]
    require(
        not differing,
        f"run = {directory.path}: the data have changed since it began ({' and '.join(differing)} of "
        f"'{prepared.data.name}'); bring them back, or run it again in another directory",
    )


def _extended(directory: RunDirectory, prepared: Prepared, rounds: int) -> Prepared:
    """Plan `rounds` rounds in all for a kept run, and return it prepared for that; what was done stays.

    What the last planned round was tested or recorded for as the last alone is taken back when the run is carried on.
    """
    planned = prepared.experiment.rounds
    require(rounds > planned, f"rounds = {rounds}: the run plans {planned} already; name more")
    longer = prepared.with_rounds(rounds)
    done = directory.newest_round()
    if done:
        for why in _obstacles(prepared, longer, done):
            raise CoterieError(f"rounds = {rounds}: it would not end like a run of {rounds} rounds: {why}; run it anew")
    directory.lines()  # damaged ones are refused before anything is changed
    directory.plan(rounds)  # from here on whoever carries the run on goes by that, also after a kill
    return longer


def _obstacles(prepared: Prepared, longer: Prepared, done: int) -> Iterator[str]:
    """What of the rounds that are done would have been otherwise in a run that planned more."""
    planned, rounds, training = prepared.experiment.rounds, longer.experiment.rounds, prepared.experiment.training
    if any(training.factor(round, planned) != training.factor(round, rounds) for round in range(1, done + 1)):
        yield f"the rates of schedule '{training.schedule}' depend on the number of rounds"
    for name, value in prepared.resolved.items():
        if longer.resolved[name] != value:
            yield f"{method_name(prepared.method)}'s {name} was {value}, and would have been {longer.resolved[name]}"
