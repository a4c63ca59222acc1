"""From a command line to experiments: what stands there for a method, a configuration file, and what else was given.

A method of a comparison is an entry: its name, and options of its own after a colon.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.compare.remarks import SHARED
from coterie.compare.space import Space, grid_of
from coterie.errors import CoterieError, require, unknown
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.partition import PARTITIONS
from coterie.registry import OWN_FILE, is_reference, short_name
from coterie.runs.experiment import Experiment, experiment_from
from coterie.runs.protocols import find
from coterie.setup.config import Config, overridden, read_toml
from coterie.setup.run_options import RunOptions

SETTINGS = set(option_fields(RunOptions)) - SHARED - {"method", "seed"}
"""The settings of a run in which the methods of a comparison may differ."""
WITH_OPTIONS = re.compile(r"(?P<method>.*?):(?P<options>[A-Za-z_]\w*=.*)", re.DOTALL)
NEXT_OPTION = re.compile(r",(?=[A-Za-z_]\w*=)")

Sets = dict[str, Any]
"""Method options: `{"mu": 0.1}` for every method that has it, `{"fedprox": {"mu": 0.1}}` for one method."""


@dataclass(frozen=True)
class MethodEntry:
    """A method with options of its own: `name` is what tables call it, `method` a name or a reference.

    >>> MethodEntry.read("PFedCS:beta=10,lr=0.01")
    MethodEntry(name='pfedcs:beta=10,lr=0.01', method='pfedcs', settings={'lr': '0.01'}, options={'beta': '10'})
    """

    name: str
    method: str
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> MethodEntry:
        """The entry that a text such as `NAME:OPTION=VALUE,OPTION=VALUE` describes."""
        with_options = WITH_OPTIONS.fullmatch(text)
        given = text if with_options is None else with_options["method"]
        if not is_reference(given):
            bare, colon, _ = given.partition(":")
            require(not colon or bare not in METHODS, f"'{text}': must be NAME or NAME:OPTION=VALUE,OPTION=VALUE")
        method = METHODS.spelt(given)
        known = option_fields(METHODS.find(method))
        if with_options is None:
            return cls(short_name(method), method)
        settings: dict[str, str] = {}
        options: dict[str, str] = {}
        for part in NEXT_OPTION.split(with_options["options"]):
            option, _, value = part.partition("=")
            require(option not in {**settings, **options}, f"'{text}': {option} is given twice")
            # An option of the method goes before a setting of the same name.
            (options if option in known else settings)[option] = value
        name = f"{short_name(method)}:{with_options['options']}"
        _require_own(name, short_name(method), settings, known)
        return cls(name, method, settings, options)


def apart(texts: Sequence[str]) -> list[str]:
    """Entries one by one, though some were given as a list with commas; in an entry with options those are its own.

    >>> apart(["local,fedavg", "pfedcs:beta=10,lr=0.01"])
    ['local', 'fedavg', 'pfedcs:beta=10,lr=0.01']
    """
    return [part for text in texts for part in ([text] if ":" in text else text.split(",")) if part]


def _require_own(name: str, method: str, settings: Mapping[str, str], of_method: Mapping[str, Any]) -> None:
    """An error if a setting is none, or one that all methods of a comparison share."""
    of_rules = {option for rule in PARTITIONS.values() for option in option_fields(rule)}
    for option in settings:
        if option in SETTINGS:
            continue
        require(option != "seed", f"{name}: all methods run with the same seeds; give them once, --seeds")
        if option in SHARED | of_rules:
            raise CoterieError(
                f"{name}: all methods of a comparison share the data and the partition; give {option} once, "
                f"--{option.replace('_', '-')}"
            )
        raise unknown(f"option of {method} and of a run", option, SETTINGS | set(of_method))


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
    by_entry: dict[str, Experiment] = {}
    for entry in entries:
        short = short_name(entry.method)
        settings, options = {**starts[short][0], **entry.settings}, {**by_method[short], **entry.options}
        try:
            experiment = experiment_from({**settings, "method": entry.method, "set": options})
        except CoterieError as error:
            raise CoterieError(f"{entry.name}: {error}" if entry.settings or entry.options else str(error)) from None
        same = next((name for name, other in by_entry.items() if other == experiment), None)
        require(same is None, f"'{same}' and '{entry.name}' are the same run; leave one out")
        by_entry[entry.name] = experiment
    return by_entry


def candidates(
    text: str,
    space: Space,
    file: Path | None,
    given: Mapping[str, Any],
    sets: Sequence[str],
    draw: int | None = None,
    seed: int = 0,
) -> dict[str, Experiment]:
    """The experiments of a grid, by entry."""
    _require_some(space)
    return experiments([_entry(text, combination) for combination in grid_of(space, draw, seed)], file, given, sets)


def candidate(
    text: str, settings: Mapping[str, str], file: Path | None, given: Mapping[str, Any], sets: Sequence[str]
) -> tuple[str, Experiment]:
    """The experiment of one combination, and its entry."""
    _require_some(settings)
    ((name, experiment),) = experiments([_entry(text, settings)], file, given, sets).items()
    return name, experiment


def fractions_of(text: str) -> set[str]:
    """The options of a method and the settings of a run whose values need not be whole numbers.

    >>> "mu" in fractions_of("fedprox"), "lr" in fractions_of("fedprox"), "epochs" in fractions_of("fedprox")
    (True, True, False)
    """
    known = {**option_fields(RunOptions), **option_fields(METHODS.find(MethodEntry.read(text).method))}
    return {name for name, item in known.items() if isinstance(item.default, float)}


def _require_some(space: Mapping[str, object]) -> None:
    require(bool(space), "grid: name at least one option with its values, such as lr=0.01,0.05")


def _entry(text: str, settings: Mapping[str, str]) -> str:
    joint = "," if WITH_OPTIONS.fullmatch(text) else ":"
    return text + joint + ",".join(f"{key}={value}" for key, value in settings.items())


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
    options = sets.setdefault(method, {})
    require(isinstance(options, dict), f"set: '{method}' is both an option and a method")
    assert isinstance(options, dict)
    return options
