"""What `federation init` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.cli.merge import read_sets
from coterie.data.loading import DEFAULT_LABEL, load_own
from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.folder import AGREEMENT, write_folder
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
    data = load_own(like, DEFAULT_LABEL if label is None else label)
    return {"shape": list(data.shape), "classes": data.classes, "class_names": list(data.class_names)}
