"""What the options of commands are made of, and those that several commands have: the settings of a run above all.

What was not given stays `None` and takes its default elsewhere. Nothing heavy is imported here: `coterie --help` must
answer at once.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter, Token

from coterie.options import BY_RULE, coerced, option_fields
from coterie.setup.run_options import RunOptions

OUTPUT = Group("Method options, files and output", sort_key=0)
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


def read_value(annotation: Any, tokens: Sequence[Token]) -> Any:
    """A converter that reads values just as a configuration file does: `2.7` is no whole number."""
    plain = annotation
    if get_origin(annotation) in (Union, types.UnionType):
        plain = reduce(or_, (member for member in get_args(annotation) if member is not type(None)))
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


def flag(help: str, group: Group) -> Parameter:
    """An option that is off unless it is given: `--name`."""
    return Parameter(help=help, group=group, negative=())


def file(help: str, default: str, group: Group) -> Parameter:
    """A file or a folder; `default` is what the help shows."""
    return Parameter(help=help, show_default=default, group=group)


def read_texts(_: Any, tokens: Sequence[Token]) -> list[str]:
    """Values separated by commas, or given one by one."""
    parts = [part.strip() for token in tokens for part in token.value.split(",")]
    return [part for part in parts if part]


def read_numbers(_: Any, tokens: Sequence[Token]) -> list[int]:
    """The same for whole numbers."""
    keyword = (tokens[0].keyword or "value").lstrip("-")
    return [coerced(keyword, part, int) for part in read_texts(None, tokens)]


def listed(
    help: str, default: str, group: Group | str = "Parameters", read: Any = read_texts, *names: str
) -> Parameter:
    """An option for several values, with commas or one by one; `default` is what the help shows."""
    return Parameter(
        name=names or None, help=help, show_default=default, group=group, converter=read, negative=(), n_tokens=1
    )


def repeated(help: str, group: Group | str = "Parameters", default: str | None = None) -> Parameter:
    """An option that may be repeated, with one text each time."""
    return Parameter(help=help, show_default=default, group=group, negative=(), n_tokens=1)


def seed_numbers(help: str, default: str) -> Parameter:
    """The seeds of a command that runs everything with each of them."""
    return Parameter(
        help=help, show_default=default, consume_multiple=True, negative=(), converter=read_numbers, group=OUTPUT
    )


def parameters(settings: type, groups: Mapping[str, Group], leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a dataclass as annotated types of options, what a class adds before what it extends."""
    hints, known = get_type_hints(settings), option_fields(settings)
    order = [name for cls in settings.__mro__ for name in vars(cls).get("__annotations__", {}) if name in known]
    return {name: parameter(known[name], hints[name], groups) for name in dict.fromkeys(order) if name not in leave_out}


def parameter(item: Field[Any], hint: Any, groups: Mapping[str, Group]) -> Any:
    """A setting as the annotated type of an option that may be left out."""
    about = item.metadata
    group, names, shown = groups[about["group"]], about["names"], about["shown"]
    if hint is bool:
        return Annotated[bool | None, switch(about["help"], shown, group)]
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        texts: Any = types.GenericAlias(list, (kind,))
        read = read_numbers if kind is int else read_texts
        return Annotated[texts | None, listed(about["help"], shown, group, read, *names)]
    # What may be an object in Python is a name here; words are checked later, where all are known.
    plain = str if hint is Any or get_origin(hint) is Literal else hint
    return Annotated[plain | None, option(about["help"], shown, group, *names)]


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

    def given(self, **others: Any) -> dict[str, Any]:
        """Those that were given, and of some others those that are not `None` either."""
        made: Any = self  # subclasses are dataclasses
        values = {item.name: getattr(self, item.name) for item in fields(made)} | others
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
    annotations: dict[str, Any] = {
        "protocol": Annotated[
            str | None, option("A paper's settings to start from (see 'coterie protocols').", "none", DATA)
        ]
    }
    for name, annotated in parameters(RunOptions, GROUPS, leave_out=("method", "seed")).items():
        annotations[name] = annotated
        if name == "partition":
            for rule_option, (kind, help) in _OF_RULES.items():
                made = switch(help, BY_RULE, PARTITION) if kind is bool else option(help, BY_RULE, PARTITION)
                annotations[rule_option] = Annotated[kind | None, made]
    return annotations


@options(_all_options())
class GivenSettings(Given):
    """Every setting of an experiment but its method and its seed, each `None` unless it was given."""


ConfigFile = Annotated[
    Path | None,
    Parameter(help="A TOML file with the same keys as the options; options given here override it.", group=OUTPUT),
]
Seed = Annotated[int | None, get_args(parameter(option_fields(RunOptions)["seed"], int, GROUPS))[1]]
AsJson = Annotated[bool, flag("Print JSON, and nothing else, on stdout.", OUTPUT)]
Listeners = Annotated[
    list[str] | None,
    repeated(
        "Who is told how it goes: tensorboard, wandb, or one of your own, such as ./my.py:EarlyStop; may be repeated.",
        OUTPUT,
    ),
]
Sets = Annotated[list[str] | None, repeated("A method option, NAME=VALUE; may be repeated.", OUTPUT)]
Seeds = Annotated[list[int] | None, seed_numbers("Everything runs once with each seed.", "0")]
Jobs = Annotated[
    int | None, option("Runs at the same time (0: one per core if that is faster, otherwise 1).", 0, RUNNING)
]
Cluster = Annotated[
    str | None,
    option("Runs take place on a Ray cluster: HOST:PORT, or 'auto' on a machine of it.", "this machine", RUNNING),
]
Columns = Annotated[
    list[str] | None,
    listed(
        "The table's columns, with commas: MOMENT.MEAN.READING such as stored.weighted.last, worst_decile.MOMENT, "
        "bytes, seconds …",
        "the usual ones",
        OUTPUT,
    ),
]
