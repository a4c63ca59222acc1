"""The flat configuration of a run: plain keys and values, as TOML and as command-line options.

Keys are the fields of `Settings`, the options of the chosen partition rule (`alpha`, `clients`, …), a table `set`
with the method's options, and a table `plugins` with the hashes of files of one's own. What was left out takes its
default; `complete` fills everything in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from coterie import options
from coterie.data import Dataset
from coterie.data.load import placed
from coterie.errors import CoterieError, require
from coterie.experiment.settings import Settings, rule_options
from coterie.methods import METHODS, Method
from coterie.models import ModelSpec
from coterie.partition import PARTITIONS, FromFile, Partition, Rule
from coterie.partition.npz import is_partition_file
from coterie.registry import file_of, is_reference, reference_to

Config = dict[str, Any]

REFERENCES = ("method", "data", "partition", "model", "engine", "attack", "defence", "presence")
"""The keys whose values may name something in a file."""
WHAT = REFERENCES[:4]
"""What is run; all else is how."""
FORMAT = 2
"""The format of run directories; their configurations say it."""
PLUGINS = "plugins"
"""The table of the files that were used: path and SHA-256."""


def method_name(method: Method) -> str:
    """The name of a method in the registry, or of its class if it is the user's own.

    >>> from coterie.methods import FedPer
    >>> method_name(FedPer())
    'fedper'
    """
    return METHODS.name_of(type(method)) or type(method).__name__


def complete(experiment: Settings) -> Config:
    """Every setting of an experiment as plain values: the configuration that repeats it.

    >>> complete(Settings(method="fedprox"))["set"]
    {'mu': 0.01}
    """
    method, rule = experiment.method, experiment.partition
    assert isinstance(method, Method)
    config: Config = {}
    for item in sorted(fields(Settings), key=lambda item: item.name not in WHAT):  # what, then how
        if item.name == "protocol":
            continue  # all that it settled stands here
        value = getattr(experiment, item.name)
        if isinstance(value, Method):
            value = reference_to(type(value)) or method_name(value)
        elif isinstance(value, FromFile):
            value = str(value.path)
        elif isinstance(value, Rule):
            value = reference_to(type(value)) or PARTITIONS.name_of(type(value)) or value.name
        elif isinstance(value, ModelSpec):
            value = value.name if is_reference(value.name) else f"given ({value.name})"
        elif isinstance(value, Partition):
            value = f"given ({value.rule})"
        elif isinstance(value, Dataset):
            value = f"given ({value.name})"
        elif isinstance(value, nn.Module):
            value = f"given ({type(value).__name__})"
        elif item.name == "data":
            value = placed(value)  # a run may be carried on from anywhere
        if value is not None:
            config[item.name] = value
    if isinstance(rule, Rule) and not isinstance(rule, FromFile):
        config |= {
            name: value for name in options.option_fields(type(rule)) if (value := getattr(rule, name)) is not None
        }
    config["set"] = {name: getattr(method, name) for name in options.option_fields(type(method))}
    config["set"] = {name: value for name, value in config["set"].items() if value is not None}
    files = [file_of(text) for key in REFERENCES for text in options.references_in(config[key])]
    if files:
        config[PLUGINS] = {file.path: file.sha256 for file in files}
    return config


def overridden(config: Mapping[str, Any], given: Mapping[str, Any]) -> Config:
    """A configuration in which what is given wins; options of a partition rule that another one replaces are left out.

    >>> overridden({"partition": "dirichlet", "alpha": 0.1, "clients": 9}, {"partition": "iid"})
    {'partition': 'iid', 'clients': 9}
    """
    rule = str(given.get("partition", ""))
    kept = dict(config)
    known = rule in PARTITIONS or is_reference(rule) or is_partition_file(rule)
    if known and rule != config.get("partition", Settings.partition):
        others = {name for other in PARTITIONS.values() for name in options.option_fields(other)}
        others -= set(rule_options(rule))
        kept = {key: value for key, value in config.items() if key not in others}
    return {**kept, **given}


def read_toml(path: Path) -> Config:
    """The configuration in a TOML file."""
    require(path.is_file(), f"config = {path}: there is no such file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CoterieError(f"config = {path}: not a TOML file ({error})") from None


def to_toml(config: Mapping[str, Any]) -> str:
    """A configuration as TOML.

    >>> print(to_toml({"method": "fedavg", "set": {}}).splitlines()[0])
    method = "fedavg"
    """
    return tomli_w.dumps(dict(config))
