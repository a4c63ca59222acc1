"""The flat configuration of a run: plain keys and values, as TOML and as command-line options.

Keys are the fields of `Experiment`, the options of the chosen partition rule (`alpha`, `clients`, …), and
a table `set` with the method's options. What was left out takes its default; `complete` fills everything in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w
from torch import nn

from coterie import options
from coterie.data import Dataset
from coterie.errors import CoterieError, require, unknown
from coterie.experiment import Experiment, make_method, make_rule
from coterie.methods import METHODS, Method
from coterie.partition import PARTITIONS, Partition, Rule

Config = dict[str, Any]


def method_name(method: Method) -> str:
    """The name of a method in the registry, or of its class if it is the user's own.

    >>> from coterie.methods import FedPer
    >>> method_name(FedPer())
    'fedper'
    """
    return next((name for name, cls in METHODS.items() if cls is type(method)), type(method).__name__)


def complete(experiment: Experiment) -> Config:
    """Every setting of an experiment as plain values: the configuration that repeats it.

    >>> complete(Experiment(method="fedprox"))["set"]
    {'mu': 0.01}
    """
    method, rule = experiment.method, experiment.partition
    assert isinstance(method, Method)
    config: Config = {}
    for item in fields(Experiment):
        value = getattr(experiment, item.name)
        if isinstance(value, Method):
            value = method_name(value)
        elif isinstance(value, Rule):
            value = value.name
        elif isinstance(value, Partition):
            value = f"given ({value.rule})"
        elif isinstance(value, Dataset):
            value = f"given ({value.name})"
        elif isinstance(value, nn.Module):
            value = f"given ({type(value).__name__})"
        if value is not None:
            config[item.name] = value
    if isinstance(rule, Rule):
        config |= {
            name: value for name in options.option_fields(type(rule)) if (value := getattr(rule, name)) is not None
        }
    config["set"] = {name: getattr(method, name) for name in options.option_fields(type(method))}
    config["set"] = {name: value for name, value in config["set"].items() if value is not None}
    return config


def experiment_from(config: Mapping[str, Any]) -> Experiment:
    """The experiment that a configuration describes.

    >>> experiment_from({"method": "fedprox", "alpha": 0.5, "set": {"mu": 1}}).method
    FedProx(mu=1.0)
    """
    values = dict(config)
    own = {item.name for item in fields(Experiment)}
    rule_name = str(values.get("partition", "dirichlet"))
    method = make_method(str(values.pop("method", "fedavg")), dict(values.pop("set", {})))
    if rule_name.startswith("given") or any(
        str(values.get(key, "")).startswith("given (") for key in ("data", "model")
    ):
        raise CoterieError("this run used Python objects of its own (data, model or partition): repeat it from Python")
    if rule_name not in PARTITIONS:
        raise unknown("partition", rule_name, PARTITIONS)
    rule_options = options.option_fields(PARTITIONS[rule_name])
    everywhere = {name for rule in PARTITIONS.values() for name in options.option_fields(rule)}
    for key in values:
        if key in own or key in rule_options:
            continue
        if key in everywhere:
            raise CoterieError(
                f"partition '{rule_name}' has no option '{key}' (it has: {', '.join(sorted(rule_options)) or 'none'})"
            )
        raise unknown("option", key, own | set(rule_options) | {"set"})
    rule = make_rule(rule_name, {key: values[key] for key in values if key in rule_options})
    hints = get_type_hints(Experiment)
    plain = {
        key: options.coerced(key, value, str if key in ("data", "model") else hints[key])
        for key, value in values.items()
        if key in own and key != "partition"
    }
    return Experiment(method=method, partition=rule, **plain)


def overridden(config: Mapping[str, Any], given: Mapping[str, Any]) -> Config:
    """A configuration in which what is given wins; options of a partition rule that another one replaces are left out.

    >>> overridden({"partition": "dirichlet", "alpha": 0.1, "clients": 9}, {"partition": "iid"})
    {'partition': 'iid', 'clients': 9}
    """
    rule = str(given.get("partition", ""))
    kept = dict(config)
    if rule in PARTITIONS and rule != config.get("partition", Experiment.partition):
        others = {name for other in PARTITIONS.values() for name in options.option_fields(other)}
        others -= set(options.option_fields(PARTITIONS[rule]))
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
