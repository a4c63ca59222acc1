"""`python tools/speed.py OLD [NEW]`: are rounds slower with the new code than with the old?

OLD and NEW are commits or directories that hold `src/coterie`; NEW is the working tree unless told otherwise. Each
case runs alternately with both, each time in a process of its own, and the ratios of neighbouring runs are compared:
what else the machine does meets both alike. Run it on a quiet machine, or with `--processor`, which counts the
time that the processor spent on the rounds instead of the time that went by.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

REPOSITORY = Path(__file__).parents[1]
# A federation whose clients train next to nothing: what counts is the server's step.
THOUSAND = {
    "model": "lenet5",
    "shape": [3, 32, 32],
    "samples": 4000,
    "clients": 1000,
    "rounds": 4,
    "evaluate_every": 4,
}
# What each case runs, and which of a round's seconds count. The first round warms up and is left out.
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "mlp on digits, stacked": (
        {"method": "FedAvg", "engine": "stacked", "clients": 20, "rounds": 150, "lr": 0.05, "threads": 1},
        ("train", "exchange", "evaluate"),
    ),
    "cnn, batch 10": (
        {"method": "FedAvg", "model": "cnn", "shape": [3, 32, 32], "samples": 1200, "clients": 10, "batch": 10},
        ("train", "exchange", "evaluate"),
    ),
    "lenet5, batch 32": (
        {"method": "FedAvg", "model": "lenet5", "shape": [3, 32, 32], "samples": 6000, "clients": 10},
        ("train", "exchange", "evaluate"),
    ),
    "pfedcs server step, 1,000 clients": (
        {"method": "PFedCS", "set": {"beta": 100}, **THOUSAND},
        ("exchange",),
    ),
    "fedcac server step, 1,000 clients": (
        {"method": "FedCAC", **THOUSAND},
        ("exchange",),
    ),
    "mlp, 50 small clients (deriving downloads)": (
        {"method": "FedPer", "clients": 50, "rounds": 60, "lr": 0.05, "threads": 1},
        ("exchange",),
    ),
}


def work(case: str, processor: bool) -> float:
    """A case's seconds in an undisturbed round (the first quartile), with whichever Coterie is imported here."""
    import coterie as ct

    if processor:
        time.perf_counter = time.process_time  # what rounds are timed by

    options, counted = CASES[case]
    # Named, since versions differ in what they choose by themselves.
    named = {"engine": "serial", "memory": "contiguous"}
    settings: dict[str, Any] = {**named, "epochs": 1, "rounds": 4, "evaluate_every": 1, **options}
    clients, shape, samples = (settings.pop(key, None) for key in ("clients", "shape", "samples"))
    if shape is not None:
        draw = np.random.default_rng(0)
        inputs = draw.random((samples, *shape), dtype=np.float32)
        settings["data"] = ct.from_arrays(inputs, np.arange(len(inputs)) % 10, name="noise")
    settings["method"] = getattr(ct, settings["method"])(**settings.pop("set", {}))
    settings["partition"] = ct.Iid(clients=clients)
    result = ct.Experiment(**settings).run()
    # Versions whose runs are not typed tell of rounds in tables.
    lines = result.lines if hasattr(result, "lines") else result.history.lines
    spent = [line["seconds"] if isinstance(line, dict) else msgspec.to_builtins(line.seconds) for line in lines]
    return float(np.quantile([sum(seconds[part] for part in counted) for seconds in spent[1:]], 0.25))


def measured(source: Path, case: str, processor: bool) -> float:
    """The case's seconds with the tree at `source`, in a new process."""
    child = subprocess.run(
        [sys.executable, "-P", __file__, "--case", case, *(["--processor"] if processor else [])],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise SystemExit(f"{case}: {child.stderr.strip().splitlines()[-1]}")
    return float(json.loads(child.stdout.splitlines()[-1]))


def interval(ratios: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """A 95 % interval of the median, by drawing the ratios anew.

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    stream = np.random.default_rng(0)
    medians = np.median(stream.choice(np.array(ratios), (draws, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two trees and print the table; 1 if a case is slower by more than 5 %, its whole interval."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", nargs="?", default="HEAD", help="a commit or a directory with src/coterie")
    parser.add_argument("new", nargs="?", default=str(REPOSITORY), help="likewise; the working tree by default")
    parser.add_argument("--repeats", type=int, default=5, help="how often each case runs with each")
    parser.add_argument("--processor", action="store_true", help="count the processor's time")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case:
        print(json.dumps(work(options.case, options.processor)))
        return 0
    sys.path.insert(0, str(REPOSITORY))  # the children that measure import neither this tree nor its tools
    from tools.golden import checked_out

    table = Table("case", "old, ms", "new, ms", "new / old", "95 %")
    slower = False
    with tempfile.TemporaryDirectory() as room:
        sources = [
            checked_out(tree, REPOSITORY, Path(room) / tree_name)
            for tree_name, tree in (("old", options.old), ("new", options.new))
        ]
        for case in track(CASES, "measuring", console=Console(stderr=True)):
            pairs = []
            for repeat in range(options.repeats):
                both = sources if repeat % 2 else sources[::-1]
                seconds = {source: measured(source, case, options.processor) for source in both}
                pairs.append([seconds[source] for source in sources])
            ratios = [new / old for old, new in pairs]
            low, high = interval(ratios)
            slower |= low > 1.05
            milliseconds = [f"{1000 * median(column):.2f}" for column in zip(*pairs, strict=True)]
            table.add_row(case, *milliseconds, f"{median(ratios):.3f}", f"{low:.3f}–{high:.3f}")
    Console().print(table)
    return int(slower)


if __name__ == "__main__":
    raise SystemExit(main())
