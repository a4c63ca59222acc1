"""What describes a run as a whole, for readers who have neither its data nor its machine: `about.json`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import torch

from coterie.core.machine import machine
from coterie.setup.config import Config, complete
from coterie.setup.prepared import Prepared
from coterie.processes import cores
from coterie.typed import shown

About = dict[str, Any]

FORMAT = 1
"""The format of `about.json`."""
BEGUN = "config"
"""Where it says what stood in the configuration when the run was begun, or was last planned to have more rounds."""
FORMER = "former_rounds"
"""Where it says how many rounds were planned before, until somebody works on the run with the new plan."""

COUNT = range(2**53)
"""Whole numbers as everybody's JSON holds them."""
SHAPE: dict[str, Any] = {
    "protocol": (str, None),
    "data": {
        "name": (str,),
        "samples": COUNT,
        "shape": [COUNT],
        "whole_numbers": (bool,),
        "task": {"name": (str,), "judged_by": (str,), "metrics": (dict,)},
        "outputs": COUNT,
        "class_names": [(str,)],
    },
    "model": {"feature_width": COUNT, "skip_single_samples": (bool,)},
    "clients": [
        {
            "name": (str,),
            "takes_part": (bool,),
            "train": COUNT,
            "validation": COUNT,
            "test": COUNT,
            "classes": [(COUNT, None)],
        }
    ],
    "settings": (dict,),
    "sessions": [(dict,)],
}
"""What readers of `about.json` rely on: tables, lists of one kind, and what a value may be."""


def misfit(value: Any, shape: Any = SHAPE, where: str = "") -> str:
    """Where a value is not of a shape, in words; empty if it is.

    >>> misfit({"data": {"shape": [3, -1]}}, {"data": {"shape": [COUNT]}})
    'data.shape[1] is -1'
    >>> misfit({}, {"data": COUNT})
    'it lacks data'
    """
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where or 'it'} is no table"
        lacking = sorted(shape.keys() - value.keys())
        if lacking:
            return f"{where or 'it'} lacks {', '.join(lacking)}"
        parts = [(value[key], inner, f"{where}.{key}".lstrip(".")) for key, inner in shape.items()]
    elif isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        parts = [(one, shape[0], f"{where}[{number}]") for number, one in enumerate(value)]
    else:
        allowed = shape if isinstance(shape, tuple) else (shape,)
        return "" if any(_is(value, one) for one in allowed) else f"{where} is {shown(value)}"
    return next((fault for part in parts if (fault := misfit(*part))), "")


def _is(value: Any, kind: Any) -> bool:
    if isinstance(kind, range):
        return type(value) is int and value in kind
    return value is None if kind is None else isinstance(value, kind)


def about_run(prepared: Prepared) -> About:
    """The run's data, model, clients and settings with the values that they came to; no sample is among it."""
    return {
        "format": FORMAT,
        "protocol": prepared.experiment.protocol or None,
        "data": {**described_data(prepared), "fingerprint": prepared.fingerprint},
        "identity": prepared.identity,
        "model": described_model(prepared),
        "clients": described_clients(prepared),
        BEGUN: complete(prepared.experiment),
        "settings": effective(prepared),
        "sessions": [],
    }


def described_model(prepared: Prepared) -> About:
    """The model, as far as readers of its rows depend on it."""
    layout = prepared.problem_base.layout
    return {
        "classifier": layout.classifier,
        "parameters": layout.columns("parameters").size,
        "feature_width": prepared.feature_width,
        "skip_single_samples": prepared.problem_base.skip_single_samples,
    }


def described_data(prepared: Prepared) -> About:
    """The data set, as far as models and pictures depend on it."""
    data, task = prepared.data, prepared.problem_base.task
    return {
        "name": data.name,
        "samples": len(data),
        "shape": list(data.shape),
        "whole_numbers": not data.inputs.is_floating_point(),
        "task": task.described(),
        "outputs": task.outputs,
        "class_names": list(data.class_names or map(str, range(data.classes))),
    }


def described_clients(prepared: Prepared) -> list[About]:
    """Every client of the partition: its name, how many samples it holds, and of the training samples each class."""
    partition = prepared.partition
    rows = {client: row for row, client in enumerate(prepared.participants)}
    return [
        {
            "name": name,
            "takes_part": client in rows,
            "train": len(partition.train[client]),
            "validation": len(partition.validation[client]),
            "test": len(partition.test[client]),
            "classes": prepared.class_counts[client].tolist(),
            **{key: fact for stage in prepared.stages for key, fact in stage.about(rows.get(client, -1)).items()},
        }
        for client, name in enumerate(partition.names)
    ]


def effective(prepared: Prepared) -> Config:
    """Every setting with the value that it has in this run, also where it was left to the run to find one."""
    experiment, partition, layout = prepared.experiment, prepared.partition, prepared.problem_base.layout
    config = complete(experiment)
    split = {part: partition.parameters[part] for part in ("test", "validation") if part in partition.parameters}
    found = {
        **split,
        "classifier": layout.classifier,
        "stats": layout.stats,
        "partition_seed": experiment.seed if experiment.partition_seed is None else experiment.partition_seed,
        "model_seed": experiment.seed if experiment.model_seed is None else experiment.model_seed,
    }
    if experiment.engine in ("adaptive", "processes"):
        found["workers"] = experiment.workers or cores()
    return {**config, **found, "set": {**config["set"], **prepared.resolved}}


def session(after: int) -> About:
    """A process that works on a run: since when, after which round, with which versions, on what."""
    return {
        "begun": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "after_round": after,
        **machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
    }
