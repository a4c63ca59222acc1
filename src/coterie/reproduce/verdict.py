"""Paper against ours: numbers, ranks, and whether what the paper claims can be seen here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from scipy.stats import kendalltau

from coterie.core.numbers import ENOUGH_SEEDS, Number, clear_sign
from coterie.reproduce.cells import Amount, TableCell
from coterie.reproduce.paper import Claim, PaperColumn, PaperRow, PaperTable
from coterie.reproduce.store import Record, Results, value_of

FROM_SIX = 6
"""Fewer methods have too few orders for a rank correlation to say anything."""
DEVIATIONS, POINTS = 3.0, 2.0
"""Ours differs from the paper if by more than so many of its standard deviations, or so many points without any."""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim in a column: by how much one row is better than another, in the paper and in ours."""

    claim: str
    paper: float | None
    ours: Number
    word: str
    measure: str = "score"


class Rebuilt:
    """What there is of a table: a `Rebuilt.column(...)` for each column and amount."""

    def __init__(self, table: PaperTable, results: Results) -> None:
        self.table, self.results = table, results
        self.seeds = sorted({int(record["seed"]) for record in results.cells.values()})

    @cached_property
    def parts(self) -> list[RebuiltColumn]:
        """Every column with every amount for which anything has run, in the table's order."""
        columns = (self.column(column, amount) for column in self.table.columns for amount in self.results.amounts())
        return [part for part in columns if part.records]

    def column(self, column: PaperColumn, amount: Amount) -> RebuiltColumn:
        """What there is of a column."""
        records: dict[str, dict[int, Record]] = {}
        for row in self.table.rows:
            if row.method_name:
                cells = [TableCell(self.table, row, column, seed, amount) for seed in self.seeds]
                records_of = {cell.seed: self.results.cells.get(cell.digest) for cell in cells}
                shown = {
                    seed: record
                    for seed, record in records_of.items()
                    if record is not None and self._shown_in(column, record)
                }
                records |= {row.key: shown} if shown else {}
        return RebuiltColumn(self.table, column, amount, records)

    def _shown_in(self, column: PaperColumn, record: Record) -> bool:
        """On other data than the paper's, columns that differ by their data set alone are one: it is shown once."""
        ran_for = self.table.column(record["column"])
        alike = (ran_for.measure, ran_for.reports) == (column.measure, column.reports)
        return ran_for == column or not record["data"] or not alike


