"""Rows of runs with numbers in columns: means over seeds, their spread, and who wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from coterie.compare.cell import Summary
from coterie.compare.columns import Column, chosen_columns
from coterie.compare.remarks import effort_remark, rising_remark, same_remark
from coterie.core.numbers import CLEAR, ENOUGH_SEEDS, Number, Scale, clear_sign, judged_scale
from coterie.errors import unknown


@dataclass(frozen=True)
class Grid:
    """Rows by name, each with the summaries of its seeds; `chosen` names the columns (none: the usual ones).

    A *winner* of a metric's column is the row with the best mean over seeds, if its lead over every other row is clear
    (`coterie.core.numbers.clear_sign`): paired by seed, with three seeds or more, all differences have one sign, and
    their mean is larger than their standard deviation. Otherwise the seeds could explain the difference and
    nobody wins.
    """

    rows: Mapping[str, Mapping[int, Summary]]
    chosen: Sequence[str] = ()

    @cached_property
    def _first(self) -> Summary:
        return next(summary for runs in self.rows.values() for summary in runs.values())

    @property
    def scale(self) -> Scale:
        """That of the metric that the runs are judged by, the same for all of them."""
        return judged_scale(self._first)

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns, by key."""
        return chosen_columns(self._first, self.chosen)

    @property
    def seeds(self) -> list[int]:
        """All seeds that occur."""
        return sorted({seed for runs in self.rows.values() for seed in runs})

    def column(self, name: str) -> Column:
        """A column by its key or its name."""
        found = self.columns.get(name) or next((one for one in self.columns.values() if one.name == name), None)
        if found is None:
            raise unknown("column of this table", name, (one.name for one in self.columns.values()))
        return found

    def number(self, row: str, column: str) -> Number:
        """A row's number in a column."""
        if row not in self.rows:
            raise unknown("method of this table", row, self.rows)
        read = self.column(column).read
        return Number({seed: read(summary) for seed, summary in self.rows[row].items()})

    def winner(self, column: str) -> str | None:
        """The row whose lead over all others is clear, if there is one."""
        scale = self.column(column).scale
        if scale is None or len(self.rows) < 2:
            return None
        numbers = {row: self.number(row, column) for row in self.rows}
        best = scale.best([number.mean for number in numbers.values()])
        first = next((row for row, number in numbers.items() if number.mean == best), None)
        if first is None:
            return None
        leads = [numbers[first].minus(number) for row, number in numbers.items() if row != first]
        ahead = 1 if scale.higher_is_better else -1
        clear = all(lead is not None and clear_sign(lead.by_seed.values()) == ahead for lead in leads)
        return first if clear else None

    def note(self, mark: str = "*") -> str:
        """What a mark in the table means, or why there is none."""
        same = len({frozenset(runs) for runs in self.rows.values()}) == 1
        return self._winners(mark) + ("" if same else " Methods ran with different seeds; those that two share count.")

    def remarks(self) -> list[str]:
        """What else must be known to compare the rows: unequal work, unfinished training, equal numbers."""
        found = (
            effort_remark(self.rows),
            rising_remark(self.rows, self.scale),
            same_remark(self.rows, self.columns.values()),
        )
        return [line for line in found if line]

    def _winners(self, mark: str) -> str:
        if len(self.rows) < 2:
            return "No winner is marked: there is only one method."
        if max(map(len, self.rows.values())) < ENOUGH_SEEDS:
            return f"No winner is marked: that takes {ENOUGH_SEEDS} seeds or more (--seeds 0 1 2)."
        if any(self.winner(column) for column in self.columns):
            return f"{mark} {RULE}."
        return f"No winner is marked: {RULE}; here nobody has one."


RULE = f"a winner has the best mean and a clear lead over every other method: {CLEAR}"
"""Who wins, in words: the line under a table."""
