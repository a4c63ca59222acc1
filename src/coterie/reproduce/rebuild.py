"""Rebuild tables: the cells that fit into some hours, those that are missing run, the pages written as they come in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.compare.cluster import run_on_cluster
from coterie.compare.one_run import Summary, finished
from coterie.compare.workers import PlannedRun, Watcher, run_in_parallel, run_one_by_one
from coterie.files import write_whole
from coterie.processes import CannotStartError, cores
from coterie.reproduce.cells import TableCell
from coterie.reproduce.page import drawn, findings_in, page_of
from coterie.reproduce.paper import PaperTable
from coterie.reproduce.store import Results, record_of
from coterie.reproduce.verdict import Rebuilt
from coterie.rounds.listeners import StopAfter
from coterie.runs.directory import RunDirectory
from coterie.setup.workload import expected_seconds

log = logging.getLogger("coterie")

TRIAL_ROUNDS = 2
SURPRISES = 1.15
"""Runs take longer than their first rounds promise: the machine has other things to do, too."""


def fitting(
    cells: Sequence[TableCell], hours: float, jobs: int, folder: Path, tell: Callable[[str], None] = log.info
) -> tuple[list[TableCell], list[TableCell]]:
    """The cells that fit into the hours with so many jobs, in the given order, and those that do not.

    Finished cells cost nothing, and show what others of their kind cost; of other kinds a trial does (`tell` hears it).
    """
    seconds: dict[str, float] = {}
    for cell in cells:
        if finished(folder / cell.name):
            summary = RunDirectory(folder / cell.name).summary() or {}
            seconds[kind_of(cell)] = summary["seconds"]["total"] / expected_seconds(cell.experiment.prepare())
    budget, chosen, left_out = 3600.0 * hours * jobs, list[TableCell](), list[TableCell]()
    for cell in cells:
        if finished(folder / cell.name):
            chosen.append(cell)
            continue
        cost = cost_of(cell, seconds, tell)
        # A run cannot be cut in two: one job must hold it.
        if cost <= budget and cost <= 3600.0 * hours:
            budget -= cost
            chosen.append(cell)
        else:
            left_out.append(cell)
    return chosen, left_out


def kind_of(cell: TableCell) -> str:
    """What cells that cost alike, but for their method and rounds, have in common."""
    config = cell.config
    return " ".join(str(config.get(key, "")) for key in ("data", "model", "partition", "share", "join", "batch"))


def cost_of(cell: TableCell, seconds: dict[str, float], tell: Callable[[str], None]) -> float:
    """The seconds of a cell: a trial of its kind, made once, in proportion to what its method has to do.

    `seconds` holds the seconds of a unit of work by `kind_of`, and takes in what a trial finds.
    """
    kind = kind_of(cell)
    work = expected_seconds(cell.experiment.prepare())
    if kind not in seconds:
        tell(f"a trial of {TRIAL_ROUNDS} rounds: {cell}")
        seconds[kind] = _trial(cell) / work
    return seconds[kind] * work * SURPRISES


def _trial(cell: TableCell) -> float:
    """The seconds of a whole run, from two of its rounds."""
    rounds = cell.experiment.rounds
    trial = replace(cell.experiment, evaluate_every=1, checkpoint_every=0)
    lines = trial.run(None, [StopAfter(TRIAL_ROUNDS)]).lines
    last = lines[-1].seconds
    return rounds * (last.train + last.exchange + last.evaluate / cell.experiment.evaluate_every)


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
    runs = [same[0].run_in(folder) for same in by_digest.values()]
    keeper = _Keeper({same[0].name: same for same in by_digest.values()}, results, watcher)
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

    def begun(self, run: PlannedRun) -> None:
        self._watcher.begun(run)

    def round_done(self, run: PlannedRun, round: int, received: float | None) -> None:
        self._watcher.round_done(run, round, received)

    def ended(self, run: PlannedRun, summary: Summary) -> None:
        assert run.directory is not None
        for cell in self._cells[run.directory.name]:
            kept = Results(cell.table, self._results)
            if cell.digest not in kept.cells:
                kept.add(cell, record_of(cell, summary, run.directory))
                write_page(cell.table, self._results)
        self._watcher.ended(run, summary)

    def failed(self, run: PlannedRun, error: Exception) -> None:
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
