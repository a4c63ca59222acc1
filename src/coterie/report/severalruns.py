"""What a report says of several runs together, as plain values. Runs that differ in the seed alone are one method."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from coterie.compare.grid import Grid
from coterie.compare.one_run import Summary
from coterie.compare.remarks import settings_note
from coterie.core.numbers import Scale
from coterie.errors import CoterieError
from coterie.report.classes import class_counts
from coterie.report.grids import cell_text
from coterie.report.onerun import spoken_method
from coterie.report.quality import methods_quality
from coterie.report.reading import ReportedRun
from coterie.report.rounding import Content, rounded
from coterie.rounds.evaluate import MOMENTS, Moment, over_rounds
from coterie.runs.history import EFFORT
from coterie.setup.config import PLUGINS
from coterie.setup.identity import HOW

# Gains smaller than this are none.
SAME = 1e-9
LOCAL = "local"


@dataclass(frozen=True, eq=False)
class Contender:
    """A method with its settings, and its runs, one for each seed."""

    title: str
    runs: tuple[ReportedRun, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs."""
        return tuple(int(run.config["seed"]) for run in self.runs)


def comparable(runs: Sequence[ReportedRun]) -> tuple[list[ReportedRun], list[str]]:
    """The runs that one figure can hold, those like the first; and in words why the others are left out."""
    kept: list[ReportedRun] = []
    left_out: list[str] = []
    tested = [run for run in runs if run.rounds("received")]
    for run in runs:
        if run not in tested:
            left_out.append(f"{run.name}: left out of the comparison, since no round of it was tested")
        elif run.config["data"] != tested[0].config["data"]:
            data = tested[0].config["data"]
            left_out.append(f"{run.name}: left out of the comparison: its data set is {run.config['data']}, not {data}")
        elif run.scale != tested[0].scale:
            judged = tested[0].scale.name
            left_out.append(f"{run.name}: left out of the comparison: it is judged by {run.scale.name}, not {judged}")
        elif any(_same_settings(run) == _same_settings(one) and _seed(run) == _seed(one) for one in kept):
            left_out.append(f"{run.name}: left out of the comparison: another run has the same settings and seed")
        else:
            kept.append(run)
    return kept, left_out


def contenders(runs: Sequence[ReportedRun]) -> list[Contender]:
    """The runs by method and settings; titles name the settings in which methods of one name differ."""
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault(_same_settings(run), []).append(run)
    by_seed = [tuple(sorted(group, key=_seed)) for group in groups.values()]
    return [Contender(_title(own[0], [other[0] for other in by_seed]), own) for own in by_seed]


def several_content(runs: Sequence[ReportedRun]) -> tuple[Content | None, list[str]]:
    """The content of the comparison, if there is one, and in words what is left out or to be minded."""
    kept, notes = comparable(runs)
    if len(kept) < 2:
        return None, [*notes, "there are no two runs to compare"]
    found = contenders(kept)
    for seed, partitions in _partitions(kept).items():
        if len(partitions) > 1:
            notes.append(
                f"the runs with seed {seed} are on {len(partitions)} different partitions: their differences are not "
                "the methods' alone"
            )
    return contenders_content(found, notes), notes


def contenders_content(found: Sequence[Contender], notes: list[str]) -> Content:
    """The content of a comparison of some methods; what is to be minded is added to the notes."""
    return {
        "metric": metric_content(found[0].runs[0].scale),
        "methods": [_method(one, notes) for one in found],
        "table": _table(found),
        "gains": _gains(found),
        "quality": methods_quality({one.title: one.runs for one in found}, _class_names(found[0].runs[0])),
    }


def metric_content(scale: Scale) -> Content:
    """What figures need to know of a metric."""
    return {"name": scale.name, "share": scale.share, "higher": scale.higher_is_better}


def _class_names(run: ReportedRun) -> Sequence[str] | None:
    try:
        return class_counts(run).names
    except CoterieError:
        return None


def _seed(run: ReportedRun) -> int:
    return int(run.config["seed"])


def _settings(run: ReportedRun) -> dict[str, Any]:
    """What makes a run's result, but for the seed; methods' options among the settings."""
    kept = {key: value for key, value in run.config.items() if key not in HOW | {"seed", "set", PLUGINS}}
    return {**kept, **run.config.get("set", {})}


def _same_settings(run: ReportedRun) -> str:
    return json.dumps(_settings(run), sort_keys=True, default=str)


def _title(run: ReportedRun, others: Sequence[ReportedRun]) -> str:
    """The method's name, and the settings by which it differs from others of that name."""
    ours = _settings(run)
    rivals = [_settings(one) for one in others if one.config["method"] == run.config["method"]]
    differing = [key for key in ours if any(key not in one or one[key] != ours[key] for one in rivals)]
    told = ", ".join(f"{key}={ours[key]}" for key in differing)
    return spoken_method(run) + (f" ({told})" if told else "")


