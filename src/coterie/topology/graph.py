"""Graphs of clients as matrices `[K, K]` of who hears whom, and how fast what one knows spreads on them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError, require
from coterie.rng import numpy_stream
from coterie.topology.options import REGULAR, RING

SWAPS = 10
"""So often each link of a random graph is exchanged, on average."""


def links_of(topology: str, keys: Tensor, names: Sequence[str], seed: int) -> Tensor:
    """Who hears whom, without oneself: `[K, K]` bool, symmetric. It belongs to clients' keys, not to their order.

    >>> links_of("ring", torch.arange(4), ("a", "b", "c", "d"), seed=0).int().tolist()
    [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]
    """
    count, places = len(keys), torch.argsort(keys)
    if topology.endswith(".csv"):
        return _links_in(Path(topology), names)
    degree = 2 if topology == RING else int(topology.removeprefix(REGULAR))
    if topology == RING:
        degree = min(degree, count - 1)  # two are linked once, one alone is not
    else:
        require(
            degree < count and degree * count % 2 == 0,
            f"topology = '{topology}': {count} clients cannot have {degree} neighbours each; so many must be fewer "
            "than the clients, and their product even",
        )
    links = _around(count, degree)
    if topology != RING:
        links = _shuffled(links, seed)
    found = torch.zeros(count, count, dtype=torch.bool)
    found[places[:, None], places] = torch.from_numpy(links)
    return found


def _around(count: int, degree: int) -> np.ndarray:
    """Everybody in a circle with the nearest `degree` others; of an odd number, one is opposite."""
    apart = (np.arange(count)[:, None] - np.arange(count)) % count
    apart = np.minimum(apart, count - apart)
    near: np.ndarray = (apart > 0) & (apart <= degree // 2)
    return near | (apart == count / 2) if degree % 2 else near


def _shuffled(links: np.ndarray, seed: int) -> np.ndarray:
    """The same number of neighbours for each, at random: two links a–b and c–d become a–d and c–b, again and again.

    It ends as soon as everybody can be reached after all swaps.
    """
    links, stream = links.copy(), numpy_stream(seed, "topology")
    pairs = np.argwhere(np.triu(links))
    for _trial in range(1000):
        for _ in range(SWAPS * len(pairs)):
            one, other = stream.integers(len(pairs), size=2)
            (a, b), (c, d) = pairs[one], pairs[other][:: 1 if stream.random() < 0.5 else -1]
            if len({a, b, c, d}) == 4 and not links[a, d] and not links[c, b]:
                for x, y, there in ((a, b, False), (c, d, False), (a, d, True), (c, b, True)):
                    links[x, y] = links[y, x] = there
                pairs[one], pairs[other] = (a, d), (c, b)
        # With one neighbour each, there are pairs and no more.
        if links.sum() <= len(links) or reaches_all(torch.from_numpy(links)):
            return links
    raise CoterieError("topology: no graph was found in which everybody can be reached; give more neighbours")


def _links_in(path: Path, names: Sequence[str]) -> Tensor:
    """The links in a file: two clients' names a line, separated by a comma."""
    try:
        lines = [line for line in csv.reader(path.read_text(encoding="utf-8").splitlines()) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CoterieError(f"topology = '{path}': cannot be read ({error})") from None
    found = torch.zeros(len(names), len(names), dtype=torch.bool)
    places = {name: place for place, name in enumerate(names)}
    for line in lines:
        ends = [name.strip() for name in line]
        require(len(ends) == 2, f"topology = '{path}': a line has {len(ends)} names; give two clients a line: a,b")
        for name in ends:
            require(name in places, f"topology = '{path}': there is no client '{name}' (the first is '{names[0]}')")
        a, b = (places[name] for name in ends)
        require(a != b, f"topology = '{path}': links '{ends[0]}' with itself, which everybody is anyway")
        found[a, b] = found[b, a] = True
    return found


def reaches_all(links: Tensor) -> bool:
    """Whether everybody can be reached from everybody."""
    reached = torch.zeros(len(links), dtype=torch.bool)
    reached[:1] = True
    while True:
        more = reached | links[reached].any(0)
        if torch.equal(more, reached):
            return bool(reached.all())
        reached = more


def metropolis(links: Tensor, learners: Tensor, sources: Tensor) -> Tensor:
    """The Metropolis weights `[n, m]`, float64, of those that a graph links: W_ij = 1 / (1 + max(d_i, d_j)).

    What a row lacks of one is the learner's own, if it is among the sources. Where all of them learn, columns sum to
    one like rows, so that repeated mixing leads to the plain mean.

    >>> path, everybody = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).bool(), torch.arange(3)
    >>> metropolis(path, everybody, everybody).mul(3).round().int().tolist()
    [[2, 1, 0], [1, 1, 1], [0, 1, 2]]
    """
    hears, among = links[learners][:, sources], links[sources][:, sources]
    weights = hears / (1 + torch.maximum(hears.sum(1, keepdim=True).double(), among.sum(1).double()))
    return weights + (learners[:, None] == sources) * (1 - weights.sum(1, keepdim=True))


def spectral_gap(links: Tensor, sizes: Tensor, rule: str) -> float:
    """1 − |λ₂| of the matrix that everybody's mean becomes on a graph: 1 is one step to the mean, 0 never gets there.

    That mean is by data size; `metropolis` knows none.

    >>> ring = links_of("ring", torch.arange(6), "abcdef", seed=0)
    >>> round(spectral_gap(ring, torch.ones(6), "rows"), 4)
    0.3333
    """
    if rule == "metropolis":
        everybody = torch.arange(len(links))
        alike = metropolis(links, everybody, everybody)
    else:  # s_j / Σ s of neighbours is similar to a symmetric matrix, whose eigenvalues are real
        heard = (links | torch.eye(len(links), dtype=torch.bool)).double()
        sizes = sizes.double()
        alike = heard * torch.outer(sizes, sizes).sqrt()
        totals = (heard @ sizes).sqrt()
        alike = alike / torch.outer(totals, totals)
    values = torch.linalg.eigvalsh(alike).abs().sort(descending=True).values
    return float(1 - values[1]) if len(values) > 1 else 1.0
