"""`coterie sweep`: settings are tried, and validation samples choose among them."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.cli.commands import RUNS, next_free
from coterie.cli.entries import MethodEntry
from coterie.cli.problems import InterruptionError
from coterie.cli.tuning import candidates, progress_of, read_grid
from coterie.compare.sweep import BEST, Sweep, sweep
from coterie.core.scale import number_text
from coterie.errors import require, said
from coterie.registry import short_name
from coterie.report.terminal import plain_table, print_result


def sweep_command(
    method: str,
    grid: Sequence[str],
    draw: int | None,
    seeds: Sequence[int],
    file: Path | None,
    given: Mapping[str, Any],
    sets: Sequence[str],
    out: Path | None,
    jobs: int,
    full: bool,
    json: bool,
    listeners: Sequence[str] = (),
) -> None:
    """Search a grid and print what came of it."""
    require(draw is None or draw > 0, f"random = {draw}: must be at least 1")
    chosen = candidates(method, read_grid("grid", grid), file, given, sets, draw, seeds[0])
    if out is None:
        first = next(iter(chosen.values()))
        data = Path(short_name(first.data)).stem if isinstance(first.data, str) else "data"
        out = next_free(RUNS, f"sweep-{short_name(MethodEntry.read(method).method)}-{data}")
    try:
        found = sweep(chosen, seeds, out, progress_of, jobs, full, listeners)
    except KeyboardInterrupt:
        raise InterruptionError(f"interrupted; the same command with --out {out} carries on") from None
    if json:
        print(json_format.dumps(found.as_dict(), indent=2))
        return
    tested = ", ".join(map(str, seeds))
    print_result(
        _table(found),
        "",
        f"Validation {found.scale.name}, as received, mean over clients and seeds ({tested}), best round so far. "
        "Test samples had no say.",
        *([] if full else ["Settings with fewer rounds were given up: the better half went on, again and again."]),
        f"The best is {found.best.name}; {said('coterie', 'run', '--config', out / BEST)} runs it.",
    )


def _table(found: Sweep) -> Table:
    table = plain_table("settings", "rounds", f"validation {found.scale.name}", right=(1, 2))
    for place, one in enumerate(found.candidates):
        mark = "*" if not place else " "
        table.add_row(Text(one.name), str(one.rounds), f"{number_text(one.score)}{mark}")
    return table
