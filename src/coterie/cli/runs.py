"""`coterie runs`: the runs below a folder, a line each."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.core.numbers import number_text
from coterie.errors import CoterieError, require
from coterie.registry import short_name
from coterie.report.terminal import plain_table, print_result
from coterie.runs.kept import CONFIG, ROUNDS
from coterie.runs.opened import OpenedRun, kept_run
from coterie.runs.packed import runs_in


def runs_command(folder: Path, json: bool) -> None:
    """List the runs below a folder, or in a .zip."""
    require(folder.exists(), f"folder = {folder}: there is no such folder")
    found = list(runs_below(folder))
    if json:
        print(json_format.dumps(found, indent=2))
        return
    require(bool(found), f"folder = {folder}: holds no runs")
    titles = ("run", "method", "data", "rounds", "status", "judged by", "received, last", "begun (UTC)")
    table = plain_table(*titles, right=(3, 6))
    for run in found:
        if run["problem"]:
            table.add_row(run["run"], "", "", "", run["problem"], "", "", "")
            continue
        rounds, begun = f"{run['done']}/{run['planned']}", run["begun"].replace("T", " ").removesuffix("Z")
        score = number_text(run["received"])
        table.add_row(run["run"], run["method"], run["data"], rounds, run["status"], run["judged_by"], score, begun)
    print_result(table)


def runs_below(folder: Path) -> Iterator[dict[str, Any]]:
    """The runs below a folder as plain values, in the order of their paths; of others than this version reads, why."""
    for path in _paths(folder):
        name = str(path.relative_to(folder))
        try:
            yield {"run": name, "problem": None, **_described(OpenedRun(kept_run(path)))}
        except CoterieError as error:
            yield {"run": name, "problem": str(error).removeprefix(f"run = {path}: ")}


def _paths(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder / name for name in runs_in(folder)]
    # A configuration without rounds is somebody's that is not a run's.
    return sorted(file.parent for file in folder.rglob(CONFIG) if (file.parent / ROUNDS).is_file())


def _described(run: OpenedRun) -> dict[str, Any]:
    received = run.newest("received")
    sessions = run.about["sessions"]
    return {
        "method": short_name(run.config["method"]),
        "data": run.about["data"]["name"],
        "done": run.done,
        "planned": run.config["rounds"],
        "status": run.status,
        "judged_by": run.judged_by,
        "received": None if received is None else received["mean"],
        "begun": sessions[0]["begun"] if sessions else "",
    }
