"""Options that several commands have. Nothing heavy is imported here: `coterie --help` must answer at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from coterie.cli.settings import RUNNING, SEED, option, read_numbers, read_texts

OUTPUT = Group("Method options, files and output", sort_key=0)

ConfigFile = Annotated[
    Path | None,
    Parameter(help="A TOML file with the same keys as the options; options given here override it.", group=OUTPUT),
]
Seed = Annotated[int | None, SEED]
AsJson = Annotated[bool, Parameter(help="Print JSON, and nothing else, on stdout.", group=OUTPUT, negative=())]

Listeners = Annotated[
    list[str] | None,
    Parameter(
        help="Who is told how it goes: tensorboard, wandb, or one of your own, such as ./my.py:EarlyStop; may be "
        "repeated.",
        negative=(),
        group=OUTPUT,
    ),
]
Sets = Annotated[
    list[str] | None,
    Parameter(help="A method option, NAME=VALUE; may be repeated.", negative=(), group=OUTPUT),
]
Seeds = Annotated[
    list[int] | None,
    Parameter(
        help="Everything runs once with each seed.",
        show_default="0",
        consume_multiple=True,
        negative=(),
        converter=read_numbers,
        group=OUTPUT,
    ),
]
Jobs = Annotated[
    int | None, option("Runs at the same time (0: one per core if that is faster, otherwise 1).", 0, RUNNING)
]
Cluster = Annotated[
    str | None,
    option("Runs take place on a Ray cluster: HOST:PORT, or 'auto' on a machine of it.", "this machine", RUNNING),
]
Columns = Annotated[
    list[str] | None,
    Parameter(
        help="The table's columns, with commas: MOMENT.MEAN.READING such as stored.weighted.last, worst_decile.MOMENT, "
        "bytes, seconds …",
        negative=(),
        show_default="the usual ones",
        converter=read_texts,
        group=OUTPUT,
    ),
]
Texts = Annotated[
    list[str] | None,
    Parameter(
        help="Only these, by key (with commas).", negative=(), show_default="all", converter=read_texts, group=OUTPUT
    ),
]
