"""The columns that a table of runs can have: every recorded moment, mean and reading, and what runs cost."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from coterie.client.effort import FORWARD
from coterie.compare.cell import Summary
from coterie.core.numbers import ACCURACY, Scale, judged_scale
from coterie.core.task.base import LOSS
from coterie.errors import CoterieError, require
from coterie.rounds.evaluate import MOMENTS
from coterie.runs.history import EFFORT, TUNING
from coterie.runs.reports import OVER, ROUNDS

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
    columns = [*_scores(judged, ""), *(one for scale in others.values() for one in _scores(scale, f"{scale.name}."))]
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
    found: dict[str, Column] = {}
    for name in names or USUAL:
        column = known.get(name) or by_key.get(name)
        if column is None:
            raise _unknown(name, known)
        require(column.key not in found, f"column '{name}' is given twice")
        found[column.key] = column
    return found


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
    found: Any = summary
    for step in path:
        if not isinstance(found, dict) or step not in found:
            return None
        found = found[step]
    return found


def _number(summary: Summary, path: Sequence[str]) -> float:
    found = _found(summary, path)
    return math.nan if found is None else float(found)


def _tuning(summary: Summary) -> float:
    return float(summary[EFFORT].get(TUNING, 0)) if EFFORT in summary else math.nan


def _sum(summary: Summary, path: Sequence[str]) -> float:
    found = _found(summary, path)
    return math.nan if found is None else float(sum(found.values()))
