"""The command `coterie` itself, to which other files add what it can do."""

from __future__ import annotations

from cyclopts import App, Group

from coterie.cli.federation import federation
from coterie.version import VERSION

TRAIN = Group("Train", sort_key=1)
LOOK = Group("Look up", sort_key=2)
FEDERATE = Group("Federate over a network", sort_key=3)
ABOUT = Group("About", sort_key=4)

app = App(
    name="coterie",
    help="Personalised federated learning: every client gets its own model and learns from those that resemble it.",
    version=VERSION,
    suppress_keyboard_interrupt=False,
)
app["--help"].group = ABOUT
app["--version"].group = ABOUT
federation.group = (FEDERATE,)
app.command(federation)
