"""Do committed results still stand: the same configurations, and the same first round when it is run again?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.machine import machine
from coterie.errors import CoterieError, require
from coterie.reproduce import similarities
from coterie.reproduce.cells import TableCell, missing
from coterie.reproduce.page import commands, page_in
from coterie.reproduce.paper import paper_tables
from coterie.reproduce.store import Record, Results, amount_of, first_numbers
from coterie.reproduce.verdict import Rebuilt
from coterie.rounds.listeners import StopAfter

TOLERANCE = 0.05
"""How far losses and shares of a first round may lie apart where processor or PyTorch differ."""


def check_results(folder: Path) -> Iterator[str]:
    """Check all tables' results in a folder, a line for each finding; what is wrong is raised.

    Results of other kinds may lie beside them.
    """
    here, repeatable = machine(), list[tuple[bool, float, TableCell, Record]]()
    tables = [table for key, table in paper_tables().items() if (folder / f"{key}.json").is_file()]
    runs = similarities.runs_of(folder)
    require(bool(tables or runs), f"results = {folder}: holds no results")
    if runs:
        page = folder / f"{similarities.KEY}.md"
        _require_page(page, similarities.page_in(folder, runs), similarities.command_of(runs))
        yield f"{similarities.KEY}: as on the page (runs: {len(runs)})"
    for table in tables:
        results = Results(table, folder)
        results.require_current()
        command = commands(table, list(results.cells.values()))[0]
        _require_page(folder / f"{table.key}.md", page_in(folder, Rebuilt(table, results)), command)
        yield f"{table.key}: as in the table's file and on the page (cells: {len(results.cells)})"
        for record in results.cells.values():
            cell = cell_of(results, record)
            a_round = record["runtime"] / (amount_of(record).rounds or cell.experiment.rounds)
            if missing(str(cell.config["data"])) is None:
                repeatable.append((not same_bits(here, record), a_round, cell, record))
    if not repeatable:
        yield "no first round was repeated: none of the data sets is on this machine"
    else:
        # If there are any, a cell of which the same bits can be expected.
        *_, cell, record = min(repeatable, key=lambda cell_and_cost: cell_and_cost[:2])
        yield repeated(cell, record)


def _require_page(page: Path, text: str, command: str) -> None:
    shown = page.is_file() and page.read_text(encoding="utf-8") == text
    require(shown, f"results = {page}: does not show what stands beside it; '{command}' writes it anew")


def cell_of(results: Results, record: Record) -> TableCell:
    """The cell that a record is of."""
    table = results.table
    row, column = table.row(record["row"]), table.column(record["column"])
    return TableCell(table, row, column, record["seed"], amount_of(record))


def same_bits(here: Mapping[str, str], record: Record) -> bool:
    """Whether a machine is expected to repeat a record to the bit.

    With the same instructions, processors of two makers still get different kernels from the numerical libraries.
    """
    return all(here[key] == record["machine"][key] for key in ("torch", "capability", "processor"))


def repeated(cell: TableCell, record: Record) -> str:
    """Run a cell's first round again and compare; the same bits are expected of the same processor and build."""
    run = replace(cell.experiment, checkpoint_every=0).run(None, [StopAfter(1)])
    apart = _apart(first_numbers(run.lines[0]), record["first"])
    if same_bits(machine(), record) and apart > 0:
        raise CoterieError(
            f"{cell}: its first round was repeated and differs by up to {apart:.3g}, on the same processor and build"
        )
    if apart > TOLERANCE:
        raise CoterieError(
            f"{cell}: its first round was repeated and differs by up to {apart:.3g} ({TOLERANCE} may be)"
        )
    how = "the same bits" if apart == 0 else f"within {TOLERANCE} (another build or processor), largest {apart:.3g}"
    return f"{cell}: the first round was repeated: {how}"


def _apart(now: Mapping[str, Any], then: Mapping[str, Any]) -> float:
    """The largest difference of two first rounds' numbers."""
    if now.keys() != then.keys():
        return math.inf
    ours, theirs = (
        [value for moment in sorted(first) for values in first[moment].values() for value in values]
        for first in (now, then)
    )
    if [value is None for value in ours] != [value is None for value in theirs]:
        return math.inf
    return max((abs((our or 0.0) - (their or 0.0)) for our, their in zip(ours, theirs, strict=True)), default=0.0)
