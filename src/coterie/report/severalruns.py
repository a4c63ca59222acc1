"""What a report says of several runs together, as plain values. Runs that differ in the seed alone are one method."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from msgspec import Struct

from coterie.compare.grid import Grid
from coterie.compare.one_run import Summary
from coterie.compare.remarks import settings_note
from coterie.compare.sweep import SWEEP
from coterie.compare.table import run_folder
from coterie.core.task.quality import calibration_errors, recalls
from coterie.errors import CoterieError
from coterie.report.html import Content, rounded
from coterie.report.onerun import (
    Counts,
    calibration_curve,
    class_counts,
    class_titles,
    merged,
    metric_content,
    run_quality,
    spoken_method,
)
from coterie.report.reading import ReportedRun
from coterie.report.tables import cell_text
from coterie.rounds.evaluate import MOMENTS, Moment, over_rounds
from coterie.runs.history import EFFORT, numbers
from coterie.runs.record import decoded
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
        return tuple(run.seed for run in self.runs)


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
        elif any(_same_settings(run) == _same_settings(other) and run.seed == other.seed for other in kept):
            left_out.append(f"{run.name}: left out of the comparison: another run has the same settings and seed")
        else:
            kept.append(run)
    return kept, left_out


def contenders(runs: Sequence[ReportedRun]) -> list[Contender]:
    """The runs by method and settings; titles name the settings in which methods of one name differ."""
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault(_same_settings(run), []).append(run)
    by_seed = [tuple(sorted(group, key=lambda run: run.seed)) for group in groups.values()]
    firsts = [group[0] for group in by_seed]
    return [Contender(_title(group[0], firsts), group) for group in by_seed]


def several_content(runs: Sequence[ReportedRun]) -> tuple[Content | None, list[str]]:
    """The content of the comparison, if there is one, and in words what is left out or to be minded."""
    kept, notes = comparable(runs)
    if len(kept) < 2:
        return None, [*notes, "there are no two runs to compare"]
    partitions_of: dict[int, set[str]] = {}
    for run in kept:
        if run.partition is not None:
            partitions_of.setdefault(run.seed, set()).add(run.partition.whole().hash)
    for seed, partitions in partitions_of.items():
        if len(partitions) > 1:
            notes.append(
                f"the runs with seed {seed} are on {len(partitions)} different partitions: their differences are not "
                "the methods' alone"
            )
    return contenders_content(contenders(kept), notes), notes


def contenders_content(methods: Sequence[Contender], notes: list[str]) -> Content:
    """The content of a comparison of some methods; what is to be minded is added to the notes."""
    return {
        "metric": metric_content(methods[0].runs[0].scale),
        "methods": [_method(method, notes) for method in methods],
        "table": _table(methods),
        "gains": _gains(methods),
        "quality": _methods_quality(methods),
    }


def _methods_quality(methods: Sequence[Contender]) -> Content:
    """What several methods are worth beyond their score: clients of all seeds are counted together."""
    contents: list[Content] = []
    classes: list[str] = []
    for method in methods:
        kept: list[tuple[ReportedRun, Counts]] = []
        for run in method.runs:
            with suppress(CoterieError):  # the run's own part of the page says so
                kept.append((run, run_quality(run)))
        if not kept or len(classes) not in (0, kept[0][1]["support"].shape[-1]):
            continue
        together = merged([counts for _, counts in kept])
        classes = classes or class_titles(_class_names(methods[0].runs[0]), together)
        dots = [
            {"client": name, "seed": run.seed, "auc": auc, "ece": ece}
            for run, counts in kept
            for name, auc, ece in zip(
                run.names, rounded(counts["auc"], 4), rounded(calibration_errors(counts), 4), strict=True
            )
        ]
        recall = rounded(recalls(together), 4)
        contents.append({"title": method.title, "recall": recall, "dots": dots, **calibration_curve(together)})
    if not contents:
        return {"why": "no run kept anything of its finished models", "methods": []}
    return {"why": "", "classes": classes, "methods": contents}


def _class_names(run: ReportedRun) -> Sequence[str]:
    try:
        return class_counts(run).names
    except CoterieError:
        return ()


def _settings(run: ReportedRun) -> dict[str, Any]:
    """What makes a run's result, but for the seed; methods' options among the settings."""
    kept = {key: value for key, value in run.config.items() if key not in HOW | {"seed", "set", PLUGINS}}
    return {**kept, **run.config["set"]}


def _same_settings(run: ReportedRun) -> str:
    return json.dumps(_settings(run), sort_keys=True, default=str)


def _title(run: ReportedRun, others: Sequence[ReportedRun]) -> str:
    """The method's name, and the settings by which it differs from others of that name."""
    ours = _settings(run)
    rivals = [_settings(other) for other in others if other.config["method"] == run.config["method"]]
    differing = [key for key in ours if any(key not in rival or rival[key] != ours[key] for rival in rivals)]
    words = ", ".join(f"{key}={ours[key]}" for key in differing)
    return spoken_method(run) + (f" ({words})" if words else "")


