"""`coterie sweep`: settings are tried, and validation samples choose among them."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.cli.commands import RUNS, next_free
from coterie.cli.entries import MethodEntry
from coterie.cli.merge import experiments
from coterie.cli.problems import InterruptionError
from coterie.cli.tuning import candidate, candidates, fractions_of, progress_of
from coterie.compare.guided import guided_sweep
from coterie.compare.remarks import edge_remark
from coterie.compare.space import read_space
from coterie.compare.sweep import BEST, REPORT, SWEEP, sweep
from coterie.core.numbers import number_text
from coterie.errors import CoterieError, require, said
from coterie.files import UNFIT
from coterie.registry import short_name
from coterie.report.page import report
from coterie.report.terminal import plain_table, print_result


def sweep_command(
    method: str,
    grid: Sequence[str],
    draw: int | None,
    optuna: int | None,
    seeds: Sequence[int],
    file: Path | None,
    given: Mapping[str, Any],
    sets: Sequence[str],
    out: Path | None,
    jobs: int,
    full: bool,
    json: bool,
    listeners: Sequence[str] = (),
    cluster: str = "",
) -> None:
    """Search a grid and print what came of it."""
    require(draw is None or draw > 0, f"random = {draw}: must be at least 1")
    require(optuna is None or optuna > 0, f"optuna = {optuna}: must be at least 1")
    require(
        draw is None or optuna is None, "optuna, random: give one of them: settings are proposed, or drawn by chance"
    )
    require(bool(seeds), "seeds: name at least one")
    space = read_space("grid", grid, fractions_of(method))
    place = out or _free_place(method, file, given, sets)
    how = seeds, place, progress_of, jobs, full, listeners, cluster
    try:
        if optuna is None:
            found = sweep(candidates(method, space, file, given, sets, draw, seeds[0]), *how)
        else:
            found = guided_sweep(space, lambda one: candidate(method, one, file, given, sets), optuna, *how)
    except KeyboardInterrupt:
        raise InterruptionError(f"interrupted; the same command with --out {place} carries on") from None
    report(place, place / REPORT)
    print_sweep(place, found.as_dict(), json)


def show_sweep(path: Path, json: bool) -> None:
    """Print what came of a search that is kept."""
    try:
        found = json_format.loads((path / SWEEP).read_text(encoding="utf-8"))
        print_sweep(path, found, json)
    except UNFIT:
        raise CoterieError(f"'{path / SWEEP}' is damaged; the same 'coterie sweep' again writes it anew") from None


def print_sweep(place: Path, found: Mapping[str, Any], json: bool) -> None:
    """Print the candidates of a search, the best first, and the way on."""
    if json:
        print(json_format.dumps(found, indent=2))
        return
    judged, rounds = found["judged_by"], [int(one["rounds"]) for one in found["candidates"]]
    seeds = ", ".join(map(str, found["seeds"]))
    early = "Settings with fewer rounds were given up: those that were better until then went on."
    print_result(
        _table(found),
        "",
        f"{judged.capitalize()}, as received, mean over clients and seeds ({seeds}), best round so far. Test samples "
        "had no say.",
        *([early] if min(rounds) < max(rounds) else []),
        f"The best is {found['best']}; {said('coterie', 'run', '--config', place / BEST)} runs it.",
        *([edge] if (edge := edge_remark([one["name"] for one in found["candidates"]], found["best"])) else []),
        *([f"The report is kept in {place / REPORT}"] if (place / REPORT).is_file() else []),
    )


def _free_place(method: str, file: Path | None, given: Mapping[str, Any], sets: Sequence[str]) -> Path:
    """A directory of its own for a search of a method on its data."""
    (experiment,) = experiments([method], file, given, sets).values()
    data = Path(short_name(experiment.data)).stem if isinstance(experiment.data, str) else "data"
    return next_free(RUNS, f"sweep-{short_name(MethodEntry.read(method).method)}-{data}")


def _table(found: Mapping[str, Any]) -> Table:
    table = plain_table("settings", "rounds", found["judged_by"], right=(1, 2))
    for one in found["candidates"]:
        mark = "*" if one["name"] == found["best"] else " "
        score = math.nan if one["score"] is None else float(one["score"])
        table.add_row(Text(one["name"]), str(one["rounds"]), f"{number_text(score)}{mark}")
    return table
