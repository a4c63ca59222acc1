"""Which cells fit into some hours: a trial round of each column tells what its runs cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.compare.cell import finished
from coterie.reproduce.cells import TableCell
from coterie.rounds.listeners import StopAfter
from coterie.runs.directory import RunDirectory
from coterie.setup.workload import expected_seconds

log = logging.getLogger("coterie")

TRIAL_ROUNDS = 2
SURPRISES = 1.15
"""Runs take longer than their first rounds promise: the machine has other things to do, too."""


def fitting(
    cells: Sequence[TableCell], hours: float, jobs: int, folder: Path, tell: Callable[[str], None] = log.info
) -> tuple[list[TableCell], list[TableCell]]:
    """The cells that fit into the hours with so many jobs, in the given order, and those that do not.

    Finished cells cost nothing, and show what others of their kind cost; of other kinds a trial does (`tell` hears it).
    """
    seconds: dict[str, float] = {}
    for cell in cells:
        if finished(folder / cell.name):
            summary = RunDirectory(folder / cell.name).summary() or {}
            seconds[kind_of(cell)] = summary["seconds"]["total"] / expected_seconds(cell.experiment.prepare())
    budget, chosen, left_out = 3600.0 * hours * jobs, list[TableCell](), list[TableCell]()
    for cell in cells:
        if finished(folder / cell.name):
            chosen.append(cell)
            continue
        cost = cost_of(cell, seconds, tell)
        # A run cannot be cut in two: one job must hold it.
        if cost <= budget and cost <= 3600.0 * hours:
            budget -= cost
            chosen.append(cell)
        else:
            left_out.append(cell)
    return chosen, left_out


def kind_of(cell: TableCell) -> str:
    """What cells that cost alike, but for their method and rounds, have in common."""
    config = cell.config
    return " ".join(str(config.get(key, "")) for key in ("data", "model", "partition", "share", "join", "batch"))


def cost_of(cell: TableCell, seconds: dict[str, float], tell: Callable[[str], None]) -> float:
    """The seconds of a cell: a trial of its kind, made once, in proportion to what its method has to do.

    `seconds` holds the seconds of a unit of work by `kind_of`, and takes in what a trial finds.
    """
    kind = kind_of(cell)
    work = expected_seconds(cell.experiment.prepare())
    if kind not in seconds:
        tell(f"a trial of {TRIAL_ROUNDS} rounds: {cell}")
        seconds[kind] = _trial(cell) / work
    return seconds[kind] * work * SURPRISES


def _trial(cell: TableCell) -> float:
    """The seconds of a whole run, from two of its rounds."""
    rounds = cell.experiment.rounds
    trial = replace(cell.experiment, evaluate_every=1, checkpoint_every=0)
    found = trial.run(None, [StopAfter(TRIAL_ROUNDS)]).history.lines
    last: dict[str, float] = found[-1]["seconds"]
    return rounds * (last["train"] + last["exchange"] + last["evaluate"] / cell.experiment.evaluate_every)
