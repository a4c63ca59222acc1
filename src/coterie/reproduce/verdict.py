"""Paper against ours: numbers, ranks, and whether what the paper claims can be seen here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean

from scipy.stats import kendalltau

from coterie.core.evidence import ENOUGH_SEEDS, Evidence, clear_rivals
from coterie.core.numbers import Number
from coterie.files import silence
from coterie.reproduce.cells import Amount, TableCell
from coterie.reproduce.paper import Claim, PaperColumn, PaperRow, PaperTable
from coterie.reproduce.store import Record, Results, value_of
from coterie.runs.experiment import Experiment

FROM_SIX, FROM_FOUR = 6, 4
"""Fewer methods have too few orders for a rank correlation to say anything; within a kind, fewer than four."""
DEVIATIONS, POINTS = 3.0, 2.0
"""Ours differs from the paper if by more than so many standard deviations, or so many points where it gives none."""
LEVEL = 0.5
"""Points: a difference within these is none that matters."""


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
        """Whether a difference to the paper's number means anything: the same data, all of them, in all rounds."""
        return self.amount.full and self.column.measure == "score"

    def difference(self, row: PaperRow) -> float | None:
        """Ours minus the paper's."""
        paper = self.paper(row)
        return self.ours(row).mean - paper[0] if paper is not None and self.comparable else None

    def differs(self, row: PaperRow) -> bool:
        """Whether a cell that ran in full is farther from the paper's than both spreads together explain."""
        paper, difference = self.paper(row), self.difference(row)
        if paper is None or difference is None:
            return False
        return abs(difference) > (
            POINTS if paper[1] is None else DEVIATIONS * math.hypot(paper[1], self.ours(row).std or 0.0)
        )

    @property
    def ranked(self) -> list[PaperRow]:
        """The rows that have a rank: those with the paper's number and ours; variants have none."""
        return [row for row in self.rows if self.paper(row) is not None and not row.variant]

    @property
    def common_seeds(self) -> list[int]:
        """The seeds that all ranked rows have: with another seed, clients may have easier or harder data."""
        return sorted(set.intersection(*(set(self.records[row.key]) for row in self.ranked))) if self.ranked else []

    def common(self, row: PaperRow) -> float:
        """Our mean of a ranked row, by the seeds that all of these have: what its rank is about."""
        return fmean(self.ours(row).by_seed[seed] for seed in self.common_seeds)

    def ranks(self) -> dict[str, tuple[int, int]]:
        """The rank in the paper and in ours, by the seeds that all have; none if there is no such seed."""
        if not self.common_seeds:
            return {}
        theirs = _ranks({row.key: _first(self.paper(row)) for row in self.ranked}, self.column.measure)
        ours = _ranks({row.key: self.common(row) for row in self.ranked}, self.column.measure)
        return {row.key: (theirs[row.key], ours[row.key]) for row in self.ranked}

    def agreement(self) -> list[RankAgreement]:
        """Kendall's tau of the two orders, then within the methods with one model for all, and within the others.

        That personal models are ahead of one for all, or behind, can make most of the first.
        """
        if len(self.ranks()) < FROM_SIX:
            return []
        one_model = [row for row in self.ranked if has_one_model(row.method_name)]
        personal = [row for row in self.ranked if row not in one_model]
        parts = [
            ("all methods", self.ranked),
            *(
                (name, rows)
                for name, rows in (("personal", personal), ("one model for all", one_model))
                if len(rows) >= FROM_FOUR
            ),
        ]
        return [RankAgreement(name, len(rows), self._tau(rows)) for name, rows in parts]

    def _tau(self, rows: Sequence[PaperRow]) -> float:
        theirs, ours = [_first(self.paper(row)) for row in rows], [self.common(row) for row in rows]
        return float(kendalltau(theirs, ours).statistic)

    def verdicts(self) -> list[Verdict]:
        """The lead of the proposed method, and the paper's claims, as far as what they are about has run."""
        verdicts = [
            self.lead() if self.column.measure == "score" else None,
            *(self._claim(claim) for claim in self.table.claims),
        ]
        return [verdict for verdict in verdicts if verdict is not None]

    def lead(self, moment: str = "") -> Verdict | None:
        """By how much the proposed method leads: each tested as the paper did, or all of them at one moment.

        Against each rival the seeds count that both have, and Holm's correction allows for their number.
        """
        proposed = next((row for row in self.rows if row.key == self.table.proposed), None)
        rivals = [row for row in self.table.rows if row.key != self.table.proposed and not row.variant]
        ran = [row for row in rivals if row.key in self.records]
        leads = {
            row.key: difference
            for row in ran
            if proposed and (difference := self.ours(proposed, moment).minus(self.ours(row, moment))) is not None
        }
        if not leads or proposed is None:
            return None
        nearest = min(leads, key=lambda key: (math.isnan(leads[key].mean), leads[key].mean))
        published = [paper[0] for row in ran if (paper := self.paper(row)) is not None]
        paper_of_proposed = self.paper(proposed)
        lead = paper_of_proposed[0] - max(published) if paper_of_proposed is not None and published else None
        of_those = "" if all(row in ran for row in rivals if self.paper(row) is not None) else " those that ran"
        alike = f", all tested as {moment}" if moment else ""
        text = f"{proposed.title} leads{of_those} (ours: against {self.table.row(nearest).title}{alike})"
        return Verdict(text, lead, leads[nearest], self._word_of_leads(leads, nearest, lead))

    def _word_of_leads(self, leads: Mapping[str, Number], nearest: str, paper: float | None) -> str:
        """Whether the proposed method is ahead of every rival, or behind where the paper has it so."""
        sign = 1 if paper is None or paper >= 0 else -1
        clear = clear_rivals({key: lead.evidence for key, lead in leads.items()})
        if sign > 0 and len(leads) > 1 and (behind := [key for key in leads if clear[key] < 0]) and not self.hindrance:
            return f"does not hold: {' and '.join(self.table.row(key).title for key in behind)} ahead"
        return word_of(leads[nearest], paper, sign * clear[nearest], LEVEL, self.hindrance)

    @property
    def hindrance(self) -> str:
        """Why nothing that runs here can refute the paper; empty if it can."""
        return "" if self.amount.full else f"not the paper's run: {self.amount}"

    def _claim(self, claim: Claim) -> Verdict | None:
        about = self.column.key in claim.columns if claim.columns else self.column.measure == "score"
        if not about or {claim.better, claim.worse} - self.records.keys():
            return None
        ours = self._difference(claim.better, claim.worse)
        paper = self._published(claim)
        if ours is None or (paper is None and not claim.columns):
            return None
        evidence, level = ours.evidence, LEVEL if self.column.measure == "score" else 0.0
        sign = 1 if paper is None or paper >= 0 else -1
        hindrance = self.hindrance or self._turned_by(claim, sign * evidence.direction)
        word = word_of(ours, paper, level=level, hindrance=hindrance)
        return Verdict(claim.text, paper, ours, word, self.column.measure)

    def _difference(self, better: str, worse: str) -> Number | None:
        """By how much one row is better than another, seed by seed: of what costs, less is."""
        pair = [self.table.row(better), self.table.row(worse)]
        more, less = pair if self.column.measure == "score" else pair[::-1]
        return self.ours(more).minus(self.ours(less))

    def _published(self, claim: Claim) -> float | None:
        pair = [self.paper(self.table.row(claim.better)), self.paper(self.table.row(claim.worse))]
        more, less = pair if self.column.measure == "score" else pair[::-1]
        return None if more is None or less is None else more[0] - less[0]

    def _turned_by(self, claim: Claim, direction: int) -> str:
        """The other reading of what the paper leaves open under which the difference points the other way, if any."""
        for better, worse in claim.readings:
            if {better, worse} <= self.records.keys():
                other = self._difference(better, worse)
                if other is not None and other.evidence.direction == -direction:
                    return f"it turns with {self.table.row(worse).title}"
        return ""


