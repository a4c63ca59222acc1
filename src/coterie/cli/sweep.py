"""`coterie sweep`: settings are tried, and validation samples choose among them."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from coterie.cli.errors import InterruptionError
from coterie.cli.options import (
    OUTPUT,
    AsJson,
    Cluster,
    ConfigFile,
    GivenSettings,
    Jobs,
    Listeners,
    Seeds,
    Sets,
    file,
    flag,
    option,
    repeated,
)
from coterie.cli.run import RUNS, next_free
from coterie.errors import CoterieError, require, said

if TYPE_CHECKING:
    from rich.table import Table


def sweep(
    method: Annotated[str, Parameter(help="The method; NAME:OPTION=VALUE is one with options of its own.")],
    /,
    *,
    grid: Annotated[
        list[str] | None,
        repeated(
            "An option of the method or a setting, with values to try: NAME=VALUE,VALUE or NAME=LOW..HIGH; may be "
            "repeated.",
            OUTPUT,
        ),
    ] = None,
    random: Annotated[
        int | None, option("Try only so many combinations, drawn by chance.", "all of them", OUTPUT)
    ] = None,
    optuna: Annotated[
        int | None, option("Try this many settings, each proposed by Optuna from the results so far.", "none", OUTPUT)
    ] = None,
    full: Annotated[bool, flag("Run all of them to the end; none is given up early.", OUTPUT)] = False,
    seeds: Seeds = None,
    set: Sets = None,
    config: ConfigFile = None,
    out: Annotated[
        Path | None,
        file(
            "The directory to keep all runs and best.toml in; one that was begun is carried on.",
            "runs/sweep-METHOD-DATA-N",
            OUTPUT,
        ),
    ] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    listener: Listeners = None,
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),
) -> None:
    """Try settings of a method and choose by validation alone; hopeless ones are given up early."""
    from coterie.cli.experiments import MethodEntry, candidate, candidates, experiments, fractions_of
    from coterie.compare.space import read_space
    from coterie.compare.sweep import REPORT, guided_sweep, sweep
    from coterie.registry import short_name
    from coterie.report.page import report
    from coterie.report.terminal import ComparisonProgress

    require(random is None or random > 0, f"random = {random}: must be at least 1")
    require(optuna is None or optuna > 0, f"optuna = {optuna}: must be at least 1")
    require(
        random is None or optuna is None, "optuna, random: give one of them: settings are proposed, or drawn by chance"
    )
    chosen_seeds = [0] if seeds is None else seeds
    require(bool(chosen_seeds), "seeds: name at least one")
    space = read_space("grid", grid or [], fractions_of(method))
    given = config, settings.given(), set or []
    if out is None:
        (experiment,) = experiments([method], *given).values()
        data = Path(short_name(experiment.data)).stem if isinstance(experiment.data, str) else "data"
        out = next_free(RUNS, f"sweep-{short_name(MethodEntry.read(method).method)}-{data}")
    how = chosen_seeds, out, ComparisonProgress.of, jobs or 0, full, listener or [], cluster or ""
    try:
        if optuna is None:
            result = sweep(candidates(method, space, *given, random, chosen_seeds[0]), *how)
        else:
            result = guided_sweep(space, lambda values: candidate(method, values, *given), optuna, *how)
    except KeyboardInterrupt:
        raise InterruptionError(f"interrupted; the same command with --out {out} carries on") from None
    report(out, out / REPORT)
    print_sweep(out, result.as_dict(), json)


def show_sweep(path: Path, json: bool) -> None:
    """Print what came of a search that is kept."""
    from coterie.compare.sweep import SWEEP
    from coterie.files import UNFIT

    try:
        print_sweep(path, json_format.loads((path / SWEEP).read_text(encoding="utf-8")), json)
    except UNFIT:
        raise CoterieError(f"'{path / SWEEP}' is damaged; the same 'coterie sweep' again writes it anew") from None


def print_sweep(place: Path, result: Mapping[str, Any], json: bool) -> None:
    """Print the candidates of a search, the best first, and the way on."""
    if json:
        print(json_format.dumps(result, indent=2))
        return
    from coterie.compare.remarks import edge_remark
    from coterie.compare.sweep import BEST, REPORT
    from coterie.report.terminal import print_result

    judged, rounds = result["judged_by"], [int(candidate["rounds"]) for candidate in result["candidates"]]
    seeds = ", ".join(map(str, result["seeds"]))
    early = "Settings with fewer rounds were given up: those that were better until then went on."
    edge = edge_remark([candidate["name"] for candidate in result["candidates"]], result["best"])
    print_result(
        _table(result),
        "",
        f"{judged.capitalize()}, as received, mean over clients and seeds ({seeds}), best round so far. Test samples "
        "had no say.",
        *([early] if min(rounds) < max(rounds) else []),
        f"The best is {result['best']}; {said('coterie', 'run', '--config', place / BEST)} runs it.",
        *([edge] if edge else []),
        *([f"The report is kept in {place / REPORT}"] if (place / REPORT).is_file() else []),
    )


def _table(result: Mapping[str, Any]) -> Table:
    from rich.text import Text

    from coterie.core.numbers import number_text
    from coterie.report.terminal import plain_table

    table = plain_table("settings", "rounds", result["judged_by"], right=(1, 2))
    for candidate in result["candidates"]:
        mark = "*" if candidate["name"] == result["best"] else " "
        score = math.nan if candidate["score"] is None else float(candidate["score"])
        table.add_row(Text(candidate["name"]), str(candidate["rounds"]), f"{number_text(score)}{mark}")
    return table
