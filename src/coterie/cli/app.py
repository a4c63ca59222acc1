"""The command `coterie`, and the files of what it can do: each is loaded when somebody asks for it, or for help."""

from __future__ import annotations

from cyclopts import App, Group

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
