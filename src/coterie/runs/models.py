"""The models of a run, each as it is tested; and model, method and clients in place again, without the run's data."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.client.batch import Batch
from coterie.client.problem import Problem
from coterie.client.trainer import tune
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.core.pixels import whole
from coterie.core.task import Classification, Task, as_task
from coterie.data import Dataset
from coterie.data.arrays import require_unmasked
from coterie.data.scaling import AgreedScale, OnScale
from coterie.errors import CoterieError, require
from coterie.files import silence
from coterie.methods import METHODS, Method
from coterie.partition import Dirichlet, Partition
from coterie.registry import is_reference
from coterie.rounds.delivery import as_delivered
from coterie.runs.record import DataAbout, RunAbout, plain
from coterie.setup.config import Config, settings_from
from coterie.setup.prepared import Prepared, make_model
from coterie.setup.settings import Settings
from coterie.typed import fitting, shown

Inputs = Tensor | npt.NDArray[Any] | Sequence[Any]


@dataclass(frozen=True)
class Models:
    """The clients' models after the last round that there is."""

    prepared: Prepared
    federation: Federation

    def model(self, client: int) -> nn.Module:
        """An ordinary module with the weights that the method tests for a client, as received after the last round.

        Where the method mixes at download or tests a tuned copy, that is done here too. Methods that predict
        with more than one model's output (see `predict`) give the model of their tested slot. Where a scale was agreed
        on, the module brings inputs to it.
        """
        module, scaling = self.bare(client), self.prepared.scaling
        return module if scaling is None else OnScale(scaling, module).eval()

    def bare(self, client: int) -> nn.Module:
        """The same without the scaling that was agreed on: it takes inputs as they were trained on."""
        tested, layout = self.prepared.method.tested, self.prepared.problem_base.layout
        rows = self.rows(client)
        row, columns = rows["model"].clone(), self.federation[tested].columns
        columns.put(row, columns.take(rows[tested]))
        return layout.load(copy.deepcopy(self.prepared.problem_base.module), row).eval()

    def rows(self, client: int) -> dict[str, Tensor]:
        """A client's row `[P]` in every slot, just as it is tested; columns that a slot has not mean nothing."""
        with self._seated(client, self.prepared.problem()) as worker:
            return {slot: worker.model(slot).row.clone() for slot in self.federation.slots}

    def predict(self, client: int, inputs: Inputs) -> Tensor:
        """What the method predicts for `inputs [n, ...]` at a client, such as their classes: `[n]`.

        They are a tensor or an array, prepared as the data of the run were; a scale that was agreed on is applied here.
        """
        return self.prepared.problem_base.task.predict(self.scores(client, inputs))

    def scores(self, client: int, inputs: Inputs) -> Tensor:
        """The method's outputs for `inputs [n, ...]` at a client, just as it is tested: `[n, C]`."""
        inputs, method = fitting_inputs(inputs, self.prepared.data), self.prepared.method
        if self.prepared.scaling is not None:
            inputs = self.prepared.scaling(inputs)
        labels = torch.zeros(len(inputs), dtype=self.prepared.problem_base.task.label_dtype)
        known = problem = self.prepared.problem()
        first = len(problem.labels) if method.predicts_with_samples else 0
        if first:  # the samples to predict stand behind those that it is done with
            inputs, labels = torch.cat([whole(problem.inputs), inputs]), torch.cat([problem.labels, labels])
        problem = replace(problem, inputs=inputs, labels=labels)
        with self._seated(client, known) as worker, torch.no_grad():
            worker.problem = problem
            parts = torch.arange(first, len(inputs)).split(problem.test_batch)
            return torch.cat([method.predict(Batch(worker, method.tested, part)) for part in parts])

    @contextmanager
    def _seated(self, client: int, problem: Problem) -> Iterator[Worker]:
        """A worker at which a client sits with what it received and, where the method says so, tuned."""
        method, clients = self.prepared.method, self.federation.clients
        client = fitting("client", client, int)
        require(0 <= client < clients, f"client = {client}: must lie in 0..{clients - 1}")
        worker = Worker(problem, method, self.federation.seed)
        delivered = as_delivered(method, self.federation, torch.tensor([client]))
        with delivered, torch.random.fork_rng(devices=[]):
            worker.seat(self.federation, client)
            with torch.enable_grad():  # whoever asks may have done without
                tune(worker)
            yield worker


