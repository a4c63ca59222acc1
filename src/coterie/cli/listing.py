"""What there is: methods, data sets, models and partition rules, a line each."""

from __future__ import annotations

import inspect
from dataclasses import MISSING

from rich.table import Table
from rich.text import Text

from coterie.data import DATASETS
from coterie.errors import unknown
from coterie.experiment.protocols import PROTOCOLS
from coterie.methods import METHODS
from coterie.models import MODELS
from coterie.options import option_fields
from coterie.partition import PARTITIONS
from coterie.report.facts import facts
from coterie.report.terminal import plain_table


def listing(kind: str) -> Table:
    """The table of a kind: `methods`, `protocols`, `datasets`, `models` or `partitions`."""
    if kind == "methods":
        table = plain_table("method", "personal", "up", "down", "extra cost", "what it is")
        for name, cls in sorted(METHODS.items()):
            told = facts(cls())
            table.add_row(*map(Text, (name, told.personal, told.up, told.down, cls.extra_cost, first_line(cls))))
        return table
    if kind == "partitions":
        table = plain_table("partition", "what it is", "options")
        for name, rule in sorted(PARTITIONS.items()):
            table.add_row(*map(Text, (name, first_line(rule), spoken_options(rule))))
        return table
    if kind == "protocols":
        table = plain_table("protocol", "what it is", "the paper reports")
        for name, one in PROTOCOLS.items():
            table.add_row(*map(Text, (name, one.description, one.reports)))
        return table
    if kind == "models":
        table = plain_table("model", "what it is")
        for name, spec in sorted(MODELS.items()):
            table.add_row(*map(Text, (name, spec.description)))
        return table
    table = plain_table("data set", "what it is", "classes", right=(2,))
    for name, known in sorted(DATASETS.items()):
        table.add_row(*map(Text, (name, known.description, str(known.classes or "–"))))
    return table


def method_details(name: str) -> str:
    """All about one method: its docstring, and its options with their defaults."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    cls = METHODS[name]
    text = inspect.cleandoc(cls.__doc__ or "")
    told = facts(cls())
    lines = [
        f"Paper: {cls.paper or 'none'}",
        f"Options (--set NAME=VALUE): {spoken_options(cls) or 'none'}",
        f"Personal: {told.personal}",
        f"A client sends: {told.up}",
        f"A client receives: {told.down}",
        f"Extra cost: {cls.extra_cost}",
    ]
    return f"{name}: {text}\n\n" + "\n".join(lines)


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