@dataclass(frozen=True)
class RebuiltColumn:
    """A column as far as it has run: records by row and seed."""

    table: PaperTable
    column: PaperColumn
    amount: Amount
    records: Mapping[str, Mapping[int, Record]]

    @property
    def rows(self) -> list[PaperRow]:
        """The rows that ran."""
        return [row for row in self.table.rows if row.key in self.records]

    def ours(self, row: PaperRow, moment: str = "") -> Number:
        """Our number of a row, at the paper's moment unless told otherwise."""
        reports = self.table.reports_of(row, self.column)
        reports = reports.changed({"moment": moment}) if moment else reports
        of_row = self.records[row.key]
        return Number({seed: value_of(record, self.column.measure, reports) for seed, record in of_row.items()})

    def paper(self, row: PaperRow) -> tuple[float, float | None] | None:
        """The paper's number of a row; none where something else was done than the paper did."""
        return self.table.paper_number(row, self.column)

    @property
    def comparable(self) -> bool:
        """Whether a difference to the paper's number means anything: the same data, all of them."""
        return self.amount.share == 1.0 and not self.amount.data and self.column.measure == "score"

    def difference(self, row: PaperRow) -> float | None:
        """Ours minus the paper's."""
        paper = self.paper(row)
        return self.ours(row).mean - paper[0] if paper is not None and self.comparable else None

    def differs(self, row: PaperRow) -> bool:
        """Whether a cell that ran in full is farther from the paper's than its spread explains."""
        paper, difference = self.paper(row), self.difference(row)
        if paper is None or difference is None or not self.amount.full:
            return False
        return abs(difference) > (POINTS if paper[1] is None else DEVIATIONS * paper[1])

    @property
    def ranked(self) -> list[PaperRow]:
        """The rows that have a rank: those with the paper's number and ours; variants have none."""
        return [row for row in self.rows if self.paper(row) is not None and not row.variant]

    @property
    def common_seeds(self) -> list[int]:
        """The seeds that all ranked rows have: with another seed, clients may have easier or harder data."""
        return sorted(set.intersection(*(set(self.records[row.key]) for row in self.ranked))) if self.ranked else []

    def ranks(self) -> dict[str, tuple[int, int]]:
        """The rank in the paper and in ours, by the seeds that all have; none if there is no such seed."""
        rows, seeds = self.ranked, self.common_seeds
        if not seeds:
            return {}
        theirs = _ranks({row.key: _first(self.paper(row)) for row in rows}, self.column.measure)
        means = {row.key: fmean(self.ours(row).by_seed[seed] for seed in seeds) for row in rows}
        ours = _ranks(means, self.column.measure)
        return {row.key: (theirs[row.key], ours[row.key]) for row in rows}

    def agreement(self) -> float | None:
        """Kendall's tau of the two orders; none with fewer than six methods."""
        ranks = list(self.ranks().values())
        if len(ranks) < FROM_SIX:
            return None
        return float(kendalltau([theirs for theirs, _ in ranks], [ours for _, ours in ranks]).statistic)

    def verdicts(self) -> list[Verdict]:
        """The lead of the proposed method, and the paper's claims, as far as what they are about has run."""
        verdicts = [
            self.lead() if self.column.measure == "score" else None,
            *(self._claim(claim) for claim in self.table.claims),
        ]
        return [verdict for verdict in verdicts if verdict is not None]

    def lead(self, moment: str = "") -> Verdict | None:
        """By how much the proposed method leads: each tested as the paper did, or all of them at one moment."""
        proposed = [row for row in self.rows if row.key == self.table.proposed]
        rivals = [row for row in self.table.rows if row.key != self.table.proposed and not row.variant]
        others = [row for row in rivals if row.key in self.records]
        differences = {
            row.key: difference
            for row in others
            if proposed and (difference := self.ours(proposed[0], moment).minus(self.ours(row, moment))) is not None
        }
        if not differences:
            return None
        ordered = sorted(differences, key=lambda key: (math.isnan(differences[key].mean), differences[key].mean))
        best = self.table.row(ordered[0])
        difference = differences[best.key]
        published = [paper[0] for row in others if (paper := self.paper(row)) is not None]
        paper_of_proposed = self.paper(proposed[0])
        lead = paper_of_proposed[0] - max(published) if paper_of_proposed is not None and published else None
        ran = "" if all(row in others for row in rivals if self.paper(row) is not None) else " those that ran"
        alike = f", all tested as {moment}" if moment else ""
        text = f"{proposed[0].title} leads{ran} (ours: against {best.title}{alike})"
        return Verdict(text, lead, difference, word_of(difference, lead))

    def _claim(self, claim: Claim) -> Verdict | None:
        about = self.column.key in claim.columns if claim.columns else self.column.measure == "score"
        if not about or {claim.better, claim.worse} - self.records.keys():
            return None
        pair = [self.table.row(claim.better), self.table.row(claim.worse)]
        more, less = pair if self.column.measure == "score" else pair[::-1]  # of what costs, less is better
        theirs = self.paper(more), self.paper(less)
        paper = None if theirs[0] is None or theirs[1] is None else theirs[0][0] - theirs[1][0]
        if paper is None and not claim.columns:
            return None
        ours = self.ours(more).minus(self.ours(less))
        return None if ours is None else Verdict(claim.text, paper, ours, word_of(ours, paper), self.column.measure)


def word_of(difference: Number, paper: float | None) -> str:
    """Whether a claimed difference is seen.

    It is with three seeds or more if every seed shows it and its mean is larger than its spread (`clear_sign`); with
    fewer, one can only say which way it points.

    >>> word_of(Number({0: 1.0, 1: 1.2, 2: 0.9}), 1.0), word_of(Number({0: -1.0}), 1.0)
    ('holds', 'points the other way (1 seed)')
    """
    values = list(difference.by_seed.values())
    sign = 1.0 if paper is None or paper >= 0 else -1.0
    if any(map(math.isnan, values)):
        return "no number"
    if len(values) < ENOUGH_SEEDS:
        seeds = "1 seed" if len(values) == 1 else f"{len(values)} seeds"
        return f"points the same way ({seeds})" if sign * fmean(values) > 0 else f"points the other way ({seeds})"
    words = {1: "holds", -1: "does not hold: it is the other way round", 0: "not seen: the seeds' spread is as large"}
    return words[clear_sign(sign * value for value in values)]


def _ranks(values: Mapping[str, float], measure: str) -> dict[str, int]:
    """1 is the best; equal numbers share a rank."""
    sign = -1.0 if measure == "score" else 1.0
    ordered = sorted(sign * value for value in values.values())
    return {key: ordered.index(sign * value) + 1 for key, value in values.items()}


def _first(numbers: Sequence[float | None] | None) -> float:
    assert numbers is not None
    assert numbers[0] is not None
    return numbers[0]
