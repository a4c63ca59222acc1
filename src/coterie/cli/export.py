"""`coterie export`: a client's model out of a run."""

from __future__ import annotations

import sys
from pathlib import Path

from coterie.report.terminal import print_result
from coterie.runs.opened import open_run
from coterie.serve.export import export_client


def export_command(path: Path, client: int, format: str, out: Path | None) -> None:
    """Write the model and say where it is."""
    target = Path(f"{path.stem}-client-{client}.{format}") if out is None else out
    about = export_client(open_run(path), client, target, format)
    if about.note:
        print(f"coterie: warning: {about.note}", file=sys.stderr)
    where = f"round {about.round} of {about.rounds}"
    print_result(f"The model of client {about.site} ({about.model}, {about.method}, {where}) is in {target}")
