"""Before training: what is made for clients at download, and can be undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from coterie.core.applying import apply, no_share_defined
from coterie.core.exchange import DELIVERED, Mix, Peers, Uploads, actions_of
from coterie.core.federation import Federation
from coterie.core.tracks import delivery_mark
from coterie.engines.base import PeersOf
from coterie.methods.base import Method


def delivers(method: Method) -> bool:
    """Whether the method makes anything at download."""
    return type(method).deliver is not Method.deliver


class Delivery:
    """What is made for `clients` at download: mixes, which can be undone, and whose models they download besides.

    It is for the round under way; `after` says that this is over and has had its exchange. So many `threads` mix.
    """

    def __init__(
        self, method: Method, federation: Federation, clients: Tensor, after: bool = False, threads: int = 1
    ) -> None:
        self.federation, self.clients = federation, clients
        view = federation.as_seen_by_server()
        # What weighs learners against each other sees what everybody would download now.
        spans = delivers(method) and federation.reduction is not None and federation.reduction.spans_learners
        learners = federation.everyone if spans else clients
        made = actions_of(method.deliver, view, learners, kinds=DELIVERED) if delivers(method) else []
        mixes = [one for one in made if isinstance(one, Mix)]
        self._chosen = [one for one in made if isinstance(one, Peers)]
        if self._chosen and federation.reduction is not None:
            raise no_share_defined(federation, type(method).__name__, "other clients' models")
        slots = {mix.target: federation[mix.target] for mix in mixes}
        self._before = {
            name: (slot.own[clients.to(slot.own.device)], slot.tracks.copy()) for name, slot in slots.items()
        }
        mark = delivery_mark(federation.round + after)
        uploads, only = Uploads(view, learners, {}, {}), clients if spans else None
        self.applied = apply(mixes, federation, uploads, mark, type(method).__name__, only, threads)

    def peers(self) -> PeersOf:
        """Whose models each client downloads besides its own."""
        if not self._chosen:
            return {}
        chosen = {
            int(client): [peer for one in self._chosen for peer in one.of(int(client))] for client in self.clients
        }
        return {client: peers for client, peers in chosen.items() if peers}

    def undo(self, clients: Tensor | None = None) -> None:
        """Give (some of) the clients back what they held before."""
        if not self._before:
            return
        chosen = (
            torch.ones_like(self.clients, dtype=torch.bool) if clients is None else torch.isin(self.clients, clients)
        )
        for target, (rows, tracks) in self._before.items():
            slot = self.federation[target]
            slot.write_own(self.clients[chosen], slot.own_columns, rows[chosen.to(rows.device)])
            slot.tracks.put_back(tracks, self.clients[chosen])


@contextmanager
def as_delivered(method: Method, federation: Federation, clients: Tensor, threads: int = 1) -> Iterator[Delivery]:
    """Between rounds: while inside, `clients` hold what they would download; afterwards what they held before."""
    delivery = Delivery(method, federation, clients, after=True, threads=threads)
    try:
        yield delivery
    finally:
        delivery.undo()