def _partitions(runs: Sequence[ReportedRun]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for run in runs:
        if run.partition is not None:
            found.setdefault(_seed(run), set()).add(run.partition.whole().hash)
    return found


def _method(one: Contender, notes: list[str]) -> Content:
    """A method's curves over its seeds, and what it had cost at each tested round."""
    return {
        "title": one.title,
        "seeds": list(one.seeds),
        "curves": {moment: _curve(one, moment, notes) for moment in MOMENTS if all(r.rounds(moment) for r in one.runs)},
    }


def _curve(one: Contender, moment: Moment, notes: list[str]) -> Content:
    """The mean over seeds of the mean over clients, in the rounds in which all of the seeds were tested."""
    shared = sorted(set.intersection(*(set(run.rounds(moment)) for run in one.runs)))
    if any(len(run.rounds(moment)) > len(shared) for run in one.runs) and moment == "received":
        notes.append(f"{one.title}: its seeds were not tested in the same rounds; curves show the {len(shared)} shared")
    means = [dict(zip(run.rounds(moment), (e.mean for e in run.evaluations(moment)), strict=True)) for run in one.runs]
    by_round = [[mean[round] for mean in means] for round in shared]
    spent = {what: [_spent(run, what) for run in one.runs] for what in ("bytes", "seconds")}
    return {
        "rounds": shared,
        "mean": rounded([fmean(values) for values in by_round]),
        "std": rounded([stdev(values) for values in by_round]) if len(means) > 1 else None,
        **{what: rounded([fmean(run[round] for run in runs) for round in shared], 3) for what, runs in spent.items()},
    }


def _spent(run: ReportedRun, what: str) -> dict[int, float]:
    """The bytes or seconds of all rounds up to each one."""
    totals = np.cumsum([getattr(line, what).total for line in run.lines])
    return dict(zip((line.round for line in run.lines), totals.tolist(), strict=True))


def _summary(run: ReportedRun) -> Summary:
    """What the table reads of a run's summary, from its rounds: runs need not be finished."""
    metric: Content = {}
    worst: dict[str, float] = {}
    for moment in MOMENTS:
        if tests := run.evaluations(moment):
            metric[moment] = {"mean": over_rounds(run.scale, [test.mean for test in tests])}
            worst[moment] = tests[-1].worst_decile
    scale = {"higher_is_better": run.scale.higher_is_better, "share": run.scale.share}
    return {
        "task": {"judged_by": run.scale.name, "metrics": {run.scale.name: scale}},
        run.scale.name: metric,
        "worst_decile": worst,
        "bytes": run.history.bytes(),
        "seconds": run.history.seconds(),
        **({EFFORT: effort} if (effort := run.history.effort()) else {}),
        "config": run.config,
    }


def _table(found: Sequence[Contender]) -> Content:
    """The comparison's table, as `coterie compare` prints it; methods are compared by the seeds they share."""
    grid = Grid(
        {one.title: {seed: _summary(run) for seed, run in zip(one.seeds, one.runs, strict=True)} for one in found}
    )
    rows = [
        {
            "method": one.title,
            "seeds": ", ".join(map(str, one.seeds)),
            "cells": [cell_text(grid, one.title, column).strip() for column in grid.columns.values()],
        }
        for one in found
    ]
    units = {"share": ", %", "bytes": "", "number": "", "count": "", "seconds": ", s"}
    return {
        "columns": [column.title + units[column.unit] for column in grid.columns.values()],
        "rows": rows,
        "note": " ".join([grid.note(), *grid.remarks()]),
        "settings": settings_note({one.title: one.runs[0].config for one in found}),
    }


def _gains(found: Sequence[Contender]) -> Content:
    """How much better each client fares than by training alone, for runs beside which there is such a run."""
    alone = {
        (_seed(run), run.partition.whole().hash): run
        for one in found
        for run in one.runs
        if run.config["method"] == LOCAL and run.partition is not None
    }
    if not alone:
        return {"moments": {}, "why": "no run of local training (coterie run local) is among the runs"}
    moments = {moment: [row for one in found if (row := _gain_row(one, alone, moment))] for moment in MOMENTS}
    if not any(moments.values()):
        return {"moments": {}, "why": "no run shares its seed and partition with a run of local training"}
    return {"moments": moments, "why": ""}


def _gain_row(one: Contender, alone: Mapping[tuple[int, str], ReportedRun], moment: Moment) -> Content | None:
    if one.runs[0].config["method"] == LOCAL:
        return None
    gains = [gain for run in one.runs for gain in _client_gains(run, alone, moment)]
    if not gains:
        return None
    return {
        "method": one.title,
        "gains": gains,
        "gained": sum(gain["gain"] > SAME for gain in gains),
        "lost": sum(gain["gain"] < -SAME for gain in gains),
        "mean": rounded([fmean(gain["gain"] for gain in gains)])[0],
    }


def _client_gains(run: ReportedRun, alone: Mapping[tuple[int, str], ReportedRun], moment: Moment) -> list[Content]:
    if run.partition is None:
        return []
    local = alone.get((_seed(run), run.partition.whole().hash))
    if local is None or local.names != run.names or not (run.rounds(moment) and local.rounds(moment)):
        return []
    ours, theirs = run.last_scores(moment), local.last_scores(moment)
    gain = ours - theirs if run.scale.higher_is_better else theirs - ours
    return [
        {"client": name, "seed": _seed(run), "gain": round(float(value), 5)}
        for name, value in zip(run.names, gain, strict=True)
        if np.isfinite(value)
    ]
