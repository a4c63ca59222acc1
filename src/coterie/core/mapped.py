"""Personal rows of very many clients: in memory while they fit, else in a file that is mapped.

The file has no name, lies where temporary files do (`TMPDIR`), and is gone with the last process that uses it. Rows
that nobody asks for need not be in memory then, and worker processes map the same file.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from typing import IO

import numpy as np
import torch
from torch import Tensor

from coterie.core.machine import memory_bytes
from coterie.core.scale import spoken_bytes
from coterie.errors import require

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
