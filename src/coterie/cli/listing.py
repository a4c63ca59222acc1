"""What there is: methods, data sets, models and partition rules, a line each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.data import DATASETS
from coterie.methods import METHODS
from coterie.models import MODELS
from coterie.options import option_fields
from coterie.partition import PARTITIONS, FromFile
from coterie.partition.from_file import ANY_FILE
from coterie.registry import Registry
from coterie.report.facts import MethodFacts, facts
from coterie.report.terminal import plain_table
from coterie.runs.protocols import PROTOCOLS, find


def listing(kind: str) -> Table:
    """The table of a kind: `methods`, `protocols`, `datasets`, `models` or `partitions`."""
    if kind == "methods":
        table = plain_table("method", "personal", "up", "down", "server sees", "extra cost", "what it is")
        for name, cls in METHODS.items():
            try:
                told = facts(cls())
            except Exception as error:  # whatever somebody's method may raise
                if METHODS.origin(name) is None:
                    raise
                told = MethodFacts("?", "?", " ".join(f"cannot be told ({type(error).__name__}: {error})".split()))
            words = (name, told.personal, told.up, told.down, told.sees, cls.extra_cost, first_line(cls))
            table.add_row(*map(Text, words))
        return table
    if kind == "partitions":
        table = plain_table("partition", "what it is", "options")
        for name, rule in PARTITIONS.items():
            table.add_row(*map(Text, (name, first_line(rule), spoken_options(rule))))
        table.add_row(*map(Text, (ANY_FILE, first_line(FromFile), "")))
        return table
    if kind == "protocols":
        table = plain_table("protocol", "what it is", "the paper reports")
        for name, one in PROTOCOLS.items():
            table.add_row(*map(Text, (name, one.description, one.reported)))
        return table
    if kind == "models":
        table = plain_table("model", "what it is")
        for name, spec in MODELS.items():
            table.add_row(*map(Text, (name, spec.description)))
        return table
    table = plain_table("data set", "what it is", "classes", right=(2,))
    for name, known in DATASETS.items():
        table.add_row(*map(Text, (name, known.description, str(known.classes or "–"))))
    return table


def problems(kind: str) -> list[str]:
    """What is wrong with entries of a kind that other packages added, a line each."""
    registries: dict[str, Registry[Any]] = {
        "methods": METHODS,
        "partitions": PARTITIONS,
        "models": MODELS,
        "datasets": DATASETS,
    }
    return list(registries[kind].problems().values()) if kind in registries else []


def method_details(name: str) -> str:
    """All about one method: its docstring, and its options with their defaults."""
    name = METHODS.spelt(name)
    cls = METHODS.find(name)
    text = inspect.cleandoc(cls.__doc__ or "").partition("\n\n>>> ")[0]  # its example is for Python
    told = facts(cls())
    lines = [
        f"Paper: {cls.paper or 'none'}",
        f"Options (--set NAME=VALUE): {spoken_options(cls) or 'none'}",
        f"Personal: {told.personal}",
        f"A client sends: {told.up}",
        f"A client receives: {told.down}",
        f"The server sees of single clients: {told.sees}",
        f"Extra cost: {cls.extra_cost}",
    ]
    return f"{name}: {text}\n\n" + "\n".join(lines)


def protocol_details(name: str) -> list[Table | str]:
    """All about one protocol: its settings, what methods and data sets change, and what the paper does not state."""
    found = find(name)
    settings = plain_table("setting", "value", "for")
    for key, value in found.settings.items():
        settings.add_row(key, Text(str(value)), "")
    for method, own in found.for_method.items():
        for key, value in own.items():
            settings.add_row(key, Text(str(value)), f"method {method}")
    for data, changes in found.for_data.items():
        for key, value in changes.settings.items():
            settings.add_row(key, Text(str(value)), f"data {data}")
    options = plain_table("method", "options", "for")
    for method, own in found.options.items():
        options.add_row(method, Text(_spoken(own)), "")
    for data, changes in found.for_data.items():
        for method, own in changes.options.items():
            options.add_row(method, Text(_spoken(own)), f"data {data}")
    assumed = [f"  {sentence}" for sentence in found.assumed]
    about = [f"{name}: {found.description}", f"The paper reports: {found.reported}"]
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
