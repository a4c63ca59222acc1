"""Named rows: some columns held once for everybody, the others per client.

Personal rows of very many clients are in memory while they fit, else in a file that is mapped. It has no name, lies
where temporary files do (`TMPDIR`), and is gone with the last process that uses it. Rows that nobody asks for need not
be in memory then, and worker processes map the same file.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.machine import memory_bytes
from coterie.core.numbers import spoken_bytes
from coterie.core.tracks import Tracks
from coterie.errors import CoterieError, require

HeldBy = Literal["server", "client", "both"]
# A slot, or what makes rows of the `ClientRows` of an upload (which are defined further up).
Follows = str | Callable[[Any], Tensor] | None


class Slot:
    """Named rows: some columns held once for everybody (`shared [1, ·]`), the others per client (`own [K, ·]`).

    Memory follows what is personal: a slot whose columns are all shared costs one row, and personal rows that memory
    is too small for lie in a file (`mapped`). An `outline` is not to be written to: one row stands for everybody's.
    `held_by` says who has it:
    a slot of the server never travels, one of the clients is never read on the server. A slot of the server may
    *follow* another: it takes on the columns that clients upload of that (or what a function makes of them). One that
    stands `beside` another is kept whenever that is trained.

    >>> import torch
    >>> slot = Slot(torch.zeros(5), clients=3, columns=Columns.of((0, 5)), shared=Columns.of((0, 4)))
    >>> slot.write_own(torch.tensor([2]), Columns.of((4, 5)), torch.tensor([[7.0]]))
    >>> slot.rows(torch.tensor([0, 2]))
    tensor([[0., 0., 0., 0., 0.],
            [0., 0., 0., 0., 7.]])
    """

    def __init__(
        self,
        initial: Tensor,
        clients: int,
        columns: Columns,
        shared: Columns,
        held_by: HeldBy = "both",
        follows: Follows = None,
        outline: bool = False,
        beside: str = "",
    ) -> None:
        self.columns, self.beside = columns, beside
        self.shared_columns = shared & columns
        self.own_columns = columns - shared
        self.held_by: HeldBy = held_by
        self.follows = follows
        self.dropped = False  # whether it has served its purpose
        self.shared = self.shared_columns.take(initial)[None].clone()
        first = self.own_columns.take(initial)
        self.mapped: MappedRows | None = None
        if outline:
            self.own = first.expand(clients, -1)
        else:
            self.own, self.mapped = personal_rows(first, clients)
        self.tracks = Tracks(self.shared_columns, self.own_columns, clients)

    def __getstate__(self) -> dict[str, Any]:
        if self.mapped is None:
            return self.__dict__
        return {**self.__dict__, "own": None, "mapped": self.mapped.elsewhere()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.mapped is not None:
            self.own = self.mapped.opened()

    @property
    def width(self) -> int:
        """The number of columns of a client's row in this slot."""
        return self.columns.size

    def rows(self, clients: Tensor, columns: Columns | None = None) -> Tensor:
        """New rows `[m, |columns|]` of the given clients (all columns of the slot by default)."""
        columns = self.columns if columns is None else columns
        if not columns <= self.columns:
            raise ValueError("columns outside the slot")
        out = self.shared.new_empty(len(clients), columns.size)
        common, own = columns & self.shared_columns, columns & self.own_columns
        if common:
            common.within(columns).put(out, common.within(self.shared_columns).take(self.shared))
        if own:
            held, chosen = own.within(self.own_columns), clients.to(out.device)
            # One span is looked at where it lies; of several, only these clients' are put together.
            in_place = len(held.spans) == 1
            own.within(columns).put(out, held.take(self.own)[chosen] if in_place else held.take(self.own[chosen]))
        return out

    def copy_row(self, client: int, out: Tensor) -> None:
        """Copy one client's row into the slot's columns of `out [P]`, in place."""
        self.shared_columns.put(out, self.shared[0])
        self.own_columns.put(out, self.own[client])

    def rows_alone(self) -> Slot:
        """The same rows without what the server knows about them: all that whoever trains needs."""
        alone = copy.copy(self)
        alone.follows, alone.tracks = None, Tracks(Columns(), Columns(), clients=0)
        return alone

    def write_shared(self, columns: Columns, values: Tensor) -> None:
        """Write `values [1, |columns|]` into shared columns."""
        columns.within(self.shared_columns).put(self.shared, values)

    def write_own(self, clients: Tensor, columns: Columns, values: Tensor) -> None:
        """Write `values [m, |columns|]` into the personal columns of the given clients."""
        offset, clients = 0, clients.to(self.own.device)
        for start, stop in columns.within(self.own_columns).spans:
            self.own[clients, start:stop] = values[:, offset : offset + stop - start]
            offset += stop - start


