"""What describes a run as a whole, for readers who have neither its data nor its machine: `about.json`."""

from __future__ import annotations

from datetime import UTC, datetime

import torch
from msgspec.structs import replace

from coterie.core.machine import machine
from coterie.processes import cores
from coterie.runs.record import ClientAbout, DataAbout, ModelAbout, RunAbout, Session, TaskAbout
from coterie.setup.config import Config, complete
from coterie.setup.prepared import Prepared


def about_run(prepared: Prepared) -> RunAbout:
    """The run's data, model, clients and settings with the values that they came to; no sample is among it."""
    return RunAbout(
        protocol=prepared.experiment.protocol or None,
        data=replace(described_data(prepared), fingerprint=prepared.fingerprint),
        model=described_model(prepared),
        clients=described_clients(prepared),
        config=complete(prepared.experiment),
        settings=effective(prepared),
        sessions=[],
        identity=prepared.identity,
    )


def described_model(prepared: Prepared) -> ModelAbout:
    """The model, as far as readers of its rows depend on it."""
    layout = prepared.problem_base.layout
    return ModelAbout(
        classifier=layout.classifier,
        parameters=layout.columns("parameters").size,
        feature_width=prepared.feature_width,
        skip_single_samples=prepared.problem_base.skip_single_samples,
    )


def described_data(prepared: Prepared) -> DataAbout:
    """The data set, as far as models and pictures depend on it; its fingerprint takes a while."""
    data, task = prepared.data, prepared.problem_base.task
    return DataAbout(
        name=data.name,
        samples=len(data),
        shape=list(data.shape),
        whole_numbers=not data.inputs.is_floating_point(),
        task=TaskAbout(**task.described()),
        outputs=task.outputs,
        class_names=list(data.class_names or map(str, range(data.classes))),
        fingerprint=None,
        feature_names=list(data.feature_names),
        scaling=None if prepared.scaling is None else prepared.scaling.plain(),
    )


def described_clients(prepared: Prepared) -> list[ClientAbout]:
    """Every client of the partition: its name, how many samples it holds, and of the training samples each class."""
    partition = prepared.partition
    rows = {client: row for row, client in enumerate(prepared.participants)}
    return [
        ClientAbout(
            name=name,
            takes_part=client in rows,
            train=len(partition.train[client]),
            validation=len(partition.validation[client]),
            test=len(partition.test[client]),
            classes=prepared.class_counts[client].tolist(),
            parts={key: fact for stage in prepared.stages for key, fact in stage.about(rows.get(client, -1)).items()},
        )
        for client, name in enumerate(partition.names)
    ]


def effective(prepared: Prepared) -> Config:
    """Every setting with the value that it has in this run, also where it was left to the run to find one."""
    experiment, partition, layout = prepared.experiment, prepared.partition, prepared.problem_base.layout
    config = complete(experiment)
    split = {part: partition.parameters[part] for part in ("test", "validation") if part in partition.parameters}
    chosen = {
        **split,
        "classifier": layout.classifier,
        "stats": layout.stats,
        "partition_seed": experiment.seed if experiment.partition_seed is None else experiment.partition_seed,
        "model_seed": experiment.seed if experiment.model_seed is None else experiment.model_seed,
    }
    if experiment.engine in ("adaptive", "processes"):
        chosen["workers"] = experiment.workers or cores()
    return {**config, **chosen, "set": {**config["set"], **prepared.resolved}}


def session(after: int) -> Session:
    """A process that works on a run: since when, after which round, with which versions, on what."""
    begun = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Session(begun=begun, after_round=after, cores=cores(), threads=torch.get_num_threads(), **machine())
