"""Typed options from plain values: the same checks behind Python, TOML and the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

from coterie.errors import CoterieError, unknown
from coterie.registry import Registry, absolute, is_reference, short_name
from coterie.typed import TEXT, fitting

T = TypeVar("T")

BY_RULE = "the rule's"


def setting(default: Any, help: str, group: str, *names: str, shown: str | None = None) -> Any:
    """A field of a dataclass that says in its metadata what it means: the command line is made from it.

    `group` is the heading it stands under, `names` its options if they differ from its name, `shown` what to show as
    its default if that is not the value.
    """
    text = str(default) if shown is None else shown
    return field(default=default, metadata={"help": help, "group": group, "names": names, "shown": text})


def same_setting(cls: type, name: str) -> Any:
    """The setting of that name of another dataclass, once more."""
    original = option_fields(cls)[name]
    return field(default=original.default, metadata=original.metadata)


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
            raise CoterieError(
                f"{kind} '{name}' needs the option '{option}'{made_at(cls)}: give it (--set {option}=…), or a default "
                "in the class"
            )
    given = {option: coerced(option, value, hints[option]) for option, value in values.items()}
    missing = _asked_by_hand(cls)
    if missing:
        raise CoterieError(
            f"{kind} '{name}' asks for '{missing}' in its __init__{made_at(cls)}: options are fields of a frozen "
            f"dataclass, such as {missing}: float = 0.1"
        )
    try:
        return cls(**given)
    except CoterieError:
        raise
    except (TypeError, ValueError) as error:
        raise CoterieError(f"{kind} '{name}' cannot be made of its options ({error})") from error


def _asked_by_hand(cls: type) -> str:
    """The first argument that an `__init__` of somebody's own needs; empty if there is none."""
    init = vars(cls).get("__init__")
    if not inspect.isfunction(init) or init.__code__.co_filename == "<string>":  # the latter: dataclass wrote it
        return ""
    asked = list(inspect.signature(init).parameters.values())[1:]
    usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return next((one.name for one in asked if one.default is one.empty and one.kind in usual), "")


def made_at(cls: type) -> str:
    """Where a class is written, in brackets, for its author; nothing if Python does not know.

    >>> made_at(int)
    ''
    """
    try:
        return f" ({inspect.getsourcefile(cls)}, line {inspect.getsourcelines(cls)[1]})"
    except (OSError, TypeError):
        return ""


def references_in(text: str) -> list[str]:
    """The references within a text that may say more: options, and further things after a plus sign.

    >>> references_in("./my.py:Cap:0.2+median"), references_in("./my.py:FedAvgM"), references_in("median")
    (['./my.py:Cap'], ['./my.py:FedAvgM'], [])
    """
    if is_reference(text):
        return [text]
    return [match[0] for part in text.split("+") if (match := re.match(r".*?\.py:[^:]+", part))]


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
    cls = registry.find(name)
    known = list(option_fields(cls))
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
    return build(registry.kind, short_name(name), cls, values)


def coerced(option: str, value: Any, kind: Any) -> Any:
    """`value` as the wanted type, if it says so without loss; strings from a command line are read.

    >>> coerced("clients", "20", int), coerced("alpha", 1, float), coerced("cap", "no", bool)
    (20, 1.0, False)
    >>> coerced("lr", "inf", float)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: lr = 'inf': must be a number, finite and at most 3.4e38
    """
    return fitting(option, value, kind, said_in=TEXT)
