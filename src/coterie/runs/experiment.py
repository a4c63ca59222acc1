"""An experiment: the typed configuration behind the Python API and the command line, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from coterie import options
from coterie.display import Displayed
from coterie.errors import CoterieError, require, unknown
from coterie.setup.config import FORMAT, PLUGINS, files_in
from coterie.setup.prepared import Prepared, prepare
from coterie.runs.result import Result
from coterie.runs.run import run
from coterie.setup.settings import Settings, make_method, make_rule, rule_options
from coterie.files import require_format
from coterie.models import ModelSpec
from coterie.partition import PARTITIONS
from coterie.registry import PluginFile
from coterie.rounds.listeners import GivenListener
from coterie.typed import typed

WHAT = ("data", "partition", "model")


def _spoken(thing: object) -> str:
    """A method, data, a partition or a model in a few words.

    >>> _spoken("digits"), _spoken(make_rule("iid", {"clients": 4}))
    ("'digits'", 'Iid(clients=4)')
    """
    if isinstance(thing, ModelSpec):
        return thing.name
    return type(thing).__name__ if isinstance(thing, nn.Module) else repr(thing)


@dataclass(frozen=True)
class Experiment(Settings, Displayed):
    """One run: a method on a partitioned data set with a model. `Settings` says what each option means.

    >>> result = Experiment(data="digits", partition=make_rule("iid", {"clients": 4}), rounds=2, epochs=1).run()
    >>> 0 < result.accuracy().received.mean["best"] <= 1
    True
    """

    def __repr__(self) -> str:
        """In one line: what is run, and every setting that is not the usual one."""
        told = [_spoken(self.method), *(f"{name}={_spoken(getattr(self, name))}" for name in WHAT)]
        told += [f"{name}={value!r}" for name, value in self.changed().items()]
        return " ".join(f"Experiment({', '.join(told)})".split())

    def changed(self) -> dict[str, Any]:
        """The settings that are not the usual ones, but for the first four.

        >>> Experiment(rounds=5, lr=0.01).changed()
        {'rounds': 5}
        """
        values = {item.name: (getattr(self, item.name), item.default) for item in fields(self)}
        return {
            name: value
            for name, (value, default) in values.items()
            if name not in ("method", *WHAT) and value != default
        }

    @typed
    def run(
        self, out: str | Path | None = None, listeners: Sequence[GivenListener] = (), progress: bool = False
    ) -> Result:
        """Run to the end, or until a listener stops it; with `out`, write a run directory there.

        `listeners` are objects, classes or names, such as `"tensorboard"`.
        `progress` shows how far the run is: bars in a terminal or notebook, elsewhere a line about once a second.
        """
        return run(self, None if out is None else Path(out), listeners, progress)

    def prepare(self) -> Prepared:
        """Load the data, draw the partition, build and check the model: everything before round 1."""
        return prepare(self)


def experiment_from(config: Mapping[str, Any]) -> Experiment:
    """The experiment that a configuration describes.

    >>> experiment_from({"method": "fedprox", "alpha": 0.5, "set": {"mu": 1}}).method
    FedProx(mu=1.0)
    """
    values = dict(config)
    require_format("config", values.pop("format", FORMAT), FORMAT, "write it again")
    _require_unchanged(values, values.pop(PLUGINS, {}))
    own = {item.name for item in fields(Experiment)}
    rule_name = str(values.get("partition", "dirichlet"))
    own_set = values.pop("set", {})
    require(isinstance(own_set, dict), f"set = {own_set!r}: must be a table of method options")
    method = make_method(str(values.pop("method", "fedavg")), dict(own_set))
    if rule_name.startswith("given") or any(
        str(values.get(key, "")).startswith("given (") for key in ("data", "model")
    ):
        raise CoterieError("this run used Python objects of its own (data, model or partition): repeat it from Python")
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
    hints = options.field_types(Experiment)
    plain = {
        key: options.coerced(key, value, str if key in ("data", "model") else hints[key])
        for key, value in values.items()
        if key in own and key != "partition"
    }
    return Experiment(method=method, partition=rule, **plain)


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
