"""Uploads whose norm or loss jumps: set aside, named, and let back in.

Both are compared with the cohort and with where the client used to stand in it, so that neither clients that always
differ nor rounds in which everything changes are held against anybody. For each part p of an upload (the columns of a
slot, a measurement) let x_pk be how far client k moved it (the norm of its change, of a measurement its norm):

    r_k = max_p x_pk / median_j x_pj        how many times the usual
    s_k = log(1 + r_k)
    u_k = s_k − median_j s_j                where k stands in the cohort
    a_k = u_k / spread_j(s)                 its distance from the cohort
    b_k = (u_k − median(past u_k)) / spread(past u_k)     and from its own past

with spread = max(1.4826 · median absolute deviation, 0.25). An upload jumps if a_k > 2c, or if a_k > c and b_k > c (c
is `quarantine`); a past of fewer than three rounds says nothing. Only upwards: who moves little does no harm.

The loss is that on the client's own test samples after training. With l_k = loss_k + l/10, where l is the median loss
of the first round that was judged (losses far below that are all alike), r_k = l_k / median_j l_j, and all else as
above. But it jumps only if a_k > 2c and b_k > c: some clients' data are harder than all others', and losses are noisy.

An upload that jumps counts like one that diverged: nothing of it is kept, in nobody's mix, and its client goes on from
its last good row. So do its next ones, until `quarantine_rounds` of them in a row have not jumped. With fewer than
three uploads nobody is judged, and whoever is out stays out.

This decides which uploads count at all; how those that do are mixed is the business of `coterie.robust.reducing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.applying import block_width
from coterie.core.federation import Federation
from coterie.robust.options import FEWEST, Defence
from coterie.rounds.listeners import Note
from coterie.rounds.stages import Clients, Course, Incoming, Stage

LEFT = "quarantine.left"  # value [K]: uploads that must not jump before the client's count again
FIRST_LOSS = "quarantine.first_loss"  # value: the median loss of the first round that was judged; 0: none yet
PAST = "quarantine.past"  # value [K, 2, REMEMBERED]: where the client stood when its uploads counted; NaN: not yet
REMEMBERED = 20
ENOUGH = 3  # a shorter past says nothing
LEAST_SPREAD = 0.25
ALIKE = 0.1  # of the first loss: smaller ones do not differ
AS_DEVIATION = 1.4826  # of a normal distribution, in median absolute deviations


class SetAside(Note, frozen=True):
    """Whose uploads did not count in a round, each with the reason."""

    clients: list[int]
    reasons: list[str]

    def warnings(self) -> Iterator[tuple[int, str]]:
        """The same in words."""
        for client, reason in zip(self.clients, self.reasons, strict=True):
            yield client, f"the upload of client %s is set aside: {reason}"


@dataclass(frozen=True)
class Quarantine(Stage):
    """Sets uploads aside that jump further than `threshold`, until `rounds` of a client's have not jumped."""

    threshold: float = 6.0
    rounds: int = 3
    name: ClassVar[str] = "quarantine"
    needs_losses: ClassVar[bool] = True

    @classmethod
    def of(cls, settings: Defence, clients: Clients) -> Quarantine | None:
        """The quarantine that a run asks for."""
        return cls(settings.quarantine, settings.quarantine_rounds) if settings.quarantine else None

    def begin(self, federation: Federation) -> None:
        """Make room for what is remembered of everybody."""
        count = federation.clients
        federation.add_value(LEFT, torch.zeros(count, dtype=torch.int64), per_client=True, held_by="server")
        federation.add_value(FIRST_LOSS, torch.zeros((), dtype=torch.float64), held_by="server")
        nothing = torch.full((count, 2, REMEMBERED), torch.nan, dtype=torch.float64)
        federation.add_value(PAST, nothing, per_client=True, held_by="server")

    def server(self, federation: Federation, incoming: Incoming) -> tuple[Incoming, dict[int, str]]:
        """What counts, and whose uploads do not; what is remembered of all is brought up to date."""
        out = self.set_aside(federation, incoming)
        return incoming.only(~torch.isin(incoming.cohort, torch.tensor(list(out), dtype=torch.int64))), out

    def out(self, federation: Federation) -> list[int]:
        """The clients in quarantine."""
        clients: list[int] = federation.values[LEFT].nonzero()[:, 0].tolist()
        return clients

    def note(self, federation: Federation, course: Course) -> SetAside | None:
        """Who was set aside, and why."""
        out = course.set_aside
        return SetAside([*out], [*out.values()]) if out else None

    def set_aside(self, federation: Federation, incoming: Incoming) -> dict[int, str]:
        """The clients whose uploads do not count, each with the reason; what is remembered is brought up to date."""
        cohort = incoming.cohort
        if not len(cohort):
            return {}
        left = federation.values[LEFT][cohort]
        if len(cohort) < FEWEST:
            why = f"it is in quarantine, and {len(cohort)} uploads are too few to judge it by"
            return {int(client): why for client in cohort[left > 0]}
        past = federation.values[PAST][cohort]
        ratios, parts = _largest(len(cohort), _moved(federation, incoming))
        losses = _with_least(federation, [math.nan if one is None else one for one in incoming.losses])
        jumps = torch.zeros(len(cohort), dtype=torch.bool)
        reasons = [""] * len(cohort)
        for kind, values in enumerate((ratios, _relative(losses))):
            standing, away = distances(values)
            near, far = away > self.threshold, away > 2 * self.threshold
            own = jump(standing, past[:, kind]) > self.threshold
            jumped = far & own if kind else far | (near & own)
            for place in jumped.nonzero()[:, 0].tolist():
                what = "loss" if kind else parts[place]
                reasons[place] = reasons[place] or f"its {what} is {values[place]:.3g} times what is usual in the round"
            jumps |= jumped
            past[:, kind] = torch.cat([past[:, kind, 1:], standing[:, None]], 1)
        out = jumps | (left > 0)
        federation.keep_value(PAST, cohort[~out], past[~out])
        federation.keep_value(LEFT, cohort, torch.where(jumps, self.rounds, (left - 1).clamp(min=0)))
        still = [
            f"it is still in quarantine (rounds without a jump that are left: {count - 1})" for count in left.tolist()
        ]
        return {int(cohort[place]): reasons[place] or still[place] for place in out.nonzero()[:, 0].tolist()}


