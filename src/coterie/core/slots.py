"""Named rows: some columns held once for everybody, the others per client."""

from __future__ import annotations

from torch import Tensor

from coterie.core.columns import Columns


class Slot:
    """Named rows: some columns held once for everybody (`shared [1, ·]`), the others per client (`own [K, ·]`).

    Memory follows what is personal: a slot whose columns are all shared costs one row.
    """

    def __init__(self, initial: Tensor, clients: int, columns: Columns, shared: Columns) -> None:
        self.columns = columns
        self.shared_columns = shared & columns
        self.own_columns = columns - shared
        self.shared = self.shared_columns.take(initial)[None].clone()
        self.own = self.own_columns.take(initial)[None].repeat(clients, 1)

    @property
    def width(self) -> int:
        """The number of columns of a client's row in this slot."""
        return self.columns.size

    def rows(self, clients: Tensor, columns: Columns | None = None) -> Tensor:
        """New rows `[m, |columns|]` of the given clients (all columns of the slot by default)."""
        wanted = self.columns if columns is None else columns
        if not wanted <= self.columns:
            raise ValueError("columns outside the slot")
        out = self.shared.new_empty(len(clients), wanted.size)
        common, own = wanted & self.shared_columns, wanted & self.own_columns
        if common:
            common.within(wanted).put(out, common.within(self.shared_columns).take(self.shared))
        if own:
            own.within(wanted).put(out, own.within(self.own_columns).take(self.own)[clients])
        return out

    def copy_row(self, client: int, out: Tensor) -> None:
        """Copy one client's row into the slot's columns of `out [P]`, in place."""
        self.shared_columns.put(out, self.shared[0])
        self.own_columns.put(out, self.own[client])

    def write_shared(self, columns: Columns, values: Tensor) -> None:
        """Write `values [1, |columns|]` into shared columns."""
        columns.within(self.shared_columns).put(self.shared, values)

    def write_own(self, clients: Tensor, columns: Columns, values: Tensor) -> None:
        """Write `values [m, |columns|]` into the personal columns of the given clients."""
        offset = 0
        for start, stop in columns.within(self.own_columns).spans:
            self.own[clients, start:stop] = values[:, offset : offset + stop - start]
            offset += stop - start
