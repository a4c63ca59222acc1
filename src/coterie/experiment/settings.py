"""Every setting of a run, with its default and its check: the one place where they stand."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_args

from torch import nn

from coterie import options
from coterie.core.layout import MemoryFormat, StatsPolicy
from coterie.core.task import TASKS
from coterie.core.training import Training
from coterie.data import Dataset
from coterie.engines import ENGINES, require_device
from coterie.errors import require, unknown
from coterie.methods import METHODS, Method
from coterie.models import MODELS
from coterie.partition import PARTITIONS, Partition, Rule


@dataclass(frozen=True)
class Settings:
    """One run: a method on a partitioned data set with a model.

    Everything but `method`, `data`, `partition` and `model` is a number or a word, and every run writes
    the TOML that repeats it. `classifier` is `"last"`, `"all"` (all fully connected layers) or the path
    of a module. `label` and `client_column` name columns of your own table, `task` what
    its labels are of (empty: classification, or the known data set's own). `stats` overrides what the method
    does with batch-norm statistics. `test` and `validation` override the split of the partition rule;
    `held_out` keeps clients apart for onboarding tests. `engine` is `serial` unless told otherwise, or `stacked` on
    another `device` than the processor, such as `cuda`. `workers` counts the processes of engine `processes` and the
    actors of engine `ray`; `ray_address` is that of a Ray cluster (empty: a local Ray), `ray_gpus` each actor's GPUs.
    """

    method: Method | str = "fedavg"
    data: Dataset | str = "digits"
    partition: Rule | Partition | str = "dirichlet"
    model: nn.Module | str = "mlp"
    classifier: str = "last"
    label: str = "label"
    client_column: str | None = None
    task: str = ""
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
        if self.task and self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
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
