"""What there is, a line each: `coterie methods`, `protocols`, `datasets`, `models`, `partitions`, `engines`."""

from __future__ import annotations

import inspect
import json as json_format
import sys
from collections.abc import Mapping
from dataclasses import MISSING
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from coterie.cli.options import AsJson, ConfigFile, GivenSettings, Seed, Sets
from coterie.errors import unknown
from coterie.options import option_fields
from coterie.version import VERSION

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.registry import Registry
    from coterie.report.facts import MethodFacts


def methods(
    name: Annotated[str | None, Parameter(help="A method to tell all about.", show_default=False)] = None, /
) -> None:
    """List the methods: what is personal, what travels, what it costs, the paper; or all about one method."""
    from rich.text import Text

    from coterie.methods import METHODS
    from coterie.report.terminal import plain_table, result_console

    if name is not None:
        print(_method_details(name))
        return
    whole = result_console().is_terminal  # it folds what is too long; elsewhere lines stay short
    titles = ("method", "personal", "up", "down", "server sees", "extra cost", "what it is")
    table = plain_table(*(titles if whole else (titles[0], titles[1], titles[-1])))
    for name, cls in METHODS.items():
        about = _facts_of(name)
        words = (about.up, about.down, about.sees, cls.extra_cost) if whole else ()
        table.add_row(*map(Text, (name, about.personal, *words, first_line(cls))))
    _print(table, METHODS)


def protocols(
    name: Annotated[str | None, Parameter(help="A protocol to tell all about.", show_default=False)] = None, /
) -> None:
    """List the papers' protocols, for --protocol; or one's settings, with what its paper does not state."""
    from rich.text import Text

    from coterie.report.terminal import plain_table, print_result
    from coterie.runs.protocols import PROTOCOLS

    if name is not None:
        print_result(*_protocol_details(name))
        return
    table = plain_table("protocol", "what it is", "the paper reports")
    for name, protocol in PROTOCOLS.items():
        table.add_row(*map(Text, (name, protocol.description, protocol.reported)))
    print_result(table)


def datasets() -> None:
    """List the data sets known by name."""
    from rich.text import Text

    from coterie.data import DATASETS
    from coterie.report.terminal import plain_table

    table = plain_table("data set", "what it is", "classes", right=(2,))
    for name, known in DATASETS.items():
        table.add_row(*map(Text, (name, known.description, str(known.classes or "–"))))
    _print(table, DATASETS)


def models() -> None:
    """List the models."""
    from rich.text import Text

    from coterie.models import MODELS
    from coterie.report.terminal import plain_table

    table = plain_table("model", "what it is")
    for name, spec in MODELS.items():
        table.add_row(*map(Text, (name, spec.description)))
    _print(table, MODELS)


def partitions() -> None:
    """List the partition rules, with their options and defaults."""
    from rich.text import Text

    from coterie.partition import PARTITIONS, FromFile
    from coterie.partition.from_file import ANY_FILE
    from coterie.report.terminal import plain_table

    table = plain_table("partition", "what it is", "options")
    for name, rule in PARTITIONS.items():
        table.add_row(*map(Text, (name, first_line(rule), spoken_options(rule))))
    table.add_row(*map(Text, (ANY_FILE, first_line(FromFile), "")))
    _print(table, PARTITIONS)


def version() -> None:
    """Print the version."""
    print(VERSION)


SHELLS = ("bash", "zsh", "fish")


def completion(shell: Annotated[str, Parameter(help="bash, zsh or fish.")], /) -> None:
    """Print what lets a shell complete commands and options: source <(coterie completion bash)."""
    from coterie.cli.app import app

    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    print(app.generate_completion(shell=cast(Literal["bash", "zsh", "fish"], shell)))


def _print(table: Table, registry: Registry[Any]) -> None:
    """A list on stdout, and on stderr what is wrong with entries that other packages added."""
    from coterie.report.terminal import print_result

    print_result(table)
    for problem in registry.problems().values():
        print(f"coterie: warning: {problem}", file=sys.stderr)


def _facts_of(name: str) -> MethodFacts:
    """The facts of a method: those that are kept; of a plug-in, what is read off it now."""
    from coterie.methods import METHODS
    from coterie.report.facts import MethodFacts, facts, kept_facts

    if METHODS.origin(name) is None and name in kept_facts():
        return kept_facts()[name]
    try:
        return facts(METHODS[name]())
    except Exception as error:  # whatever somebody's method may raise
        return MethodFacts(" ".join(f"cannot be told ({type(error).__name__}: {error})".split()), "?", "?")


