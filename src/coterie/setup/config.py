"""The flat configuration of a run: plain keys and values, as TOML and as command-line options.

Keys are the fields of `Settings`, the options of the chosen partition rule (`alpha`, `clients`, …), a table `set`
with the method's options, and a table `plugins` with the hashes of files of one's own. What was left out takes its
default; `complete` fills everything in.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from torch import nn

from coterie import options
from coterie.data import Dataset
from coterie.data.loading import placed
from coterie.errors import CoterieError, require, unknown
from coterie.files import require_format, resolved
from coterie.methods import METHODS, Method
from coterie.models import ModelSpec
from coterie.partition import PARTITIONS, FromFile, Partition, Rule
from coterie.partition.partition import is_partition_file
from coterie.registry import PluginFile, absolute, at_hand, file_of, is_reference, reference_to, split_reference
from coterie.setup.settings import PARTS, Settings, make_method, make_rule, rule_options, usual_rule

Config = dict[str, Any]

REFERENCES = ("method", "data", "partition", "model", "engine", "task", *sorted(PARTS))
"""The keys whose values may name something in a file."""
WHAT = REFERENCES[:4]
"""What is run; all else is how."""
FORMAT = 3
"""The format of run directories; their configurations say it."""
PLUGINS = "plugins"
"""The table of the files that settings name (code, traces, partitions): path and SHA-256."""


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
    files = [file_of(path) for _, _, path in files_in(config) if path.endswith(".py") or at_hand(path).is_file()]
    if files:
        config[PLUGINS] = {file.path: file.sha256 for file in files}
    return config


def files_in(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The files of one's own that a configuration names: the key, its text for it, and the path in full.

    >>> list(files_in({"presence": "dropout:0.1+trace:/data/seen.csv"}))
    [('presence', 'trace:/data/seen.csv', '/data/seen.csv')]
    """
    for key in REFERENCES:
        for text in options.references_in(str(config.get(key, ""))):
            yield key, text, split_reference(absolute(text))[0]
    if presence := str(config.get("presence", "")):
        from coterie.scenarios.options import traces_in

        for path in traces_in(presence):
            yield "presence", f"trace:{path}", str(resolved(path))
    if (topology := str(config.get("topology", ""))).endswith(".csv"):
        yield "topology", topology, str(resolved(topology))
    if is_partition_file(partition := str(config.get("partition", ""))):
        yield "partition", partition, str(FromFile(partition).path)


def differences(now: Mapping[str, Any], before: Mapping[str, Any], left_out: Collection[str] = ()) -> list[str]:
    """What two configurations say otherwise, each in words: the option, its value now and the one before.

    >>> differences({"lr": 0.5, "set": {"mu": 1}}, {"lr": 0.1, "set": {}})
    ['mu = 1 (it was not set)', 'lr = 0.5 (it was 0.1)']
    """
    mine, theirs = (_flat(json.loads(json.dumps(config))) for config in (now, before))
    keys = [key for key in {**mine, **theirs} if key not in left_out and mine.get(key) != theirs.get(key)]
    return [f"{key} = {mine.get(key, 'not set')} (it was {theirs.get(key, 'not set')})" for key in keys]


def _flat(config: Config) -> Config:
    """A configuration without tables: options of the method stand among the others, and hashes of files."""
    files = {f"the SHA-256 of {path}": str(digest)[:12] for path, digest in config.pop(PLUGINS, {}).items()}
    return {**config.pop("set", {}), **config, **files}


def overridden(config: Mapping[str, Any], given: Mapping[str, Any]) -> Config:
    """A configuration in which what is given wins; options of a partition rule that another one replaces are left out.

    >>> overridden({"partition": "dirichlet", "alpha": 0.1, "clients": 9}, {"partition": "iid"})
    {'partition': 'iid', 'clients': 9}
    """
    rule = str(given.get("partition", ""))
    kept = dict(config)
    known = rule in PARTITIONS or is_reference(rule) or is_partition_file(rule)
    if known and rule != rule_of(config):
        others = {name for other in PARTITIONS.values() for name in options.option_fields(other)}
        others -= set(rule_options(rule))
        kept = {key: value for key, value in config.items() if key not in others}
    return {**kept, **given}


def read_toml(path: Path) -> Config:
    """The configuration in a TOML file."""
    require(path.is_file(), f"config = {path}: there is no such file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # besides what is no TOML: no text, or thousands of levels or digits
        raise CoterieError(f"config = {path}: not a TOML file ({error})") from None


def to_toml(config: Mapping[str, Any]) -> str:
    """A configuration as TOML.

    >>> print(to_toml({"method": "fedavg", "set": {}}).splitlines()[0])
    method = "fedavg"
    """
    return tomli_w.dumps(dict(config))


S = TypeVar("S", bound=Settings)


def settings_from(config: Mapping[str, Any], kind: type[S]) -> S:
    """The settings that a configuration describes.

    >>> settings_from({"method": "fedprox", "alpha": 0.5, "set": {"mu": 1}}, Settings).method
    FedProx(mu=1.0)
    """
    values = dict(config)
    require_format("config", values.pop("format", FORMAT), FORMAT, "write it again")
    _require_unchanged(values, values.pop(PLUGINS, {}))
    own = {item.name for item in fields(kind)}
    if str(values.get("partition", "")).startswith("given") or any(
        str(values.get(key, "")).startswith("given (") for key in ("data", "model")
    ):
        raise CoterieError("this run used Python objects of its own (data, model or partition): repeat it from Python")
    own_set = values.pop("set", {})
    require(isinstance(own_set, dict), f"set = {own_set!r}: must be a table of method options")
    method = make_method(str(values.pop("method", "fedavg")), dict(own_set))
    rule_name = rule_of(values)
    of_rule = rule_options(rule_name)
    for key in values:
        if key in own or key in of_rule:
            continue
        if any(key in options.option_fields(rule) for rule in PARTITIONS.values()):
            raise CoterieError(
                f"partition '{rule_name}' has no option '{key}' (it has: {', '.join(sorted(of_rule)) or 'none'})"
            )
        raise unknown("option", key, own | set(of_rule) | {"set"})
    rule = make_rule(rule_name, {key: values[key] for key in values if key in of_rule})
    hints = options.field_types(kind)
    plain = {
        key: options.coerced(key, value, str if key in ("data", "model") else hints[key])
        for key, value in values.items()
        if key in own and key != "partition"
    }
    return kind(method=method, partition=rule, **plain)


def rule_of(config: Mapping[str, Any]) -> str:
    """The name of a configuration's partition rule: the usual one for its data, if it names none.

    >>> rule_of({"data": "natural/exam"}), rule_of({"data": "natural/exam", "partition": "iid"})
    ('by_client', 'iid')
    """
    if "partition" in config:
        return str(config["partition"])
    client = config.get("client_column")
    return usual_rule(str(config.get("data", Settings.data)), None if client is None else str(client), config)


def _require_unchanged(values: Mapping[str, Any], hashes: object) -> None:
    """An error if a file of one's own is not what the configuration was written with."""
    require(isinstance(hashes, dict), f"{PLUGINS} = {hashes!r}: must be a table of files and their SHA-256")
    assert isinstance(hashes, dict)
    for key, text, path in files_in(values):
        if path in hashes and Path(path).is_file():
            found = PluginFile.read(path).sha256
            require(
                found == hashes[path],
                f"{key} = '{text}': the file has changed (its SHA-256 is {found[:12]}…, the configuration says "
                f"{str(hashes[path])[:12]}…); bring it back, or remove it from [{PLUGINS}] to use it as it is",
            )
