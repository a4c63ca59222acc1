"""What the cores of this machine have to offer now: to one who works, and when all of them work.

Worker processes take too long to start for a trial, and threads that train hinder each other in ways that processes do
not (memory of one process is mapped by one thread at a time). So the cores are asked directly: threads multiply and add
in memory of their own that is there already, first one, then all at once.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

# Numbers in a matrix's row, and in what is added: a product is mostly arithmetic, a sum mostly memory.
SIDE, ADDED = 256, 1 << 18
# Seconds for one core, and for all: those that are counted come after some in which the system deals out new threads to
# the cores, and must be long enough for it to deal them out anew where others work, too.
ALONE, SETTLING, COUNTED = 0.05, 0.1, 0.2


@dataclass(frozen=True)
class Offer:
    """The seconds that go by where one core is busy for a second, undisturbed: at least 1 each.

    `alone`: if nobody else works but whatever else the machine does; `together`: if all cores do the same.
    """

    alone: float = 1.0
    together: float = 1.0


def offer_of(cores: int) -> Offer:
    """What so many cores offer now.

    >>> offer = offer_of(2)
    >>> offer.alone >= 1, offer.together >= 1
    (True, True)
    """
    works = [_Work() for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        by_clock, undisturbed = pool.submit(works[0].rates, time.perf_counter(), ALONE).result()
        begin = time.perf_counter() + SETTLING
        all_at_once = [rate for rate, _ in pool.map(lambda work: work.rates(begin, COUNTED), works)]
    return Offer(max(undisturbed / by_clock, 1.0), max(undisturbed / statistics.fmean(all_at_once), 1.0))


class _Work:
    """Something to do for a core, without any memory to be reserved."""

    def __init__(self) -> None:
        self._matrices = [torch.ones(SIDE, SIDE) for _ in range(3)]
        self._vectors = [torch.ones(ADDED) for _ in range(3)]

    def rates(self, begin: float, seconds: float) -> tuple[float, float]:
        """How often it is done a second, for so many of them from `begin` on; and a second of the processor's time."""
        torch.set_num_threads(1)  # each thread has its own setting
        (left, right, product), (one, other, total) = self._matrices, self._vectors
        done, counting, busy = 1, False, time.thread_time()  # who gets nothing done is slow, not infinitely so
        while (now := time.perf_counter()) < begin + seconds:
            if now >= begin and not counting:
                done, counting, busy = 0, True, time.thread_time()
            torch.mm(left, right, out=product)
            torch.add(one, other, out=total)
            done += 1
        return done / seconds, done / max(time.thread_time() - busy, 1e-6)
