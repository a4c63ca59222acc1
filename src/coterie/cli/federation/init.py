"""`coterie federation init`: all that a federation agrees on, as a folder.

What was not given stays `None` and takes its default in the agreement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from coterie.cli.options import GROUPS, TRAINING, Given, option, options, parameters, repeated
from coterie.deployment.agreement_terms import WRITTEN, FederationTerms
from coterie.errors import require

FILES = Group("Method and method options", sort_key=0)
SITES = Group("Sites and their data", sort_key=1)
WAITING = Group("How long the server waits", sort_key=7)

_GROUPS = GROUPS | {"sites": SITES, "waiting": WAITING, "running": TRAINING}
_JOIN = Annotated[float | None, option("The share of sites that take part in a round.", FederationTerms.join, TRAINING)]


@options({**parameters(FederationTerms, _GROUPS, leave_out=("method", *WRITTEN)), "join": _JOIN})
class Terms(Given):
    """Every term of an agreement but its method, each `None` unless it was given."""


def init(
    folder: Annotated[Path, Parameter(name="DIR", help="The folder to make.")],
    /,
    *,
    method: Annotated[str, Parameter(help="The method (see 'coterie methods').", group=FILES)] = "fedavg",
    set: Annotated[list[str] | None, repeated("A method option, NAME=VALUE; may be repeated.", FILES)] = None,
    like: Annotated[
        Path | None,
        Parameter(help="Sample data (.csv, .parquet, .npz, folder) to take shape and classes from.", group=SITES),
    ] = None,
    label: Annotated[str | None, option("The label column of that data, if it is a table.", "label", SITES)] = None,
    terms: Terms = Terms(),
) -> None:
    """Write the folder of a new federation: what its sites agree on."""
    from coterie.cli.experiments import read_sets
    from coterie.deployment.agreement import Agreement
    from coterie.deployment.flower.folder import AGREEMENT, write_folder
    from coterie.report.terminal import print_result

    values = {
        "name": folder.resolve().name,
        **_seen(like, label),
        **terms.given(),
        "method": method,
        "set": read_sets(set or []),
    }
    require("sites" in values, "sites: name them, such as --sites site-a,site-b")
    require("shape" in values, "shape: give it, such as --shape 3,32,32, or a sample of the data: --like PATH")
    agreement = Agreement.parse(values)
    agreement.kind.check(agreement.federation())
    print_result(
        *(f"wrote {path}" for path in write_folder(folder, agreement)),
        "",
        f"{AGREEMENT} is what all sites agree on; change it now if need be. Then:",
        f"  coterie federation keys {folder} --host NAME_OF_THE_SERVER",
        f"and at each site, which gets {AGREEMENT} and ca.pem, makes its own key and sends the public half back:",
        *(f"  coterie federation join {AGREEMENT} --name {site} --root-certificate ca.pem" for site in agreement.sites),
        "",
        f"{folder / 'README.md'} says what comes after that.",
    )


def _seen(like: Path | None, label: str | None) -> dict[str, Any]:
    """Shape and classes of sample data."""
    if like is None:
        require(label is None, f"label = {label}: goes with --like, which names the table")
        return {}
    from coterie.data.loading import DEFAULT_LABEL, load_own

    data = load_own(like, DEFAULT_LABEL if label is None else label)
    return {"shape": list(data.shape), "classes": data.classes, "class_names": list(data.class_names)}
