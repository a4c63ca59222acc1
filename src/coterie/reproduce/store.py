"""What has been rebuilt of a table: a JSON file of finished cells, enough to write the page again without the runs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.compare.one_run import Summary
from coterie.core.machine import machine
from coterie.errors import CoterieError, require
from coterie.files import locked, require_format, write_whole
from coterie.reproduce.cells import Amount, TableCell
from coterie.reproduce.paper import Measure, PaperTable, paper_tables
from coterie.runs.directory import RunDirectory
from coterie.runs.protocols import Reports
from coterie.runs.record import Line
from coterie.runs.store import ROWS

FORMAT = 2
WAY_OUT = "move it away and run the table again: runs that are kept are only read"
KEPT = frozenset({
    "row", "column", "seed", "rounds", "share", "data", "config", "scores", "upload", "download", "seconds", "runtime",
    "period", "diverged", "partition", "first", "machine",
})  # fmt: skip
"""What a record has."""
SEAL = "sha256"
"""What stands beside it in the file."""
Record = dict[str, Any]
"""A finished cell as plain values."""


def record_of(cell: TableCell, summary: Summary, directory: Path) -> Record:
    """A finished run as it is kept: its scores at every moment, mean and round, what it cost, and its first round."""
    lines = RunDirectory(directory).lines()
    sizes = [client["size"] for client in summary["clients"]]
    samples = sum(sizes[row] for line in lines for row in line.cohort)
    return {
        **_what_ran(cell),
        "scores": summary["accuracy"],
        "upload": summary["bytes"]["per_client_round"]["up"],
        "download": summary["bytes"]["per_client_round"]["down"],
        "seconds": sum(line.seconds.train for line in lines) / max(samples * summary["config"]["epochs"], 1),
        "runtime": summary["seconds"]["total"],
        "period": _period(directory),
        "diverged": summary["diverged"],
        "partition": summary["partition"]["hash"],
        "first": first_numbers(lines[0]),
        "machine": machine(),
    }


def _what_ran(cell: TableCell) -> Record:
    return {
        "row": cell.row.key,
        "column": cell.column.key,
        "seed": cell.seed,
        "rounds": cell.amount.rounds,
        "share": cell.amount.share,
        "data": cell.amount.data,
        "config": cell.config,
    }


def first_numbers(line: Line) -> dict[str, Any]:
    """What the first round measured, number by number: a run on the same machine gives the same bits."""
    tests = {"received": line.received, "trained": line.trained}
    measured = {moment: scores.values for moment, scores in tests.items() if scores is not None}
    if line.cohort_trained is not None:
        measured["cohort_trained"] = line.cohort_trained
    return {moment: {"accuracy": values["accuracy"], "loss": values["loss"]} for moment, values in measured.items()}


def _period(directory: Path) -> float | None:
    """For how many rounds classifiers were matched: in each of them every client chose itself (FedReMa)."""
    chosen = RunDirectory(directory).store.tensors(ROWS)[0].get("value.chosen")
    return None if chosen is None else float(chosen.max())


def value_of(record: Record, measure: Measure | str, reports: Reports) -> float:
    """The number of a cell that a table shows.

    Scores are in per cent. Seconds are those of training, in 1e-4 per training sample and round, all its epochs
    together, where samples that a method sets aside to judge models by count as training samples too: the paper divides
    by |D_train|, of which they are a part. What is kept is per epoch and sample trained on.
    """
    config = record["config"]
    of_training_set = 1.0 - (config.get("validation") or 0.0)
    scale = {"score": 100.0, "seconds": 1e4 * config["epochs"] * of_training_set}.get(measure, 1.0)
    of_score = measure == "score"
    value = record["scores"][reports.moment][reports.mean][reports.round] if of_score else record[measure]
    return math.nan if value is None else scale * float(value)


def content_of(path: Path, name: str, kept: frozenset[str]) -> dict[str, Record]:
    """The records under a name in a file of results; an error if it is damaged, not whole or was edited."""
    damaged = f"results = {path}: is damaged"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CoterieError(f"{damaged} ({error}); {WAY_OUT}") from None
    require(isinstance(content, dict), f"{damaged} (it holds no {name}); {WAY_OUT}")
    require_format(f"results = {path}", content.get("format"), FORMAT, WAY_OUT)
    records: dict[str, Record] = content.get(name)
    whole = isinstance(records, dict) and all(
        isinstance(record, dict) and record.keys() >= kept for record in records.values()
    )
    require(whole, f"{damaged} (some of its {name} are not whole); {WAY_OUT}")
    for key, record in records.items():
        edited = f"results = {path}: '{key}' is not as it was written; put the file back as it was, or {WAY_OUT}"
        require(record.pop(SEAL, None) == _seal(record), edited)
    return records


def write_content(path: Path, name: str, records: Mapping[str, Record], **about: str) -> None:
    """Write records under a name into a file of results, each with a seal, by which an edit is noticed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain: dict[str, Record] = json.loads(json.dumps(records))
    content = {"format": FORMAT, **about, name: {key: {**record, SEAL: _seal(record)} for key, record in plain.items()}}
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