def _method_details(name: str) -> str:
    """All about one method: its docstring, and its options with their defaults."""
    from coterie.methods import METHODS
    from coterie.report.facts import facts

    name = METHODS.spelt(name)
    cls = METHODS.find(name)
    text = inspect.cleandoc(cls.__doc__ or "").partition("\n\n>>> ")[0]  # its example is for Python
    about = _facts_of(name) if name in METHODS else facts(cls())
    lines = [
        f"Paper: {cls.paper or 'none'}",
        f"Options (--set NAME=VALUE): {spoken_options(cls) or 'none'}",
        f"Personal: {about.personal}",
        f"A client sends: {about.up}",
        f"A client receives: {about.down}",
        f"The server sees of single clients: {about.sees}",
        f"Extra cost: {cls.extra_cost}",
    ]
    return f"{name}: {text}\n\n" + "\n".join(lines)


def _protocol_details(name: str) -> list[Table | str]:
    """All about one protocol: its settings, what methods and data sets change, and what the paper does not state."""
    from rich.text import Text

    from coterie.report.terminal import plain_table
    from coterie.runs.protocols import find

    protocol = find(name)
    settings = plain_table("setting", "value", "for")
    for key, value in protocol.settings.items():
        settings.add_row(key, Text(str(value)), "")
    for method, own in protocol.for_method.items():
        for key, value in own.items():
            settings.add_row(key, Text(str(value)), f"method {method}")
    for data, changes in protocol.for_data.items():
        for key, value in changes.settings.items():
            settings.add_row(key, Text(str(value)), f"data {data}")
    options = plain_table("method", "options", "for")
    for method, own in protocol.options.items():
        options.add_row(method, Text(_spoken(own)), "")
    for data, changes in protocol.for_data.items():
        for method, own in changes.options.items():
            options.add_row(method, Text(_spoken(own)), f"data {data}")
    assumed = [f"  {sentence}" for sentence in protocol.assumed]
    about = [f"{name}: {protocol.description}", f"The paper reports: {protocol.reported}"]
    return [*about, "", settings, "", options, "", "Assumed, since the paper does not state it:", *assumed]


def _spoken(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def first_line(documented: type) -> str:
    """The first line of a docstring."""
    return (documented.__doc__ or "").strip().partition("\n")[0]


def spoken_options(cls: type) -> str:
    """The options of a dataclass with their defaults.

    >>> from coterie.partition import Iid
    >>> spoken_options(Iid)
    'clients=20'
    """
    spoken = []
    for name, item in option_fields(cls).items():
        if item.default is not MISSING:
            spoken.append(f"{name}={item.default}")
        elif item.default_factory is not MISSING:
            spoken.append(f"{name}={item.default_factory()}")
        else:
            spoken.append(name)
    return ", ".join(spoken)


def engines(
    method: Annotated[str | None, Parameter(help="The method of a run; none: list the engines.")] = None,
    /,
    *,
    set: Sets = None,
    config: ConfigFile = None,
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),
    seed: Seed = None,
) -> None:
    """List the engines, or show which one a run with these options would get, and what was measured."""
    from rich.text import Text

    from coterie.cli.experiments import one_experiment
    from coterie.engines import ENGINES
    from coterie.report.terminal import plain_table, print_result
    from coterie.setup.engine_choice import Measurements, choose, workload_of

    given = settings.given(seed=seed)
    if method is None and config is None and not given:
        table = plain_table("engine", "what it is")
        for name, engine in ENGINES.items():
            table.add_row(*map(Text, (name, first_line(engine))))
        print_result(table, "", "coterie engines METHOD … shows which one a run with these options would get.")
        return
    prepared = one_experiment(method or "fedavg", config, given, set or []).prepare()
    choice = choose(prepared)
    times = [measurement.when for measurement in Measurements(choice.workload or workload_of(prepared)).recent()]
    if json:
        about = {
            "engine": choice.way.engine,
            "threads": choice.way.threads,
            "memory": choice.way.memory,
            "why": choice.why,
            "measured_at": times,
            "seconds_a_round": {str(way): seconds for way, seconds in choice.seconds},
        }
        print(json_format.dumps(about, indent=2))
        return
    would_get = f"A run would get: {choice.way}"
    if not choice.seconds:
        print_result(would_get, f"Why: {choice.why}")
        return
    table = plain_table("engine", "threads", "memory", "s a round", "of the best", right=(1, 3, 4))
    best = choice.seconds[0][1]
    for way, seconds in choice.seconds:
        words = (way.engine, str(way.threads), way.memory.replace("_", "-"))
        table.add_row(*map(Text, (*words, f"{seconds:.3g}", f"{seconds / best:.2f}")))
    measured = f"{len(times)} time{'s' if len(times) != 1 else ''} in the last day"
    print_result(table, "", would_get, f"Measured {measured}; a run with this workload counts the last three.")
