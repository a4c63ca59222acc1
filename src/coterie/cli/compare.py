"""`coterie compare`: several methods on the same partitions, each tuned before if wished."""

from __future__ import annotations

import json as json_format
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from coterie.cli.errors import InterruptionError, exit_code, terminable
from coterie.cli.options import (
    OUTPUT,
    AsJson,
    Cluster,
    Columns,
    ConfigFile,
    GivenSettings,
    Jobs,
    Listeners,
    file,
    repeated,
    seed_numbers,
)
from coterie.cli.run import how_to_carry_on

if TYPE_CHECKING:
    from coterie.compare.grid import Grid
    from coterie.compare.table import Comparison
    from coterie.report.terminal import ComparisonProgress
    from coterie.runs.experiment import Experiment


def compare(
    *methods: Annotated[
        str,
        Parameter(
            help="The methods to compare (see 'coterie methods'); NAME:OPTION=VALUE,OPTION=VALUE is one with options "
            "or settings of its own."
        ),
    ],
    seeds: Annotated[
        list[int] | None, seed_numbers("Every method runs once with each seed, all on the seed's partition.", "0 1 2")
    ] = None,
    set: Annotated[
        list[str] | None,
        repeated(
            "An option for all methods that have it (NAME=VALUE) or for one (METHOD.NAME=VALUE); may be repeated.",
            OUTPUT,
        ),
    ] = None,
    config: ConfigFile = None,
    out: Annotated[
        Path | None,
        file(
            "The directory to keep all runs and comparison.json in; one of these methods is carried on and extended.",
            "nothing is kept",
            OUTPUT,
        ),
    ] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    columns: Columns = None,
    tune: Annotated[
        list[str] | None,
        repeated(
            "Settings to try for every method before, NAME=VALUE,VALUE; validation chooses. May be repeated.", OUTPUT
        ),
    ] = None,
    listener: Listeners = None,
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),
) -> None:
    """Run several methods on the same partitions with several seeds; print mean ± spread in a table."""
    from coterie.cli.experiments import apart, experiments, protocol_of
    from coterie.compare.table import compare
    from coterie.report.terminal import ComparisonProgress, print_result

    entries, every_seed = with_kept(apart(methods), [0, 1, 2] if seeds is None else seeds, out)
    given, sets = settings.given(), set or []
    chosen, tuning = experiments(entries, config, given, sets), ""
    if tune:
        chosen, tuning = tuned(entries, tune, every_seed[0], config, given, sets, out, jobs or 0, cluster or "")
    rounds = len(every_seed) * sum(experiment.rounds for experiment in chosen.values())
    with ComparisonProgress(len(chosen) * len(every_seed), rounds) as progress, terminable():
        try:
            comparison = compare(
                chosen, every_seed, out, progress, jobs or 0, columns or [], listener or [], cluster or ""
            )
        except KeyboardInterrupt as stop:
            raise InterruptionError(_how_to_carry_on(progress), exit_code(stop)) from None
    print_comparison(comparison, out, json, protocol_of(config, given))
    if tuning and not json:
        print_result(tuning)


def with_kept(texts: Sequence[str], seeds: Sequence[int], out: Path | None) -> tuple[list[str], list[int]]:
    """The entries and seeds of a comparison that is kept in a directory, and besides them the given ones.

    Methods in files go by their names there, so that they have to be given again.
    """
    from coterie.cli.experiments import MethodEntry
    from coterie.compare.table import COMPARISON, Comparison
    from coterie.methods import METHODS

    if out is None or not (out / COMPARISON).is_file():
        return list(texts), list(seeds)
    kept, given = Comparison.load(out), {MethodEntry.read(text).name for text in texts}
    others = [name for name in kept.methods if name not in given and name.partition(":")[0] in METHODS]
    return [*others, *texts], [*kept.seeds, *(seed for seed in seeds if seed not in kept.seeds)]


def tuned(
    entries: Sequence[str],
    tune: Sequence[str],
    seed: int,
    config: Path | None,
    given: dict[str, Any],
    sets: Sequence[str],
    out: Path | None,
    jobs: int,
    cluster: str,
) -> tuple[dict[str, Experiment], str]:
    """The experiments of a comparison, each with the settings that validation chose, and these in words.

    Every method has the same settings tried, so that none has more chances than another.
    """
    from coterie.cli.experiments import SETTINGS, MethodEntry, candidates, fractions_of
    from coterie.compare.remarks import edge_remark
    from coterie.compare.space import read_space
    from coterie.compare.sweep import sweep
    from coterie.compare.table import run_folder
    from coterie.errors import unknown
    from coterie.report.terminal import ComparisonProgress

    space = read_space("tune", tune, fractions_of(entries[0]))
    for name in space:
        if name not in SETTINGS:
            raise unknown("setting to tune", name, SETTINGS, also="'coterie sweep' for a method's own options")
    winners: dict[str, Experiment] = {}
    choices: list[str] = []
    with _tuning_folder(out) as folder:
        for entry in entries:
            name = MethodEntry.read(entry).name
            tried = candidates(entry, space, config, given, sets)
            place = folder / run_folder(name, seed)
            best = sweep(tried, [seed], place, ComparisonProgress.of, jobs, full=False, cluster=cluster)
            winners[name] = best.winner
            edge = edge_remark([candidate.name for candidate in best.candidates], best.best.name)
            choices.append(f"{name} {best.best.name[len(name) + 1 :]}{f' ({edge[:-1]})' if edge else ''}")
    return winners, f"Tuned on validation samples with seed {seed}: {'; '.join(choices)}."


@contextmanager
def _tuning_folder(out: Path | None) -> Iterator[Path]:
    from coterie.compare.table import TUNING

    if out is not None:
        yield out / TUNING
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _how_to_carry_on(progress: ComparisonProgress) -> str:
    """How to carry on with the runs of a comparison that were under way."""
    begun = [run.directory for run in progress.under_way.values() if run.directory is not None]
    first = how_to_carry_on(begun[0]) if begun else "interrupted"
    others = f"; {len(begun) - 1} more likewise" if len(begun) > 1 else ""
    return f"{first}{others} ({progress.finished} of {progress.runs} runs were finished)"


def print_comparison(comparison: Comparison, out: Path | None, json: bool, protocol: str = "") -> None:
    """The table (or JSON) on stdout; after a paper's protocol, also which column shows the paper's number."""
    from coterie.compare.remarks import clients_remark
    from coterie.report.tables import print_grid

    if json:
        print(json_format.dumps(comparison.as_dict(), indent=2))
        return
    paper = _paper_line(protocol, comparison.grid) if protocol else ""
    whose = clients_remark(next(iter(comparison.summaries.values()))[0].get("config", {}))
    print_grid(
        comparison.grid, paper, whose, comparison.settings_note(), "" if out is None else f"The runs are kept in {out}"
    )


def _paper_line(protocol: str, grid: Grid) -> str:
    """Which column shows what the tables of a protocol's paper show."""
    from coterie.runs.protocols import find

    reports = find(protocol).reports
    shown = next((column for column in grid.columns.values() if column.name == reports.column), None)
    where = f"not shown here; --columns {reports.column} does" if shown is None else f"the column '{shown.title}'"
    return f"The paper of protocol {protocol} reports {reports}: {where}."
