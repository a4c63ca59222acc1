"""`python -m benchmarks [group …]`: run the benchmarks, print a table, write benchmarks.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import baselines, core, methods
from benchmarks.harness import Figure

GROUPS: dict[str, list[Callable[[], Iterator[Figure]]]] = {
    "core": [core.serial_against_bare, core.memory_of_many_clients],
    "baselines": [baselines.against_bare_work],
    "methods": [methods.rounds_against_plain, methods.exchange_share, methods.server_steps],
}


def table(figures: list[Figure]) -> Table:
    out = Table(title=f"Coterie benchmarks ({torch.get_num_threads()} threads)")
    for heading in ("figure", "measured", "quartiles", "bar", "met"):
        out.add_column(heading)
    for one in figures:
        sign = "≤" if one.at_most else "≥"
        spread = f"{one.low:.3g} … {one.high:.3g}" if one.low != one.high else ""
        out.add_row(
            one.name, f"{one.value:.3g} × {one.against}", spread, f"{sign} {one.bar:g}", "yes" if one.met else "NO"
        )
    return out


def main(wanted: list[str]) -> int:
    for name in wanted:
        if name not in GROUPS:
            print(f"unknown group '{name}' (allowed: {', '.join(GROUPS)})", file=sys.stderr)
            return 2
    runs = [run for name in wanted or GROUPS for run in GROUPS[name]]
    console = Console()
    figures: list[Figure] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for run in progress.track(runs, description="measuring"):
            figures += run()
    console.print(table(figures))
    Path("benchmarks.json").write_text(
        json.dumps([one.as_dict() for one in figures], indent=2) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
