"""What `federation client` does: check the site's data, then keep a SuperNode connected."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.federation_shared import (
    by_signal,
    insecure_warning,
    print_commands,
    require_flower,
    tell,
)
from coterie.cli.problems import InterruptionError
from coterie.deployment.check import look
from coterie.deployment.flower.folder import AGREEMENT, KEYS, SITES, require_folder
from coterie.errors import require, unknown

STATE = Path("federation-state")


@dataclass(frozen=True)
class ClientOptions:
    """What was given on the command line."""

    folder: Path | None
    name: str
    data: Path
    label: str | None
    state: Path | None
    server: str
    key: Path | None
    root_certificate: Path | None
    insecure: bool
    port: int


def client_command(given: ClientOptions, commands: bool) -> None:
    """Take part as one site."""
    require_flower()
    from coterie.deployment.flower.node import Node
    from coterie.deployment.flower.processes import joined, split_address

    server = joined(*split_address(given.server))
    data = given.data.expanduser().resolve()
    require(data.exists(), f"data = {given.data}: there is no such file or folder")
    require("/" not in given.name and not given.name.startswith("."), f"name = {given.name}: is no name of a site")
    _check(given, data)
    key, authority = (None, None) if given.insecure else _credentials(given)
    state = given.state or (given.folder / SITES if given.folder else STATE)
    settings = {"name": given.name, "data": str(data), "state": str(state.resolve())}
    if given.label is not None:
        settings["label"] = given.label
    node = Node(state / given.name, server, settings, key, authority, given.port)
    if given.insecure:
        insecure_warning(
            f"Whoever answers at {server}, or listens in between, gets this site's models and can run code here."
        )
    print_commands({f"the SuperNode of {given.name}": node.command()}, node.home)
    if commands:
        return
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with by_signal(), node:
            tell(f"{given.name} connects to {server}; Ctrl-C ends it, the log is {node.log}")
            node.keep_alive(tell)
    except KeyboardInterrupt:
        raise InterruptionError(f"{given.name} is ended; the same command connects it again") from None


def _credentials(given: ClientOptions) -> tuple[Path, Path]:
    """The site's key and the certificate by which it knows the server."""
    folder = None if given.folder is None else given.folder / KEYS
    key = given.key or (folder and folder / "sites" / given.name)
    authority = given.root_certificate or (folder and folder / "ca.pem")
    made = "made by 'coterie federation keys' where the server runs"
    if key is None or not key.is_file():
        found = "none is given" if key is None else f"there is no file {key}"
        require(False, f"key: {found}; name the site's private key with --key FILE ({made}), or use --insecure")
    if authority is None or not authority.is_file():
        found = "none is given" if authority is None else f"there is no file {authority}"
        require(False, f"root_certificate: {found}; name the federation's ca.pem with --root-certificate FILE ({made})")
    assert key is not None
    assert authority is not None
    if key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        tell(f"warning: others on this machine can read the private key; 'chmod 600 {key}' prevents that")
    return key.resolve(), authority.resolve()


def _check(given: ClientOptions, data: Path) -> None:
    """See that the site is one of the federation and that its data fits, if its agreement is at hand."""
    if given.folder is None:
        return
    tell(f"checking {data} against {given.folder / AGREEMENT}")
    facts = look(require_folder(given.folder), data, given.label or "")
    if given.name not in facts.sites:
        raise unknown(f"site of {facts.name}", given.name, facts.sites)
    tell(f"{facts.samples} samples fit")
