"""How a value fits an annotation, and how to say it if it does not: a wrong type is one line, not a trace.

What Python says has types already, and nothing is guessed: numbers of NumPy become plain ones, whole numbers stand for
others where they say the same, classes are looked for as they are annotated, and annotations that nobody can check let
everything pass. What a command line or a file says is text, which is read first (`coterie.options`).
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import types
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from coterie.errors import CoterieError, unknown

P = ParamSpec("P")
R = TypeVar("R")

MOST_WHOLE = 2**63 - 1
"""The largest whole number that tensors hold."""
MOST = 3.4e38
"""The largest number that float32 holds: weights are of that kind, and what is reckoned with them."""
LONGEST = 60
"""Letters of a value in a message."""
EXAMPLE = "example"
"""The key in a field's metadata under which stands what could be given."""
_NOT_LISTS = (str, bytes, Mapping)
_COLLECTED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Language:
    """How values are said: what reads a text as the value of a kind, and the words for what is said otherwise there."""

    readers: Mapping[Any, Callable[[Any], Any]]
    words: Mapping[Any, str]


def _truth_in(value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    return value if isinstance(value, bool) else words[str(value).lower()]


def _nothing_in(value: Any) -> None:
    _require(value, value is None or str(value).lower() == "none")


PYTHON = Language({}, {bool: "True or False", type(None): "None"})
TEXT = Language(
    {
        int: lambda value: int(value) if isinstance(value, str) else value,
        float: lambda value: float(value) if isinstance(value, str) else value,
        bool: _truth_in,
        type(None): _nothing_in,
    },
    {bool: "true or false", type(None): "none"},
)
"""A command line or a file: TOML has types of its own, a command line has none."""


def fitting(option: str, value: Any, annotation: Any, example: str = "", said_in: Language = PYTHON) -> Any:
    """`value` as what is wanted there, if it is that; otherwise an error that says what it must be.

    >>> import numpy as np
    >>> fitting("rounds", np.int64(5), int), fitting("lr", 1, float), fitting("seeds", range(2), Sequence[int])
    (5, 1.0, (0, 1))
    >>> fitting("rounds", "5", int)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: rounds = '5': must be a whole number
    >>> fitting("lr", float("inf"), float)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: lr = inf: must be a number, finite and at most 3.4e38
    """
    try:
        return _any_of(value, annotation, said_in)
    except _UnfitError:
        pass  # said below, with what would fit
    text = said_in is TEXT
    kinds = _alternatives(annotation)
    words = [word for kind in kinds if get_origin(kind) is typing.Literal for word in get_args(kind)]
    if words and isinstance(value, str) and not text:
        raise unknown(option, value, words)
    such = f", such as {example}" if example else ""
    beyond = bounds(kinds) if (text or not isinstance(value, str)) and _is_beyond(value) else ""
    text_of_value = repr(value) if text else shown(value)
    raise CoterieError(f"{option} = {text_of_value}: must be {spoken(annotation, said_in)}{beyond}{such}")


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
    """Whether a value is a number, or the text of one, but none that tensors hold."""
    for read in (int, float) if isinstance(value, int | float | str) else ():
        with suppress(ValueError, OverflowError):
            return not is_held(read(value))
    return False


def shown(value: object) -> str:
    """A value in a message: itself if it is short, else what it is.

    >>> shown("5"), shown(None), shown([1] * 99)
    ("'5'", 'None', 'a list')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | int | float | list | tuple | dict | set | range):
        with suppress(ValueError):  # Python writes out no number of thousands of digits
            text = repr(value)
            if len(text) <= LONGEST and "\n" not in text:
                return text
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def spoken(annotation: Any, said_in: Language = PYTHON) -> str:
    """An annotation in words.

    >>> spoken(int | None), spoken(Sequence[str]), spoken(Mapping[str, float])
    ('a whole number or None', 'a list, each of it text', 'a table of names, each with a number')
    """
    words = list(dict.fromkeys(_word(kind, said_in) for kind in _alternatives(annotation)))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


class TypedOptions(ABCMeta):
    """The type of classes of options: dataclasses whose arguments are checked, however they come to be made.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pull(metaclass=TypedOptions):
    ...     mu: float = 0.01
    >>> Pull(1)
    Pull(mu=1.0)
    >>> Pull(nu=1)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: unknown option of Pull 'nu' (allowed: mu)

    What a class that extends them puts in the place of a method must be one.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        for attribute, value in namespace.items():
            overridden = next((vars(base)[attribute] for base in cls.__mro__[1:] if attribute in vars(base)), None)
            plain = inspect.isfunction(overridden) and not attribute.startswith("__")
            if plain and not callable(value) and not hasattr(value, "__get__"):
                raise CoterieError(f"{name}.{attribute} = {value!r}: must be a method, which says what is done")

    @property
    def __signature__(cls) -> inspect.Signature:
        """What the class is called with: notebooks show it, where they would show `__call__`'s."""
        return _signature(cls)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an instance of what was given, checked."""
        if not _takes_its_options(cls):
            return super().__call__(*args, **kwargs)  # somebody wrote what it is made with by hand
        return super().__call__(**_checked_options(cls, args, kwargs))

    def unknown_option(cls, name: str, value: object) -> CoterieError:
        """The error for an option that the class has not; a class may know more about where it belongs."""
        return unknown(f"option of {cls.__name__}", name, _options(cls))


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose arguments are checked against its annotations.

    >>> @typed
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> double("2")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: number = '2': must be a whole number
    >>> double()
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: double needs number: a whole number
    """
    signature, name = inspect.signature(function), function.__name__

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = _hints(function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise _misfit(name, signature, hints, kwargs, error) from None
        for option, value in bound.arguments.items():
            if signature.parameters[option].kind not in _COLLECTED:
                bound.arguments[option] = fitting(option, value, hints.get(option, Any))
        return function(*bound.args, **bound.kwargs)

    return checked


class _UnfitError(Exception):
    """A value is not what was looked for."""


@functools.cache
def _hints(thing: Any) -> dict[str, Any]:
    """The annotations of arguments; none where they name what only their author could see."""
    if isinstance(thing, types.FunctionType):
        # What a function returns may be known to type checkers alone.
        arguments = types.FunctionType(thing.__code__, thing.__globals__)
        arguments.__annotations__ = {name: hint for name, hint in thing.__annotations__.items() if name != "return"}
        thing = arguments
    try:
        return get_type_hints(thing)
    except NameError:
        return {}


@functools.cache
def _signature(cls: type) -> inspect.Signature:
    made: Any = getattr(cls, "__init__")  # noqa: B009 (mypy takes it for that of an instance)
    signature = inspect.signature(made)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


@functools.cache
def _options(cls: type) -> dict[str, str]:
    """The options of a dataclass, each with an example if its field has one."""
    made: Any = cls
    return {item.name: str(item.metadata.get(EXAMPLE, "")) for item in fields(made) if item.init}


def _takes_its_options(cls: TypedOptions) -> bool:
    """Whether a class is made from the options that it has as a dataclass."""
    taken = set(cls.__signature__.parameters)
    return is_dataclass(cls) and taken == set(_options(cls))


def _checked_options(cls: TypedOptions, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    known = _options(cls)
    for name, value in kwargs.items():
        if name not in known:
            raise cls.unknown_option(name, value)
    try:
        given = cls.__signature__.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise _misfit(cls.__name__, cls.__signature__, _hints(cls), kwargs, error) from None
    hints = _hints(cls)
    defaults = {name: value for name, value in _endless_defaults(cls).items() if name not in given}
    return {
        name: fitting(name, value, hints.get(name, Any), known[name]) for name, value in {**given, **defaults}.items()
    }


def _endless_defaults(cls: type) -> dict[str, float]:
    """The defaults of a dataclass that are numbers without end, or none: no text that a run keeps could hold them."""
    made: Any = cls
    defaults = {item.name: item.default for item in fields(made) if item.init}
    return {name: value for name, value in defaults.items() if isinstance(value, float) and not math.isfinite(value)}


def _misfit(
    name: str, signature: inspect.Signature, hints: Mapping[str, Any], given: Mapping[str, Any], error: TypeError
) -> CoterieError:
    """Why arguments are not those of a call."""
    known = signature.parameters
    for option in given:
        if option not in known:
            return unknown(
                f"argument of {name}", option, [argument for argument in known if argument not in ("self", "cls")]
            )
    for option, parameter in known.items():
        if f"'{option}'" in str(error) and parameter.default is inspect.Parameter.empty and "missing" in str(error):
            return CoterieError(f"{name} needs {option}: {spoken(hints.get(option, Any))}")
    named = [option for option, parameter in known.items() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    return CoterieError(f"{name}: {error}; without names it takes {', '.join(named) or 'none'}")


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return sorted(get_args(annotation), key=lambda kind: kind is type(None))
    return [annotation]


def _as(value: Any, annotation: Any, said_in: Language) -> Any:
    """The value as one of the alternatives; an error if it is none."""
    if annotation is Any:
        return value
    if annotation in said_in.readers:
        try:
            value = said_in.readers[annotation](value)
        except (ValueError, KeyError):
            raise _UnfitError from None
    if annotation in _PLAIN:
        return _PLAIN[annotation](value)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is typing.Literal:
        return _require(value, isinstance(value, str) and value in inner)
    if origin is type:
        return _require(value, isinstance(value, type) and issubclass(value, inner[0]))
    if origin is collections.abc.Callable:
        return _require(value, callable(value))
    if origin in (collections.abc.Sequence, list):
        return _elements(value, inner[0], said_in)
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return _elements(_require(value, isinstance(value, list | tuple)), inner[0], said_in)
    if origin is collections.abc.Mapping:
        return _entries(value, inner[0], inner[1], said_in)
    if isinstance(annotation, type) and not getattr(annotation, "_is_protocol", False):
        return _require(value, isinstance(value, annotation))
    return value  # an annotation that nobody can check


def _require(value: Any, fits: bool) -> Any:
    if not fits:
        raise _UnfitError
    return value


def _elements(value: Any, inner: Any, said_in: Language) -> tuple[Any, ...]:
    _require(value, isinstance(value, Iterable) and not isinstance(value, _NOT_LISTS))
    try:
        elements = iter(value)
    except TypeError:  # a tensor or an array of no dimension has the method, but it fails
        raise _UnfitError from None
    return tuple(_any_of(element, inner, said_in) for element in elements)


def _entries(value: Any, key: Any, inner: Any, said_in: Language) -> dict[Any, Any]:
    _require(value, isinstance(value, Mapping))
    return {_any_of(name, key, said_in): _any_of(entry, inner, said_in) for name, entry in value.items()}


def _any_of(value: Any, annotation: Any, said_in: Language) -> Any:
    def later(kind: Any) -> tuple[bool, bool]:
        if said_in is TEXT:  # strings take anything, so they come last
            return kind is str, kind is float
        return kind is not type(value), False  # where both may be, 1 is a whole number and 1.0 is not

    for candidate in sorted(_alternatives(annotation), key=later):
        try:
            return _as(value, candidate, said_in)
        except _UnfitError:
            continue
    raise _UnfitError


def _whole(value: Any) -> int:
    whole = isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
    return int(_require(value, whole and not isinstance(value, bool) and is_held(int(value))))


def _number(value: Any) -> float:
    number = isinstance(value, Real) and not isinstance(value, bool)
    return float(_require(value, number and is_held(int(value) if isinstance(value, Integral) else float(value))))


def _truth(value: Any) -> bool:
    return bool(_require(value, isinstance(value, bool)))


def _text(value: Any) -> str:
    return str(_require(value, isinstance(value, str)))


def _nothing(value: Any) -> None:
    _require(value, value is None)


_PLAIN: dict[Any, Callable[[Any], Any]] = {
    int: _whole,
    float: _number,
    bool: _truth,
    str: _text,
    type(None): _nothing,
}
_WORDS = {int: "a whole number", float: "a number", str: "text"}


def _word(kind: Any, said_in: Language) -> str:
    """One alternative in words."""
    if word := _WORDS.get(kind) or said_in.words.get(kind):
        return word
    origin, inner = get_origin(kind), get_args(kind)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is type:
        return f"a class that extends {inner[0].__name__}"
    if origin is collections.abc.Callable:
        return "a function"
    if origin is tuple and inner[0] is Any:
        return "a tuple"
    if origin in (collections.abc.Sequence, list, tuple):
        return "a list" if inner[0] is Any else f"a list, each of it {spoken(inner[0], said_in)}"
    if origin is collections.abc.Mapping:
        return f"a table of names, each with {spoken(inner[1], said_in)}"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
