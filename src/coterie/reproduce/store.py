"""What has been rebuilt of a table: a JSON file of finished cells, enough to write the page again without the runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.compare.cell import Summary
from coterie.core.machine import machine
from coterie.errors import CoterieError
from coterie.experiment.directory import RunDirectory
from coterie.experiment.kept import ROWS
from coterie.experiment.reports import Reports
from coterie.files import locked, require_format, write_whole
from coterie.reproduce.cells import Amount, TableCell
from coterie.reproduce.paper import Measure, PaperTable

FORMAT = 1
Record = dict[str, Any]
"""A finished cell as plain values."""


def record_of(cell: TableCell, summary: Summary, directory: Path) -> Record:
    """A finished run as it is kept: its scores at every moment, mean and round, what it cost, and its first round."""
    lines = RunDirectory(directory).lines_in_order()
    samples = sum(client["size"] for client in summary["clients"])
    trained = sum(len(line["cohort"]) for line in lines) / len(summary["clients"]) * samples
    epochs = summary["config"]["epochs"]
    return {
        "row": cell.row.key,
        "column": cell.column.key,
        "seed": cell.seed,
        "rounds": cell.amount.rounds,
        "share": cell.amount.share,
        "data": cell.amount.data,
        "config": cell.config,
        "scores": summary["accuracy"],
        "upload": summary["bytes"]["per_client_round"]["up"],
        "download": summary["bytes"]["per_client_round"]["down"],
        "seconds": sum(line["seconds"]["train"] for line in lines) / max(trained * epochs, 1),
        "runtime": summary["seconds"]["total"],
        "period": _period(directory),
        "diverged": summary["diverged"],
        "partition": summary["partition"]["hash"],
        "first": first_numbers(lines[0]),
        "machine": machine(),
    }


def first_numbers(line: Mapping[str, Any]) -> dict[str, Any]:
    """What the first round measured, number by number: a run on the same machine gives the same bits."""
    measured = {moment: line[moment] for moment in ("received", "trained", "cohort_trained") if moment in line}
    return {moment: {"accuracy": found["accuracy"], "loss": found["loss"]} for moment, found in measured.items()}


def _period(directory: Path) -> float | None:
    """For how many rounds classifiers were matched: in each of them every client chose itself (FedReMa)."""
    chosen = RunDirectory(directory).tensors(ROWS)[0].get("value.chosen")
    return None if chosen is None else float(chosen.max())


def value_of(record: Record, measure: Measure | str, reports: Reports) -> float:
    """The number of a cell that a table shows; scores in per cent."""
    if measure == "score":
        found = record["scores"][reports.moment][reports.mean][reports.round]
        return math.nan if found is None else 100.0 * float(found)
    found = record[measure]
    return math.nan if found is None else float(found)


class Results:
    """The finished cells of a table, by the digest of their configuration."""

    def __init__(self, table: PaperTable, folder: Path) -> None:
        self.table, self.path = table, folder / f"{table.key}.json"
        self.cells = self._read()

    def _read(self) -> dict[str, Record]:
        if not self.path.is_file():
            return {}
        content = json.loads(self.path.read_text(encoding="utf-8"))
        require_format(f"results = {self.path}", content.get("format"), FORMAT, "run the table again")
        cells: dict[str, Record] = content["cells"]
        return cells

    def add(self, cell: TableCell, record: Record) -> None:
        """Take in a finished cell beside those that others have finished since, and write all down."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_suffix(".lock"), wait=True):
            self.cells = {**self._read(), cell.digest: record}
            self.write()

    def write(self) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ordered = dict(sorted(self.cells.items(), key=lambda item: _place(self.table, item[1])))
        content = {"format": FORMAT, "table": self.table.key, "cells": ordered}
        write_whole(self.path, (json.dumps(content, indent=1) + "\n").encode())

    def amounts(self) -> list[Amount]:
        """How much of the paper's runs was done, in all the ways that occur; the fullest first."""
        found = {amount_of(record) for record in self.cells.values()}
        return sorted(found, key=lambda amount: (not amount.full, -amount.share, -(amount.rounds or math.inf)))

    def require_current(self) -> None:
        """An error if a cell is not what the table's file now says."""
        for digest, record in self.cells.items():
            row, column = self.table.row(record["row"]), self.table.column(record["column"])
            cell = TableCell(self.table, row, column, record["seed"], amount_of(record))
            now, then = cell.config, record["config"]
            # What is new since has its default now, or the digest would differ.
            changed = sorted(key for key in then if now.get(key) != then[key])
            if changed or cell.digest != digest:
                raise CoterieError(
                    f"results = {self.path}: {cell} was run with other settings than the table now has "
                    f"({', '.join(changed) or 'digest'}); run it again"
                )


def amount_of(record: Record) -> Amount:
    """How much of the paper's run a record is of."""
    return Amount(record["rounds"], record["share"], record["data"])


def _place(table: PaperTable, record: Record) -> tuple[Any, ...]:
    rows, columns = [row.key for row in table.rows], [column.key for column in table.columns]
    return columns.index(record["column"]), rows.index(record["row"]), record["seed"], -(record["rounds"] or 10**9)
