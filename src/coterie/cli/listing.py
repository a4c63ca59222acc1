"""What there is: methods, data sets, models and partition rules, a line each."""

from __future__ import annotations

from dataclasses import MISSING

from rich.table import Table
from rich.text import Text

from coterie.data import DATASETS
from coterie.methods import METHODS
from coterie.models import MODELS
from coterie.options import option_fields
from coterie.partition import PARTITIONS
from coterie.terminal import plain_table


def listing(kind: str) -> Table:
    """The table of a kind: `methods`, `datasets`, `models` or `partitions`."""
    if kind in ("methods", "partitions"):
        table = plain_table(kind[:-1], "what it is", "options")
        for name, cls in sorted((METHODS if kind == "methods" else PARTITIONS).items()):
            table.add_row(*map(Text, (name, first_line(cls), spoken_options(cls))))
        return table
    if kind == "models":
        table = plain_table("model", "what it is")
        for name, spec in sorted(MODELS.items()):
            table.add_row(*map(Text, (name, spec.description)))
        return table
    table = plain_table("data set", "what it is", "classes", right=(2,))
    for name, known in sorted(DATASETS.items()):
        table.add_row(*map(Text, (name, known.description, str(known.classes))))
    return table


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