def _with_least(federation: Federation, losses: list[float]) -> Tensor:
    """Losses `[m]` that are lifted by a tenth of the first round's median, which is taken note of."""
    values = torch.tensor(losses, dtype=torch.float64)
    usual = torch.nanquantile(values, 0.5)
    if not bool(federation.values[FIRST_LOSS]) and bool(usual.isfinite()):
        federation.values[FIRST_LOSS] = usual
    return values + ALIKE * federation.values[FIRST_LOSS]


def distances(values: Tensor) -> tuple[Tensor, Tensor]:
    """Where clients stand in their cohort, by multiples `[m]` of the usual, and how far off that is: `[m]` each.

    Those of whom nothing is known (NaN) are not off.

    >>> standing, away = distances(torch.tensor([1.0, 1.0, 1.0, 1.0, 39.0]).double())
    >>> [round(float(one), 4) for one in (standing[4], away[4])]
    [2.9957, 11.9829]
    """
    logs = torch.log1p(values)
    standing = logs - torch.nanquantile(logs, 0.5)
    away = standing / _spread(logs[None])
    return standing, away.nan_to_num(nan=0.0, posinf=math.inf)


def jump(standing: Tensor, past: Tensor) -> Tensor:
    """How far each client is from where it used to stand, `past [m, n]` (NaN: unknown): `[m]`, 0 if too little is."""
    usual = torch.nanquantile(past, 0.5, dim=1)
    far = (standing - usual) / _spread(past)
    known = (~past.isnan()).sum(1) >= ENOUGH
    return torch.where(known, far, 0.0).nan_to_num(nan=0.0, posinf=math.inf)


def _spread(values: Tensor) -> Tensor:
    """How far values `[r, n]` lie apart, row by row, outliers or not: `[r]`."""
    middle = torch.nanquantile(values, 0.5, dim=1, keepdim=True)
    return (AS_DEVIATION * torch.nanquantile((values - middle).abs(), 0.5, dim=1)).clamp(min=LEAST_SPREAD)


def _relative(values: Tensor) -> Tensor:
    """Values as multiples of their median; unknown where that is 0 or unknown itself."""
    usual = float(torch.nanquantile(values, 0.5))
    return values / usual if usual > 0 and math.isfinite(usual) else torch.full_like(values, torch.nan)


def _moved(federation: Federation, incoming: Incoming) -> Iterator[tuple[str, Tensor]]:
    """Each part of the uploads by its name, with how far every client moved it: `[m]`."""
    for name, columns in incoming.declared.items():
        if name not in incoming.held:
            continue  # the method's mistake, which its exchange will be told of
        slot, rows = federation[name], incoming.held[name]
        total = torch.zeros(len(rows), dtype=torch.float64)
        # What a client once trained and kept to itself has no former value here.
        known = slot.tracks.known(incoming.cohort, columns)
        for block in known.blocks(block_width(len(rows))):
            change = block.within(slot.columns).take(rows).double() - slot.rows(incoming.cohort, block)
            total += change.square().sum(1)
        yield f"change of '{name}'", total.sqrt()
    for name, values in incoming.measured.items():
        plain = values.double().reshape(len(values), -1).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
        yield f"'{name}'", torch.linalg.vector_norm(plain, dim=1)


def _largest(count: int, parts: Iterator[tuple[str, Tensor]]) -> tuple[Tensor, list[str]]:
    """By how much each client exceeds the usual at the part where it does so most: `[m]`, and those parts."""
    named = [(name, _relative(values)) for name, values in parts]
    if not named:
        return torch.full((count,), torch.nan, dtype=torch.float64), [""] * count
    found = torch.stack([values.nan_to_num(nan=-1.0, posinf=math.inf) for _, values in named])
    most, place = found.max(0)
    return torch.where(most < 0, torch.nan, most), [named[number][0] for number in place.tolist()]
