"""`coterie reproduce`: list the papers' tables, rebuild them, check what was rebuilt."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from coterie.cli.problems import FailureError, InterruptionError
from coterie.cli.signals import exit_code, terminable
from coterie.errors import require
from coterie.processes import cores
from coterie.report.terminal import ComparisonProgress, plain_table, print_result
from coterie.reproduce import similarities
from coterie.reproduce.cells import Amount, TableCell, cells_of, missing_data
from coterie.reproduce.check import check_results
from coterie.reproduce.page import number_text
from coterie.reproduce.paper import PaperTable, find_table, paper_tables
from coterie.reproduce.rebuild import fitting, run_cells, write_page
from coterie.reproduce.store import Results, without_recorded
from coterie.reproduce.verdict import Rebuilt, RebuiltColumn


def list_command(results: Path) -> None:
    """Print the tables: how large they are, how much of them is rebuilt, what data they lack here."""
    listed = plain_table("table", "what it shows", "cells", "rebuilt", "not on this machine", right=(2, 3))
    for key, table in paper_tables().items():
        wanted = sum(bool(row.method_name) for row in table.rows) * len(table.columns)
        done = len({(one["row"], one["column"]) for one in Results(table, results).cells.values()})
        listed.add_row(*map(Text, (key, table.title, str(wanted), str(done), ", ".join(missing_data(table)))))
    listed.add_row(similarities.KEY, "pFedSim, table 2: similarity of classifiers (four clients, minutes)", "", "", "")
    print_result(listed, "", "'coterie reproduce TABLE' runs one; cells are methods × columns, once for each seed.")


def check_command(results: Path) -> None:
    """Check the results in a folder."""
    for line in check_results(results):
        print(line)


def reproduce_command(
    tables: Sequence[str],
    columns: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    amount: Amount,
    hours: float | None,
    jobs: int,
    folder: Path,
    results: Path,
    cluster: str = "",
) -> None:
    """Run the cells of some tables and print these."""
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
    cells = [cell for table in chosen for cell in cells_of(table, columns, methods, seeds, amount)]
    _tell_missing(chosen, columns, amount)
    wanted, cells = len(cells), without_recorded(cells, results)
    if len(cells) < wanted:
        _say(
            f"{wanted - len(cells)} of {wanted} cells are in {results} already and are not run again; "
            "to run them yourself, give --results a folder of your own"
        )
    left_out: list[TableCell] = []
    if hours is not None:
        cells, left_out = fitting(cells, hours, jobs or cores(), folder, _say)
    failures = _run(cells, folder, results, jobs, cluster)
    for table in chosen:
        write_page(table, results)
        _print(Rebuilt(table, Results(table, results)))
        print_result(f"The page is {results / f'{table.key}.md'}")
    for cell in left_out:
        _say(f"left out for want of time: {cell}")
    if failures:
        raise FailureError("; ".join(_failed(failures)))


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
    runs = {cell.digest: cell.experiment.rounds for cell in cells}
    with ComparisonProgress(len(runs), sum(runs.values())) as progress, terminable():
        try:
            return run_cells(cells, folder, results, progress, jobs, cluster)
        except KeyboardInterrupt as stop:
            done = f"{progress.finished} of {progress.runs} cells are finished"
            raise InterruptionError(f"interrupted; the same command carries on ({done})", exit_code(stop)) from None


def _tell_missing(tables: Sequence[PaperTable], columns: Sequence[str], amount: Amount) -> None:
    if amount.data:
        return
    for table in tables:
        for name, how in missing_data(table, columns).items():
            _say(f"{table.key}: the columns of '{name}' are left out, it is not here; {how}")


def _say(text: str) -> None:
    print(f"coterie: {text}", file=sys.stderr)


def _print(rebuilt: Rebuilt) -> None:
    print_result(rebuilt.table.title)
    for part in rebuilt.parts:
        print_result("", f"{part.column.title} ({part.amount})", _numbers(part))
        for verdict in part.verdicts():
            print_result(f"  {verdict.claim} {verdict.word}: {number_text(verdict.ours, verdict.measure)}")


def _numbers(part: RebuiltColumn) -> Table:
    table, ranks = plain_table("method", "paper", "ours", "rank", "ours", right=(1, 2, 3, 4)), part.ranks()
    for row in part.rows:
        paper = part.paper(row)
        shown = "" if paper is None else f"{paper[0]:g}"
        both = map(str, ranks[row.key]) if row.key in ranks else ("", "")
        table.add_row(Text(row.title), shown, number_text(part.ours(row), part.column.measure), *both)
    return table
