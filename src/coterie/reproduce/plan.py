"""What it would take to settle the papers' claims: how large each is, how noisy, with how many seeds, at what cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from coterie.core.evidence import further_seeds
from coterie.reproduce.cells import Amount, TableCell, data_of, missing
from coterie.reproduce.paper import PaperColumn, PaperRow, PaperTable
from coterie.reproduce.store import Record, Results
from coterie.reproduce.verdict import Rebuilt, Verdict

SETTLED = ("holds", "does not hold", "level")


@dataclass(frozen=True)
class Plan:
    """What settling a claim would take. `noise` is the difference's spread over seeds, `hours` are one core's."""

    table: str
    column: str
    claim: str
    published: float
    noise: float | None
    seeds: int | None  # in all; none: more than can be told, or nothing is known of the noise
    seeds_run: int
    hours: float | None  # of what has not run yet; none: nothing like it has run
    word: str  # how it stands, or why it cannot be settled here

    @property
    def open(self) -> bool:
        """Whether running more would settle it."""
        return self.seeds is not None and not self.word.startswith((*SETTLED, "needs"))


class TablePlans:
    """The plans of a table's claims, by what has been rebuilt of it."""

    def __init__(self, table: PaperTable, results: Path) -> None:
        self.table, self.results = table, Results(table, results)
        self.rebuilt = Rebuilt(table, self.results)

    def __iter__(self) -> Iterator[Plan]:
        for column in self.table.columns:
            if column.measure == "score":
                for claim, better, worse in self._claims(column):
                    if (plan := self._plan(column, claim, better, worse)) is not None:
                        yield plan

    def _claims(self, column: PaperColumn) -> Iterator[tuple[str, PaperRow, PaperRow]]:
        """What is claimed of a column: that the proposed method leads, and what the paper says besides."""
        proposed = next((row for row in self.table.rows if row.key == self.table.proposed), None)
        published = {
            row.key: paper[0]
            for row in self.table.rows
            if not row.variant and row is not proposed and (paper := self.table.paper_number(row, column))
        }
        if proposed is not None and published:
            yield f"{proposed.title} leads", proposed, self.table.row(max(published, key=lambda key: published[key]))
        for claim in self.table.claims:
            if not claim.columns or column.key in claim.columns:
                yield claim.text, self.table.row(claim.better), self.table.row(claim.worse)

    def _plan(self, column: PaperColumn, claim: str, better: PaperRow, worse: PaperRow) -> Plan | None:
        ahead, behind = (self.table.paper_number(row, column) for row in (better, worse))
        if ahead is None or behind is None:
            return None
        effect, noise = ahead[0] - behind[0], self._noise(column, better, worse)
        seeds = None if noise is None or not effect else further_seeds(0, effect, noise)
        seeds_run = len(set.intersection(*({cell.seed for cell in self._run(column, row)} for row in (better, worse))))
        hours = None if seeds is None else self._hours(column, (better, worse), seeds)
        word = self._impossible(column, (better, worse)) or self._word(column, claim)
        return Plan(self.table.title, column.title, claim, effect, noise, seeds, seeds_run, hours, word)

    def _impossible(self, column: PaperColumn, rows: Sequence[PaperRow]) -> str:
        if any(not row.method_name for row in rows):
            return f"needs {' and '.join(row.title for row in rows if not row.method_name)}, which is not here"
        lacking = {data_of(self.table, row, column) for row in rows if missing(data_of(self.table, row, column))}
        return f"needs {' and '.join(sorted(lacking))}, which is not on this machine" if lacking else ""

    def _word(self, column: PaperColumn, claim: str) -> str:
        """How the claim stands after what has run in full."""
        verdicts: list[Verdict] = self.rebuilt.column(column, Amount()).verdicts()
        word = next((verdict.word for verdict in verdicts if verdict.claim.startswith(claim)), "")
        return word or "not run"

    def _run(self, column: PaperColumn, row: PaperRow) -> list[TableCell]:
        """The cells of a row that have run in full."""
        cells = (TableCell(self.table, row, column, seed) for seed in self.rebuilt.seeds if row.method_name)
        return [cell for cell in cells if cell.digest in self.results.cells]

    @cached_property
    def _noises(self) -> list[float]:
        """The spread of every pair of rows that has run with several seeds, in whatever column."""
        pairs = (
            part.ours(first).minus(part.ours(second))
            for part in self.rebuilt.parts
            if part.column.measure == "score"
            for place, first in enumerate(part.rows)
            for second in part.rows[:place]
        )
        return [pair.std for pair in pairs if pair is not None and pair.std is not None]

    def _noise(self, column: PaperColumn, better: PaperRow, worse: PaperRow) -> float | None:
        """How far the difference of two rows spreads over seeds: theirs, else that of the table's middle pair."""
        part = self.rebuilt.column(column, Amount())
        if {better.key, worse.key} <= part.records.keys():
            pair = part.ours(better).minus(part.ours(worse))
            if pair is not None and pair.std is not None:
                return pair.std
        return median(self._noises) if self._noises else None

    def _hours(self, column: PaperColumn, rows: Sequence[PaperRow], seeds: int) -> float | None:
        """What the cells take that are missing, at the pace of those that have run."""
        total = 0.0
        for row in rows:
            pace = self._pace(column, row)
            if pace is None:
                return None
            total += max(0, seeds - len(self._run(column, row))) * pace
        return total / 3600

    def _pace(self, column: PaperColumn, row: PaperRow) -> float | None:
        """Seconds of a whole cell: of this row, else of any; in this column, else in any."""
        of_table = list(self.results.cells.values())
        for among in (
            [record for record in of_table if record["row"] == row.key and record["column"] == column.key],
            [record for record in of_table if record["column"] == column.key],
            [record for record in of_table if record["row"] == row.key],
            of_table,
        ):
            if among:
                return median(self._whole(record) for record in among)
        return None

    def _whole(self, record: Record) -> float:
        """What a record's run would take in full."""
        row, column = self.table.row(record["row"]), self.table.column(record["column"])
        rounds = TableCell(self.table, row, column, record["seed"]).experiment.rounds
        return float(record["runtime"] * rounds / (record["rounds"] or rounds) / record["share"])