def _method(method: Contender, notes: list[str]) -> Content:
    """A method's curves over its seeds, and what it had cost at each tested round."""
    moments = [moment for moment in MOMENTS if all(run.rounds(moment) for run in method.runs)]
    curves = {moment: _curve(method, moment, notes) for moment in moments}
    return {"title": method.title, "seeds": list(method.seeds), "curves": curves}


def _curve(method: Contender, moment: Moment, notes: list[str]) -> Content:
    """The mean over seeds of the mean over clients, in the rounds in which all of the seeds were tested."""
    rounds = [run.rounds(moment) for run in method.runs]
    shared = sorted(set.intersection(*map(set, rounds)))
    if any(len(tested) > len(shared) for tested in rounds) and moment == "received":
        notes.append(
            f"{method.title}: its seeds were not tested in the same rounds; curves show the {len(shared)} shared"
        )
    means = [dict(zip(run.rounds(moment), _means(run, moment), strict=True)) for run in method.runs]
    by_round = [[mean[round] for mean in means] for round in shared]
    spent = {what: [_spent(run, what) for run in method.runs] for what in ("bytes", "seconds")}
    return {
        "rounds": shared,
        "mean": rounded([fmean(values) for values in by_round]),
        "std": rounded([stdev(values) for values in by_round]) if len(means) > 1 else None,
        **{what: rounded([fmean(run[round] for run in runs) for round in shared], 3) for what, runs in spent.items()},
    }


def _means(run: ReportedRun, moment: Moment) -> list[float]:
    """The means over clients, round by round."""
    means: list[float] = numbers([scores.mean for scores in run.tests(moment)]).tolist()
    return means


def _spent(run: ReportedRun, what: str) -> dict[int, float]:
    """The bytes or seconds of all rounds up to each one."""
    totals = np.cumsum([getattr(line, what).total for line in run.lines])
    return dict(zip((line.round for line in run.lines), totals.tolist(), strict=True))


def _summary(run: ReportedRun) -> Summary:
    """What the table reads of a run's summary, from its rounds: runs need not be finished."""
    metric: Content = {}
    worst: dict[str, float] = {}
    for moment in MOMENTS:
        if tests := run.tests(moment):
            metric[moment] = {"mean": over_rounds(run.scale, _means(run, moment))}
            worst[moment] = float(numbers([tests[-1].worst_decile])[0])
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


def _table(methods: Sequence[Contender]) -> Content:
    """The comparison's table, as `coterie compare` prints it; methods are compared by the seeds they share."""
    grid = Grid({method.title: {run.seed: _summary(run) for run in method.runs} for method in methods})
    rows = [
        {
            "method": method.title,
            "seeds": ", ".join(map(str, method.seeds)),
            "cells": [cell_text(grid, method.title, column).strip() for column in grid.columns.values()],
        }
        for method in methods
    ]
    units = {"share": ", %", "bytes": "", "number": "", "count": "", "seconds": ", s"}
    return {
        "columns": [column.title + units[column.unit] for column in grid.columns.values()],
        "rows": rows,
        "note": " ".join([grid.note(), *grid.remarks()]),
        "settings": settings_note({method.title: method.runs[0].config for method in methods}),
    }


