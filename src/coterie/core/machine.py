"""The machine: what numbers depend on besides the configuration, how much memory there is, threads at work."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from coterie.core.numbers import spoken_bytes
from coterie.errors import CoterieError
from coterie.version import VERSION


def machine() -> dict[str, str]:
    """The versions at work, the processor, and which of its instructions PyTorch uses.

    >>> sorted(machine())
    ['capability', 'coterie', 'processor', 'python', 'torch']
    """
    return {
        "coterie": VERSION,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def memory_bytes() -> int:
    """The memory of this machine; without a limit where it is not known.

    >>> memory_bytes() > 1 << 20
    True
    """
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or sys.platform


SHARE = 0.5
"""The share of the machine's memory that numbers for all pairs of clients may take."""


def require_pairs(method: str, clients: int, what: str, each: int) -> None:
    """An error if `what` a method holds of all pairs of clients, `each` bytes a pair at the most, does not fit.

    >>> require_pairs("pfedsim", 100, "similarities", each=16)
    """
    needed, memory = each * clients**2, memory_bytes()
    if needed <= SHARE * memory:
        return
    fitting = int((SHARE * memory / each) ** 0.5)
    raise CoterieError(
        f"{method}: {what} of {clients:,} clients with each other take {spoken_bytes(needed)}, more than {SHARE:.0%} "
        f"of this machine's memory; use at most {fitting:,} clients, or a method that compares nobody, such as fedavg, "
        "fedper or ditto"
    )


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
