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
from coterie.compare.remarks import edge_remark
from coterie.compare.space import Space, grid_of, read_space
from coterie.compare.sweep import sweep
from coterie.compare.table import TUNING, run_folder
from coterie.errors import require, unknown
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.report.terminal import ComparisonProgress
from coterie.runs.experiment import Experiment
from coterie.setup.run_options import RunOptions


def candidates(
    text: str,
    space: Space,
    file: Path | None,
    given: Mapping[str, Any],
    sets: Sequence[str],
    draw: int | None = None,
    seed: int = 0,
) -> dict[str, Experiment]:
    """The experiments of a grid, by entry."""
    _require_some(space)
    return experiments([_entry(text, one) for one in grid_of(space, draw, seed)], file, given, sets)


def candidate(
    text: str, settings: Mapping[str, str], file: Path | None, given: Mapping[str, Any], sets: Sequence[str]
) -> tuple[str, Experiment]:
    """The experiment of one combination, and its entry."""
    _require_some(settings)
    ((name, experiment),) = experiments([_entry(text, settings)], file, given, sets).items()
    return name, experiment


def fractions_of(text: str) -> set[str]:
    """The options of a method and the settings of a run whose values need not be whole numbers.

    >>> "mu" in fractions_of("fedprox"), "lr" in fractions_of("fedprox"), "epochs" in fractions_of("fedprox")
    (True, True, False)
    """
    known = {**option_fields(RunOptions), **option_fields(METHODS.find(MethodEntry.read(text).method))}
    return {name for name, item in known.items() if isinstance(item.default, float)}


def _require_some(space: Mapping[str, object]) -> None:
    require(bool(space), "grid: name at least one option with its values, such as lr=0.01,0.05")


def _entry(text: str, settings: Mapping[str, str]) -> str:
    joint = "," if OWN.fullmatch(text) else ":"
    return text + joint + ",".join(f"{key}={value}" for key, value in settings.items())


def tuned(
    texts: Sequence[str],
    tune: Sequence[str],
    seed: int,
    file: Path | None,
    given: Mapping[str, Any],
    sets: Sequence[str],
    out: Path | None,
    jobs: int,
    cluster: str = "",
) -> tuple[dict[str, Experiment], str]:
    """The experiments of a comparison, each with the settings that validation chose, and these in words.

    Every method has the same settings tried, so that none has more chances than another.
    """
    space = read_space("tune", tune, fractions_of(texts[0]))
    for name in space:
        if name not in SETTINGS:
            raise unknown("setting to tune", name, SETTINGS, also="'coterie sweep' for a method's own options")
    found: dict[str, Experiment] = {}
    told: list[str] = []
    with _folder(out) as folder:
        for text in texts:
            name = MethodEntry.read(text).name
            place = folder / run_folder(name, seed)
            chosen = candidates(text, space, file, given, sets)
            best = sweep(chosen, [seed], place, progress_of, jobs, full=False, cluster=cluster)
            found[name] = best.winner
            edge = edge_remark([one.name for one in best.candidates], best.best.name)
            told.append(f"{name} {best.best.name[len(name) + 1 :]}{f' ({edge[:-1]})' if edge else ''}")
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