def fitting_inputs(inputs: Inputs, data: Dataset) -> Tensor:
    """Inputs `[n, ...]` as a model of the data takes them; an error says what else they are.

    >>> from coterie.data import load
    >>> fitting_inputs(np.zeros((2, 8, 8)), load("digits"))
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: inputs: samples have the shape (8, 8); the model takes (1, 8, 8), several at a time
    """
    require_unmasked(inputs)
    try:
        tensor = inputs.detach() if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
    except (TypeError, ValueError, RuntimeError):
        raise CoterieError(f"inputs = {shown(inputs)}: must be a tensor or an array, `[n, ...]`") from None
    require(
        tuple(tensor.shape[1:]) == data.shape,
        f"inputs: samples have the shape {tuple(tensor.shape[1:])}; the model takes {data.shape}, several at a time",
    )
    dtype = data.inputs.dtype
    require(
        tensor.is_floating_point() == dtype.is_floating_point,
        f"inputs: are {str(tensor.dtype).removeprefix('torch.')}; the model takes {str(dtype).removeprefix('torch.')}, "
        "prepared as its data were",
    )
    return tensor.to("cpu", dtype)


# What says where and how a run was carried out: its models depend on none of it, and may be wanted elsewhere.
ELSEWHERE = ("partition", "engine", "device", "workers", "ray_address", "ray_gpus", "checkpoint_every")


def missing_objects(config: Mapping[str, Any], keys: Sequence[str] = ("method", "model")) -> list[str]:
    """What was made in Python, so that the configuration does not describe it, in words.

    >>> missing_objects({"method": "Mine", "model": "given (Net)"})
    ['its method (Mine)', 'its model (Net)']
    """
    missing = []
    for key in keys:
        value = str(config[key])
        if value.startswith("given (") or (key == "method" and value not in METHODS and not is_reference(value)):
            missing.append(f"its {key} ({value.removeprefix('given (').removesuffix(')')})")
    return missing


def settings_of_run(
    config: Mapping[str, Any], partition: Partition, given: Settings | None, with_data: bool
) -> Settings:
    """The experiment of a run, to be looked at here: `given`, or the one that the configuration describes."""
    if given is None:
        known = {item.name for item in fields(Settings)} | {"set"}
        left_out = ELSEWHERE if with_data else (*ELSEWHERE, "data", "share", "scale")
        kept = {key: value for key, value in config.items() if key in known and key not in left_out}
        given = settings_from({"partition": Dirichlet.name, **kept}, Settings)  # the run's own takes its place below
    # What was chosen by trial, or when the run was extended, stands in its configuration alone.
    settled = {key: config[key] for key in ("memory", "rounds")}
    here: dict[str, Any] = {"engine": "serial", "device": "cpu", "ray_address": "", "ray_gpus": 0.0}
    whole: dict[str, Any] = {"partition": partition, "held_out": 0, "test": None, "validation": None}
    return replace(given, **settled, **here, **whole)


def prepared_without_data(
    config: Config, about: RunAbout, partition: Partition, experiment: Settings | None, run: object
) -> Prepared:
    """All that a run prepares before round 1, with a sample of zeros in place of its data.

    `experiment` is needed where `missing_objects` finds any; `run` is what messages call it.
    """
    experiment = settings_of_run(config, partition, experiment, with_data=False)
    method = experiment.method
    assert isinstance(method, Method)
    data = _stand_in(about.data, task_of(config, about.data, experiment, run))
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
        skip_single_samples=about.model.skip_single_samples,
    )
    counts = np.array([client.classes for client in about.clients], np.int64).reshape(partition.clients, -1)
    width, told = about.model.feature_width, about.data.scaling
    scaling = None if told is None else AgreedScale.parse(told)
    return Prepared(experiment, method, data, partition, problem, width, counts, stands_in=True, scaling=scaling)


def task_of(config: Config, data: DataAbout, experiment: Settings | None, run: object) -> Task:
    """The run's task: that of the given data, else the named one."""
    if experiment is not None and isinstance(experiment.data, Dataset):
        return experiment.data.of_task
    name = config.get("task") or data.task.name
    try:
        task = as_task(name)
    except CoterieError:
        task = None
    if isinstance(task, Classification):
        task = replace(task, classes=data.outputs)
    if task is None or task.described() != plain(data.task):
        raise CoterieError(
            f"run = {run}: what was made in Python is not kept: its task ({name}); pass what it was run with: "
            f"coterie.open_run({str(run)!r}, experiment=…)"
        )
    return task


def _stand_in(about: DataAbout, task: Task) -> Dataset:
    kind = torch.int64 if about.whole_numbers else torch.float32
    return Dataset(
        about.name,
        torch.zeros(1, *about.shape, dtype=kind),
        torch.zeros(1, dtype=task.label_dtype),
        class_names=tuple(about.class_names),
        task=task,
    )
