"""Rebuild tables: run the cells that are missing, several at a time, and write the pages as they come in."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from coterie.compare.cell import Summary
from coterie.compare.cluster import run_on_cluster
from coterie.compare.pool import Run, Watcher, run_in_parallel, run_one_by_one
from coterie.files import write_whole
from coterie.processes import CannotStartError, cores
from coterie.reproduce.cells import TableCell
from coterie.reproduce.figure import drawn
from coterie.reproduce.page import findings_in, page_of
from coterie.reproduce.paper import PaperTable
from coterie.reproduce.store import Results, record_of
from coterie.reproduce.verdict import Rebuilt

log = logging.getLogger("coterie")


def run_cells(
    cells: Sequence[TableCell], folder: Path, results: Path, watcher: Watcher, jobs: int = 0, cluster: str = ""
) -> dict[str, str]:
    """Run cells, each kept in a directory of `folder`, and write what is finished to `results`; what failed, and why.

    A cell that is finished is read, one that was begun is carried on. Two cells that are the same run, in two tables
    perhaps, are run once. With `cluster`, they run on the machines of a Ray cluster.
    """
    by_digest: dict[str, list[TableCell]] = {}
    for cell in cells:
        by_digest.setdefault(cell.digest, []).append(cell)
    runs = [own[0].run_in(folder) for own in by_digest.values()]
    keeper = _Keeper({own[0].name: own for own in by_digest.values()}, results, watcher)
    if cluster:
        run_on_cluster(runs, cluster, jobs, keeper)
        return keeper.failures
    jobs = min(jobs or cores(), len(runs))
    if jobs > 1:
        try:
            run_in_parallel(runs, jobs, keeper)
            return keeper.failures
        except CannotStartError as error:
            log.warning("jobs = %d: no worker process can start (%s); one cell after the other instead", jobs, error)
    run_one_by_one(runs, keeper)
    return keeper.failures


class _Keeper:
    """Keeps the records of finished cells, writes the pages anew, and passes all news on."""

    def __init__(self, cells: dict[str, list[TableCell]], results: Path, watcher: Watcher) -> None:
        self._cells, self._results, self._watcher = cells, results, watcher
        self.failures: dict[str, str] = {}

    def begun(self, run: Run) -> None:
        self._watcher.begun(run)

    def round_done(self, run: Run, round: int, received: float | None) -> None:
        self._watcher.round_done(run, round, received)

    def ended(self, run: Run, summary: Summary) -> None:
        assert run.directory is not None
        for cell in self._cells[run.directory.name]:
            kept = Results(cell.table, self._results)
            if cell.digest not in kept.cells:
                kept.add(cell, record_of(cell, summary, run.directory))
                write_page(cell.table, self._results)
        self._watcher.ended(run, summary)

    def failed(self, run: Run, error: Exception) -> None:
        self.failures[str(run)] = str(error)
        self._watcher.failed(run, error)


def write_page(table: PaperTable, folder: Path) -> None:
    """Write a table's page and picture from its results."""
    folder.mkdir(parents=True, exist_ok=True)
    rebuilt = Rebuilt(table, Results(table, folder))
    picture = drawn(rebuilt)
    if picture is not None:
        write_whole(folder / f"{table.key}.svg", picture)
    figure = f"{table.key}.svg" if picture is not None else None
    page = page_of(rebuilt, figure, findings_in(folder, table.key))
    write_whole(folder / f"{table.key}.md", page.encode())
