"""The short help of commands that have very many options: what is needed most, and three examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.cli.app import app
from coterie.options import BY_RULE

ALL = "--help-all"
WIDTH = 12


@dataclass(frozen=True)
class Brief:
    """What the short help of a command shows: how it is called, examples, the options that are needed most."""

    usage: str
    examples: tuple[str, ...]
    options: tuple[str, ...]


BRIEF = {
    "run": Brief(
        "coterie run METHOD [OPTIONS]",
        (
            "coterie run fedper --clients 10 --alpha 0.1 --rounds 20 --lr 0.05",
            "coterie run ditto --data visits.csv --label outcome --client ward",
            "coterie run ./my.py:Mine --model ./my.py:Net --set beta=5 --out runs/mine",
        ),
        (
            *("--data", "--label", "--client", "--partition", "--clients", "--alpha", "--model", "--rounds"),
            *("--epochs", "--batch", "--lr", "--seed", "--set", "--config", "--out"),
        ),
    )
}
"""By command; all others have few enough options for one page."""


def brief_help(tokens: Sequence[str]) -> str | None:
    """The short help if a command line asks for that of a command that has one.

    >>> brief_help(["run", "--help-all"]), brief_help(["show", "--help"])
    (None, None)
    """
    if not tokens or tokens[0] not in BRIEF or not {"--help", "-h"} & set(tokens[1:]):
        return None
    brief = BRIEF[tokens[0]]
    collection = app[tokens[0]].assemble_argument_collection()
    arguments = {name: argument for argument in collection for name in argument.names}
    lines = [f"Usage: {brief.usage}", "", *(f"  {example}" for example in brief.examples), ""]
    for name in brief.options:
        parameter = arguments[name].parameter
        usual = parameter.show_default if isinstance(parameter.show_default, str) else ""
        usual = f"{BY_RULE}: 'coterie partitions'" if usual == BY_RULE else usual
        lines.append(f"{name:<{WIDTH}} {parameter.help}" + (f" [{usual}]" if usual else ""))
    left = sum(argument.show and not set(brief.options) & set(argument.names) for argument in collection)
    return "\n".join(
        [*lines, "", f"'coterie {tokens[0]} {ALL}' explains {left} more; 'coterie methods' lists methods."]
    )
