"""Several threads at work on pieces of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")


def for_each(work: Callable[[Piece], None], pieces: Sequence[Piece], threads: int) -> None:
    """Do the work for every piece, in so many threads that use one PyTorch thread each.

    Where PyTorch itself has several threads here, or one is wanted, the pieces are done one after the other.

    >>> done = []
    >>> for_each(done.append, [1, 2, 3], threads=2)
    >>> sorted(done)
    [1, 2, 3]
    """
    threads = min(threads, len(pieces)) if torch.get_num_threads() == 1 else 1
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(threads, "coterie", torch.set_num_threads, (1,)) as pool:
        for _ in pool.map(work, pieces):
            pass
