"""`coterie federation server`: start Flower's processes, start or resume the run, and follow it to its end."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from coterie.cli.errors import FailureError, InterruptionError, StandstillError, exit_code
from coterie.cli.federation.shared import (
    ANY_PORT,
    NETWORK,
    Commands,
    Folder,
    Insecure,
    Status,
    by_signal,
    insecure_warning,
    print_commands,
    require_flower,
    require_signed,
    tell_of_page,
)
from coterie.cli.options import flag, option
from coterie.cli.output import WARNING, tell
from coterie.errors import PassingError, require
from coterie.files import FULL

if TYPE_CHECKING:
    from coterie.cli.federation.follower import Follower
    from coterie.deployment.flower.keys import ExpiryWatch, Keys
    from coterie.deployment.flower.processes import Values
    from coterie.deployment.flower.server_processes import ServerProcesses
    from coterie.deployment.inspection import FederationFacts

ROOM = 2  # times as many bytes as an answer has may follow one: Flower frames them, and may send some twice
ANYWHERE = ("0.0.0.0", "::")
GIVE_UP = 3600.0  # seconds without a round after which a server that ends again and again is not started again


def server(
    folder: Folder,
    /,
    *,
    host: Annotated[str, Parameter(help="The address to listen on; 0.0.0.0 means all of them.", group=NETWORK)] = (
        "127.0.0.1"
    ),
    port: Annotated[int | None, option("The port to listen on (0: any free one).", 8000, NETWORK)] = None,
    insecure: Insecure = False,
    keep_running: Annotated[bool, flag("Keep listening after the last round.", NETWORK)] = False,
    status: Status = ANY_PORT,
    commands: Commands = False,
) -> None:
    """Run a federation's server until the last round is over; the same command resumes a stopped one."""
    require_flower()
    from coterie.deployment.flower.processes import free_port
    from coterie.deployment.status import status_address

    page = status_address(status)
    if page is not None:  # the same port, whatever version of the agreement is run
        page = page[0], page[1] or free_port(page[0])
    how = host, 8000 if port is None else port, insecure, keep_running, commands, page
    while not _run_version(folder, *how):
        tell("the agreement or the accepted keys have changed: the server begins anew with them")


def _run_version(
    folder: Path,
    host: str,
    port: int,
    insecure: bool,
    keep_running: bool,
    commands: bool,
    page: tuple[str, int] | None,
) -> bool:
    """Run a federation's server under its agreement as it is now; False if that has a next version, which is due."""
    from coterie.cli.federation.follower import Follower, NextVersion
    from coterie.deployment.flower.folder import KEYS, SERVER, require_folder
    from coterie.deployment.flower.keys import Keys
    from coterie.deployment.flower.relay import APP
    from coterie.deployment.flower.server_processes import ServerProcesses
    from coterie.deployment.inspection import look
    from coterie.deployment.server_status import FederationStatus
    from coterie.deployment.status import served_status

    require(0 <= port < 65536, f"port = {port}: must lie in 0..65535")
    keys = None if insecure else Keys((folder / KEYS).resolve())
    agreement = require_folder(folder)
    with tempfile.TemporaryDirectory() as fresh:
        facts = look(agreement, app=Path(fresh) / APP)
        if keys is not None:
            keys.require_complete(f"'coterie federation keys {folder}' makes it")
            require_signed(facts, f"'coterie federation keys {folder}' makes one and names it there")
            require(keys.task_key.is_file(), f"keys: {keys.task_key}, which signs tasks, is missing; put it back")
            _require_sites(keys, facts, folder)
        link = ServerProcesses(folder / SERVER, keys, host, port)
        link.most_bytes = ROOM * facts.most_bytes
        _warn_of_network(link, folder)
        config: Values = {
            "directory": str(link.folder),
            "agreement": str(agreement.resolve()),
            "keys": str((folder / KEYS).resolve()),
            "keyed": keys is not None,
            "wake_up": str(link.wake_up),
        }
        accepted = {} if keys is None else keys.accepted(facts.sites)
        app = link.folder / APP
        print_commands(
            {"the forkserver": link.forkserver_command(), "the SuperLink": link.command()}
            | {"its SuperExec": link.executor_command()}
            | {f"the key of {site}": link.register_command(site) for site in accepted}
            | {"the gateway": link.gateway_command(), "the run": link.run_command(app, config)},
            link.home,
        )
        if commands:
            link.prepare()
            shutil.rmtree(app, ignore_errors=True)
            shutil.copytree(Path(fresh) / APP, app)
            return True
        following = NextVersion(agreement, facts.version, None if keys is None else keys.public_folder)
        follower = Follower(link.folder, facts, following, list if keys is None else _expiry(keys, folder).news)
        try:
            source = FederationStatus(link.folder, facts, link.ended, lambda: _days_left(keys))
            with by_signal(), served_status(source, page) as served:
                tell_of_page(served)
                serve = partial(_serve, link, Path(fresh) / APP, config, facts, follower, keep_running)
                return _kept_up(link, follower, serve)
        except KeyboardInterrupt as stop:
            raise InterruptionError(f"the server is ended; {follower.way_on()}", exit_code(stop)) from None


