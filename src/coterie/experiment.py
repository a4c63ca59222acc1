"""An experiment: the typed configuration behind the Python API and the command line."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from coterie import options
from coterie.data import Dataset, load
from coterie.errors import CoterieError, require, unknown
from coterie.federation import Federation
from coterie.layout import Layout, MemoryFormat, StatsPolicy, require_classifier
from coterie.local import Problem
from coterie.methods import METHODS, Method
from coterie.models import MODELS, build
from coterie.network import check_split, single_samples_fail
from coterie.partition import PARTITIONS, Partition, Rule, Split
from coterie.recipe import Training
from coterie.rng import stream_seed

if TYPE_CHECKING:
    from coterie.engines import Engine
    from coterie.result import Result
    from coterie.rounds import RoundReport


@dataclass(frozen=True)
class Experiment:
    """One run: a method on a partitioned data set with a model.

    Everything but `method`, `data`, `partition` and `model` is a number or a word, and every run writes
    the TOML that repeats it. `classifier` is `"last"`, `"all"` (all fully connected layers) or the path
    of a module. `label` and `client_column` name columns of your own table. `stats` overrides what the method
    does with batch-norm statistics. `test` and `validation` override the split of the partition rule;
    `held_out` keeps clients apart for onboarding tests. `engine` is `serial` unless told otherwise, or `stacked` on
    another `device` than the processor, such as `cuda`. `workers` counts the processes of engine `processes` and the
    actors of engine `ray`; `ray_address` is that of a Ray cluster (empty: a local Ray), `ray_gpus` each actor's GPUs.

    >>> result = Experiment(data="digits", partition=make_rule("iid", {"clients": 4}), rounds=2, epochs=1).run()
    >>> 0 < result.accuracy().received.mean["best"] <= 1
    True
    """

    method: Method | str = "fedavg"
    data: Dataset | str = "digits"
    partition: Rule | Partition | str = "dirichlet"
    model: nn.Module | str = "mlp"
    classifier: str = "last"
    label: str = "label"
    client_column: str | None = None
    rounds: int = 20
    join: float = 1.0
    epochs: int = 5
    batch: int = 32
    lr: float = 0.01
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0
    schedule: str = "constant"
    decay: float = 1.0
    stats: StatsPolicy | None = None
    test: float | None = None
    validation: float | None = None
    held_out: int | float = 0
    memory: MemoryFormat = "contiguous"
    engine: str = ""
    device: str = "cpu"
    workers: int = 0
    ray_address: str = ""
    ray_gpus: float = 0.0
    threads: int = 0
    seed: int = 0
    evaluate_every: int = 1
    record_every: int = 1
    checkpoint_every: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.method, str):
            object.__setattr__(self, "method", make_method(self.method, {}))
        if isinstance(self.partition, str):
            object.__setattr__(self, "partition", make_rule(self.partition, {}))
        if isinstance(self.model, str) and self.model not in MODELS:
            raise unknown("model", self.model, MODELS)
        require(self.rounds >= 1, f"rounds = {self.rounds}: must be at least 1")
        require(0 < self.join <= 1, f"join = {self.join}: must be greater than 0 and at most 1")
        require(self.seed >= 0, f"seed = {self.seed}: must not be negative")
        require(self.evaluate_every >= 1, f"evaluate_every = {self.evaluate_every}: must be at least 1")
        require(self.record_every >= 0, f"record_every = {self.record_every}: must not be negative (0: never)")
        require(
            self.checkpoint_every >= 0,
            f"checkpoint_every = {self.checkpoint_every}: must not be negative (0: never)",
        )
        require(self.workers >= 0, f"workers = {self.workers}: must not be negative (0: one per core)")
        require(self.ray_gpus >= 0, f"ray_gpus = {self.ray_gpus}: must not be negative")
        for option in ("ray_address", "ray_gpus"):
            value = getattr(self, option)
            require(not value or self.engine == "ray", f"{option} = {value}: is for engine='ray'")
        require(self.threads >= 0, f"threads = {self.threads}: must not be negative (0: by model)")
        if self.memory not in get_args(MemoryFormat):
            raise unknown("memory", self.memory, get_args(MemoryFormat))
        if self.stats not in (None, "mean", "local"):
            raise unknown("stats policy", str(self.stats), ("mean", "local"))
        from coterie.engines import ENGINES, require_device

        if not self.engine:
            object.__setattr__(self, "engine", "serial" if self.device == "cpu" else "stacked")
        if self.engine not in (*ENGINES, "auto"):
            raise unknown("engine", self.engine, (*ENGINES, "auto"))
        require_device(self.device, self.engine)
        _ = self.training

    @property
    def training(self) -> Training:
        """The settings of local training."""
        return Training(**{item.name: getattr(self, item.name) for item in fields(Training)})

    def run(
        self, out: str | Path | None = None, on_round: Callable[[RoundReport, Prepared], None] | None = None
    ) -> Result:
        """Run to the end; with `out`, write a run directory there."""
        from coterie.run import run

        return run(self, None if out is None else Path(out), on_round)

    def prepare(self) -> Prepared:
        """Load the data, draw the partition, build and check the model: everything before round 1."""
        method = self.method
        assert isinstance(method, Method)
        data = self.data
        if isinstance(data, str):
            data = load(data, label=self.label, client=self.client_column)
        partition = self._partition(data)
        module, layout = self._model(data, method)
        feature_width = check_split(module, layout, data.inputs[:2])
        problem = Problem(
            module=module,
            layout=layout,
            inputs=as_memory(data.inputs, self.memory),
            labels=data.labels,
            train=(),
            validation=(),
            test=(),
            training=self.training,
            skip_single_samples=single_samples_fail(module, data.inputs[:1]),
        )
        prepared = Prepared(self, method, data, partition, problem, feature_width)
        method.check(prepared.federation())
        return prepared

    def _partition(self, data: Dataset) -> Partition:
        if isinstance(self.partition, Partition):
            for option in ("test", "validation"):
                value = getattr(self, option)
                require(value is None, f"{option} = {value}: a given partition is split already; leave {option} out")
            partition = self.partition
            partition.check(data)
        else:
            assert isinstance(self.partition, Rule)
            default = self.partition.default_split
            split = Split(
                test=default.test if self.test is None else self.test,
                validation=default.validation if self.validation is None else self.validation,
            )
            partition = self.partition(data, self.seed, split)
        for name, test in zip(partition.names, partition.test, strict=True):
            require(len(test) > 0, f"client '{name}' has no test samples; give it more samples or leave it out")
        if self.held_out:
            partition = partition.with_held_out(self.held_out, self.seed)
        return partition

    def _model(self, data: Dataset, method: Method) -> tuple[nn.Module, Layout]:
        if isinstance(self.model, nn.Module):
            module, classifier = copy.deepcopy(self.model), self.classifier
            if classifier in ("last", "all"):
                raise CoterieError(f"classifier = '{classifier}': name the module of your model that is its classifier")
        else:
            module, classifier = initial_model(self.model, self.classifier, data.shape, data.classes, self.seed)
        return module, Layout(module, classifier, self.stats or method.stats, self.memory)


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data, partition and model in place."""

    experiment: Experiment
    method: Method
    data: Dataset
    partition: Partition
    problem_base: Problem
    feature_width: int
    notes: tuple[str, ...] = ()  # what the run's log should say

    @property
    def participants(self) -> list[int]:
        """The clients that take part in training, in the partition's order."""
        return [k for k in range(self.partition.clients) if k not in set(self.partition.held_out)]

    def problem(self, clients: list[int] | None = None) -> Problem:
        """The problem of some of the partition's clients (those that take part, by default)."""
        chosen = self.participants if clients is None else clients
        part = self.partition
        return replace(
            self.problem_base,
            train=tuple(torch.from_numpy(part.train[k]) for k in chosen),
            validation=tuple(torch.from_numpy(part.validation[k]) for k in chosen),
            test=tuple(torch.from_numpy(part.test[k]) for k in chosen),
        )

    def engine(self, problem: Problem) -> Engine:
        """The experiment's engine for a problem."""
        from coterie.engines import make_engine

        wanted = self.experiment
        return make_engine(
            wanted.engine,
            problem,
            self.method,
            wanted.seed,
            wanted.workers,
            ray_address=wanted.ray_address,
            ray_gpus=wanted.ray_gpus,
            device=wanted.device,
        )

    def in_memory(self, memory: MemoryFormat) -> Prepared:
        """The same in another memory format."""
        base, layout = self.problem_base, self.problem_base.layout
        if layout.memory == memory:
            return self
        other = Layout(base.module, layout.classifier, layout.stats, memory)
        inputs = as_memory(self.data.inputs, memory)
        return replace(
            self,
            experiment=replace(self.experiment, memory=memory),
            problem_base=replace(base, layout=other, inputs=inputs),
        )

    def federation(self, clients: list[int] | None = None) -> Federation:
        """A federation of some of the partition's clients before its first round."""
        chosen = self.participants if clients is None else clients
        layout, module = self.problem_base.layout, self.problem_base.module
        counts = torch.from_numpy(self.partition.class_counts(self.data))[chosen]
        federation = Federation(
            layout=layout,
            initial=layout.row(module),
            sizes=counts.sum(1),
            class_counts=counts,
            keys=torch.from_numpy(self.partition.keys)[chosen],
            rounds=self.experiment.rounds,
            seed=self.experiment.seed,
            feature_width=self.feature_width,
            head=require_classifier(module, layout.classifier),
            training=self.experiment.training,
            validation_sizes=torch.tensor([len(self.partition.validation[k]) for k in chosen]),
            skip_single_samples=self.problem_base.skip_single_samples,
        )
        federation.add_slot("model", layout.everything, shared=self.method.shared)
        self.method.init(federation)
        return federation


def initial_model(name: str, classifier: str, shape: tuple[int, ...], classes: int, seed: int) -> tuple[nn.Module, str]:
    """A model of the registry with the weights that the seed gives it, and the path of its classifier.

    >>> initial_model("mlp", "last", (1, 8, 8), 10, seed=0)[1]
    'classifier'
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "model"))
        module = build(name, shape, classes)
    return module, MODELS[name].classifiers.get(classifier, classifier)


def as_memory(inputs: Tensor, memory: MemoryFormat) -> Tensor:
    """Images `[N, channels, height, width]` in a memory format; batches cut from them keep it."""
    if memory == "contiguous" or inputs.ndim != 4:
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last)


def make_method(name: str, values: dict[str, Any]) -> Method:
    """A method by name with options.

    >>> make_method("fedprox", {"mu": 1})
    FedProx(mu=1.0)
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return options.build("method", name, METHODS[name], values)


def make_rule(name: str, values: dict[str, Any]) -> Rule:
    """A partition rule by name with options.

    >>> make_rule("iid", {"clients": 3}).clients
    3
    """
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    return options.build("partition", name, PARTITIONS[name], values)
