"""The settings of a run with the objects that they name: methods, data, partition rules and models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field
from typing import Any

from torch import nn

from coterie import options
from coterie.core.task import TASKS
from coterie.data import DATASETS, Dataset
from coterie.engines import ENGINES, require_device
from coterie.errors import require
from coterie.experiment.run_options import RunOptions
from coterie.methods import METHODS, Method
from coterie.models import MODELS, ModelSpec, own_model
from coterie.partition import PARTITIONS, FromFile, Partition, Rule
from coterie.partition.from_file import ANY_FILE
from coterie.partition.npz import is_partition_file
from coterie.registry import absolute, is_reference, reference_to, short_name


@dataclass(frozen=True)
class Settings(RunOptions):
    """One run: a method on a partitioned data set with a model.

    Everything but `method`, `data`, `partition` and `model` is a number or a word, and every run writes
    the TOML that repeats it. A method is given by name, as a class or as an instance; a model by name, as a class or
    function that builds one (from shape and classes, or from nothing), or as an instance. Names may be references to
    files of your own, such as `./my.py:FedAvgM`.

    `classifier` is `"last"`, `"all"` (all fully connected layers) or the path of a module; models of your own need the
    latter. A partition is a rule, by name or as an instance, a `Partition`, or the path of a file that says who holds
    what (`FILE.npz`, see `FromFile`). `label` and `client_column` name columns of your own table, `task` what its
    labels are of (empty: classification, or the known data set's own). `stats` overrides what the method does with
    batch-norm statistics. `test` and `validation` override the split of the partition rule; `held_out` keeps clients
    apart for onboarding tests. All of this is drawn from `partition_seed`, and the model's first weights from
    `model_seed`, where they are given; otherwise from `seed`, like everything else. `scale="published"` scales images
    as a paper's authors did (`coterie.data.scaling`). `engine` is `serial` unless told otherwise, or `stacked` on
    another `device` than the processor, such as `cuda`. `workers` counts the processes of engine `processes` and the
    actors of engine `ray`; `ray_address` is that of a Ray cluster (empty: a local Ray), `ray_gpus` each actor's GPUs.
    `protocol` names the paper's protocol that the settings come from, for the record alone.
    """

    method: Method | type[Method] | str = RunOptions.method
    data: Dataset | str = RunOptions.data
    partition: Rule | Partition | str = RunOptions.partition
    model: nn.Module | ModelSpec | Callable[..., nn.Module] | str = RunOptions.model
    protocol: str = field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, str):
            object.__setattr__(self, "method", make_method(self.method, {}))
        elif isinstance(self.method, type):
            object.__setattr__(self, "method", options.build("method", self.method.__name__, self.method, {}))
        if isinstance(self.partition, str):
            object.__setattr__(self, "partition", make_rule(self.partition, {}))
        object.__setattr__(self, "model", resolved_model(self.model))
        if isinstance(self.data, str) and is_reference(self.data):
            DATASETS.find(self.data)
            object.__setattr__(self, "data", absolute(self.data))
        if self.task:
            TASKS.find(self.task)
            object.__setattr__(self, "task", absolute(self.task))
        if not self.engine:
            object.__setattr__(self, "engine", "serial" if self.device == "cpu" else "stacked")
        if self.engine != "auto":
            ENGINES.find(self.engine, besides=["auto"])
        object.__setattr__(self, "engine", absolute(self.engine))
        require_device(self.device, self.engine)


def make_method(name: str, values: dict[str, Any]) -> Method:
    """A method by name, in capitals or not, with options.

    >>> make_method("FedProx", {"mu": 1})
    FedProx(mu=1.0)
    """
    name = METHODS.spelt(name)
    return options.build("method", short_name(name), METHODS.find(name), values)


def make_rule(name: str, values: dict[str, Any]) -> Rule:
    """A partition rule by name with options, or a file.

    >>> make_rule("iid", {"clients": 3}).clients
    3
    """
    if not is_partition_file(name):
        return options.build("partition", short_name(name), PARTITIONS.find(name, besides=[ANY_FILE]), values)
    require(not values, f"partition = {name}: is a file and has no options; leave {', '.join(values)} out")
    return FromFile(name)


def rule_options(name: str) -> dict[str, Field[Any]]:
    """The options of a partition rule by name; a file has none.

    >>> list(rule_options("iid")), list(rule_options("mine.npz"))
    (['clients'], [])
    """
    return {} if is_partition_file(name) else options.option_fields(PARTITIONS.find(name, besides=[ANY_FILE]))


def resolved_model(model: object) -> nn.Module | ModelSpec | str:
    """A model however it was given: the name of a known one, how to build one of somebody's own, or the model itself.

    >>> resolved_model("cnn"), resolved_model(nn.Identity).name
    ('cnn', 'Identity')
    """
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, str):
        spec = MODELS.find(model)
    elif isinstance(model, ModelSpec):
        spec = model
    else:
        spec = own_model(reference_to(model) or str(getattr(model, "__name__", type(model).__name__)), model)
    return spec.name if spec.name in MODELS and MODELS[spec.name] == spec else spec