def _days_left(keys: Keys | None) -> int | None:
    from coterie.deployment.flower.keys import days_left

    return None if keys is None else days_left(keys.certificate)


def _expiry(keys: Keys, folder: Path) -> ExpiryWatch:
    """Watches the certificates that sites see."""
    from coterie.deployment.flower.keys import ExpiryWatch

    renew = f"'coterie federation keys {folder} --renew"
    return ExpiryWatch(
        {
            "the server's certificate": (keys.certificate, f"{renew} server' makes a new one, which counts at once"),
            "the certificate by which sites know the server": (
                keys.authority,
                f"{renew} authority' makes a new one; send it to the sites ('coterie federation join … "
                "--root-certificate')",
            ),
        }
    )


def _require_sites(keys: Keys, facts: FederationFacts, folder: Path) -> None:
    """Somebody must be able to come; who cannot yet is named."""
    accepted = keys.accepted(facts.sites)
    missing = [site for site in facts.sites if site not in accepted]
    way_out = f"'coterie federation keys {folder} --accept SITE=KEY' takes one"
    require(bool(accepted), f"keys: no site's key is accepted yet; {way_out}")
    if missing:
        tell(f"warning: no key of {', '.join(missing)} is accepted, which cannot join; {way_out}")


def _warn_of_network(link: ServerProcesses, folder: Path) -> None:
    from coterie.deployment.flower.keys import covers, days_left, hosts_of
    from coterie.deployment.flower.processes import is_loopback

    outside = not is_loopback(link.host)
    if link.keys is None:
        insecure_warning(
            f"Everybody who reaches {link.address}{' and this machine over its networks' if outside else ''} can join "
            "under the name of a site that is away, and read and send models."
        )
        return
    way_out = f"'coterie federation keys {folder} --renew server' makes a new one"
    require(days_left(link.keys.certificate) >= 0, f"keys: the server's certificate has expired; {way_out}")
    if not outside:
        return
    names = hosts_of(link.keys.certificate)
    if link.host in ANYWHERE:
        elsewhere = [name for name in names if name != "localhost" and not is_loopback(name)]
        if not elsewhere:
            tell(
                "warning: the certificate holds for this machine alone, sites elsewhere will not accept it; "
                f"'coterie federation keys {folder} --host NAME' adds the name that they use"
            )
        return
    require(
        covers(link.keys.certificate, link.host),
        f"host = {link.host}: the certificate holds for {', '.join(names)}; "
        f"'coterie federation keys {folder} --host {link.host}' adds it",
    )


