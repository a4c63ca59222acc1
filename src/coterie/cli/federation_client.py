"""What `federation client` does: check the site's data, then keep a SuperNode connected."""

from __future__ import annotations

import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.federation_dry_run import dry_run_command
from coterie.cli.federation_shared import (
    AUTHORITY,
    KEY,
    STATE,
    by_signal,
    insecure_warning,
    print_commands,
    require_flower,
    tell_of_page,
)
from coterie.cli.problems import InterruptionError
from coterie.cli.signals import exit_code
from coterie.cli.spoken import tell
from coterie.deployment.flower.folder import AGREEMENT, KEYS, SITES, require_folder
from coterie.deployment.inspection import FederationFacts, look
from coterie.deployment.site_status import SiteStatus, site_journal
from coterie.deployment.status import served_status, status_address
from coterie.errors import require, unknown
from coterie.files import expanded, private_folder


@dataclass(frozen=True)
class ClientOptions:
    """What was given on the command line."""

    folder: Path | None
    name: str
    data: Path
    label: str | None
    state: Path | None
    agreement: Path | None
    server: str
    key: Path | None
    root_certificate: Path | None
    insecure: bool
    port: int
    status: str
    device: str


def client_command(given: ClientOptions, commands: bool, dry_run: bool = False) -> None:
    """Take part as one site, or show what that would send."""
    require_flower()
    from coterie.deployment.flower.audit import Audit
    from coterie.deployment.flower.processes import joined, split_address
    from coterie.deployment.flower.relay import APP, packed_app
    from coterie.deployment.flower.site_processes import SiteProcesses

    server, page = joined(*split_address(given.server)), status_address(given.status)
    data = expanded(given.data).resolve()
    require(data.exists(), f"data = {given.data}: there is no such file or folder")
    require("/" not in given.name and not given.name.startswith("."), f"name = {given.name}: is not a site's name")
    state = given.state or (given.folder / SITES if given.folder else STATE)
    own = state / given.name
    agreement = _agreement(given, own)
    if dry_run:
        dry_run_command(agreement, given.name, data, given.label, own)
        return
    key, authority = (None, None) if given.insecure else _credentials(given, own)
    settings = {"name": given.name, "data": str(data), "state": str(state.resolve())}
    settings["agreement"] = str(agreement.resolve())
    if given.label is not None:
        settings["label"] = given.label
    with tempfile.TemporaryDirectory() as fresh:
        facts = _check(given, agreement, data, Path(fresh) / APP)
        app = packed_app(Path(fresh) / APP)
    settings["device"] = facts.device
    node = SiteProcesses(own, server, settings, key, authority, given.port)
    if given.insecure:
        insecure_warning(
            f"Whoever answers at {server}, or listens in between, gets this site's models. Only the agreed app runs "
            "here all the same."
        )
    print_commands(node.commands(), node.home)
    private_folder(state)
    try:
        mark = node.agree_only(app)
        tell(f"only the app {mark} runs here, built from {agreement}")
        if commands:
            node.prepare()
            return
        Audit(node.audit).note("started", site=given.name, server=server, app=mark)
        source = SiteStatus(
            given.name,
            facts.name,
            server,
            facts.method,
            facts.rounds,
            site_journal(state.resolve(), facts.name, given.name),
            lambda: node.connected,
            facts.class_names,
        )
        with by_signal(), served_status(source, page) as served, node:
            tell_of_page(served)
            tell(f"{given.name} connects to {server}; Ctrl-C ends it, the log is {node.log}")
            node.keep_alive(tell)
    except KeyboardInterrupt as stop:
        raise InterruptionError(f"{given.name} is ended; the same command connects it again", exit_code(stop)) from None
    finally:
        node.terminate()


def _agreement(given: ClientOptions, own: Path) -> Path:
    """The agreement that the site accepted: without one nothing is known that may run here."""
    if given.agreement is not None:
        require(given.agreement.is_file(), f"agreement = {given.agreement}: there is no such file")
        return given.agreement
    if given.folder is not None and not (own / AGREEMENT).is_file():
        return require_folder(given.folder)
    way_out = f"accept one with 'coterie federation join FILE --name {given.name}', or name it with --agreement FILE"
    require((own / AGREEMENT).is_file(), f"agreement: none is given, and there is no file {own / AGREEMENT}; {way_out}")
    return own / AGREEMENT


def _credentials(given: ClientOptions, own: Path) -> tuple[Path, Path]:
    """The site's key and the certificate by which it knows the server."""
    key = given.key or own / KEY
    kept = own / AUTHORITY
    authority = given.root_certificate or (
        given.folder / KEYS / AUTHORITY if given.folder and not kept.exists() else kept
    )
    require(
        key.is_file(),
        f"key: there is no file {key}; 'coterie federation join' makes it, or name another with --key FILE, or use "
        "--insecure",
    )
    require(
        authority.is_file(),
        f"root_certificate: there is no file {authority}; name the federation's ca.pem with --root-certificate FILE "
        "(whoever runs the server has it)",
    )
    if key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        tell(f"warning: others on this machine can read the private key; 'chmod 600 {key}' prevents that")
    return key.resolve(), authority.resolve()


def _check(given: ClientOptions, agreement: Path, data: Path, app: Path) -> FederationFacts:
    """See that the site is one of the federation and that its data fits; write the app to be run."""
    tell(f"checking {data} against {agreement}")
    facts = look(agreement, data, given.label or "", app, given.device)
    if given.name not in facts.sites:
        raise unknown(f"site of {facts.name}", given.name, facts.sites)
    tell(f"{facts.samples} samples fit")
    return facts