def _gains(methods: Sequence[Contender]) -> Content:
    """How much better each client fares than by training alone, for runs beside which there is such a run."""
    local_runs = {
        (run.seed, run.partition.whole().hash): run
        for method in methods
        for run in method.runs
        if run.config["method"] == LOCAL and run.partition is not None
    }
    if not local_runs:
        return {"moments": {}, "why": "no run of local training (coterie run local) is among the runs"}
    moments = {
        moment: [row for method in methods if (row := _gain_row(method, local_runs, moment))] for moment in MOMENTS
    }
    if not any(moments.values()):
        return {"moments": {}, "why": "no run shares its seed and partition with a run of local training"}
    return {"moments": moments, "why": ""}


def _gain_row(method: Contender, local_runs: Mapping[tuple[int, str], ReportedRun], moment: Moment) -> Content | None:
    if method.runs[0].config["method"] == LOCAL:
        return None
    gains = [gain for run in method.runs for gain in _client_gains(run, local_runs, moment)]
    if not gains:
        return None
    return {
        "method": method.title,
        "gains": gains,
        "gained": sum(gain["gain"] > SAME for gain in gains),
        "lost": sum(gain["gain"] < -SAME for gain in gains),
        "mean": rounded([fmean(gain["gain"] for gain in gains)])[0],
    }


def _client_gains(run: ReportedRun, local_runs: Mapping[tuple[int, str], ReportedRun], moment: Moment) -> list[Content]:
    if run.partition is None:
        return []
    local = local_runs.get((run.seed, run.partition.whole().hash))
    if local is None or local.names != run.names or not (run.rounds(moment) and local.rounds(moment)):
        return []
    scores = zip(run.names, run.last_scores(moment).tolist(), local.last_scores(moment).tolist(), strict=True)
    gains = ((name, run.scale.lead(score, alone)) for name, score, alone in scores)
    return [{"client": name, "seed": run.seed, "gain": round(gain, 5)} for name, gain in gains if math.isfinite(gain)]


class KeptCandidate(Struct, frozen=True):
    """Settings that were tried, and what validation made of them."""

    name: str
    rounds: int
    score: float | None


class KeptSearch(Struct, frozen=True):
    """What the file of a search says of it."""

    candidates: list[KeptCandidate]
    best: str | None = None


def search_content(folder: Path, runs: Sequence[ReportedRun]) -> tuple[Content | None, list[str]]:
    """The search for settings that a folder keeps, if it keeps one, and in words what of it cannot be read.

    Options are those in which the candidates differ, with their values.
    """
    if not (folder / SWEEP).is_file():
        return None, []
    by_name = {run.record.path.name: run for run in runs}
    try:
        search = decoded((folder / SWEEP).read_bytes(), KeptSearch, f"{SWEEP} of {folder} cannot be read")
    except (CoterieError, OSError) as error:
        return None, [str(error)]
    tried = [(kept, run) for kept in search.candidates if (run := _run_of(kept.name, by_name)) is not None]
    lost = len(search.candidates) - len(tried)
    notes = [f"{lost} settings of the search are not shown, since their runs are gone"] if lost else []
    if not tried:
        return None, notes
    settings = [_settings(run) for _, run in tried]
    options = [key for key in settings[0] if any(other.get(key) != settings[0][key] for other in settings)]
    candidates = [
        {
            "name": kept.name,
            "rounds": kept.rounds,
            "score": kept.score,
            "values": [_number_or_text(values.get(key)) for key in options],
        }
        for (kept, _), values in zip(tried, settings, strict=True)
    ]
    scale = tried[0][1].scale
    content = {"metric": metric_content(scale), "options": options, "best": search.best, "candidates": candidates}
    return content, notes


def _number_or_text(value: object) -> float | str | None:
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _run_of(name: str, runs: Mapping[str, ReportedRun]) -> ReportedRun | None:
    """A run of a candidate, whatever its seed."""
    start = run_folder(name, 0).removesuffix("0")
    return next((run for folder, run in runs.items() if folder.startswith(start)), None)
