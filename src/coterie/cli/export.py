"""`coterie export` and `coterie pack`: a client's model out of a run, and runs in one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.options import OUTPUT, file, flag


def export(
    run: Annotated[Path, Parameter(help="The directory of a run.")],
    /,
    *,
    client: Annotated[int, Parameter(help="The client whose model is wanted: 0 is the first.", group=OUTPUT)],
    format: Annotated[
        str, Parameter(help="safetensors, pt2 (torch.export) or onnx; 'coterie predict' takes all.", group=OUTPUT)
    ] = "safetensors",
    out: Annotated[Path | None, file("The file to write; it must be new.", "RUN-client-N.FORMAT", OUTPUT)] = None,
) -> None:
    """Write the model that a client has got from a run as one file."""
    from coterie.report.terminal import print_result
    from coterie.runs.opened import open_run
    from coterie.serve.export import export_client

    target = Path(f"{run.stem}-client-{client}.{format}") if out is None else out
    about = export_client(open_run(run), client, target, format)
    if about.note:
        print(f"coterie: warning: {about.note}", file=sys.stderr)
    where = f"round {about.round} of {about.rounds}"
    print_result(f"The model of client {about.site} ({about.model}, {about.method}, {where}) is in {target}")


def pack(
    *runs: Annotated[Path, Parameter(help="The directories of the runs.")],
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="The .zip file to write; it must be new.", group=OUTPUT)],
    models: Annotated[bool, flag("Pack the clients' models too.", OUTPUT)] = False,
) -> None:
    """Put runs into one file, to be looked at elsewhere: numbers, partition and who learned from whom."""
    from coterie.core.numbers import spoken_bytes
    from coterie.report.terminal import print_result
    from coterie.runs.packed import pack

    names = pack(runs, out, models)
    what = "with their models" if models else "without models"
    print_result(f"{', '.join(names)}: {what}, {spoken_bytes(out.stat().st_size)}, in {out}")
