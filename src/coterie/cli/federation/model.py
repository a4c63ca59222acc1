"""`coterie federation model`: a site's model as one file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.federation.shared import STATE, FolderIfHere
from coterie.errors import CoterieError, require, unknown

DEPTHS = ("*", "*/*", "*/*/*")
"""How deep below the folder that was named a site's files are looked for."""


def model(
    folder: FolderIfHere = None,
    /,
    *,
    client: Annotated[str, Parameter(help="The site whose model is wanted.")],
    out: Annotated[Path, Parameter(help="The .safetensors file to write.")],
    state: Annotated[
        Path | None,
        Parameter(
            help="The folder in which the site keeps its model and logs.",
            show_default="DIR/sites, or federation-state",
        ),
    ] = None,
    federation: Annotated[
        str | None, Parameter(help="The federation's name.", show_default="the only one in that folder")
    ] = None,
) -> None:
    """Write the model that a site has got from a federation as one file, for 'coterie predict'."""
    from coterie.deployment.flower.folder import SITES
    from coterie.serve.model import export_model

    kept = state or (folder / SITES if folder else STATE)
    require(out.suffix == ".safetensors", f"out = {out}: must end in .safetensors")
    with _warnings_as_lines():
        about = export_model(site_folder(kept, client, federation), out)
    where = f"round {about.round} of {about.rounds}"
    print(f"The model of {about.site} ({about.model}, {about.method}, {where}) is in {out}")


def site_folder(state: Path, client: str, federation: str | None = None) -> Path:
    """The folder FEDERATION/CLIENT somewhere below `state`; without a federation's name there must be just one."""
    require(state.is_dir(), f"state = {state}: there is no such folder")
    kept = {file.parent for depth in DEPTHS for file in state.resolve().glob(f"{depth}/*.safetensors")}
    named = {folder.parent.name: folder for folder in sorted(kept) if folder.name == client}
    if not named:
        raise unknown(f"client in {state}", client, {folder.name for folder in kept})
    if federation is not None and federation not in named:
        raise unknown(f"federation of {client} in {state}", federation, named)
    if federation is None and len(named) > 1:
        raise CoterieError(f"client = {client}: took part in {', '.join(named)}; say which with --federation")
    return named[federation or next(iter(named))]


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter("coterie: warning: %(message)s"))
    log = logging.getLogger("coterie")
    log.addHandler(lines)
    try:
        yield
    finally:
        log.removeHandler(lines)
