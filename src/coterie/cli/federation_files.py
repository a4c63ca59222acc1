"""What `federation init` and `federation keys` do."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.cli.merge import read_sets
from coterie.data.own import DEFAULT_LABEL, load_own
from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.folder import AGREEMENT, KEYS, require_folder, write_folder
from coterie.errors import require
from coterie.report.terminal import print_result


def init_command(
    folder: Path, method: str, sets: Sequence[str], like: Path | None, label: str | None, given: dict[str, Any]
) -> None:
    """Write the folder and say what comes next."""
    values = {"name": folder.resolve().name, **_seen(like, label), **given, "method": method, "set": read_sets(sets)}
    require("sites" in values, "sites: name them, such as --sites site-a,site-b")
    require("shape" in values, "shape: give it, such as --shape 3,32,32, or a sample of the data: --like PATH")
    agreement = Agreement.parse(values)
    agreement.kind.check(agreement.federation())
    written = write_folder(folder, agreement)
    print_result(
        *(f"wrote {path}" for path in written),
        "",
        f"{AGREEMENT} is what all sites agree on; change it now if need be. Then:",
        f"  coterie federation keys {folder} --host NAME_OF_THE_SERVER",
        f"  coterie federation server {folder}",
        "and at each site, with its key and ca.pem:",
        *(
            f"  coterie federation client --server SERVER:8000 --name {site} --data PATH --key {site} "
            "--root-certificate ca.pem"
            for site in agreement.sites
        ),
        "",
        f"{folder / 'README.md'} says which files go to which site.",
    )


def _seen(like: Path | None, label: str | None) -> dict[str, Any]:
    """Shape and classes of sample data."""
    if like is None:
        require(label is None, f"label = {label}: goes with --like, which names the table")
        return {}
    data = load_own(like, DEFAULT_LABEL if label is None else label)
    return {"shape": list(data.shape), "classes": data.classes, "class_names": list(data.class_names)}


def keys_command(folder: Path, hosts: Sequence[str], renew: Sequence[str]) -> None:
    """Make the keys and say who gets which."""
    agreement = Agreement.read(require_folder(folder))
    require(find_spec("cryptography") is not None, "keys need 'cryptography': pip install 'coterie[flower]'")
    from coterie.deployment.flower.keys import Keys, hosts_of, make_keys

    written = make_keys(folder / KEYS, agreement.sites, hosts, renew)
    keys = Keys(folder / KEYS)
    print_result(
        *(f"wrote {path}" for path in written),
        *(["nothing to do: all keys exist (--renew makes them anew)"] if not written else []),
        f"the server's certificate holds for {', '.join(hosts_of(keys.certificate))}",
        "",
        f"Each site gets its own private key and {keys.authority}, over a channel that you trust, and no other key:",
        *(f"  {site}: {keys.site(site)} {keys.authority}" for site in agreement.sites),
        f"{keys.authority_key} signs server certificates: keep it away from everybody, best not on the server.",
    )
    anew = [site for site in agreement.sites if keys.site(site) in written]
    if renew and anew:
        print_result(f"The former keys of {', '.join(anew)} are shut out when the server is started next.")
