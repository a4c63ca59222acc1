"""What stands on the command line for a method of a comparison: its name, and options of its own after a colon."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.compare.differing import SHARED
from coterie.errors import CoterieError, require, unknown
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.partition import PARTITIONS
from coterie.registry import is_reference, short_name
from coterie.setup.run_options import RunOptions

SETTINGS = set(option_fields(RunOptions)) - SHARED - {"method", "seed"}
"""The settings of a run in which the methods of a comparison may differ."""
OWN = re.compile(r"(?P<method>.*?):(?P<options>[A-Za-z_]\w*=.*)", re.DOTALL)
NEXT = re.compile(r",(?=[A-Za-z_]\w*=)")


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
        found = OWN.fullmatch(text)
        given = text if found is None else found["method"]
        if not is_reference(given):
            bare, colon, _ = given.partition(":")
            require(not colon or bare not in METHODS, f"'{text}': must be NAME or NAME:OPTION=VALUE,OPTION=VALUE")
        method = METHODS.spelt(given)
        known = option_fields(METHODS.find(method))
        if found is None:
            return cls(short_name(method), method)
        settings: dict[str, str] = {}
        options: dict[str, str] = {}
        for part in NEXT.split(found["options"]):
            option, _, value = part.partition("=")
            require(option not in {**settings, **options}, f"'{text}': {option} is given twice")
            # An option of the method goes before a setting of the same name.
            (options if option in known else settings)[option] = value
        name = f"{short_name(method)}:{found['options']}"
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
