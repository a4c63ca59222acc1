"""Settings to try: from the command line to experiments, and the tuning of all methods of a comparison."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.cli.entries import OWN, SETTINGS, MethodEntry
from coterie.cli.merge import experiments
from coterie.compare.pool import Run
from coterie.compare.sweep import grid_of, sweep
from coterie.compare.table import TUNING, run_folder
from coterie.errors import require, unknown
from coterie.experiment.experiment import Experiment
from coterie.report.terminal import ComparisonProgress


def read_grid(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """Options and the values to try.

    >>> read_grid("grid", ["lr=0.01,0.05", "mu=0"])
    {'lr': ['0.01', '0.05'], 'mu': ['0']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name, tried = name.strip().replace("-", "_"), [value.strip() for value in values.split(",") if value.strip()]
        require(bool(name and equals and tried), f"{option} = '{text}': must be NAME=VALUE,VALUE,…")
        require(name not in found, f"{option} = '{text}': {name} is given twice")
        found[name] = tried
    return found


def candidates(
    text: str,
    grid: Mapping[str, Sequence[str]],
    file: Path | None,
    given: Mapping[str, Any],
    sets: Sequence[str],
    draw: int | None = None,
    seed: int = 0,
) -> dict[str, Experiment]:
    """The experiments of a grid, by entry."""
    require(bool(grid), "grid: name at least one option with its values, such as lr=0.01,0.05")
    joint = "," if OWN.fullmatch(text) else ":"
    combinations = [",".join(f"{key}={value}" for key, value in one.items()) for one in grid_of(grid, draw, seed)]
    return experiments([f"{text}{joint}{one}" for one in combinations], file, given, sets)


def tuned(
    texts: Sequence[str],
    tune: Sequence[str],
    seed: int,
    file: Path | None,
    given: Mapping[str, Any],
    sets: Sequence[str],
    out: Path | None,
    jobs: int,
) -> tuple[dict[str, Experiment], str]:
    """The experiments of a comparison, each with the settings that validation chose, and these in words.

    Every method has the same settings tried, so that none has more chances than another.
    """
    grid = read_grid("tune", tune)
    for name in grid:
        if name not in SETTINGS:
            raise unknown("setting to tune", name, SETTINGS, also="'coterie sweep' for a method's own options")
    found: dict[str, Experiment] = {}
    told: list[str] = []
    with _folder(out) as folder:
        for text in texts:
            name = MethodEntry.read(text).name
            place = folder / run_folder(name, seed)
            chosen = candidates(text, grid, file, given, sets)
            best = sweep(chosen, [seed], place, progress_of, jobs, full=False)
            found[name] = best.winner
            told.append(f"{name} {best.best.name[len(name) + 1 :]}")
    return found, f"Tuned on validation samples with seed {seed}: {'; '.join(told)}."


def progress_of(runs: Sequence[Run]) -> ComparisonProgress:
    """Shows how far some runs are."""
    return ComparisonProgress(len(runs), sum(run.rounds for run in runs))


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out / TUNING
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
