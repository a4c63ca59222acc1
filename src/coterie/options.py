"""Typed options from plain values: the same checks behind Python, TOML and the command line."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from coterie.errors import CoterieError, unknown
from coterie.registry import Registry, absolute, is_reference, short_name

T = TypeVar("T")
N = TypeVar("N", int, float)

BY_RULE = "the rule's"
MOST_WHOLE = 2**63 - 1
"""The largest whole number that tensors hold."""
MOST = 3.4e38
"""The largest number that float32 holds: weights are of that kind, and what is reckoned with them."""


def setting(default: Any, help: str, group: str, *names: str, shown: str | None = None) -> Any:
    """A field of a dataclass that says in its metadata what it means: the command line is made from it.

    `group` is the heading it stands under, `names` its options if they differ from its name, `shown` what to show as
    its default if that is not the value.
    """
    text = str(default) if shown is None else shown
    return field(default=default, metadata={"help": help, "group": group, "names": names, "shown": text})


def same_setting(cls: type, name: str) -> Any:
    """The setting of that name of another dataclass, once more."""
    found = option_fields(cls)[name]
    return field(default=found.default, metadata=found.metadata)


def option_fields(cls: type) -> dict[str, Field[Any]]:
    """The options of a dataclass, by name."""
    return {item.name: item for item in fields(cls) if item.init}


_type_hints = cache(get_type_hints)  # annotations are texts, and take a while to read


def field_types(cls: type) -> Mapping[str, Any]:
    """The types of a dataclass's fields, by name."""
    try:
        return _type_hints(cls)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise CoterieError(f"{cls.__name__}: the type of an option cannot be read ({error})") from error


def build(kind: str, name: str, cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of a dataclass from plain values, each checked against the type of its field.

    >>> from coterie.methods import FedProx
    >>> build("method", "fedprox", FedProx, {"mu": "0.1"})
    FedProx(mu=0.1)
    >>> build("method", "fedprox", FedProx, {"mo": 1})
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: unknown option of fedprox 'mo' (allowed: mu)
    """
    known, hints = option_fields(cls), field_types(cls)
    for option in values:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    for option, item in known.items():
        if option not in values and item.default is MISSING and item.default_factory is MISSING:
            raise CoterieError(f"{kind} '{name}' needs the option '{option}'")
    given = {option: coerced(option, value, hints[option]) for option, value in values.items()}
    try:
        return cls(**given)
    except CoterieError:
        raise
    except (TypeError, ValueError) as error:
        raise CoterieError(f"{kind} '{name}' cannot be made of its options ({error})") from error


def references_in(text: str) -> list[str]:
    """The references within a text that may say more: options, and further things after a plus sign.

    >>> references_in("./my.py:Cap:0.2+median"), references_in("./my.py:FedAvgM"), references_in("median")
    (['./my.py:Cap'], ['./my.py:FedAvgM'], [])
    """
    if is_reference(text):
        return [text]
    return [found[0] for part in text.split("+") if (found := re.match(r".*?\.py:[^:]+", part))]


def all_absolute(text: str) -> str:
    """A text whose references hold wherever one is."""
    for reference in references_in(text):
        text = text.replace(reference, absolute(reference))
    return text


def made(registry: Registry[type[T]], text: str) -> T:
    """What a text such as `NAME:VALUE:OPTION=VALUE` stands for: a class of the registry with options.

    Values without a name are the class's options in their order.

    >>> from coterie.methods import METHODS
    >>> made(METHODS, "fedprox:0.1"), made(METHODS, "fedprox:mu=0.1")
    (FedProx(mu=0.1), FedProx(mu=0.1))
    >>> made(METHODS, "fedprox:0.1:0.2")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: method 'fedprox:0.1:0.2': 'fedprox' has 1 option (mu), but more are given
    """
    reference = next(iter(references_in(text)), "")
    name = reference or text.partition(":")[0]
    parts = text[len(name) :].split(":")[1:]
    found = registry.find(name)
    known = list(option_fields(found))
    values: dict[str, Any] = {}
    for place, part in enumerate(parts):
        option, named, value = part.partition("=")
        if not named:
            spoken = f"{len(known)} option{'s' * (len(known) != 1)} ({', '.join(known) or 'none'})"
            if place >= len(known):
                raise CoterieError(f"{registry.kind} '{text}': '{short_name(name)}' has {spoken}, but more are given")
            option, value = known[place], part
        if option in values:
            raise CoterieError(f"{registry.kind} '{text}': {option} is given twice")
        values[option] = value
    return build(registry.kind, short_name(name), found, values)


def coerced(option: str, value: Any, wanted: Any) -> Any:
    """`value` as the wanted type, if it says so without loss; strings from a command line are read.

    >>> coerced("clients", "20", int), coerced("alpha", 1, float), coerced("cap", "no", bool)
    (20, 1.0, False)
    >>> coerced("lr", "inf", float)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: lr = 'inf': must be a number, finite and at most 3.4e38
    """
    for candidate in _alternatives(wanted):
        try:
            return _READERS[candidate](value) if candidate in _READERS else _literal(value, candidate)
        except (ValueError, TypeError):
            continue
    beyond = bounds(_alternatives(wanted)) if _is_beyond(value) else ""
    raise CoterieError(f"{option} = {value!r}: must be {_spoken(wanted)}{beyond}")


def bounds(kinds: Iterable[Any]) -> str:
    """What a number must be besides being one, in words; nothing if no number is wanted.

    >>> bounds([int, None]), bounds([int, float]), bounds([str])
    (', below 2**63', ', finite and at most 3.4e38', '')
    """
    kinds = set(kinds)
    if float in kinds:
        return ", finite and at most 3.4e38"
    return ", below 2**63" if int in kinds else ""


def is_held(value: float) -> bool:
    """Whether tensors can hold a number: it is finite, and not beyond their range.

    >>> is_held(1e30), is_held(2**63), is_held(float("nan")), is_held(1e308)
    (True, False, False, False)
    """
    if isinstance(value, int):
        return -MOST_WHOLE <= value <= MOST_WHOLE
    return math.isfinite(value) and abs(value) <= MOST


def _is_beyond(value: Any) -> bool:
    """Whether a value is a number, but none that tensors hold."""
    for read in (int, float):
        try:
            return not is_held(read(value))
        except (ValueError, TypeError, OverflowError):
            continue
    return False


def _alternatives(wanted: Any) -> list[Any]:
    if get_origin(wanted) in (typing.Union, types.UnionType):
        # Strings take anything, so they come last.
        return sorted(get_args(wanted), key=lambda one: (one is str, one is float))
    return [wanted]


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return _held(int(value))


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    try:
        return _held(float(value))
    except OverflowError:  # whole numbers in TOML have any length, and no float holds the longest
        raise ValueError from None


def _held(value: N) -> N:
    if not is_held(value):
        raise ValueError
    return value


_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    try:
        return _WORDS[str(value).lower()]
    except KeyError:
        raise ValueError from None


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _none(value: Any) -> None:
    if value is not None and str(value).lower() != "none":
        raise ValueError


_READERS: dict[Any, Any] = {int: _int, float: _float, bool: _bool, str: _str, type(None): _none}


def _literal(value: Any, wanted: Any) -> Any:
    if value in get_args(wanted):
        return value
    raise ValueError


def _spoken(wanted: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    spoken = [names.get(one) or "one of " + ", ".join(map(str, get_args(one))) for one in _alternatives(wanted)]
    return " or ".join(spoken)