def _seal(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


class Results:
    """The finished cells of a table, by the digest of their configuration."""

    def __init__(self, table: PaperTable, folder: Path) -> None:
        self.table, self.path = table, folder / f"{table.key}.json"
        self.cells = self._read()

    def _read(self) -> dict[str, Record]:
        if not self.path.is_file():
            return {}
        return content_of(self.path, "cells", KEPT)

    def add(self, cell: TableCell, record: Record) -> None:
        """Take in a finished cell beside those that others have finished since, and write all down.

        It takes the place of what ran there with the settings of an earlier version of the table.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_suffix(".lock"), wait=True):
            others = {key: other for key, other in self._read().items() if _where(other) != _where(record)}
            self.cells = {**others, cell.digest: record}
            self.write()

    def write(self) -> None:
        """Write the file."""
        ordered = dict(sorted(self.cells.items(), key=lambda item: place_of(self.table, item[1])))
        write_content(self.path, "cells", ordered, table=self.table.key)

    def amounts(self) -> list[Amount]:
        """How much of the paper's runs was done, in all the ways that occur; the fullest first."""
        amounts = {amount_of(record) for record in self.cells.values()}
        return sorted(amounts, key=lambda amount: (not amount.full, -amount.share, -(amount.rounds or math.inf)))

    def require_current(self) -> None:
        """An error if a cell is not what the table's file now says."""
        for digest, record in self.cells.items():
            row, column = self.table.row(record["row"]), self.table.column(record["column"])
            cell = TableCell(self.table, row, column, record["seed"], amount_of(record))
            now, then = _flat(cell.config), _flat(record["config"])
            # What is new since has its default now, or the digest would differ.
            changed = sorted(key for key in then if now.get(key) != then[key])
            if changed or cell.digest != digest:
                raise CoterieError(
                    f"results = {self.path}: {cell} was run with other settings than the table now has "
                    f"({', '.join(changed) or 'digest'}); run it again"
                )


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the method's options among the others."""
    return {**{key: value for key, value in config.items() if key != "set"}, **config["set"]}


def without_recorded(cells: Sequence[TableCell], folder: Path) -> list[TableCell]:
    """The cells that no results in a folder have, of whatever table; those that another table has are taken over.

    Results outlive the runs they come from: these may lie on another machine, or be deleted.
    """
    tables = {**paper_tables(), **{cell.table.key: cell.table for cell in cells}}
    kept = {key: Results(table, folder) for key, table in tables.items()}
    recorded = {digest: record for results in kept.values() for digest, record in results.cells.items()}
    for cell in cells:
        if cell.digest in recorded and cell.digest not in kept[cell.table.key].cells:
            kept[cell.table.key].add(cell, {**recorded[cell.digest], **_what_ran(cell)})
    return [cell for cell in cells if cell.digest not in recorded]


def amount_of(record: Record) -> Amount:
    """How much of the paper's run a record is of."""
    return Amount(record["rounds"], record["share"], record["data"])


def _where(record: Record) -> tuple[object, ...]:
    """Which cell of its table a record is of."""
    return record["row"], record["column"], record["seed"], amount_of(record)


def place_of(table: PaperTable, record: Record) -> tuple[int, ...]:
    """Where a record stands among those of its table: by column, row, seed and, the most first, rounds."""
    rows, columns = [row.key for row in table.rows], [column.key for column in table.columns]
    return columns.index(record["column"]), rows.index(record["row"]), record["seed"], -(record["rounds"] or 10**9)
