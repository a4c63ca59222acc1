"""State with a number for every pair of clients: how much there may be of it."""

from __future__ import annotations

from coterie.core.machine import memory_bytes
from coterie.core.scale import spoken_bytes
from coterie.errors import CoterieError

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
