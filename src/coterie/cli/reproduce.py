"""`coterie reproduce`: list the papers' tables, rebuild them, check what was rebuilt."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from coterie.cli.errors import FailureError, InterruptionError, exit_code, terminable
from coterie.cli.options import OUTPUT, RUNNING, Cluster, Seeds, flag, listed, option
from coterie.errors import require

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.reproduce.cells import TableCell
    from coterie.reproduce.paper import PaperTable
    from coterie.reproduce.verdict import Rebuilt, RebuiltColumn

Keys = Annotated[list[str] | None, listed("Only these, by key (with commas).", "all", OUTPUT)]


def reproduce(
    *tables: Annotated[str, Parameter(help="The tables to rebuild; none: list them.", show_default=False)],
    columns: Keys = None,
    methods: Keys = None,
    seeds: Seeds = None,
    rounds: Annotated[int | None, option("Fewer rounds than the paper's.", "the paper's", RUNNING)] = None,
    share: Annotated[float | None, option("Only this share of the data.", 1.0, RUNNING)] = None,
    data: Annotated[
        str | None, option("In the manner of the paper, on another data set.", "the paper's", RUNNING)
    ] = None,
    hours: Annotated[
        float | None, option("Run what fits into so many hours, the most informative first.", "all", RUNNING)
    ] = None,
    jobs: Annotated[int | None, option("Cells at the same time.", "one per core", RUNNING)] = None,
    cluster: Cluster = None,
    cells: Annotated[Path, Parameter(help="Where the runs are kept; they are carried on there.", group=OUTPUT)] = Path(
        "runs/cells"
    ),
    results: Annotated[Path, Parameter(help="Where the rebuilt tables are written.", group=OUTPUT)] = Path("results"),
    check: Annotated[bool, flag("Check results against the tables, and repeat a first round.", OUTPUT)] = False,
    plan: Annotated[bool, flag("Say of each claim what would settle it: seeds, hours, data.", OUTPUT)] = False,
) -> None:
    """Rebuild result tables of the five papers, paper beside ours; what has run before is not run again."""
    from coterie.processes import cores
    from coterie.report.terminal import print_result
    from coterie.reproduce import similarities
    from coterie.reproduce.cells import Amount, cells_of
    from coterie.reproduce.check import check_results
    from coterie.reproduce.paper import find_table
    from coterie.reproduce.rebuild import fitting, write_page
    from coterie.reproduce.store import Results, without_recorded
    from coterie.reproduce.verdict import Rebuilt

    if check:
        for line in check_results(results):
            print(line)
        return
    if plan:
        _plan(tables, results)
        return
    if not tables:
        _list(results)
        return
    amount, jobs = Amount(rounds, 1.0 if share is None else share, data or ""), jobs or 0
    seeds = [0] if seeds is None else seeds
    require(bool(seeds), "seeds: name at least one")
    require(0 < amount.share <= 1, f"share = {amount.share:g}: must be above 0 and at most 1")
    require(amount.rounds is None or amount.rounds > 0, f"rounds = {amount.rounds}: must be at least 1")
    require(hours is None or hours > 0, f"hours = {hours:g}: must be more than 0" if hours is not None else "")
    require(jobs >= 0, f"jobs = {jobs}: must not be negative (0: one per core)")
    require(
        hours is None or not cluster or bool(jobs),
        "hours: how much fits into them on a cluster depends on --jobs, the runs at the same time; give that too",
    )
    chosen = [find_table(key, [similarities.KEY]) for key in tables if key != similarities.KEY]
    if similarities.KEY in tables:
        print(similarities.rebuild(results, seeds))
    if not chosen:
        return
    asked = [cell for table in chosen for cell in cells_of(table, columns or [], methods or [], seeds, amount)]
    if not amount.data:
        _tell_missing(chosen, columns or [])
    remaining = without_recorded(asked, results)
    if len(remaining) < len(asked):
        _say(
            f"{len(asked) - len(remaining)} of {len(asked)} cells are in {results} already and are not run again; "
            "to run them yourself, give --results a folder of your own"
        )
    left_out: list[TableCell] = []
    if hours is not None:
        remaining, left_out = fitting(remaining, hours, jobs or cores(), cells, _say)
    failures = _run(remaining, cells, results, jobs, cluster or "")
    for table in chosen:
        write_page(table, results)
        _print(Rebuilt(table, Results(table, results)))
        print_result(f"The page is {results / f'{table.key}.md'}")
    for cell in left_out:
        _say(f"left out for want of time: {cell}")
    if failures:
        raise FailureError("; ".join(_failed(failures)))


def _list(results: Path) -> None:
    """Print the tables: how large they are, how much of them is rebuilt, what data they lack here."""
    from rich.text import Text

    from coterie.report.terminal import plain_table, print_result
    from coterie.reproduce import similarities
    from coterie.reproduce.cells import missing_data
    from coterie.reproduce.paper import paper_tables
    from coterie.reproduce.store import Results

    listed = plain_table("table", "what it shows", "cells", "rebuilt", "not on this machine", right=(2, 3))
    for key, table in paper_tables().items():
        cells = sum(bool(row.method_name) for row in table.rows) * len(table.columns)
        rebuilt = len({(cell["row"], cell["column"]) for cell in Results(table, results).cells.values()})
        listed.add_row(*map(Text, (key, table.title, str(cells), str(rebuilt), ", ".join(missing_data(table)))))
    listed.add_row(similarities.KEY, "pFedSim, table 2: similarity of classifiers (four clients, minutes)", "", "", "")
    print_result(listed, "", "'coterie reproduce TABLE' runs one; cells are methods × columns, once for each seed.")


def _plan(tables: Sequence[str], results: Path) -> None:
    """Print, for every claim on accuracy, how large it is, how noisy, and what would settle it."""
    from rich.text import Text

    from coterie.report.terminal import plain_table, print_result
    from coterie.reproduce.paper import find_table, paper_tables
    from coterie.reproduce.plan import TablePlans

    chosen = [find_table(key) for key in tables] or list(paper_tables().values())
    for table in chosen:
        listed = plain_table(
            "column", "claim", "published", "noise", "seeds", "run", "hours", "it stands", right=range(2, 7)
        )
        for plan in TablePlans(table, results):
            noise = "?" if plan.noise is None else f"{plan.noise:.2f}"
            seeds = "?" if plan.noise is None else "> 100" if plan.seeds is None else str(plan.seeds)
            hours = "" if plan.hours is None or not plan.open else f"{plan.hours:.1f}"
            cells = (
                plan.column,
                plan.claim,
                f"{plan.published:+.2f}",
                noise,
                seeds,
                str(plan.seeds_run),
                hours,
                plan.word,
            )
            listed.add_row(*map(Text, cells))
        if listed.row_count:
            print_result(table.title, listed, "")
    print_result(
        "Seeds are those with which a difference as large as the published one would be clear (95 %), given the noise, "
        "the spread of paired differences over seeds. Hours are those of one core, for the cells of both methods that "
        "are missing."
    )


def _failed(failures: Mapping[str, str]) -> list[str]:
    """What failed, for each reason once.

    >>> _failed({"t fedavg": "t fedavg: no memory", "t fedper": "no memory", "t local": "no room"})
    ['2 cells failed, t fedavg the first: no memory', 't local failed: no room']
    """
    runs_of: dict[str, list[str]] = {}
    for run, why in failures.items():
        runs_of.setdefault(why.removeprefix(f"{run}: "), []).append(run)
    return [
        f"{runs[0]} failed: {why}" if len(runs) == 1 else f"{len(runs)} cells failed, {runs[0]} the first: {why}"
        for why, runs in runs_of.items()
    ]


def _run(cells: Sequence[TableCell], folder: Path, results: Path, jobs: int, cluster: str) -> dict[str, str]:
    from coterie.report.terminal import ComparisonProgress
    from coterie.reproduce.rebuild import run_cells

    rounds = {cell.digest: cell.experiment.rounds for cell in cells}
    with ComparisonProgress(len(rounds), sum(rounds.values())) as progress, terminable():
        try:
            return run_cells(cells, folder, results, progress, jobs, cluster)
        except KeyboardInterrupt as stop:
            done = f"{progress.finished} of {progress.runs} cells are finished"
            raise InterruptionError(f"interrupted; the same command carries on ({done})", exit_code(stop)) from None


def _tell_missing(tables: Sequence[PaperTable], columns: Sequence[str]) -> None:
    from coterie.reproduce.cells import missing_data

    for table in tables:
        for name, how in missing_data(table, columns).items():
            _say(f"{table.key}: the columns of '{name}' are left out, it is not here; {how}")


def _say(text: str) -> None:
    print(f"coterie: {text}", file=sys.stderr)


def _print(rebuilt: Rebuilt) -> None:
    from coterie.report.terminal import print_result
    from coterie.reproduce.page import number_text

    print_result(rebuilt.table.title)
    for part in rebuilt.parts:
        print_result("", f"{part.column.title} ({part.amount})", _numbers(part))
        for verdict in part.verdicts():
            print_result(f"  {verdict.claim} {verdict.word}: {number_text(verdict.ours, verdict.measure)}")


def _numbers(part: RebuiltColumn) -> Table:
    from rich.text import Text

    from coterie.report.terminal import plain_table
    from coterie.reproduce.page import number_text

    table, ranks = plain_table("method", "paper", "ours", "rank", "ours", right=(1, 2, 3, 4)), part.ranks()
    for row in part.rows:
        paper = part.paper(row)
        shown = "" if paper is None else f"{paper[0]:g}"
        both = map(str, ranks[row.key]) if row.key in ranks else ("", "")
        table.add_row(Text(row.title), shown, number_text(part.ours(row), part.column.measure), *both)
    return table
