"""`coterie federation client`: check the site's data, then keep a SuperNode connected; or show what that would send."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.errors import InterruptionError, exit_code
from coterie.cli.federation.shared import (
    ANY_PORT,
    AUTHORITY,
    KEY,
    NETWORK,
    OWN,
    STATE,
    Commands,
    FolderIfHere,
    Insecure,
    SiteName,
    State,
    Status,
    by_signal,
    insecure_warning,
    print_commands,
    require_flower,
    require_signed,
    tell_of_page,
)
from coterie.cli.options import file, flag, option
from coterie.cli.output import tell
from coterie.errors import require, unknown

DRY_RUN = "dry-run"


def client(
    folder: FolderIfHere = None,
    /,
    *,
    name: SiteName,
    data: Annotated[
        Path, Parameter(help="The site's own data: a folder, .npz, .parquet or .csv; nobody else sees it.", group=OWN)
    ],
    label: Annotated[str | None, option("The label column of a table.", "label", OWN)] = None,
    state: State = None,
    agreement: Annotated[
        Path | None, file("The federation.toml that the site accepts.", "what 'federation join' kept", OWN)
    ] = None,
    device: Annotated[str, Parameter(help="Where the site trains: cpu, cuda, mps or auto.", group=OWN)] = "cpu",
    server: Annotated[str, Parameter(help="HOST:PORT of the server.", group=NETWORK)] = "127.0.0.1:8000",
    key: Annotated[Path | None, file("The site's private key.", "that of 'federation join'", NETWORK)] = None,
    root_certificate: Annotated[
        Path | None, file("The certificate by which to know the server.", "that of 'federation join'", NETWORK)
    ] = None,
    insecure: Insecure = False,
    port: Annotated[
        int | None, option("A port on this machine, for this machine alone.", "any free one", NETWORK)
    ] = None,
    status: Status = ANY_PORT,
    dry_run: Annotated[bool, flag("Show everything that this site would send, and send nothing.", OWN)] = False,
    commands: Commands = False,
) -> None:
    """Take part in a federation as one site, until ended (Ctrl-C)."""
    require_flower()
    from coterie.deployment.flower.audit import Audit
    from coterie.deployment.flower.folder import SITES
    from coterie.deployment.flower.processes import joined, split_address
    from coterie.deployment.flower.relay import APP, packed_app
    from coterie.deployment.flower.site_processes import SiteProcesses
    from coterie.deployment.inspection import look
    from coterie.deployment.site_status import SiteStatus, site_journal
    from coterie.deployment.status import served_status, status_address
    from coterie.files import expanded, private_folder

    server, page = joined(*split_address(server)), status_address(status)
    path = expanded(data).resolve()
    require(path.exists(), f"data = {data}: there is no such file or folder")
    require("/" not in name and not name.startswith("."), f"name = {name}: is not a site's name")
    state = state or (folder / SITES if folder else STATE)
    own = state / name
    accepted = _agreement(agreement, folder, own)
    if dry_run:
        _dry_run(accepted, name, path, label, own)
        return
    key_file, authority = (None, None) if insecure else _credentials(key, root_certificate, folder, own)
    with tempfile.TemporaryDirectory() as fresh:
        tell(f"checking {path} against {accepted}")
        facts = look(accepted, path, label or "", Path(fresh) / APP, device)
        if name not in facts.sites:
            raise unknown(f"site of {facts.name}", name, facts.sites)
        tell(f"{facts.samples} samples fit")
        if key_file is not None:
            require_signed(facts, "ask whoever runs the server for one that does, and accept it with 'federation join'")
        app = packed_app(Path(fresh) / APP)
    settings = {
        "name": name,
        "data": str(path),
        "state": str(state.resolve()),
        "agreement": str(accepted.resolve()),
        **({} if label is None else {"label": label}),
        "device": facts.device,
    }
    node = SiteProcesses(own, server, settings, key_file, authority, port or 0)
    if insecure:
        insecure_warning(
            f"Whoever answers at {server}, or listens in between, gets this site's models. Only the agreed app runs "
            "here all the same."
        )
    print_commands(node.commands(), node.home)
    private_folder(state)
    try:
        mark = node.agree_only(app)
        tell(f"only the app {mark} runs here, built from {accepted}")
        if commands:
            node.prepare()
            return
        Audit(node.audit).note("started", site=name, server=server, app=mark)
        source = SiteStatus(
            name,
            facts.name,
            server,
            facts.method,
            facts.rounds,
            site_journal(state.resolve(), facts.name, name),
            lambda: node.connected,
            facts.class_names,
        )
        with by_signal(), served_status(source, page) as served, node:
            tell_of_page(served)
            tell(f"{name} connects to {server}; Ctrl-C ends it, the log is {node.log}")
            node.keep_alive(tell)
    except KeyboardInterrupt as stop:
        raise InterruptionError(f"{name} is ended; the same command connects it again", exit_code(stop)) from None
    finally:
        node.terminate()


def _agreement(given: Path | None, folder: Path | None, own: Path) -> Path:
    """The agreement that the site accepted: without one nothing is known that may run here."""
    from coterie.deployment.flower.folder import AGREEMENT, require_folder

    if given is not None:
        require(given.is_file(), f"agreement = {given}: there is no such file")
        return given
    kept = own / AGREEMENT
    if folder is not None and not kept.is_file():
        return require_folder(folder)
    way_out = f"accept one with 'coterie federation join FILE --name {own.name}', or name it with --agreement FILE"
    require(kept.is_file(), f"agreement: none is given, and there is no file {kept}; {way_out}")
    return kept


def _credentials(
    given_key: Path | None, root_certificate: Path | None, folder: Path | None, own: Path
) -> tuple[Path, Path]:
    """The site's key and the certificate by which it knows the server."""
    from coterie.deployment.flower.folder import KEYS

    key, kept = given_key or own / KEY, own / AUTHORITY
    authority = root_certificate or (folder / KEYS / AUTHORITY if folder and not kept.exists() else kept)
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


def _dry_run(agreement: Path, name: str, data: Path, label: str | None, own: Path) -> None:
    """Train a round on the site's data, send nothing, and show the messages."""
    from coterie.data.loading import DEFAULT_LABEL
    from coterie.deployment.agreement import Agreement
    from coterie.deployment.disclosure import dry_run
    from coterie.deployment.site_data import load_site_data
    from coterie.files import private_folder
    from coterie.report.terminal import print_result

    agreed = Agreement.read(agreement)
    if name not in agreed.sites:
        raise unknown(f"site of {agreed.name}", name, agreed.sites)
    tell(f"training one round on {data}; nothing is sent")
    private_folder(own)
    print_result(*dry_run(agreed, name, load_site_data(agreed, data, label or DEFAULT_LABEL), own / DRY_RUN))
