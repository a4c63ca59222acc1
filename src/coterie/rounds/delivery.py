"""Before training: what is made for clients at download, and can be undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from coterie.core.exchange import Uploads, apply
from coterie.core.federation import Federation
from coterie.methods.base import Method


def delivers(method: Method) -> bool:
    """Whether the method mixes anything at download."""
    return type(method).deliver is not Method.deliver


def no_uploads(federation: Federation, clients: Tensor) -> Uploads:
    """What a download is made from: nothing new, just the slots."""
    return Uploads(federation, clients, {}, {})


class Delivery:
    """What `clients` receive beyond what they hold: mixes made at download time, which can be undone."""

    def __init__(self, method: Method, federation: Federation, clients: Tensor) -> None:
        self.federation, self.clients = federation, clients
        mixes = list(method.deliver(federation, clients))
        self._before = {mix.target: federation[mix.target].own[clients] for mix in mixes}
        self.applied = apply(mixes, federation, no_uploads(federation, clients))

    def undo(self, clients: Tensor | None = None) -> None:
        """Give (some of) the clients back what they held before."""
        chosen = (
            torch.ones_like(self.clients, dtype=torch.bool) if clients is None else torch.isin(self.clients, clients)
        )
        for target, rows in self._before.items():
            self.federation[target].own[self.clients[chosen]] = rows[chosen]


@contextmanager
def as_delivered(method: Method, federation: Federation, clients: Tensor) -> Iterator[None]:
    """While inside, `clients` hold what they would download; afterwards what they held before."""
    delivery = Delivery(method, federation, clients)
    try:
        yield
    finally:
        delivery.undo()
