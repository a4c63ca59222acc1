"""What a client is owed: all that the server wrote of its columns and values since it last took part.

Nobody declares downloads, so nobody can forget one. "Since" is from the exchange of the last round in which the
client's upload counted: rounds that it missed, diverged in or was refused in, and rounds that were abandoned, do not
count. The common initial rows are known to all. A client that has lost what it kept is owed all that the server has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.slots import Slot
from coterie.core.tracks import EVER, delivery_mark


def tensor_bytes(value: Tensor) -> int:
    """The bytes of a tensor on the wire; booleans travel as bits.

    >>> tensor_bytes(torch.zeros(10)), tensor_bytes(torch.zeros(10, dtype=torch.bool))
    (40, 2)
    """
    if value.dtype == torch.bool:
        return -(-value.numel() // 8)
    return value.numel() * value.element_size()


@dataclass(frozen=True)
class Owed:
    """What one client is to be sent: columns of slots, and values."""

    slots: Mapping[str, Columns]
    values: tuple[str, ...]


def since(federation: Federation, clients: Tensor) -> Tensor:
    """The mark up to which each client has everything: `[m]`."""
    last, taken = federation.last_round[clients], federation.rounds_taken[clients]
    begun = torch.where(taken > 0, EVER, 0)  # it took part and none of that counts any more: see `begin_anew`
    return torch.where(last > 0, delivery_mark(1) + 2 * (last - 1), begun)


def begin_anew(federation: Federation, client: int) -> None:
    """A client has lost all that it kept: what it sent counts, but it holds no more than somebody who is new."""
    federation.last_round[client] = 0


def owed(federation: Federation, client: int) -> Owed:
    """What a client must be sent before it trains or is tested."""
    mark = int(since(federation, torch.tensor([client]))[0])
    columns = {name: slot.tracks.owed(client, mark) for name, slot in federation.slots.items() if _travels(slot)}
    values = [
        name
        for name, kind in federation.kinds.items()
        if kind.held_by != "server" and bool(_owed_value(federation, name, torch.tensor([client]), mark))
    ]
    return Owed({name: held for name, held in columns.items() if held}, tuple(values))


def owed_bytes(federation: Federation, clients: Tensor) -> Tensor:
    """The bytes of what each of the clients is owed: `[m]`."""
    marks = since(federation, clients)
    width = federation.initial.element_size()
    total = torch.zeros(len(clients), dtype=torch.int64)
    for slot in federation.slots.values():
        if _travels(slot):
            total += width * slot.tracks.owed_counts(clients, marks)
    for name, kind in federation.kinds.items():
        if kind.held_by != "server":
            row = federation.values[name][0] if kind.per_client else federation.values[name]
            total += tensor_bytes(row) * _owed_value(federation, name, clients, marks)
    return total


def _travels(slot: Slot) -> bool:
    """Whether the server sends anything of a slot at all."""
    return slot.held_by == "both" and not slot.dropped


def _owed_value(federation: Federation, name: str, clients: Tensor, since: Tensor | int) -> Tensor:
    """Which of the clients are owed a value: `[m]` bool; the server has none of what they keep for themselves."""
    marks = federation.value_marks[name][clients]
    return (marks > since) & ((marks > 0) | torch.tensor(federation.kinds[name].held_by == "both"))
