"""A table of runs as numbers: its columns, means over seeds and their spread in rows, and who wins.

A column is a recorded moment, mean and reading, or what runs cost.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

from coterie.client.effort import FORWARD
from coterie.compare.one_run import Summary
from coterie.compare.remarks import Runs, effort_remark, rising_remark
from coterie.core.evidence import CLEAR, ENOUGH_SEEDS, clear_rivals
from coterie.core.numbers import ACCURACY, Number, Scale, judged_scale
from coterie.core.task.base import LOSS
from coterie.errors import CoterieError, require, unknown
from coterie.rounds.evaluate import MOMENTS
from coterie.runs.history import EFFORT, TUNING
from coterie.runs.protocols import OVER, ROUNDS

ALIKE = 1e-3
"""Scores are the same if they are as far as a table shows them: a tenth of a point, or so much of any other metric."""
STEPS_OF = (EFFORT, "steps")
Unit = Literal["share", "number", "count", "bytes", "seconds"]

USUAL = (
    "received.mean.best",
    "received.mean.last",
    "trained.mean.best",
    "trained.mean.last",
    "worst_decile.received",
    "steps",
    "forward",
    "bytes",
    "seconds",
)
"""The columns of a table unless others are named."""


@dataclass(frozen=True)
class Column:
    """A column: its title says which moment, which mean and which round. It is asked for by its name."""

    name: str
    key: str
    title: str
    unit: Unit
    read: Callable[[Summary], float]
    scale: Scale | None = None  # of a column that somebody may win


def known_columns(summary: Summary) -> dict[str, Column]:
    """The columns that runs like this one can have, by name. Bytes are those up and down together, unless told apart.

    >>> len(known_columns({})) > 30, known_columns({})["stored.weighted.last"].title
    (True, 'stored weighted last')
    """
    judged = judged_scale(summary)
    others = {
        name: Scale(name, **about)
        for name, about in summary.get("task", {}).get("metrics", {}).items()
        if name not in (judged.name, LOSS)
    }
    columns = [
        *_scores(judged, ""),
        *(column for scale in others.values() for column in _scores(scale, f"{scale.name}.")),
    ]
    for moment in MOMENTS:
        columns += [
            _judged(
                judged,
                f"validation.{moment}.{mean}.{at}",
                f"validation_{moment}_{mean}_{at}",
                ("validation", judged.name, moment, mean, at),
            )
            for mean in OVER
            for at in ROUNDS
            if at != "by_validation"
        ]
        columns += [
            _judged(judged, f"worst_decile.{moment}", f"{moment}_worst_decile_last", ("worst_decile", moment)),
            _spread(judged, moment),
        ]
    if judged == ACCURACY:
        columns += [_plain_score(name) for name in ("macro_f1", "auc")]
    return {column.name: column for column in (*columns, *_costs())}


def chosen_columns(summary: Summary, names: Sequence[str]) -> dict[str, Column]:
    """The columns of some names (none: the usual ones), by key; an error names the nearest for a typo.

    >>> list(chosen_columns({}, ["bytes", "received.mean.last"]))
    ['bytes_per_client_round', 'received_mean_last']
    """
    known = known_columns(summary)
    by_key = {column.key: column for column in known.values()}
    chosen: dict[str, Column] = {}
    for name in names or USUAL:
        column = known.get(name) or by_key.get(name)
        if column is None:
            raise _unknown(name, known)
        require(column.key not in chosen, f"column '{name}' is given twice")
        chosen[column.key] = column
    return chosen


def _unknown(name: str, known: Mapping[str, Column]) -> CoterieError:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    curves = ".".join("|".join(part) for part in (MOMENTS, OVER, ROUNDS))
    rest = [other for other in known if other.count(".") < 2]
    return CoterieError(
        f"unknown column '{name}'{hint} (allowed: {curves}, the same after 'validation.', {', '.join(rest)})"
    )


def _scores(scale: Scale, prefix: str) -> list[Column]:
    """All readings of a metric."""
    return [
        _judged(scale, f"{prefix}{moment}.{mean}.{at}", f"{moment}_{mean}_{at}", (scale.name, moment, mean, at), prefix)
        for moment in MOMENTS
        for mean in OVER
        for at in ROUNDS
    ]


def _judged(scale: Scale, name: str, key: str, path: Sequence[str], prefix: str = "") -> Column:
    # Most runs are judged by accuracy, which titles do not repeat.
    words = key.replace("_", " ") if scale == ACCURACY else f"{scale.name} {key.replace('_', ' ')}"
    unique = f"{scale.name}_{key}" if prefix else key
    return Column(name, unique, words, _unit(scale), partial(_number, path=tuple(path)), scale)


def _spread(scale: Scale, moment: str) -> Column:
    """The standard deviation over clients, which nobody wins: all may be equally bad."""
    words = f"{moment} deviation over clients last"
    return Column(
        f"std.{moment}", f"{moment}_std_last", words, _unit(scale), partial(_number, path=("std", moment)), None
    )


def _plain_score(name: str) -> Column:
    reader = partial(_number, path=(name,))
    return Column(name, name, f"{name.replace('_', ' ')} last", "share", reader, Scale(name, share=True))


def _costs() -> list[Column]:
    each = ("bytes", "per_client_round")
    return [
        Column("steps", "steps_per_client_round", "steps per client round", "count", partial(_sum, path=STEPS_OF)),
        Column(
            "forward", "forward_per_client_round", "samples forward", "count", partial(_number, path=(EFFORT, FORWARD))
        ),
        Column("tuning", "tuning_steps_per_test", "tuning steps", "count", _tuning),
        Column("bytes", "bytes_per_client_round", "bytes per client round", "bytes", partial(_sum, path=each)),
        *(
            Column(
                f"bytes.{way}",
                f"bytes_{way}_per_client_round",
                f"bytes {way} per client round",
                "bytes",
                partial(_number, path=(*each, way)),
            )
            for way in ("up", "down")
        ),
        Column("bytes.total", "bytes_total", "bytes total", "bytes", partial(_number, path=("bytes", "total"))),
        Column(
            "seconds",
            "seconds_per_round",
            "seconds per round",
            "seconds",
            partial(_sum, path=("seconds", "per_round")),
        ),
        Column(
            "seconds.total", "seconds_total", "seconds total", "seconds", partial(_number, path=("seconds", "total"))
        ),
    ]


def _unit(scale: Scale) -> Unit:
    return "share" if scale.share else "number"


def _found(summary: Summary, path: Sequence[str]) -> Any:
    """What stands at a place in a summary; nothing where a run has no such number."""
    value: Any = summary
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def _number(summary: Summary, path: Sequence[str]) -> float:
    value = _found(summary, path)
    return math.nan if value is None else float(value)


def _tuning(summary: Summary) -> float:
    return float(summary[EFFORT].get(TUNING, 0)) if EFFORT in summary else math.nan


def _sum(summary: Summary, path: Sequence[str]) -> float:
    values = _found(summary, path)
    return math.nan if values is None else float(sum(values.values()))


@dataclass(frozen=True)
class Grid:
    """Rows by name, each with the summaries of its seeds; `chosen` names the columns (none: the usual ones).

    A *winner* of a metric's column is the row with the best mean over seeds, if its lead over every other row is clear
    (`coterie.core.evidence.clear_rivals`): paired by seed, with three seeds or more, the 95 % interval of the
    difference leaves out zero, several rivals being allowed for. Otherwise the seeds could explain the difference and
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
        chosen = self.columns.get(name) or next(
            (column for column in self.columns.values() if column.name == name), None
        )
        if chosen is None:
            raise unknown("column of this table", name, (column.name for column in self.columns.values()))
        return chosen

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
        leads = {row: numbers[first].minus(number) for row, number in numbers.items() if row != first}
        evidence = {row: lead.evidence for row, lead in leads.items() if lead is not None}
        ahead = 1 if scale.higher_is_better else -1
        clear = clear_rivals(evidence)
        return first if all(clear.get(row) == ahead for row in leads) else None

    def note(self, mark: str = "*") -> str:
        """What a mark in the table means, or why there is none."""
        same = len({frozenset(runs) for runs in self.rows.values()}) == 1
        return self._winners(mark) + ("" if same else " Methods ran with different seeds; those that two share count.")

    def remarks(self) -> list[str]:
        """What else must be known to compare the rows: unequal work, unfinished training, equal numbers."""
        lines = (
            effort_remark(self.rows),
            rising_remark(self.rows, self.scale),
            same_remark(self.rows, self.columns.values()),
        )
        return [line for line in lines if line]

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


def same_remark(runs: Runs, columns: Iterable[Column]) -> str:
    """Which rows have the same scores in every column and seed, as far as a table shows them; empty if none have."""
    scored = [column for column in columns if column.scale is not None]
    rows: dict[tuple[object, ...], list[str]] = {}
    for row, seeds in runs.items():
        numbers = [_shown(column, summary) for column in scored for summary in seeds.values()]
        if any(number is not None for number in numbers):
            rows.setdefault((*seeds, *numbers), []).append(row)
    same = sorted(" and ".join(sorted(names)) for names in rows.values() if len(names) > 1)
    return f"The same numbers, so that they count once: {'; '.join(same)}." if same else ""


def _shown(column: Column, summary: Summary) -> float | None:
    """A score as a table shows it."""
    value = column.read(summary)
    if not math.isfinite(value):
        return None
    assert column.scale is not None
    return round(value / ALIKE) if column.scale.share else float(f"{value:.3g}")
