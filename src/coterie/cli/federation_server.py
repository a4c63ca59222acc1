"""What `federation server` does: start Flower's processes, start or resume the run, and follow it to its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.federation_shared import (
    by_signal,
    insecure_warning,
    print_commands,
    require_flower,
    tell,
    warn,
)
from coterie.cli.following import Follower
from coterie.cli.problems import FailureError, InterruptionError
from coterie.deployment.check import FederationFacts, look
from coterie.deployment.flower.folder import KEYS, SERVER, require_folder
from coterie.errors import require
from coterie.report.terminal import plain_table, print_result

if TYPE_CHECKING:
    from coterie.deployment.flower.link import Link

DAYS_OF_WARNING = 30
ANYWHERE = ("0.0.0.0", "::")


def server_command(folder: Path, host: str, port: int, insecure: bool, keep_running: bool, commands: bool) -> None:
    """Run a federation's server."""
    require_flower()
    from coterie.deployment.flower.keys import Keys
    from coterie.deployment.flower.link import Link

    require(0 <= port < 65536, f"port = {port}: must lie in 0..65535")
    facts = look(require_folder(folder))
    keys = None if insecure else Keys((folder / KEYS).resolve())
    if keys is not None:
        keys.require_complete(facts.sites, f"'coterie federation keys {folder}' makes it")
    link = Link(folder / SERVER, keys, host, port)
    _warn_of_network(link, folder)
    print_commands(
        {"the SuperLink": link.command(), "its SuperExec": link.executor_command()}
        | {f"the key of {site}": link.register_command(site) for site in facts.sites if keys is not None}
        | {"the run": link.run_command(folder.resolve(), {"directory": str(link.folder)})},
        link.home,
    )
    if commands:
        link.prepare()
        return
    follower = Follower(link.folder, facts)
    try:
        with by_signal():
            _serve(link, folder.resolve(), facts, follower, keep_running)
    except KeyboardInterrupt:
        raise InterruptionError(f"the server is ended; {follower.way_on()}") from None


def _warn_of_network(link: Link, folder: Path) -> None:
    from coterie.deployment.flower.keys import covers, days_left, hosts_of
    from coterie.deployment.flower.processes import is_loopback

    outside = not is_loopback(link.host)
    if link.keys is None:
        insecure_warning(
            f"Everybody who reaches {link.address}{' and this machine over its networks' if outside else ''} can join, "
            "read and send models, and run code here and at all sites."
        )
        return
    left = days_left(link.keys.certificate)
    way_out = f"'coterie federation keys {folder} --renew server' makes a new one"
    require(left >= 0, f"keys: the server's certificate has expired; {way_out}")
    if left < DAYS_OF_WARNING:
        tell(f"warning: the server's certificate expires in {left} days; {way_out}")
    if not outside:
        return
    warn(
        "The port is open to the network",
        "Sites prove themselves with keys and everything is encrypted. But the same port carries Flower's control "
        "interface, which has no login: whoever reaches it can start and stop runs, and run code at all sites. Let "
        "only your sites reach it (a firewall or VPN), or listen on 127.0.0.1 behind a reverse proxy that passes "
        "/v1/fleet/ and nothing else.",
    )
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


def _serve(link: Link, folder: Path, facts: FederationFacts, follower: Follower, keep_running: bool) -> None:
    resumes = link.database.exists()
    tell("starting the SuperLink")
    with link:
        tell(f"the SuperLink listens on {link.host}, port {link.port}")
        if link.keys is not None:
            keys = {site: link.keys.public(site) for site in facts.sites}
            for site in link.forget_others(keys):
                tell(f"a former key of {site} is shut out")
            for site, key in keys.items():
                if link.register(site, key):
                    tell(f"the key of {site} is registered")
        for run in link.live_runs() if resumes else []:
            tell(f"stopping the former run {run}")
            link.stop_run(run)
        follower.begin()
        run = link.run(folder, {"directory": str(link.folder)})
        tell(f"run {run} is submitted; sites connect by: {site_command(link, facts)}")
        follower.follow(link, run)
        _print_results(follower, facts)
        if keep_running:
            tell("the last round is over; the SuperLink goes on listening (Ctrl-C ends it)")
        while keep_running:
            time.sleep(1)
            if gone := link.ended():
                raise FailureError(gone)


def site_command(link: Link, facts: FederationFacts) -> str:
    """How a site connects."""
    host = link.address if link.host not in ANYWHERE else f"THIS_MACHINE:{link.port}"
    end = "--insecure" if link.keys is None else "--key SITE --root-certificate ca.pem"
    return f"coterie federation client --server {host} --name {facts.sites[0]} --data PATH {end}"


def _print_results(follower: Follower, facts: FederationFacts) -> None:
    summary = follower.summary()
    table = plain_table("site", f"{facts.metric} of its finished model", right=(1,))
    found = summary.get(facts.metric, {})
    for site in facts.sites:
        table.add_row(site, f"{found[site]:.4f}" if site in found else "–")
    lines = [f"{facts.rounds} rounds of {facts.method} are done; everything about them is in {follower.folder}"]
    absent = [site for site in facts.sites if site not in found]
    if absent:
        lines.append(f"{', '.join(absent)} did not get the finished model: start the server again to hand it over")
    print_result(table, "", *lines)
