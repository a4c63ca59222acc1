"""`coterie federation keys`: the server's certificate, and the sites' public keys."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from coterie.cli.federation.shared import Folder
from coterie.cli.options import listed, repeated
from coterie.errors import require, unknown


def keys(
    folder: Folder,
    /,
    *,
    host: Annotated[
        list[str] | None,
        listed("A name or address by which sites reach the server; may be repeated.", "this machine only"),
    ] = None,
    accept: Annotated[
        list[str] | None,
        repeated(
            "SITE=KEY: a site's public key as 'federation join' printed it, or a file with it; may be repeated.",
            default="none",
        ),
    ] = None,
    remove: Annotated[list[str] | None, listed("A site whose key is to be shut out; may be repeated.", "none")] = None,
    renew: Annotated[
        list[str] | None,
        listed(
            "'server' renews its certificate and key, 'authority' ca.pem for the same key, 'all' everything.",
            "nothing that exists",
        ),
    ] = None,
) -> None:
    """Make the server's certificate, and take the public keys of the sites; what exists stays."""
    from coterie.deployment.agreement import Agreement
    from coterie.deployment.flower.folder import KEYS, name_task_key, require_folder
    from coterie.report.terminal import print_result

    path = require_folder(folder)
    agreement = Agreement.read(path)
    require(find_spec("cryptography") is not None, "keys need 'cryptography': pip install 'coterie[flower]'")
    from coterie.deployment.flower.keys import Keys, accept_key, fingerprint, hosts_of, make_keys, make_task_key

    given = [_pair(text) for text in accept or []]
    for site in (*(site for site, _ in given), *(remove or [])):
        if site not in agreement.sites:
            raise unknown(f"site of {agreement.name}", site, agreement.sites)
    keys = Keys(folder / KEYS)
    changed = []
    written = make_keys(folder / KEYS, host or [], renew or [])
    if not agreement.server_key:
        name_task_key(path, make_task_key(keys.task_key))
        written += [keys.task_key, path]
    for site, text in given:
        known = keys.public(site).is_file()
        if accept_key(keys, site, text):
            changed.append(f"the key of {site} is {'replaced' if known else 'accepted'}")
    for site in remove or []:
        require(keys.public(site).is_file(), f"remove = {site}: there is no key of this site")
        keys.public(site).unlink()
        changed.append(f"the key of {site} is removed")
    accepted = keys.accepted(agreement.sites)
    missing = [site for site in agreement.sites if site not in accepted]
    print_result(
        *(f"wrote {path}" for path in written),
        *changed,
        *([] if written or changed else ["nothing to do: the server's certificate exists (--renew makes it anew)"]),
        f"the server's certificate holds for {', '.join(hosts_of(keys.certificate))}",
        *(f"the key of {site}: {fingerprint(path.read_text())}" for site, path in accepted.items()),
        "",
        *_next(folder, keys.authority, missing),
        f"{keys.authority_key} signs server certificates: keep it away from everybody, best not on the server.",
    )
    if keys.authority in written and keys.authority_key not in written:
        print_result(
            f"Every site takes the new {keys.authority} before its old one ends ('coterie federation join … "
            "--root-certificate'); until then both hold."
        )
    elif keys.authority in written and accepted:
        print_result(f"Every site needs the new {keys.authority} ('coterie federation join … --root-certificate').")
    if keys.certificate in written and accepted:
        print_result("A server that runs shows the new certificate within seconds; nothing is restarted.")
    if changed:
        print_result("A server that runs takes this over when its round is over; one that does not, at its next start.")


def _next(folder: Path, authority: Path, missing: Sequence[str]) -> list[str]:
    if not missing:
        return ["All sites have keys."]
    return [
        f"No key yet of {', '.join(missing)}. Each gets {folder / 'federation.toml'} and {authority}, makes its own by",
        f"  coterie federation join federation.toml --name {missing[0]} --root-certificate ca.pem",
        "and sends the public one back, for",
        f"  coterie federation keys {folder} --accept {missing[0]}='ecdsa-sha2-nistp384 AAAA...'",
    ]


def _pair(text: str) -> tuple[str, str]:
    """A site and its public key, which may stand in a file."""
    site, sign, key = text.partition("=")
    require(bool(sign and key.strip()), f"accept = {text}: must be SITE=KEY, as 'coterie federation join' prints it")
    from coterie.files import expanded

    path = expanded(key)
    if len(key) < 256 and path.is_file():
        key = path.read_text(encoding="utf-8", errors="replace")
    return site, key
