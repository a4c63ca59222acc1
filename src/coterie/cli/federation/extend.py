"""`coterie federation extend` and `rollback`: a federation's agreement changes, or it goes on from an earlier round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.federation.shared import Folder, require_flower
from coterie.cli.options import listed, repeated
from coterie.errors import require

VERSIONS = "versions"


def extend(
    folder: Folder,
    /,
    *,
    rounds: Annotated[
        int | None, Parameter(help="How many rounds there are to be in all.", show_default="as many as before")
    ] = None,
    add: Annotated[list[str] | None, listed("A new site; may be repeated.", "none")] = None,
    remove: Annotated[
        list[str] | None,
        listed("A site that leaves: its key, rows and values at the server are deleted; may be repeated.", "none"),
    ] = None,
    term: Annotated[list[str] | None, repeated("Another term, NAME=VALUE, such as lr=0.01; may be repeated.")] = None,
) -> None:
    """Change a federation's agreement while it runs, or after its end: more rounds, other sites, other terms."""
    from coterie.deployment.agreement import Agreement
    from coterie.deployment.flower.folder import AGREEMENT, KEYS, SERVER, require_folder
    from coterie.deployment.flower.keys import Keys
    from coterie.deployment.versions import differences, extended
    from coterie.files import write_whole
    from coterie.report.terminal import print_result

    require_flower()
    path = require_folder(folder)
    before = Agreement.read(path)
    after = extended(before, rounds=rounds, add=add or [], remove=remove or [], terms=dict(map(_pair, term or [])))
    after.kind.check(after.federation())
    done = _rounds_done(folder / SERVER)
    require(after.rounds > done, f"rounds = {after.rounds}: {done} are done; name more than that with --rounds")
    kept = folder / VERSIONS / f"{before.version}.toml"
    kept.parent.mkdir(exist_ok=True)
    write_whole(kept, path.read_bytes())
    for site in remove or []:
        Keys(folder / KEYS).public(site).unlink(missing_ok=True)
    write_whole(path, after.toml().encode())
    print_result(
        f"{path} is version {after.version} of the agreement; version {before.version} is kept in {kept}.",
        *(f"  {line}" for line in differences(before, after)),
        "",
        "A running server takes it up at the end of its round; a stopped one, at its next start.",
        f"Send {AGREEMENT} to every site, to be read and accepted there; who does not accept it has left:",
        *(
            f"  coterie federation join {AGREEMENT} --name {site} --changed"
            for site in after.sites
            if site in before.sites
        ),
        *_about_new(folder, add or []),
        *_about_leavers(remove or []),
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    require(bool(equals and name.strip()), f"term = '{text}': must be NAME=VALUE, such as lr=0.01")
    return name.strip(), value.strip()


def _rounds_done(folder: Path) -> int:
    """The rounds that are over, as far as the server says."""
    from coterie.deployment.state_file import read_state

    status = read_state(folder)
    under_way = status.get("state") == "running" and bool(status.get("message"))
    return int(status.get("round", 0)) - under_way


def _about_new(folder: Path, sites: Sequence[str]) -> list[str]:
    if not sites:
        return []
    return [
        "New sites get ca.pem too, and their keys are accepted here as usual:",
        *(f"  coterie federation join federation.toml --name {site} --root-certificate ca.pem" for site in sites),
        *(f"  coterie federation keys {folder} --accept {site}='ecdsa-sha2-nistp384 AAAA...'" for site in sites),
    ]


def _about_leavers(sites: Sequence[str]) -> list[str]:
    if not sites:
        return []
    names = ", ".join(sites)
    return [
        f"The key of {names} is removed. When the new version begins, the server deletes its rows and values, its",
        "checkpoints and the records of who learned from whom so far. What the others learned from it is in their",
        "models and stays there; that it took part, and its scores, stay in rounds.jsonl and in the logs. Its own",
        "files at the site are the site's to delete.",
    ]


def rollback(
    folder: Folder,
    round: Annotated[
        int | None,
        Parameter(name="ROUND", help="The round to go on from.", show_default="the rounds that are kept are listed"),
    ] = None,
    /,
) -> None:
    """Go back to an earlier round: the server's next start goes on from there, and sites follow."""
    from coterie.deployment.agreement import Agreement
    from coterie.deployment.flower.folder import SERVER, require_folder
    from coterie.deployment.flower.processes import Lock
    from coterie.deployment.logbook import Logbook
    from coterie.report.terminal import print_result

    agreement, path = Agreement.read(require_folder(folder)), folder / SERVER
    require(path.is_dir(), f"folder = {folder}: its server has not been started yet; there is nothing to go back to")
    lock = Lock(path / "lock", "the server", patience=0)
    try:
        logbook = Logbook(path, agreement)
        if round is None:
            kept = ", ".join(map(str, logbook.checkpoints())) or "none"
            print_result(f"rounds that are kept: {kept}; 'coterie federation rollback {folder} ROUND' goes back to one")
            return
        later = logbook.go_back(round)
    finally:
        lock.release()
    taken = f"; what came after it, up to round {later[-1]}, is forgotten then" if later else ""
    print_result(
        f"The next start of the server goes on after round {round}{taken}.",
        "Sites follow by themselves: each goes on from its own last round until then.",
    )
