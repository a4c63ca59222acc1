"""Bounds on what a site says: counts by what it said when it joined, rows by those of the round.

Numbers that are finite can be harmful all the same: a row of 3e38 is infinite once it is squared, and would spoil what
everybody has. So no number is larger than `LARGEST`, and an answer whose rows are many times as large as is usual in
the round is set aside. That is a screen, which keeps out what cannot be meant. It does not change how answers are
mixed, and what is harmful and of a usual size passes it: that is the business of `coterie federation init --defence`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.task.base import SAMPLES
from coterie.deployment.messages import Note, RefusedError
from coterie.deployment.wire import Parcel
from coterie.rounds.stages import Incoming, Stage

LARGEST = 1e18  # the square root of what float32 holds
LARGEST_SUM = 1e30
OTHER_ROWS = 10.0  # rows that are no models differ more from site to site: so many times as much


def check_numbers(answer: Parcel) -> None:
    """Refuse numbers that nobody could compute with.

    >>> check_numbers(Parcel({"slot.model": torch.tensor([1.0, -3e38])}))
    Traceback (most recent call last):
    ...
    coterie.deployment.messages.RefusedError: tensor 'slot.model' holds numbers beyond 1e+18
    """
    for name, tensor in answer.tensors.items():
        if tensor.is_floating_point() and tensor.numel() and float(tensor.nan_to_num(0.0).abs().max()) > LARGEST:
            raise RefusedError(f"tensor '{name}' holds numbers beyond {LARGEST:g}")


def check_sums(sums: Note | None, samples: int) -> None:
    """Refuse sums over more test samples than a site has said that it has, or that are beyond all measure.

    >>> check_sums({"samples": 10**19, "correct": 3, "loss": 1.0}, 30)
    Traceback (most recent call last):
    ...
    coterie.deployment.messages.RefusedError: it was tested on 10,000,000,000,000,000,000 samples, and has 30
    """
    if not sums:
        return
    if sums[SAMPLES] > samples:
        raise RefusedError(f"it was tested on {sums[SAMPLES]:,} samples, and has {samples:,}")
    if any(total is not None and abs(total) > LARGEST_SUM for total in sums.values()):
        raise RefusedError(f"its result holds numbers beyond {LARGEST_SUM:g}")


def bounded_sizes(samples: Tensor, most_weight: float) -> Tensor:
    """What sites of so many samples `[K]` weigh: at most so many times the median site (0: just their samples).

    Sites that nobody knows yet have no samples, and do not count.

    >>> bounded_sizes(torch.tensor([80, 100, 0, 1_000_000]), 2.5)
    tensor([ 80, 100,   0, 250])
    """
    known = samples[samples > 0]
    if not most_weight or not len(known):
        return samples
    return samples.clamp(max=max(1, int(most_weight * int(known.median()))))


@dataclass(frozen=True)
class Screen(Stage):
    """Sets answers aside whose rows are more than `limit` times as large as is usual in the round.

    Usual is the median (the lower one) of the norms of all rows that came in and of those that they were before: so one
    of two is still told from the other, and one that comes alone from what it was.
    """

    limit: float = 10.0
    name: ClassVar[str] = "screen"

    def server(self, federation: Federation, incoming: Incoming) -> tuple[Incoming, dict[int, str]]:
        """What is of a usual size, and whose is not, each with the reason."""
        cohort, out = incoming.cohort, dict[int, str]()
        for slot, columns in incoming.declared.items():
            if not len(cohort) or slot not in incoming.held:
                continue
            sizes = _norms(columns.within(federation[slot].columns).take(incoming.held[slot]))
            known = torch.cat([sizes, _norms(federation[slot].rows(cohort, columns))])
            if not bool((known > 0).any()):  # what was never set is no measure
                continue
            usual = float(known[known > 0].median())
            most = self.limit * (1.0 if slot == "model" else OTHER_ROWS) * usual
            for client, size in zip(cohort.tolist(), sizes.tolist(), strict=True):
                if size > most:
                    out[client] = f"its row of '{slot}' is {size / usual:.3g} times as large as is usual in the round"
        return incoming.only(~torch.isin(cohort, torch.tensor(list(out), dtype=torch.int64))), out


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms
