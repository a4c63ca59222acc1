"""After training: what clients keep, and what they send."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.core.exchange import ClientRows, Uploads
from coterie.core.federation import Federation
from coterie.engines.base import Trained
from coterie.methods.base import Method


def collect(
    method: Method,
    federation: Federation,
    cohort: Tensor,
    trained: Trained,
    sent: Mapping[str, Tensor] | None = None,
) -> tuple[Uploads, list[int]]:
    """Keep every client's personal columns with it, and gather what the method declared as uploads.

    A client whose rows are not finite is left out: it keeps its last good row and is named. `sent` are rows
    `[m, |uploaded columns|]` of slots that came by message and count instead of what would follow from training.
    """
    finite = torch.ones(len(cohort), dtype=torch.bool)
    for rows in trained.rows.values():
        finite &= _finite_rows(rows)
    diverged = cohort[~finite].tolist()
    if diverged:
        cohort = cohort[finite]
        trained = Trained(
            {slot: rows[finite] for slot, rows in trained.rows.items()},
            {name: value[finite] for name, value in trained.probes.items()},
        )
    around = ClientRows(federation, cohort, trained.rows)
    kept = {name: keep(around) for name, keep in method.keeps(federation).items()}
    held = {**trained.rows, **kept}
    declared = {name: federation.layout.columns(group) for name, group in method.uploads(federation).items()}
    for name, rows in (sent or {}).items():
        declared[name].within(federation[name].columns).put(held[name], rows)
    for name, rows in held.items():
        slot = federation[name]
        slot.write_own(cohort, slot.own_columns, slot.own_columns.within(slot.columns).take(rows))
    for name in method.remembers if set(method.remembers) <= trained.probes.keys() else ():
        federation.values[name] = federation.values[name].index_copy(0, cohort, trained.probes[name])
    federation.taken_part[cohort] = True
    probes = {name: value for name, value in trained.probes.items() if name not in method.remembers}
    return Uploads(federation, cohort, held, declared, probes), diverged


def _finite_rows(rows: Tensor) -> Tensor:
    """Which rows hold finite numbers only: a sum is finite unless an element is not (or it overflows)."""
    sums = torch.isfinite(rows.sum(1))
    if not bool(sums.all()):
        sums = torch.isfinite(rows).all(1)
    return sums
