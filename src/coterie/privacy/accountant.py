"""From noise to ε: Rényi differential privacy as Opacus accounts for it (Mironov, 2017; Mironov et al., 2019).

Everything that is released of one unit's data is a list of Gaussian mechanisms, each with its noise multiplier, the
rate at which its Poisson sample draws an example (1: all of them) and how often it ran. Their Rényi divergences add up
order by order; ε(δ) is the least that any order gives. Opacus is an extra: `pip install 'coterie[privacy]'`.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from coterie.errors import CoterieError

ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 10)),
    2.25, 2.5, 2.75, 3.5, 4.5,
    *range(2, 65),
    *(72, 96, 128, 192, 256, 512, 1024),
)  # fmt: skip


@dataclass(frozen=True)
class Release:
    """A Gaussian mechanism that ran `steps` times; its noise is a multiple of what one unit can change."""

    multiplier: float
    steps: int
    rate: float = 1.0


def epsilon_of(releases: Iterable[Release], delta: float) -> float:
    """The ε that holds with δ for all of these releases together; infinite if one of them has no noise.

    >>> epsilon_of([], delta=1e-5), epsilon_of([Release(0.0, steps=1)], delta=1e-5)
    (0.0, inf)
    """
    told = [one for one in releases if one.steps and one.rate]
    if not told:
        return 0.0
    if any(one.multiplier == 0 for one in told):
        return math.inf
    total = [0.0] * len(ORDERS)
    for one in told:
        each = _of_one(one.multiplier, one.rate)
        total = [sum_ + one.steps * value for sum_, value in zip(total, each, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the last: a larger one could only lower ε
        spent, _ = _opacus().get_privacy_spent(orders=list(ORDERS), rdp=total, delta=delta)
    return max(0.0, float(spent))


@cache
def _of_one(multiplier: float, rate: float) -> tuple[float, ...]:
    """The Rényi divergence of one step, order by order."""
    found = _opacus().compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=list(ORDERS))
    return tuple(map(float, found))


@cache
def _opacus() -> Any:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise CoterieError(f"privacy: Opacus is not installed ({error}); pip install 'coterie[privacy]'") from None
    # To import it sets up logging for the whole program, which is not its business.
    root.handlers[:] = handlers
    root.setLevel(level)
    return rdp