def _kept_up(link: ServerProcesses, follower: Follower, serve: Callable[[], bool]) -> bool:
    """Serve to the end. What ends though the federation has not is started again, and goes on after the last round."""
    from coterie.deployment.flower.commands import UnansweredError
    from coterie.deployment.waiting import Pause

    pause, since, done = Pause(), None, 0
    with link.claimed():
        follower.begin()
        while True:
            try:
                return serve()
            except (StandstillError, PassingError, OSError) as error:
                follower.note_end(error)
                if isinstance(error, OSError) and error.errno not in FULL:
                    raise
                if not link.opened and not isinstance(error, UnansweredError):
                    raise  # it never was up: something has to be changed
                now = time.monotonic()
                if since is None or follower.round > done:
                    pause, since, done = Pause(), now, follower.round
                if now > since + GIVE_UP:
                    raise FailureError(f"{error}; that has gone on for an hour; the same command resumes") from None
                pause = pause.longer(now)
                follower.note_restart(str(error))
                tell(f"{error}; it is started again in {pause.seconds:g} s", WARNING)
            except BaseException as error:
                follower.note_end(error)
                raise
            time.sleep(pause.seconds)


def _serve(
    link: ServerProcesses, packed: Path, config: Values, facts: FederationFacts, follower: Follower, keep_running: bool
) -> bool:
    from coterie.deployment.flower.audit import Audit
    from coterie.deployment.flower.keys import fingerprint
    from coterie.deployment.flower.relay import APP, app_hash, packed_app

    for site in link.forget_unless(facts.sites):
        tell(f"{site} has left: all that the SuperLink kept is forgotten")
    audit = Audit(link.audit)
    tell("starting the SuperLink")
    with link:
        for run in link.stopped:
            tell(f"the former run {run} is stopped")
        app = link.folder / APP
        shutil.rmtree(app, ignore_errors=True)
        shutil.copytree(packed, app)
        with link.together():
            if link.keys is not None:
                fresh, gone = link.admit(link.keys.accepted(facts.sites))
                for name in gone:
                    tell(f"{name} is shut out")
                    audit.note("shut out", who=name)
                for site in fresh:
                    tell(f"the key of {site} is registered")
                    audit.note("registered", site=site, key=fingerprint(link.keys.public(site).read_text()))
            mark = app_hash(packed_app(app))
            tell(f"sites run the app {mark} and no other")
            audit.note("started", app=mark, version=facts.version, host=link.host, port=link.port)
            run = link.run(app, config)
        link.open()
        tell(f"the gateway is open on {link.host}, port {link.port}; what it refuses stands in {link.audit}")
        tell(f"run {run} is submitted; sites connect by: {site_command(link, facts)}")
        if not follower.follow(link, run):
            return False
        print_results(follower, facts)
        if keep_running:
            tell("the last round is over; the gateway stays open (Ctrl-C ends it)")
        while keep_running:
            follower.warn()
            if follower.is_superseded():
                return False
            time.sleep(1)
            if trouble := link.ended() or link.hangs():
                raise StandstillError(trouble)
    return True


def site_command(link: ServerProcesses, facts: FederationFacts) -> str:
    """How a site connects."""
    host = link.address if link.host not in ANYWHERE else f"THIS_MACHINE:{link.port}"
    end = " --agreement federation.toml --insecure" if link.keys is None else ""
    return f"coterie federation client --server {host} --name {facts.sites[0]} --data PATH{end}"


def print_results(follower: Follower, facts: FederationFacts) -> None:
    """Show how good every site's finished model is."""
    from coterie.report.terminal import plain_table, print_result

    summary = follower.summary()
    table = plain_table("site", f"{facts.metric} of its finished model", right=(1,))
    finished = summary.get("finished", {})
    for site in facts.sites:
        score = finished.get(site)  # none of a site without test samples, or one that says so
        table.add_row(site, "–" if score is None else f"{score:.4f}")
    lines = [f"{facts.rounds} rounds of {facts.method} are done; everything about them is in {follower.folder}"]
    absent = [site for site in facts.sites if site not in finished]
    if absent:
        lines.append(f"{', '.join(absent)} did not get the finished model: start the server again to hand it over")
    print_result(table, "", *lines)
