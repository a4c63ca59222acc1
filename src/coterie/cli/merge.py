"""From a configuration file and what was given on the command line to experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.cli.entries import MethodEntry
from coterie.errors import CoterieError, require, unknown
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.registry import OWN_FILE, is_reference, short_name
from coterie.runs.experiment import Experiment, experiment_from
from coterie.runs.protocols import find
from coterie.setup.config import Config, overridden, read_toml

Sets = dict[str, Any]
"""Method options: `{"mu": 0.1}` for every method that has it, `{"fedprox": {"mu": 0.1}}` for one method."""


def read_sets(texts: Sequence[str]) -> Sets:
    """The `--set` options.

    >>> read_sets(["mu=0.1", "fedprox.mu=1"])
    {'mu': '0.1', 'fedprox': {'mu': '1'}}
    """
    sets: Sets = {}
    for text in texts:
        key, equals, value = text.partition("=")
        method, _, option = key.strip().rpartition(".")
        require(bool(equals and option), f"set = '{text}': must be NAME=VALUE or METHOD.NAME=VALUE")
        if method:
            _sets_of(sets, METHODS.spelt(method))[option] = value.strip()
        else:
            sets[option] = value.strip()
    return sets


def merged(file: Path | None, given: Mapping[str, Any]) -> tuple[Config, str | None]:
    """The file's configuration, overridden by what was given; and the name of the protocol that it starts from.

    Options of a partition rule that a rule chosen instead does not have are left aside.
    """
    config = {} if file is None else read_toml(file)
    sets = config.get("set", {})
    require(isinstance(sets, dict), f"set = {sets!r}: must be a table of method options")
    config = overridden(config, given)
    name = config.pop("protocol", None)
    return config, None if name is None else str(name)


def protocol_of(file: Path | None, given: Mapping[str, Any]) -> str:
    """The name of the protocol that a command starts from; empty if there is none."""
    return str(given.get("protocol") or ({} if file is None else read_toml(file)).get("protocol", ""))


def _start(protocol: str | None, method: str, config: Config) -> tuple[Config, Sets]:
    """A method's configuration, the protocol's overridden by `config`, and the protocol's options for it."""
    if protocol is None:
        return config, {}
    settings, options = find(protocol).start(method, config)
    return {**settings, "protocol": protocol}, options


def one_experiment(method: str | None, file: Path | None, given: Mapping[str, Any], texts: Sequence[str]) -> Experiment:
    """The experiment of `run`. A method given on the command line does not take over the file's method options."""
    config, protocol = merged(file, given)
    named = config.pop("method", None)
    named = None if named is None else METHODS.spelt(str(named))
    chosen = named if method is None else METHODS.spelt(method)
    if chosen is None:
        experiment_from(_start(protocol, "", config)[0])  # a misspelt key in the file is the likelier mistake
        raise CoterieError(f"method: name one (allowed: {', '.join(METHODS)}, or {OWN_FILE})")
    sets = config.pop("set", {}) if chosen == named else {}
    config, preset = _start(protocol, chosen, config)
    joined = _joined({short_name(chosen): preset}, sets, read_sets(texts), [chosen])
    return experiment_from({**config, "method": chosen, "set": joined[short_name(chosen)]})


def experiments(
    texts: Sequence[str], file: Path | None, given: Mapping[str, Any], sets: Sequence[str]
) -> dict[str, Experiment]:
    """The experiments of `compare`, by entry (`NAME` or `NAME:OPTION=VALUE,…`); a method in a file goes by its name."""
    entries = [MethodEntry.read(text) for text in texts]
    names = [entry.name for entry in entries]
    for name in names:
        require(names.count(name) == 1, f"method '{name}' is given twice")
    methods = {short_name(entry.method): entry.method for entry in entries}
    for entry in entries:
        one, other = entry.method, methods[short_name(entry.method)]
        require(one == other, f"'{one}' and '{other}' would have the same name; compare them one by one")
    config, protocol = merged(file, given)
    named = config.pop("method", None)
    of_file = config.pop("set", {})
    if named is not None and (named in METHODS or is_reference(str(named))):
        # A run's configuration: its options are those of its method.
        of_file = {short_name(named): of_file} if short_name(named) in methods else {}
    starts = {name: _start(protocol, method, config) for name, method in methods.items()}
    presets = {name: preset for name, (_, preset) in starts.items()}
    by_method = _joined(presets, of_file, read_sets(sets), list(methods.values()))
    found: dict[str, Experiment] = {}
    for entry in entries:
        short = short_name(entry.method)
        settings, options = {**starts[short][0], **entry.settings}, {**by_method[short], **entry.options}
        try:
            experiment = experiment_from({**settings, "method": entry.method, "set": options})
        except CoterieError as error:
            raise CoterieError(f"{entry.name}: {error}" if entry.settings or entry.options else str(error)) from None
        same = next((name for name, other in found.items() if other == experiment), None)
        require(same is None, f"'{same}' and '{entry.name}' are the same run; leave one out")
        found[entry.name] = experiment
    return found


def _joined(preset: Sets, file: Sets, given: Sets, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each method's own options: the protocol's, the file's, then the given ones; for one method over for all."""
    known = {short_name(method): set(option_fields(METHODS.find(method))) for method in methods}
    methods = list(known)
    result: dict[str, dict[str, Any]] = {method: dict(preset.get(method, {})) for method in methods}
    for sets in (file, given):
        for option, value in sets.items():
            if isinstance(value, dict):
                continue
            takers = [method for method in methods if option in known[method]]
            if not takers:
                raise unknown(
                    f"option of {', '.join(methods)}", option, {o for options in known.values() for o in options}
                )
            for method in takers:
                result[method][option] = value
        for method, values in sets.items():
            if not isinstance(values, dict):
                continue
            if method not in result:
                raise unknown("method in set", method, methods)
            for option in values:
                if option not in known[method]:
                    raise unknown(f"option of {method}", option, known[method])
            result[method] |= values
    return result


def _sets_of(sets: Sets, method: str) -> dict[str, Any]:
    found = sets.setdefault(method, {})
    require(isinstance(found, dict), f"set: '{method}' is both an option and a method")
    assert isinstance(found, dict)
    return found
