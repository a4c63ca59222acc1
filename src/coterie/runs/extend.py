"""More rounds for a run than it planned, where that ends like a longer run from the start; else why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coterie.errors import CoterieError, require
from coterie.setup.config import method_name
from coterie.runs.directory import RunDirectory
from coterie.setup.prepared import Prepared


def extend(directory: RunDirectory, prepared: Prepared, rounds: int) -> Prepared:
    """Plan `rounds` rounds in all for a kept run, and return it prepared for that; what was done stays.

    What the last planned round was tested or recorded for as the last alone is taken back when the run is carried on.
    """
    planned = prepared.experiment.rounds
    require(rounds > planned, f"rounds = {rounds}: the run plans {planned} already; name more")
    longer = prepared.with_rounds(rounds)
    done = directory.newest_round()
    if done:
        for why in _obstacles(prepared, longer, done):
            raise CoterieError(f"rounds = {rounds}: it would not end like a run of {rounds} rounds: {why}; run it anew")
    directory.lines_in_order()  # damaged ones are refused before anything is changed
    directory.plan(rounds)  # from here on whoever carries the run on goes by that, also after a kill
    return longer


def _obstacles(prepared: Prepared, longer: Prepared, done: int) -> Iterator[str]:
    """What of the rounds that are done would have been otherwise in a run that planned more."""
    planned, rounds, training = prepared.experiment.rounds, longer.experiment.rounds, prepared.experiment.training
    if any(training.factor(round, planned) != training.factor(round, rounds) for round in range(1, done + 1)):
        yield f"the rates of schedule '{training.schedule}' depend on the number of rounds"
    for name, value in prepared.resolved.items():
        if longer.resolved[name] != value:
            yield f"{method_name(prepared.method)}'s {name} was {value}, and would have been {longer.resolved[name]}"
