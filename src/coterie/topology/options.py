"""The graph along which clients learn from each other: settings of a run and of a federation. Free of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from coterie.errors import require
from coterie.files import resolved
from coterie.options import setting
from coterie.typed import TypedOptions

RING, REGULAR = "ring", "regular:"
TopologyRule = Literal["rows", "metropolis"]


@dataclass(frozen=True, kw_only=True)
class Neighbours(metaclass=TypedOptions):
    """The graph, and what weights on it are; without one, everybody learns from whomever the method says.

    >>> Neighbours(topology="ring").topology_rule
    'rows'
    >>> Neighbours(topology="star")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: topology = 'star': must be ring, regular:4 (so many neighbours each), or a FILE.csv
    """

    topology: str = setting(
        "",
        "Clients learn from their neighbours alone: ring, regular:4 (at random, so many each), or a FILE.csv of links.",
        "training",
        shown="no graph",
    )
    topology_rule: TopologyRule = setting(
        "rows", "Weights on it: rows (the method's, each row scaled to 1) or metropolis.", "training"
    )

    def __post_init__(self) -> None:
        if not self.topology:
            require(self.topology_rule == "rows", f"topology_rule = {self.topology_rule}: is for a topology; name one")
            return
        number = self.topology.removeprefix(REGULAR)
        known = self.topology == RING or self.topology.endswith(".csv") or (number.isdecimal() and int(number) > 0)
        require(
            known,
            f"topology = '{self.topology}': must be ring, regular:4 (so many neighbours each), or a FILE.csv",
        )
        require(
            not (self.topology.endswith(".csv") and hasattr(self, "sites")),
            f"topology = '{self.topology}': sites cannot agree on somebody's file; use ring or regular:4",
        )
        if self.topology.endswith(".csv"):  # a run may be carried on from anywhere
            object.__setattr__(self, "topology", str(resolved(self.topology)))
        for option, given in (("defence", getattr(self, "reduces", False)), ("server", getattr(self, "server", ""))):
            why = {
                "defence": "few neighbours are no crowd to compare with: leave it out, or defence and share_limit",
                "server": "there is no row that all share, which a server's optimiser could move; leave one out",
            }
            require(not given, f"topology = '{self.topology}': {why[option]}")

    def asked_for(self) -> Iterator[str]:
        """The stage that is asked for, by its place."""
        if self.topology:
            yield "coterie.topology.stage:Topology"
