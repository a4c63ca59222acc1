"""Server optimisers: attached to a federation, where they move every mean of uploads that all share.

With x what all share and Δ = (the mix's mean) − x, number by number (Reddi et al., ICLR 2021; `sgd` is FedAvgM of Hsu
et al., arXiv 1909.06335):

    sgd       m ← β₁ m + Δ                   x ← x + η m
    others    m ← β₁ m + (1 − β₁) Δ          x ← x + η m / (√v + τ)
    adagrad   v ← v + Δ²
    adam      v ← β₂ v + (1 − β₂) Δ²
    yogi      v ← v − (1 − β₂) Δ² sign(v − Δ²)

There is no correction of bias; m starts as 0, v as τ². Both are slots that the server holds, so that they are in every
checkpoint. Batch-norm statistics become the mean.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.slots import Slot
from coterie.errors import CoterieError, require
from coterie.methods.base import Method
from coterie.rounds.stages import Clients, Stage
from coterie.server_steps.options import ServerSteps

log = logging.getLogger("coterie")

MOMENTUM, SQUARES = "server.momentum.", "server.squares."
"""Begin the names of the slots that hold m and v of the slot whose name follows."""


@dataclass(frozen=True)
class ServerOptimiser(Stage):
    """A run's server optimiser, as shared mixes ask for it (`coterie.core.attached.ServerStep`)."""

    settings: ServerSteps
    name: ClassVar[str] = "server"

    @classmethod
    def of(cls, settings: ServerSteps, clients: Clients | None = None) -> ServerOptimiser:
        """The optimiser that a run asks for."""
        return cls(settings)

    @property
    def spoken(self) -> str:
        """What was asked for, as it was given."""
        return f"server = '{self.settings.server}'"

    def attach(self, federation: Federation) -> None:
        """From now on, shared means are steps."""
        federation.server_step = self

    def begin(self, federation: Federation) -> None:
        """Make room for m and v of everything that all share."""
        for name, slot in list(federation.slots.items()):
            columns = slot.shared_columns & federation.layout.trainable
            if columns and slot.held_by == "both":
                federation.add_slot(MOMENTUM + name, columns, columns, fill=0.0, held_by="server")
                if self.settings.server != "sgd":
                    start = self.settings.server_tau**2
                    federation.add_slot(SQUARES + name, columns, columns, fill=start, held_by="server")

    def check(self, method: Method, federation: Federation) -> None:
        """Refuse a method without a mean that all share, or with mixes that are more than that."""
        name, layout, model = type(method).__name__, federation.layout, federation["model"]
        way_out = "leave server out, or use a method that shares what it mixes, such as fedavg or fedper"
        here, sent = federation.round, Columns()
        for number in range(1, federation.rounds + 1):  # some send nothing at first, or less later
            federation.round = number
            sent = sent | layout.columns(method.uploads(federation).get("model", ""))
        federation.round = here
        sent = sent & layout.trainable
        require(
            not sent & model.own_columns,
            f"{self.spoken}: {name} mixes what each client has of its own, and a server's optimiser moves a row that "
            f"all share; {way_out}",
        )
        require(
            bool(sent & model.shared_columns),
            f"{self.spoken}: {name} makes no mean of rows that all share; {way_out}",
        )
        for slot, rows in federation.slots.items():
            if rows.held_by == "server" and rows.follows is None and not slot.startswith((MOMENTUM, SQUARES)):
                raise self.refusal(f"{name} has a step of its own, which needs its '{slot}'")

    # What mixes ask.

    def refusal(self, why: str) -> CoterieError:
        """The error for a mix that is no mean for all."""
        return CoterieError(f"{self.spoken}: {why}; leave server out, or use another method, such as fedavg or fedper")

    def moved(self, slots: Mapping[str, Slot], target: str, part: Columns, there: Tensor, mean: Tensor) -> Tensor:
        """Where some columns of a shared row step to, from where it is `there [1, c]`, given their `mean [1, c]`.

        Numbers whose step is not finite stay where they are.
        """
        state = slots.get(MOMENTUM + target)
        stepped = Columns() if state is None else part & state.columns
        if not stepped:
            return mean
        within, found = stepped.within(part), mean.clone()
        within.put(found, self._stepped(slots, target, stepped, within.take(there), within.take(mean)))
        return found

    def _stepped(self, slots: Mapping[str, Slot], target: str, part: Columns, there: Tensor, mean: Tensor) -> Tensor:
        """The same for columns that all have state; in double precision, so that a whole step lands on the mean."""
        chosen, settings = torch.zeros(1, dtype=torch.int64), self.settings
        beta, keeps = settings.server_momentum, settings.server_beta2
        before, change = there.double(), mean.double() - there.double()
        slot = slots[MOMENTUM + target]
        momentum = slot.rows(chosen, part).double()
        new = {slot: beta * momentum + (change if settings.server == "sgd" else (1 - beta) * change)}
        step = new[slot]
        if settings.server != "sgd":
            other, squares = slots[SQUARES + target], change.square()
            old = other.rows(chosen, part).double()
            new[other] = {
                "adagrad": lambda: old + squares,
                "adam": lambda: keeps * old + (1 - keeps) * squares,
                "yogi": lambda: old - (1 - keeps) * squares * torch.sign(old - squares),
            }[settings.server]()
            step = step / (new[other].sqrt() + settings.server_tau)
        row = (before + settings.server_rate * step).float()
        finite = torch.isfinite(row)
        for values in new.values():
            finite &= torch.isfinite(values.float())
        if not bool(finite.all()):
            log.warning(
                "%s: its step is not finite for %d numbers of '%s', which stay; a smaller server_lr or lr may help",
                self.spoken,
                int((~finite).sum()),
                target,
            )
        for held, values in new.items():
            held.write_shared(part, torch.where(finite, values.float(), held.rows(chosen, part)))
        return torch.where(finite, row, there)