@dataclass(frozen=True)
class RankAgreement:
    """How far two orders of some methods agree: Kendall's tau."""

    among: str
    methods: int
    tau: float


@cache
def has_one_model(method: str) -> bool:
    """Whether all clients have the same model, which they do not tune before a test.

    >>> has_one_model("fedavg"), has_one_model("fedper"), has_one_model("per-fedavg")
    (True, False, False)
    """
    with silence():
        prepared = Experiment(method, rounds=1, validation=0.2).prepare()
        federation = prepared.outline()
        prepared.method.init(federation)
        return federation.is_uniform and not prepared.method.tune(federation)


def word_of(
    difference: Number, paper: float | None, clear: int | None = None, level: float = LEVEL, hindrance: str = ""
) -> str:
    """What became of a claimed difference: `clear` is 1 if it is clearly seen, -1 if clearly the other way round.

    Unless told otherwise, that is what the differences themselves say.

    With fewer than three seeds one can only say which way it points; and no run can refute the paper that is less than
    the paper's, or that depends on what the paper leaves open (`hindrance`). A difference whose interval lies within
    `level` is none. Otherwise it is open, and about so many more seeds would decide it. That it is smaller than the
    paper's is said if the interval tells.

    >>> ahead = Number({0: 1.0, 1: 1.2, 2: 0.9})
    >>> word_of(ahead, 1.0), word_of(ahead, -1.0), word_of(ahead, -1.0, hindrance="50 rounds")
    ('holds', 'does not hold: it is the other way round', 'points the other way (50 rounds)')
    >>> word_of(Number({0: -1.0}), 1.0), word_of(Number({0: 0.1, 1: -0.1, 2: 0.0}), 1.0)
    ('points the other way (1 seed)', "level within half a point; smaller than the paper's")
    >>> word_of(Number({0: 1.0, 1: 2.0, 2: 3.0}), 1.0)
    'open: about 1 more seed'
    """
    evidence, sign = difference.evidence, 1.0 if paper is None or paper >= 0 else -1.0
    if not evidence.finite:
        return "no number"
    clear = int(sign * evidence.sign) if clear is None else clear
    way = "same way" if sign * evidence.mean > 0 else "other way"
    if evidence.seeds < ENOUGH_SEEDS:
        return f"points the {way} ({_seeds(evidence.seeds)})"
    if clear > 0:
        return f"holds ({hindrance})" if hindrance else "holds"
    if clear < 0:
        return f"points the {way} ({hindrance})" if hindrance else "does not hold: it is the other way round"
    smaller = paper is not None and not hindrance and sign * evidence.interval[1 if sign > 0 else 0] < abs(paper)
    word = "level within half a point" if evidence.within(level) else f"open: {_further(evidence)}"
    return f"{word}; smaller than the paper's" if smaller else word


def _further(evidence: Evidence) -> str:
    more = evidence.further_seeds
    if more is None:
        return "more than a hundred seeds"
    return f"about {more} more seed{'s' * (more != 1)}" if more else "the correction for several rivals decides"


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _ranks(values: Mapping[str, float], measure: str) -> dict[str, int]:
    """1 is the best; equal numbers share a rank."""
    sign = -1.0 if measure == "score" else 1.0
    ordered = sorted(sign * value for value in values.values())
    return {key: ordered.index(sign * value) + 1 for key, value in values.items()}


def _first(numbers: Sequence[float | None] | None) -> float:
    assert numbers is not None
    assert numbers[0] is not None
    return numbers[0]
