"""`coterie pack`: runs in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.core.numbers import spoken_bytes
from coterie.report.terminal import print_result
from coterie.runs.packed import pack


def pack_command(runs: Sequence[Path], out: Path, models: bool) -> None:
    """Pack the runs and say where they are."""
    names = pack(runs, out, models)
    what = "with their models" if models else "without models"
    print_result(f"{', '.join(names)}: {what}, {spoken_bytes(out.stat().st_size)}, in {out}")
