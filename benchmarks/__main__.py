"""`python -m benchmarks [--quick] [group …]`: run the benchmarks, print a table, write benchmarks.json.

With `--quick` everything is scaled down to see whether it runs; the figures say nothing then and are not written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import (
    baselines,
    core,
    dataloader_design,
    deployment,
    devices,
    engines,
    growth,
    methods,
    privacy,
    ray,
    whole,
)
from benchmarks.harness import Figure

Run = Callable[..., Iterator[Figure]]

# Every benchmark of a group, with the arguments of its smoke run.
GROUPS: dict[str, list[tuple[Run, dict[str, Any]]]] = {
    "core": [
        (core.serial_against_bare, {"repeats": 2, "scale": 0.1}),
        (core.memory_of_many_clients, {"clients": 200, "samples": 600}),
    ],
    "baselines": [(baselines.against_bare_work, {"repeats": 2, "samples": 10, "epochs": 1})],
    "methods": [
        (methods.rounds_against_plain, {"repeats": 2, "samples": 10, "epochs": 1}),
        (methods.exchange_share, {"clients": 4, "samples": 10}),
        (methods.server_steps, {"clients": 10}),
    ],
    "engines": [(partial(engines.case_figures, case), {"repeats": 3, "scale": 0.1}) for case in engines.CASES],
    "whole": [(partial(whole.whole_rounds, case), {"repeats": 2, "scale": 0.1}) for case in whole.WHOLE],
    "deployment": [(deployment.our_side, {"repeats": 2, "methods": ("fedavg",)})],
    "devices": [(devices.against_processor, {"repeats": 2, "scale": 0.1})],
    "privacy": [(privacy.step_against_opacus, {"repeats": 2, "scale": 0.1})],
    "ray": [(ray.against_others, {"repeats": 2, "scale": 0.1})],
    "design": [(dataloader_design.against_dataloaders, {"repeats": 3, "scale": 0.1})],
    "growth": [
        (growth.server_seconds, {"repeats": 3, "counts": (20, 40)}),
        (growth.server_memory, {"counts": (100, 200)}),
        (growth.round_seconds, {"repeats": 3, "size": 2}),
    ],
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


def main(arguments: list[str]) -> int:
    quick = "--quick" in arguments
    wanted = [name for name in arguments if name != "--quick"]
    for name in wanted:
        if name not in GROUPS:
            print(f"unknown group '{name}' (allowed: {', '.join(GROUPS)})", file=sys.stderr)
            return 2
    runs = [run for name in wanted or GROUPS for run in GROUPS[name]]
    console = Console()
    figures: list[Figure] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for run, smoke in progress.track(runs, description="measuring"):
            figures += run(**smoke if quick else {})
    console.print(table(figures))
    if quick:
        return 0
    Path("benchmarks.json").write_text(
        json.dumps([one.as_dict() for one in figures], indent=2) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