class ServerSlot(Slot):
    """A slot as the server sees it: of a client's own columns just what it sent, or was sent."""

    def __init__(self, name: str, slot: Slot) -> None:
        self.__dict__.update(slot.__dict__)
        self._name, self._whole = name, slot
        self.own = slot.own[:0]  # a client's columns are read with `rows`, which looks at what has travelled

    def rows(self, clients: Tensor, columns: Columns | None = None) -> Tensor:
        """Rows `[m, |columns|]` of the given clients; an error in words if the server cannot know them."""
        require_known(self._name, self._whole, clients, self.columns if columns is None else columns)
        return self._whole.rows(clients, columns)


def require_known(name: str, slot: Slot, clients: Tensor, columns: Columns) -> None:
    """An error if the server reads columns that clients changed and did not send."""
    if slot.held_by == "client":
        raise CoterieError(f"slot '{name}' is held by clients alone, but is read on the server; upload it")
    stranger = slot.tracks.unknown(clients, columns)
    if stranger is not None:
        raise CoterieError(
            f"slot '{name}' of client {stranger} is read on the server, but what the client trained of it is not among "
            "its uploads; upload it, or read what was uploaded"
        )


LIMIT = "COTERIE_ROWS_IN_MEMORY"
"""The environment variable that says how many MB a slot's personal rows may take in memory (a quarter if unset)."""
BLOCK = 1 << 24
"""Numbers that are written at a time."""


@dataclass(frozen=True)
class MappedRows:
    """Where rows `[K, w]` are mapped from; the file is kept open, or known by the process that has it open."""

    path: str
    shape: tuple[int, int]
    file: IO[bytes] | None = None

    def opened(self) -> Tensor:
        """The rows; whoever writes to them writes for all processes."""
        mapped = np.memmap(self.path, np.float32, "r+", shape=self.shape)
        return torch.from_numpy(mapped)

    def elsewhere(self) -> MappedRows:
        """The same for another process of this machine."""
        return MappedRows(self.path, self.shape)


def most_in_memory() -> int:
    """How many bytes a slot's personal rows may take in memory."""
    given = os.environ.get(LIMIT, "")
    require(given.isdigit() or not given, f"{LIMIT} = {given}: must be a number of MB")
    return int(given) * 10**6 if given else memory_bytes() // 4


def personal_rows(row: Tensor, clients: int) -> tuple[Tensor, MappedRows | None]:
    """The same `row [w]` for every client, `[K, w]`, and where it is mapped from, if it is.

    >>> rows, mapped = personal_rows(torch.tensor([1.0, 2.0]), clients=3)
    >>> rows.shape, mapped
    (torch.Size([3, 2]), None)
    """
    needed = row.nbytes * clients
    if needed <= most_in_memory() or row.device.type != "cpu" or sys.platform != "linux":
        return row[None].repeat(clients, 1), None
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    require(
        needed < free,
        f"personal rows of {clients:,} clients take {spoken_bytes(needed)}, and {folder} has room for "
        f"{spoken_bytes(free)}; set TMPDIR to a folder that has more, use fewer clients, or a method that shares more",
    )
    file = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the rows do)
    file.truncate(needed)
    mapped = MappedRows(f"/proc/{os.getpid()}/fd/{file.fileno()}", (clients, len(row)), file)
    rows = mapped.opened()
    for block in rows.split(max(1, BLOCK // len(row))):
        block.copy_(row)
    return rows, mapped
