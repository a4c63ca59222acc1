"""What a report says of a search for settings, as plain values: what was tried, and what validation made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.compare.sweep import SWEEP
from coterie.compare.table import run_folder
from coterie.files import UNFIT
from coterie.report.reading import ReportedRun
from coterie.report.rounding import Content
from coterie.report.severalruns import metric_content
from coterie.setup.identity import HOW


def search_content(folder: Path, runs: Sequence[ReportedRun]) -> tuple[Content | None, list[str]]:
    """The search that a folder keeps, if it keeps one, and in words what of it cannot be read.

    Options are those in which the candidates differ, with their values.
    """
    if not (folder / SWEEP).is_file():
        return None, []
    by_name = {run.record.path.name: run for run in runs}
    try:
        kept = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
        tried = [(one, _run_of(str(one["name"]), by_name)) for one in kept["candidates"]]
        found = [(str(one["name"]), int(one["rounds"]), one["score"], run) for one, run in tried if run is not None]
        scores = [None if score is None else float(score) for _, _, score, _ in found]
    except (*UNFIT, OSError) as error:
        return None, [f"{SWEEP} of {folder} cannot be read ({type(error).__name__}: {error})"]
    lost = len(tried) - len(found)
    notes = [f"{lost} settings of the search are not shown, since their runs are gone"] if lost else []
    if not found:
        return None, notes
    settings = [_settings(run) for *_, run in found]
    options = [key for key in settings[0] if any(other.get(key) != settings[0][key] for other in settings)]
    return {
        "metric": metric_content(found[0][3].scale),
        "options": options,
        "best": kept.get("best"),
        "candidates": [
            {"name": name, "rounds": rounds, "score": score, "values": [own.get(key) for key in options]}
            for (name, rounds, _, _), score, own in zip(found, scores, settings, strict=True)
        ],
    }, notes


def _run_of(name: str, runs: dict[str, ReportedRun]) -> ReportedRun | None:
    """A run of a candidate, whatever its seed."""
    start = run_folder(name, 0).removesuffix("0")
    return next((run for folder, run in runs.items() if folder.startswith(start)), None)


def _settings(run: ReportedRun) -> dict[str, Any]:
    """The settings of a run, options of its method among them, as numbers or texts."""
    plain = {**run.config, **run.config["set"]}
    return {
        key: value if isinstance(value, int | float | str) else str(value)
        for key, value in plain.items()
        if key not in HOW | {"seed", "set"}
    }
