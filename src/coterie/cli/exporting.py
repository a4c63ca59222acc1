"""The commands that take something out of a run: `export`, `pack`. They import what they need when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.arguments import OUTPUT


def export(
    run: Annotated[Path, Parameter(help="The directory of a run.")],
    /,
    *,
    client: Annotated[int, Parameter(help="The client whose model is wanted: 0 is the first.", group=OUTPUT)],
    format: Annotated[
        str, Parameter(help="safetensors (for 'coterie predict'), pt2 or onnx (programs).", group=OUTPUT)
    ] = "safetensors",
    out: Annotated[
        Path | None,
        Parameter(help="The file to write; it must be new.", show_default="RUN-client-N.FORMAT", group=OUTPUT),
    ] = None,
) -> None:
    """Write the model that a client has got from a run as one file."""
    from coterie.cli.export import export_command

    export_command(run, client, format, out)


def pack(
    *runs: Annotated[Path, Parameter(help="The directories of the runs.")],
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="The .zip file to write; it must be new.", group=OUTPUT)],
    models: Annotated[bool, Parameter(help="Pack the clients' models too.", negative=(), group=OUTPUT)] = False,
) -> None:
    """Put runs into one file, to be looked at elsewhere: numbers, partition and who learned from whom."""
    from coterie.cli.pack import pack_command

    pack_command(runs, out, models)
