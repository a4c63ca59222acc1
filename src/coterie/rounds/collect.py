"""After training: what clients keep, what they send, and what the server remembers of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.client.recipe import Recipe, keeps, measures
from coterie.core.columns import Columns
from coterie.core.exchange import ClientRows, Uploads
from coterie.core.federation import Federation
from coterie.engines.base import Trained


def collect(
    federation: Federation, recipe: Recipe, uploads: Mapping[str, str], cohort: Tensor, trained: Trained
) -> tuple[Uploads, list[int]]:
    """Both sides of an upload: clients keep what is personal, the server takes what they send.

    A client whose rows are not finite is left out: it keeps its last good row and is named.
    """
    finite = torch.ones(len(cohort), dtype=torch.bool)
    for rows in trained.rows.values():
        finite &= _finite_rows(rows)
    diverged = cohort[~finite].tolist()
    if diverged:
        cohort = cohort[finite]
        trained = Trained(
            {slot: rows[finite] for slot, rows in trained.rows.items()},
            {name: values[finite] for name, values in trained.measured.items()},
        )
    around = ClientRows(federation, cohort, trained.rows)
    held = {**trained.rows, **{keep.slot: keep.rows(around) for keep in keeps(recipe)}}
    kept = {measure.name for measure in measures(recipe) if measure.keep}
    for name in kept:
        federation.keep_value(name, cohort, trained.measured[name])
    sent = {name: values for name, values in trained.measured.items() if name not in kept}
    return receive(federation, uploads, cohort, held, sent), diverged


def receive(
    federation: Federation,
    uploads: Mapping[str, str],
    cohort: Tensor,
    held: Mapping[str, Tensor],
    measured: Mapping[str, Tensor],
) -> Uploads:
    """Take in what the cohort holds now, slot by slot (`[m, slot width]`): what was sent of it, the server knows."""
    declared = {name: federation.layout.columns(group) for name, group in uploads.items()}
    around = ClientRows(federation, cohort, held)
    remembered = {
        name: (slot.follows(around) if callable(slot.follows) else around.after(slot.follows, slot.columns))
        for name, slot in federation.slots.items()
        if slot.follows is not None
    }
    for name, rows in (*held.items(), *remembered.items()):
        slot = federation[name]
        slot.write_own(cohort, slot.own_columns, slot.own_columns.within(slot.columns).take(rows))
        if name not in remembered:
            slot.tracks.trained(cohort, declared.get(name, Columns()))
    federation.rounds_taken[cohort] += 1
    federation.last_round[cohort] = federation.round
    return Uploads(federation.as_seen_by_server(), cohort, held, declared, measured)


def _finite_rows(rows: Tensor) -> Tensor:
    """Which rows hold finite numbers only: a sum is finite unless an element is not (or it overflows)."""
    sums = torch.isfinite(rows.sum(1))
    if not bool(sums.all()):
        sums = torch.isfinite(rows).all(1)
    return sums
