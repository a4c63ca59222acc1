"""Nobody too small: draws are repeated until every client has its least number of samples, and the best is repaired."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.errors import require
from coterie.partition.split import Indices

DRAWS = 1000
USUAL_LEAST = 40


def least_samples(given: int | None, clients: int, samples: int) -> tuple[int, list[str]]:
    """The smallest client's samples, and a note if that is less than usual.

    Left open it is 40, or half the mean client size where that is smaller; a number that is given is taken at its word.

    >>> least_samples(None, clients=20, samples=60_000), least_samples(7, clients=20, samples=60_000)
    ((40, []), (7, []))
    >>> least_samples(None, clients=40, samples=1797)
    (22, ['least = 22: half the mean client size, which is below 40'])
    """
    mean = samples // clients
    if given is not None:
        require(given <= mean, f"least = {given}: must be at most {mean}: {clients} clients share {samples} samples")
        return given, []
    # Two samples make a training and a test sample, so ask for them wherever they exist.
    least = min(USUAL_LEAST, max(mean // 2, min(2, mean)))
    note = f"least = {least}: half the mean client size, which is below {USUAL_LEAST}"
    return least, [note] if least < USUAL_LEAST else []


def first_accepted(draw: Callable[[int], Indices], least: int, batch: int) -> tuple[Indices, int]:
    """The first draw of counts `[C, K]` that gives everybody `least`, else the best of 1,000; and the draws made.

    `draw(n)` makes n independent draws at once: `[n, C, K]`.
    """
    best, best_minimum, made = np.empty(0, np.int64), -1, 0
    while made < DRAWS:
        counts = draw(min(batch, DRAWS - made))
        minima = counts.sum(1).min(1)
        accepted = np.flatnonzero(minima >= least)
        if len(accepted):
            return counts[accepted[0]], made + int(accepted[0]) + 1
        if minima.max() > best_minimum:
            best, best_minimum = counts[minima.argmax()], int(minima.max())
        made += len(counts)
    return best, made


def repair(pools: list[Indices], least: int, stream: np.random.Generator) -> int:
    """Move random samples from the client that is then largest until everybody has `least`; how many."""
    sizes = np.array([len(pool) for pool in pools])
    shuffled: dict[int, list[int]] = {}
    received: dict[int, list[int]] = {}
    for client in np.flatnonzero(sizes < least).tolist():
        received[client] = []
        while sizes[client] < least:
            donor = int(sizes.argmax())
            if donor not in shuffled:
                shuffled[donor] = stream.permutation(pools[donor]).tolist()
            received[client].append(shuffled[donor].pop())
            sizes[donor] -= 1
            sizes[client] += 1
    for donor, rest in shuffled.items():
        pools[donor] = np.array(rest, dtype=np.int64)
    for client, samples in received.items():
        pools[client] = np.concatenate([pools[client], np.array(samples, dtype=np.int64)])
    return sum(map(len, received.values()))


def repaired(draws: int, moved: int) -> str:
    """The note that says so.

    >>> repaired(1000, 12)
    'repaired after 1000 draws: moved 12 samples'
    """
    return f"repaired after {draws} draws: moved {moved} samples"
