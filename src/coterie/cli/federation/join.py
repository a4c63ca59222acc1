"""`coterie federation join`: a site accepts an agreement, sees what will run there, and makes its key."""

from __future__ import annotations

import getpass
import hashlib
import os
import tempfile
import tomllib
from dataclasses import fields
from pathlib import Path
from textwrap import wrap
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.federation.shared import (
    AUTHORITY,
    KEY,
    NETWORK,
    OWN,
    STATE,
    SiteName,
    State,
    require_flower,
    require_signed,
)
from coterie.cli.options import file, flag
from coterie.cli.output import tell
from coterie.errors import CoterieError, require, unknown

FRESH = "Whoever runs the server needs the public one"
KNOWN = "It is the one from before; if the public one is not accepted yet"
NO_BREAK = "\N{NO-BREAK SPACE}"
IMPLIED = ("former", "numbers")  # terms that follow from the others


def join(
    agreement: Annotated[Path, Parameter(name="AGREEMENT", help="The federation.toml to accept, or its folder.")],
    /,
    *,
    name: SiteName,
    state: State = None,
    root_certificate: Annotated[
        Path | None, file("The certificate by which to know the server.", "DIR/keys/ca.pem", NETWORK)
    ] = None,
    new_key: Annotated[bool, flag("Make another key in place of the one that exists.", OWN)] = False,
    changed: Annotated[bool, flag("Accept an agreement that differs from the one accepted before.", OWN)] = False,
) -> None:
    """Accept an agreement as one site: show what will run here, and make the site's own key."""
    require_flower()
    from coterie.deployment.flower.audit import AUDIT, Audit
    from coterie.deployment.flower.folder import AGREEMENT, KEYS, SITES, require_folder
    from coterie.deployment.flower.keys import fingerprint, make_site_key
    from coterie.deployment.flower.relay import AGREED, APP, agree, app_hash, packed_app
    from coterie.deployment.inspection import look
    from coterie.files import private_folder, write_whole
    from coterie.report.terminal import print_result

    is_folder = agreement.is_dir()
    path = require_folder(agreement) if is_folder else agreement
    require(path.is_file(), f"agreement = {agreement}: there is no such file; take it from whoever runs the server")
    authority = root_certificate or (agreement / KEYS / AUTHORITY if is_folder else None)
    if root_certificate is not None:
        require(root_certificate.is_file(), f"root_certificate = {root_certificate}: there is no such file")
    with tempfile.TemporaryDirectory() as fresh:
        facts = look(path, app=Path(fresh) / APP)
        if name not in facts.sites:
            raise unknown(f"site of {facts.name}", name, facts.sites)
        require_signed(facts, "ask whoever runs the server for one that does ('coterie federation keys' names it)")
        app = packed_app(Path(fresh) / APP)
    mark = app_hash(app)
    own = (state or (agreement / SITES if is_folder else STATE)) / name
    differing = _differences(own / AGREEMENT, path)
    require(
        changed or not differing,
        f"agreement = {path}: differs from the one accepted before ({'; '.join(differing)}); read it, and accept it "
        "with --changed",
    )
    private_folder(own.parent)
    private_folder(own)
    write_whole(own / AGREEMENT, path.read_bytes())
    if (own / f".{AGREED}").is_dir():
        agree(own / f".{AGREED}", app)  # beside the former version, which a client that runs needs for a while
    if authority is not None and authority.is_file():
        write_whole(own / AUTHORITY, authority.read_bytes())
    elif not (own / AUTHORITY).is_file():
        tell("without --root-certificate this site will not know its server: give the federation's ca.pem later")
    key = own / KEY
    known = key.is_file() and not new_key
    public = key.with_name(f"{KEY}.pub").read_text(encoding="utf-8").strip() if known else make_site_key(key)
    accepted = {"agreement": hashlib.sha256(path.read_bytes()).hexdigest(), "app": mark, "key": fingerprint(public)}
    about: dict[str, str | int] = {"federation": facts.name, "version": facts.version, "site": name, "user": _user()}
    Audit(own / AUDIT).note("joined", **about, **accepted)
    print_result(
        f"{name} joins {facts.name}: {facts.method}, {facts.rounds} rounds, with {_others(name, facts.sites)}.",
        *([f"What changes: {'; '.join(differing)}."] if differing else []),
        f"What the server asks for and what leaves this site: docs/what-leaves-a-site.md, {facts.method}.",
        f"Privacy: {facts.privacy}.",
        "",
        "All that is agreed on; what is marked with * is not as usual:",
        *_terms(path),
        "",
        "Only one app will run here, built from the agreement in",
        f"  {own / AGREEMENT}",
        "Its hash, which the server shows too:",
        f"  {mark}",
        "",
        f"The private key is {key}; it never leaves this machine. {KNOWN if known else FRESH}:",
        f"  coterie federation keys DIR --accept {name}='{public}'",
        f"and may compare it with you, over the telephone: {fingerprint(public)}",
    )


def _terms(path: Path) -> list[str]:
    """Every term of an agreement, several to a line; those that differ from the usual are marked."""
    from coterie.deployment.agreement_terms import WRITTEN, FederationTerms, usual_quarantine

    usual = {item.name: item.default for item in fields(FederationTerms)}
    given = {"name", "sites", "shape", "classes", "class_names", "least_sites", *WRITTEN}
    terms = tomllib.loads(path.read_text(encoding="utf-8"))
    options = terms.pop("set", {})
    usual["quarantine"] = usual_quarantine(len(terms.get("sites", ())), "privacy" in terms)
    words = [
        f"{'*' if name not in given and value != usual.get(name, value) else ''}{name} = {value}"
        for name, value in {**terms, **options}.items()
        if name not in WRITTEN
    ]
    whole = ", ".join(word.replace(" ", NO_BREAK) for word in words)
    lines = wrap(whole, 116, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def _differences(kept: Path, offered: Path) -> list[str]:
    """What an agreement changes of the one accepted before, if there is one: it must be read again."""
    if not kept.is_file() or kept.resolve() == offered.resolve():
        return []
    try:
        old, new = (tomllib.loads(path.read_text(encoding="utf-8")) for path in (kept, offered))
    except (ValueError, RecursionError):  # the one on offer was read before
        raise CoterieError(f"{kept}: cannot be read; remove it to join anew") from None
    terms = sorted(term for term in old.keys() | new.keys() if old.get(term) != new.get(term))
    return [f"{term}: {old.get(term, 'none')} becomes {new.get(term, 'none')}" for term in terms if term not in IMPLIED]


def _user() -> str:
    """Who accepts an agreement, as far as this machine knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def _others(name: str, sites: list[str]) -> str:
    return ", ".join(site for site in sites if site != name) or "nobody else"
