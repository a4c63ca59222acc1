"""The command `coterie`: the files of what it can do, each loaded when it is asked for, and the short help of some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cyclopts import App, Group

from coterie.options import BY_RULE
from coterie.version import VERSION

TRAIN = Group("Train", sort_key=1)
LOOK = Group("Look up", sort_key=2)
FEDERATE = Group("Federate over a network", sort_key=3)
ABOUT = Group("About", sort_key=4)

COMMANDS = {
    "coterie.cli.run:run": TRAIN,
    "coterie.cli.compare:compare": TRAIN,
    "coterie.cli.sweep:sweep": TRAIN,
    "coterie.cli.run:resume": TRAIN,
    "coterie.cli.benchmark:benchmark": TRAIN,
    "coterie.cli.reproduce:reproduce": TRAIN,
    "coterie.cli.check:check": LOOK,
    "coterie.cli.listing:engines": LOOK,
    "coterie.cli.runs:show": LOOK,
    "coterie.cli.runs:runs": LOOK,
    "coterie.cli.runs:table": LOOK,
    "coterie.cli.report:picture": LOOK,
    "coterie.cli.report:report": LOOK,
    "coterie.cli.predict:export": LOOK,
    "coterie.cli.runs:pack": LOOK,
    "coterie.cli.predict:predict": LOOK,
    "coterie.cli.listing:methods": LOOK,
    "coterie.cli.listing:protocols": LOOK,
    "coterie.cli.listing:datasets": LOOK,
    "coterie.cli.listing:models": LOOK,
    "coterie.cli.listing:partitions": LOOK,
    "coterie.cli.federation:federation": FEDERATE,
    "coterie.cli.listing:version": ABOUT,
    "coterie.cli.listing:completion": ABOUT,
}

app = App(
    name="coterie",
    help="Personalised federated learning: every client gets its own model and learns from those that resemble it.",
    version=VERSION,
    suppress_keyboard_interrupt=False,
)
app["--help"].group = ABOUT
app["--version"].group = ABOUT
for command, group in COMMANDS.items():
    app.command(command, group=group)


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
