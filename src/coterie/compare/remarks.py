"""What a reader of a table must know to read it right, a line each: unequal work, unfinished training, equal rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.compare.cell import Summary
from coterie.compare.columns import Column
from coterie.core.numbers import Scale
from coterie.runs.history import EFFORT, TUNING

Runs = Mapping[str, Mapping[int, Summary]]
"""Rows by name, each with the summaries of its seeds."""
RISE = 0.005
"""How far the last round must lie above the mean of the last five: half a point, or so much of any other metric."""
ALIKE = 1e-3
"""Scores are the same if they are as far as a table shows them: a tenth of a point, or so much of any other metric."""


def effort_remark(runs: Runs) -> str:
    """Which methods compute more gradients than others, by what these train; empty if none does.

    >>> def told(tuning=None, **steps):
    ...     return {0: {"effort": {"steps": steps, **({"tuning": tuning} if tuning else {})}}}
    >>> effort_remark({"fedavg": told(model=25.0), "local": told(model=25.0), "ditto": told(model=25.0, personal=25.0)})
    'Gradients of a client and round differ: 25 model, 25 personal (ditto); 25 model (the others).'
    >>> effort_remark({"fedavg": told(model=5.0), "fedavg-ft": told(model=5.0, tuning=5.0)})
    'Gradients of a client and round differ: 5 model (fedavg); 5 model, 5 to tune before a test (fedavg-ft).'
    >>> effort_remark({"fedavg": told(model=5.0), "fedper": told(model=5.0), "an old run": {0: {}}})
    ''
    """
    efforts = {row: _mean_effort(seeds.values()) for row, seeds in runs.items()}
    told = {row: effort for row, effort in efforts.items() if effort}
    totals = {
        _rounded((sum(steps.values()) - steps.get(TUNING, 0.0), steps.get(TUNING, 0.0))) for steps in told.values()
    }
    return f"Gradients of a client and round differ: {_by_effort(told)}." if len(totals) > 1 else ""


def effort_text(effort: Mapping[str, Any]) -> str:
    """An effort in words, by what is trained; what tuning before a test takes comes last.

    >>> effort_text({"steps": {"classifier": 2.0, "extractor": 2.5, "blend": 0.0}, "tuning": 5.0})
    '2 classifier, 2.5 extractor, 5 to tune before a test'
    """
    parts = [f"{_plain(count)} {moves}" for moves, count in effort["steps"].items() if count]
    tuning = [f"{_plain(effort[TUNING])} to tune before a test"] if effort.get(TUNING) else []
    return ", ".join([*parts, *tuning]) or "none"


def _mean_effort(summaries: Iterable[Summary]) -> dict[str, float]:
    """Gradients by what they train, the mean over runs, and under `tuning` those of a test; nothing if not told."""
    told = [{**one[EFFORT]["steps"], TUNING: one[EFFORT].get(TUNING, 0.0)} for one in summaries if EFFORT in one]
    kinds = dict.fromkeys(kind for one in told for kind in one)
    return {kind: sum(one.get(kind, 0.0) for one in told) / len(told) for kind in kinds}


def _by_effort(told: Mapping[str, Mapping[str, float]]) -> str:
    takers: dict[str, list[str]] = {}
    for row, steps in told.items():
        words = effort_text({"steps": {kind: n for kind, n in steps.items() if kind != TUNING}, TUNING: steps[TUNING]})
        takers.setdefault(words, []).append(row)
    ordered = sorted(takers.items(), key=lambda item: len(item[1]))
    crowd = ordered[-1][1] if len(ordered[-1][1]) > len(ordered[-2][1]) and len(ordered[-1][1]) > 1 else None
    return "; ".join(f"{words} ({'the others' if rows is crowd else ', '.join(rows)})" for words, rows in ordered)


def _plain(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")


def _rounded(numbers: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(number, 1) for number in numbers)


def rising_remark(runs: Runs, scale: Scale) -> str:
    """Which methods were still getting better when they ended; empty if none was.

    A method is, if its last round lies above the mean of its last five in every seed, by half a point on average.

    >>> def told(last, five):
    ...     return {0: {"accuracy": {"received": {"mean": {"last": last, "last5": five}}}}}
    >>> rising_remark({"slow": told(0.7, 0.65), "done": told(0.7, 0.699)}, Scale("accuracy", share=True))
    'Still rising at the end (last round against the last five): slow (received +5.0).'
    """
    rising = [f"{row} ({', '.join(moments)})" for row in sorted(runs) if (moments := _rises(runs[row], scale))]
    return f"Still rising at the end (last round against the last five): {', '.join(rising)}." if rising else ""


def _rises(seeds: Mapping[int, Summary], scale: Scale) -> list[str]:
    """At which moments a method rises, and by how much."""
    found: list[str] = []
    for moment in ("received", "trained"):
        means = [summary.get(scale.name, {}).get(moment, {}).get("mean", {}) for summary in seeds.values()]
        pairs = [(one.get("last"), one.get("last5")) for one in means]
        if not pairs or any(last is None or five is None for last, five in pairs):
            continue
        ahead = 1 if scale.higher_is_better else -1
        unit = 1.0 if scale.share else max(abs(last) for last, _ in pairs) or 1.0
        rises = [ahead * (last - five) / unit for last, five in pairs]
        mean = sum(rises) / len(rises)
        if min(rises) > 0 and mean >= RISE:
            found.append(f"{moment} +{100 * mean:.1f}{'' if scale.share else ' %'}")
    return found


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


def edge_remark(names: Sequence[str], best: str) -> str:
    """Whether the best of some settings is at the end of what was tried of a number; empty if it is not.

    >>> edge_remark(["fedprox:lr=0.1,mu=1", "fedprox:lr=0.2,mu=1", "fedprox:lr=0.4,mu=1"], "fedprox:lr=0.4,mu=1")
    'lr = 0.4 is the largest that was tried: one beyond may be better.'
    """
    ends: list[str] = []
    tried = [settings_in(name) for name in names]
    for option, text in settings_in(best).items():
        values = {_number(one[option]) for one in tried if option in one}
        if None in values or len(values) < 2:
            continue
        numbers = sorted(value for value in values if value is not None)
        place = numbers.index(float(text))
        if (place == 0 and numbers[0] != 0) or place == len(numbers) - 1:  # below 0 few options go
            ends.append(f"{option} = {text} is the {'largest' if place else 'smallest'} that was tried")
    return f"{'; '.join(ends)}: one beyond may be better." if ends else ""


def settings_in(entry: str) -> dict[str, str]:
    """The settings that an entry names behind its method.

    >>> settings_in("pfedcs:beta=3,lr=0.1")
    {'beta': '3', 'lr': '0.1'}
    """
    return dict(re.findall(r"[:,](\w+)=([^,]*)", entry))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
