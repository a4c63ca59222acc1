"""Who knows what of a slot: when the server last wrote a client's columns, and which of them it knows at all.

Downloads are derived from this: a client is owed what the server wrote since the client last took part. And travel is
enforced by it: what a client trained and did not send, nobody can read on the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.columns import Columns

EVER = -1  # before every mark, that of what was never written among them


def delivery_mark(round: int) -> int:
    """The mark of what is made for a client at download: before it trains in the round."""
    return 2 * round - 1


def exchange_mark(round: int) -> int:
    """The mark of what the server writes in a round's exchange: after clients have trained.

    >>> delivery_mark(3) < exchange_mark(3) < delivery_mark(4)
    True
    """
    return 2 * round


@dataclass(frozen=True)
class Stretch:
    """Columns that were always written and sent together."""

    columns: Columns
    marks: Tensor  # [K] int64: when the server last wrote them for a client; 0 if it never did
    known: Tensor  # [K] bool: whether the server has them as the client has

    def owed(self, clients: Tensor, since: Tensor) -> Tensor:
        """Which of the clients are owed them, each since a mark of its own: `[m]` bool."""
        written = self.marks[clients] > since
        # What was never written is worth sending only if a client sent it and has lost it.
        return written & ((self.marks[clients] > 0) | self.known[clients])


class Tracks:
    """The stretches of a slot, which are disjoint and cover it. At first everybody holds the common initial row.

    >>> tracks = Tracks(shared=Columns(), own=Columns.of((0, 9)), clients=2)
    >>> tracks.trained(torch.tensor([1]), sent=Columns.of((0, 4)))
    >>> tracks.wrote(Columns.of((2, 4)), torch.tensor([1]), mark=2)
    >>> tracks.owed(1, since=1), tracks.owed(0, since=0)
    (Columns(spans=((2, 4),)), Columns(spans=()))
    >>> tracks.unknown(torch.tensor([0, 1]), Columns.of((3, 6)))
    1
    """

    def __init__(self, shared: Columns, own: Columns, clients: int) -> None:
        self._own, self._clients = own, clients
        self.stretches = [
            Stretch(part, torch.zeros(clients, dtype=torch.int64), torch.ones(clients, dtype=torch.bool))
            for part in (shared, own)
            if part
        ]

    def wrote(self, columns: Columns, clients: Tensor | None, mark: int) -> None:
        """The server wrote columns of some clients (none given: of all), and so knows them."""
        for stretch in self._within(columns):
            chosen = slice(None) if clients is None else clients
            stretch.marks[chosen] = mark
            stretch.known[chosen] = True

    def trained(self, clients: Tensor, sent: Columns) -> None:
        """Clients changed their own columns, and sent some of them."""
        self._cut(sent)
        for stretch in self.stretches:
            if stretch.columns <= self._own:
                stretch.known[clients] = stretch.columns <= sent

    def owed(self, client: int, since: int) -> Columns:
        """The columns that the server wrote for a client since a mark; since `EVER`, all that it has of the client."""
        total = Columns()
        for stretch in self.stretches:
            if bool(stretch.owed(torch.tensor([client]), torch.tensor([since]))):
                total = total | stretch.columns
        return total

    def owed_counts(self, clients: Tensor, since: Tensor) -> Tensor:
        """How many columns each of the clients is owed, each since a mark of its own: `[m]`."""
        counts = torch.zeros(len(clients), dtype=torch.int64)
        for stretch in self.stretches:
            counts += stretch.owed(clients, since) * stretch.columns.size
        return counts

    def unknown(self, clients: Tensor, columns: Columns) -> int | None:
        """A client among these of whom the server does not know all of the columns; nobody if it does."""
        for stretch in self.stretches:
            if bool(stretch.columns & columns) and not bool(stretch.known[clients].all()):
                return int(clients[~stretch.known[clients]][0])
        return None

    def all_known(self, columns: Columns) -> Tensor:
        """Of which clients the server knows all of the columns: `[K]` bool."""
        known = torch.ones(self._clients, dtype=torch.bool)
        for stretch in self.stretches:
            if stretch.columns & columns:
                known &= stretch.known
        return known

    def known(self, clients: Tensor, columns: Columns) -> Columns:
        """Those of the columns that the server knows of all of the clients."""
        total = Columns()
        for stretch in self.stretches:
            if bool(stretch.known[clients].all()):
                total = total | (stretch.columns & columns)
        return total

    def forget_marks(self) -> None:
        """Nothing of the slot is owed to anybody any longer."""
        for stretch in self.stretches:
            stretch.marks.zero_()

    def copy(self) -> list[Stretch]:
        """The stretches as they are now."""
        return [replace(part, marks=part.marks.clone(), known=part.known.clone()) for part in self.stretches]

    def put_back(self, before: list[Stretch], clients: Tensor) -> None:
        """Give some clients the marks back that a copy holds; stretches may have been cut since."""
        for stretch in self.stretches:
            origin = next(earlier for earlier in before if stretch.columns <= earlier.columns)
            stretch.marks[clients], stretch.known[clients] = origin.marks[clients], origin.known[clients]

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Everything as tensors: `spans [n, 3]` says which stretch a span belongs to, and where it lies."""
        spans = [(number, *span) for number, part in enumerate(self.stretches) for span in part.columns.spans]
        yield "spans", torch.tensor(spans, dtype=torch.int64).view(-1, 3)
        yield "marks", _stacked([part.marks for part in self.stretches], self._clients, torch.int64)
        yield "known", _stacked([part.known for part in self.stretches], self._clients, torch.bool)

    def restore(self, spans: Tensor, marks: Tensor, known: Tensor) -> None:
        """Put back what `state` once gave."""
        by_stretch: dict[int, list[tuple[int, int]]] = {}
        for number, start, stop in spans.tolist():
            by_stretch.setdefault(number, []).append((start, stop))
        self.stretches = [
            Stretch(Columns.of(*by_stretch[number]), marks[number].clone(), known[number].clone())
            for number in range(len(marks))
        ]

    def _within(self, columns: Columns) -> list[Stretch]:
        self._cut(columns)
        return [stretch for stretch in self.stretches if stretch.columns <= columns]

    def _cut(self, columns: Columns) -> None:
        """Make every stretch lie within the columns or outside of them."""
        pieces: list[Stretch] = []
        for stretch in self.stretches:
            inside, outside = stretch.columns & columns, stretch.columns - columns
            if inside and outside:
                pieces.append(replace(stretch, columns=inside))
                pieces.append(
                    replace(stretch, columns=outside, marks=stretch.marks.clone(), known=stretch.known.clone())
                )
            else:
                pieces.append(stretch)
        self.stretches = pieces


def _stacked(rows: list[Tensor], width: int, dtype: torch.dtype) -> Tensor:
    return torch.stack(rows) if rows else torch.empty(0, width, dtype=dtype)
