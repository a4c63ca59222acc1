"""What the commands of a federation share: options, warnings, plain commands, signals."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from coterie.cli.errors import TerminationError
from coterie.cli.options import file, flag, option
from coterie.cli.output import WARNING, as_json, tell
from coterie.errors import require

if TYPE_CHECKING:
    from coterie.deployment.inspection import FederationFacts
    from coterie.deployment.status import StatusServer

STATE = Path("federation-state")  # a site's, where nothing else is named
KEY, AUTHORITY = "key", "ca.pem"  # in a site's folder there
ANY_PORT = "127.0.0.1:0"
NETWORK = Group("Network", sort_key=2)
OWN = Group("This site", sort_key=1)

Folder = Annotated[Path, Parameter(name="DIR", help="The federation's folder.")]
FolderIfHere = Annotated[
    Path | None, Parameter(name="DIR", help="The federation's folder, if it is here.", show_default=False)
]
SiteName = Annotated[str, Parameter(help="The site's name.", group=OWN)]
State = Annotated[
    Path | None,
    file("The folder in which the site keeps its key, model and logs.", "DIR/sites, or federation-state", OWN),
]
Insecure = Annotated[bool, flag("No encryption and no keys: for trials on one machine only.", NETWORK)]
Commands = Annotated[bool, flag("Print the commands behind this one, and start nothing.", NETWORK)]
Status = Annotated[
    str,
    option(
        "HOST:PORT of a page that shows how it goes, with /health and /metrics; 'off' for none.",
        "any free port of 127.0.0.1",
        NETWORK,
    ),
]


def require_flower() -> None:
    """Refuse to go on without Flower, or on a system without the means to end its processes for sure."""
    require(os.name == "posix", "federations run on Linux and macOS (on Windows: in WSL)")
    for package in ("flwr", "cryptography", "h11"):
        require(find_spec(package) is not None, f"'{package}' is not installed: pip install 'coterie[flower]'")


def require_signed(facts: FederationFacts, way_out: str) -> None:
    """Refuse an agreement that does not say by which key tasks are signed: anybody could write them."""
    require(bool(facts.server_key), f"server_key: the agreement of {facts.name} names no key of its server; {way_out}")


def warn(title: str, text: str) -> None:
    """A warning that cannot be overlooked."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    if as_json():
        tell(f"{title}: {text}", WARNING)
        return
    console = Console(stderr=True, highlight=False)
    console.print(Panel(Text(text), title=f"WARNING: {title}", border_style="bold red", style="red"))


def insecure_warning(consequence: str) -> None:
    """What the insecure mode is."""
    warn(
        "INSECURE MODE",
        f"No encryption, no keys. {consequence} Use it for trials on one machine, never with data that matters; "
        "'coterie federation keys' makes the keys for the secure mode.",
    )


def tell_of_page(server: StatusServer | None) -> None:
    """Say where the status page is, and who can read it."""
    if server is None:
        return
    if server.names is None:
        tell(f"warning: everybody who reaches {server.address} can read how this federation goes")
    tell(f"how it goes: {server.address} (for monitors: {server.address}health, {server.address}metrics)")


def print_commands(commands: Mapping[str, Sequence[str]], home: Path) -> None:
    """The commands on stdout that are about to be started, for those who know Flower."""
    from coterie.deployment.flower.processes import settings

    print("# The same as plain commands:")
    print("export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in settings(home).items()))
    for what, words in commands.items():
        print(f"{shlex.join(words)}  # {what}")
    sys.stdout.flush()


@contextmanager
def by_signal() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that everything started is ended in good order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TerminationError if number == signal.SIGTERM else KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
