"""The options that `run` and `compare` share, made from the settings of a run.

What was not given stays `None` and takes its default elsewhere. Nothing heavy is imported here: `coterie --help` must
answer at once.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter, Token

from coterie.options import BY_RULE, coerced, option_fields
from coterie.setup.run_options import RunOptions

DATA = Group("Data and model", sort_key=1)
PARTITION = Group("Partition (each rule takes some of these: see 'coterie partitions')", sort_key=2)
TRAINING = Group("Training", sort_key=3)
DEFENCE = Group("One client never takes over", sort_key=4)
PRIVACY = Group("Privacy", sort_key=5)
RUNNING = Group("Running and recording", sort_key=6)
GROUPS = {
    "data": DATA,
    "partition": PARTITION,
    "training": TRAINING,
    "defence": DEFENCE,
    "privacy": PRIVACY,
    "running": RUNNING,
}

C = TypeVar("C")


def read_value(wanted: Any, tokens: Sequence[Token]) -> Any:
    """A converter that reads values just as a configuration file does: `2.7` is no whole number."""
    plain = wanted
    if get_origin(wanted) in (Union, types.UnionType):
        plain = reduce(or_, (one for one in get_args(wanted) if one is not type(None)))
    token = tokens[0]
    return coerced((token.keyword or "value").lstrip("-").replace("-", "_"), token.value, plain)


def option(help: str, default: object, group: Group, *names: str) -> Parameter:
    """An option with its help; `default` is what the help shows."""
    return Parameter(
        name=names or None, help=help, show_default=str(default), group=group, converter=read_value, negative=()
    )


def switch(help: str, default: object, group: Group) -> Parameter:
    """An option that is on or off: `--name`, `--no-name`."""
    return Parameter(help=help, show_default=str(default), group=group)


def read_texts(_: Any, tokens: Sequence[Token]) -> list[str]:
    """Values separated by commas, or given one by one."""
    parts = [part.strip() for token in tokens for part in token.value.split(",")]
    return [part for part in parts if part]


def read_numbers(wanted: Any, tokens: Sequence[Token]) -> list[int]:
    """The same for whole numbers."""
    keyword = (tokens[0].keyword or "value").lstrip("-")
    return [coerced(keyword, part, int) for part in read_texts(wanted, tokens)]


def parameters(settings: type, groups: Mapping[str, Group], leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a dataclass as annotated types of options, what a class adds before what it extends."""
    hints, known = get_type_hints(settings), option_fields(settings)
    order = [name for cls in settings.__mro__ for name in vars(cls).get("__annotations__", {}) if name in known]
    return {name: parameter(known[name], hints[name], groups) for name in dict.fromkeys(order) if name not in leave_out}


def parameter(item: Field[Any], wanted: Any, groups: Mapping[str, Group]) -> Any:
    """A setting as the annotated type of an option that may be left out."""
    told = item.metadata
    group, names, shown = groups[told["group"]], told["names"], told["shown"]
    if wanted is bool:
        return Annotated[bool | None, switch(told["help"], shown, group)]
    if get_origin(wanted) is tuple:
        kind = get_args(wanted)[0]
        several = Parameter(
            name=names or None,
            help=told["help"],
            show_default=shown,
            group=group,
            converter=read_numbers if kind is int else read_texts,
            negative=(),
            n_tokens=1,
        )
        wanted = types.GenericAlias(list, (kind,))
        return Annotated[wanted | None, several]
    # What may be an object in Python is a name here; words are checked later, where all are known.
    plain = str if wanted is Any or get_origin(wanted) is Literal else wanted
    return Annotated[plain | None, option(told["help"], shown, group, *names)]


def options(annotations: Mapping[str, Any]) -> Callable[[type[C]], type[C]]:
    """Makes a class a frozen dataclass of options, each `None` unless it was given, as arguments of a command."""

    def made(cls: type[C]) -> type[C]:
        cls.__annotations__ = dict(annotations)
        for name in annotations:
            setattr(cls, name, None)
        return Parameter(name="*")(dataclass(frozen=True)(cls))

    return made


class Given:
    """Options of a command."""

    def given(self) -> dict[str, Any]:
        """Those that were given."""
        made: Any = self  # subclasses are dataclasses
        values = {item.name: getattr(self, item.name) for item in fields(made)}
        return {name: value for name, value in values.items() if value is not None}


# The rules' own options, which stand with the rules: more than one has some of them.
_OF_RULES: dict[str, tuple[type, str]] = {
    "clients": (int, "How many clients there are."),
    "alpha": (float, "Dirichlet concentration; the smaller, the more clients differ."),
    "cap": (bool, "A client that holds its share takes no further class."),
    "least": (int, "The smallest client's samples."),
    "classes_per_client": (int, "Classes of each client."),
    "variant": (str, "'order' (clients form groups) or 'random' classes."),
    "unbalanced": (bool, "Clients differ in size."),
    "bins": (int, "Bins of equally many samples."),
    "samples": (int, "Samples of each client."),
    "iid": (float, "The share of them that is evenly mixed, 0 to 1."),
    "train_samples": (int, "Training samples of each client."),
    "test_samples": (int, "Test samples of each client."),
    "clients_per_domain": (int, "Clients that share a domain."),
}


def _all_options() -> dict[str, Any]:
    found: dict[str, Any] = {
        "protocol": Annotated[
            str | None, option("A paper's settings to start from (see 'coterie protocols').", "none", DATA)
        ]
    }
    for name, annotated in parameters(RunOptions, GROUPS, leave_out=("method", "seed")).items():
        found[name] = annotated
        if name == "partition":
            for own, (kind, help) in _OF_RULES.items():
                told = switch(help, BY_RULE, PARTITION) if kind is bool else option(help, BY_RULE, PARTITION)
                found[own] = Annotated[kind | None, told]
    return found


@options(_all_options())
class GivenSettings(Given):
    """Every setting of an experiment but its method and its seed, each `None` unless it was given."""


SEED = get_args(parameter(option_fields(RunOptions)["seed"], int, GROUPS))[1]
"""The option of `run` alone: `compare` has several seeds."""
