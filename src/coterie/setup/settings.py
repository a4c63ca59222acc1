"""The settings of a run with the objects that they name: methods, data, partition rules and models."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import TensorDataset

from coterie import options
from coterie.core.task import TASKS
from coterie.data import DATASETS, Dataset, from_arrays
from coterie.data.loading import names_clients
from coterie.devices import named
from coterie.engines import ENGINES, require_device
from coterie.errors import CoterieError, require, unknown
from coterie.methods import METHODS, Method
from coterie.models import MODELS, ModelSpec, own_model
from coterie.partition import PARTITIONS, Dirichlet, FromFile, Partition, Rule
from coterie.partition.from_file import ANY_FILE
from coterie.partition.partition import is_partition_file
from coterie.registry import absolute, is_reference, reference_to, short_name
from coterie.setup.parts import things_in
from coterie.setup.run_options import RunOptions
from coterie.typed import EXAMPLE, shown

Arrays = tuple[Any, ...]
"""Inputs and labels, `(x, y)`."""
PARTS = {"attack", "defence", "judge", "presence", "sampler", "stages"}
"""The settings whose texts may name parts of a round in a file."""


def _such_as(example: str) -> dict[str, str]:
    """For whoever gives what a setting cannot be."""
    return {EXAMPLE: example}


@dataclass(frozen=True)
class Settings(RunOptions):
    """One run: a method on a partitioned data set with a model.

    Everything but `method`, `data`, `partition` and `model` is a number or a word, and every run writes
    the TOML that repeats it. A method is given by name, as a class or as an instance; a model by name, as a class or
    function that builds one (from shape and classes, or from nothing), or as an instance. Names may be references to
    files of your own, such as `./my.py:FedAvgM`.

    `classifier` is `"last"`, `"all"` (all fully connected layers) or the path of a module; of a model of your own, the
    last is its only fully connected layer with an output each class. Data are a name, a path, a `Dataset`, or arrays or
    tensors `(x, y)`, also as PyTorch's `TensorDataset`, which `from_arrays` then reads. A partition is a rule, by name,
    as a class or as an instance, a `Partition`, or the path of a file that says who holds what (`FILE.npz`, see
    `FromFile`); without one, the clients are those that the data name (`ByClient`), or `Dirichlet` makes some. `label`
    and `client_column` name columns of your own table, `task` what its labels are of (empty: classification, or the
    known data set's own). `stats` overrides what the method does with batch-norm statistics.
    `test` and `validation` override the split of the partition rule; `held_out` keeps clients apart for onboarding
    tests. All of this is drawn from `partition_seed`, and the model's first weights from `model_seed`, where they are
    given; otherwise from `seed`, like everything else. `scale="published"` scales images as a paper's authors did
    (`coterie.data.dataset`). `engine="auto"` and `memory="auto"` are chosen before the first round: by trials, except
    that short runs take `serial`, and other devices than the processor, such as `cuda`, take `stacked`. `device="auto"`
    is the best one here, which is what the run then records. `workers` counts the processes of engines `processes` and
    `adaptive` and the actors of engine `ray`; `ray_address` is that of a Ray cluster (empty: a local Ray), `ray_gpus`
    each actor's GPUs.
    `protocol` names the paper's protocol that the settings come from, for the record alone.
    """

    method: Method | type[Method] | str = field(
        default=RunOptions.method, metadata=_such_as("'fedavg' or ct.FedProx(mu=0.1)")
    )
    data: Dataset | TensorDataset | Arrays | Path | str = field(
        default=RunOptions.data,
        metadata=_such_as("'digits', ct.from_arrays(x, y), ct.from_frame(frame) or ct.from_dataset(dataset)"),
    )
    partition: Rule | type[Rule] | Partition | Path | str | None = field(
        default=RunOptions.partition, metadata=_such_as("'iid' or ct.Dirichlet(clients=20, alpha=0.1)")
    )
    model: nn.Module | ModelSpec | Callable[..., nn.Module] | str = field(
        default=RunOptions.model, metadata=_such_as("'cnn' or a class")
    )
    protocol: str = field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, str):
            object.__setattr__(self, "method", make_method(self.method, {}))
        elif isinstance(self.method, type):
            object.__setattr__(self, "method", options.build("method", self.method.__name__, self.method, {}))
        if isinstance(self.partition, type):
            object.__setattr__(
                self, "partition", options.build("partition", self.partition.__name__, self.partition, {})
            )
        elif isinstance(self.partition, str | Path):
            object.__setattr__(self, "partition", make_rule(str(self.partition), {}))
        object.__setattr__(self, "model", resolved_model(self.model))
        object.__setattr__(self, "data", resolved_data(self.data, self.task))
        if self.partition is None:
            object.__setattr__(self, "partition", make_rule(usual_rule(self.data, self.client_column), {}))
        if isinstance(self.data, str) and is_reference(self.data):
            DATASETS.find(self.data)
            object.__setattr__(self, "data", absolute(self.data))
        if self.task:
            TASKS.find(self.task)
            object.__setattr__(self, "task", absolute(self.task))
        for name in PARTS & options.option_fields(type(self)).keys():
            object.__setattr__(self, name, options.all_absolute(getattr(self, name)))
        list(things_in(self))
        if self.engine != "ray":  # a cluster's machines differ from this one
            object.__setattr__(self, "device", named(self.device))
        if self.engine != "auto":
            ENGINES.find(self.engine, besides=["auto"])
        object.__setattr__(self, "engine", absolute(self.engine))
        require_device(self.device, self.engine)

    @classmethod
    def unknown_option(cls, name: str, value: object) -> CoterieError:
        """The error for a setting that there is not: it may be an option of a rule or of a method."""
        known: tuple[type[Rule], ...] = (Dirichlet, *PARTITIONS.values())  # the usual one first
        rules = [rule for rule in known if name in options.option_fields(rule)]
        if rules:
            return CoterieError(
                f"'{name}' is an option of the partition: partition=ct.{rules[0].__name__}({name}={shown(value)})"
            )
        methods = [method for method in METHODS.values() if name in options.option_fields(method)]
        if methods:
            return CoterieError(
                f"'{name}' is an option of a method: method=ct.{methods[0].__name__}({name}={shown(value)})"
            )
        return unknown("setting", name, options.option_fields(cls))


def resolved_data(data: Dataset | TensorDataset | Arrays | Path | str, task: str) -> Dataset | str:
    """Data however they were given: a name or a path, or the data themselves.

    >>> import torch
    >>> len(resolved_data((torch.zeros(3, 2), [0, 1, 1]), task=""))
    3
    """
    if isinstance(data, Path):
        return str(data)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if not isinstance(data, tuple):
        return data
    require(
        len(data) == 2,
        f"data: a tuple or TensorDataset holds inputs and labels (x, y), not {len(data)} things; ct.from_arrays takes "
        "owners and test samples too",
    )
    return from_arrays(*data, task=task)


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


def usual_rule(data: object, client: str | None = None, given: Collection[str] = ()) -> str:
    """The rule where none is named: the data's own clients if they name any and have all options that are `given`.

    >>> usual_rule("natural/exam"), usual_rule("natural/exam", given=["alpha"]), usual_rule("digits")
    ('by_client', 'dirichlet', 'dirichlet')
    """
    if not (isinstance(data, Dataset | str) and names_clients(data, client)):
        return Dirichlet.name
    own = PARTITIONS.find("by_client")
    of_other_rules = {option for rule in PARTITIONS.values() for option in options.option_fields(rule)}
    of_other_rules -= options.option_fields(own).keys()
    return Dirichlet.name if of_other_rules & set(given) else own.name


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
