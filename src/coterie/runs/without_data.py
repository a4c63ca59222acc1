"""A run's model, method and clients in place again, without its data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from coterie.client.problem import Problem
from coterie.core.task import Classification, Task, as_task
from coterie.data import Dataset
from coterie.errors import CoterieError
from coterie.runs.about import About
from coterie.setup.config import Config
from coterie.runs.experiment import Experiment, experiment_from
from coterie.setup.prepared import Prepared, make_model
from coterie.files import silence
from coterie.methods import METHODS, Method
from coterie.partition import Partition
from coterie.registry import is_reference

# What says where and how a run was carried out: its models depend on none of it, and may be wanted elsewhere.
ELSEWHERE = ("partition", "engine", "device", "workers", "ray_address", "ray_gpus", "checkpoint_every")


def missing_objects(config: Mapping[str, Any], keys: Sequence[str] = ("method", "model")) -> list[str]:
    """What was made in Python, so that the configuration does not describe it, in words.

    >>> missing_objects({"method": "Mine", "model": "given (Net)"})
    ['its method (Mine)', 'its model (Net)']
    """
    found = []
    for key in keys:
        value = str(config[key])
        if value.startswith("given (") or (key == "method" and value not in METHODS and not is_reference(value)):
            found.append(f"its {key} ({value.removeprefix('given (').removesuffix(')')})")
    return found


def experiment_of(
    config: Mapping[str, Any], partition: Partition, given: Experiment | None, with_data: bool
) -> Experiment:
    """The experiment of a run, to be looked at here: `given`, or the one that the configuration describes."""
    if given is None:
        known = {item.name for item in fields(Experiment)} | {"set"}
        left_out = ELSEWHERE if with_data else (*ELSEWHERE, "data", "share", "scale")
        given = experiment_from({key: value for key, value in config.items() if key in known and key not in left_out})
    # What was chosen by trial, or when the run was extended, stands in its configuration alone.
    settled = {key: config[key] for key in ("memory", "rounds")}
    here: dict[str, Any] = {"engine": "serial", "device": "cpu", "ray_address": "", "ray_gpus": 0.0}
    whole: dict[str, Any] = {"partition": partition, "held_out": 0, "test": None, "validation": None}
    return replace(given, **settled, **here, **whole)


def prepared_without_data(
    config: Config, about: About, partition: Partition, experiment: Experiment | None, run: object
) -> Prepared:
    """All that a run prepares before round 1, with a sample of zeros in place of its data.

    `experiment` is needed where `missing_objects` finds any; `run` is what messages call it.
    """
    experiment = experiment_of(config, partition, experiment, with_data=False)
    method = experiment.method
    assert isinstance(method, Method)
    data = _stand_in(about["data"], task_of(config, about["data"], experiment, run))
    with silence():  # what was to be said of a model that was given has been said when it ran
        module, layout = make_model(experiment, data, method)
    problem = Problem(
        module=module,
        layout=layout,
        inputs=data.inputs,
        labels=data.labels,
        train=(),
        validation=(),
        test=(),
        training=experiment.training,
        task=data.of_task,
        skip_single_samples=about["model"]["skip_single_samples"],
    )
    counts = np.array([one["classes"] for one in about["clients"]], np.int64).reshape(partition.clients, -1)
    width = about["model"]["feature_width"]
    return Prepared(experiment, method, data, partition, problem, width, counts, stands_in=True)


def task_of(config: Config, data: About, experiment: Experiment | None, run: object) -> Task:
    """The run's task: that of the given data, else the named one."""
    if experiment is not None and isinstance(experiment.data, Dataset):
        return experiment.data.of_task
    name = config.get("task") or data["task"]["name"]
    try:
        task = as_task(name)
    except CoterieError:
        task = None
    if isinstance(task, Classification):
        task = replace(task, classes=data["outputs"])
    if task is None or task.described() != data["task"]:
        raise CoterieError(
            f"run = {run}: what was made in Python is not kept: its task ({name}); pass what it was run with: "
            f"coterie.open_run({str(run)!r}, experiment=…)"
        )
    return task


def _stand_in(about: About, task: Task) -> Dataset:
    kind = torch.int64 if about["whole_numbers"] else torch.float32
    return Dataset(
        about["name"],
        torch.zeros(1, *about["shape"], dtype=kind),
        torch.zeros(1, dtype=task.label_dtype),
        class_names=tuple(about["class_names"]),
        task=task,
    )
