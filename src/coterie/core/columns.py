"""Sets of columns of a row, kept as spans so that taking a group is a view wherever possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

Span = tuple[int, int]
# A run asks for the same few sets round after round; what a large model cuts into blocks must not grow for ever.
REMEMBERED = 1024


def _merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    out: list[Span] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return tuple(out)


@dataclass(frozen=True)
class Columns:
    """A set of columns: sorted, disjoint, maximal spans `(start, stop)`.

    >>> everything, classifier = Columns.of((0, 10)), Columns.of((7, 10))
    >>> everything - classifier
    Columns(spans=((0, 7),))
    >>> (everything - classifier).take(torch.arange(10.0)[None]).shape
    torch.Size([1, 7])
    """

    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, *spans: Span) -> Columns:
        """The union of the given spans."""
        return cls(_merged(spans))

    @property
    def size(self) -> int:
        """How many columns there are."""
        return sum(stop - start for start, stop in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    def __or__(self, other: Columns) -> Columns:
        return Columns(_merged((*self.spans, *other.spans)))

    @lru_cache(maxsize=REMEMBERED)  # noqa: B019, the sets are values
    def __sub__(self, other: Columns) -> Columns:
        left: list[Span] = []
        for begin, end in self.spans:
            start = begin
            for cut_start, cut_stop in other.spans:
                if cut_stop <= start or cut_start >= end:
                    continue
                left.append((start, cut_start))
                start = cut_stop
            left.append((start, end))
        return Columns(_merged(left))

    def __and__(self, other: Columns) -> Columns:
        return self - (self - other)

    def __le__(self, other: Columns) -> bool:
        return not self - other

    @lru_cache(maxsize=REMEMBERED)  # noqa: B019, the sets are values
    def within(self, parent: Columns) -> Columns:
        """These columns as positions in a compact matrix that holds just the columns of `parent`.

        >>> Columns.of((5, 6), (9, 10)).within(Columns.of((4, 6), (8, 10)))
        Columns(spans=((1, 2), (3, 4)))
        """
        if not self <= parent:
            raise ValueError("columns outside the parent")
        local: list[Span] = []
        offset = 0
        for begin, end in parent.spans:
            for start, stop in (self & Columns.of((begin, end))).spans:
                local.append((offset + start - begin, offset + stop - begin))
            offset += end - begin
        return Columns(_merged(local))

    def take(self, rows: Tensor) -> Tensor:
        """The columns of `rows [..., P]`: a view if they are one span, else a copy `[..., size]`."""
        if len(self.spans) == 1:
            start, stop = self.spans[0]
            return rows[..., start:stop]
        if not self.spans:
            return rows[..., :0]
        return torch.cat([rows[..., start:stop] for start, stop in self.spans], dim=-1)

    def put(self, rows: Tensor, values: Tensor) -> None:
        """Write `values [..., size]` into these columns of `rows [..., P]`, in place."""
        offset = 0
        for start, stop in self.spans:
            rows[..., start:stop] = values[..., offset : offset + stop - start]
            offset += stop - start

    def blocks(self, width: int) -> Iterator[Columns]:
        """The same columns in one-span pieces of at most `width` columns."""
        for begin, end in self.spans:
            for start in range(begin, end, width):
                yield Columns(((start, min(start + width, end)),))
