"""How much one client may do to the others: settings of a run and of a federation alike. Free of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from coterie.errors import require
from coterie.options import setting
from coterie.typed import TypedOptions

FEWEST = 5
"""So many uploads are needed to tell an unusual one from the others."""


@dataclass(frozen=True, kw_only=True)
class Defence(metaclass=TypedOptions):
    """What keeps one client from taking over; nothing unless asked for.

    `share_limit` bounds another client's weight in any mix (`coterie.core.reducing`). `quarantine` sets uploads aside
    whose norm or loss jumps (`coterie.rounds.quarantine`): it is a distance in robust standard deviations.

    >>> Defence(share_limit=0.5).bounds, Defence().bounds
    (True, False)
    """

    share_limit: float = setting(
        1.0, "No other client counts for more than this share of any mix (1: no limit).", "defence"
    )
    quarantine: float = setting(
        0.0,
        "Set uploads aside whose norm or loss jumps by so many robust deviations (0: never; 6 is usual).",
        "defence",
    )
    quarantine_rounds: int = setting(3, "Rounds without a jump after which a client's uploads count again.", "defence")

    def __post_init__(self) -> None:
        require(0 < self.share_limit <= 1, f"share_limit = {self.share_limit}: must be above 0 and at most 1")
        require(
            self.quarantine == 0 or self.quarantine >= 1,
            f"quarantine = {self.quarantine}: must be at least 1 (6 is usual), or 0 for never",
        )
        require(self.quarantine_rounds >= 1, f"quarantine_rounds = {self.quarantine_rounds}: must be at least 1")

    @property
    def bounds(self) -> bool:
        """Whether shares are bounded."""
        return self.share_limit < 1

    @property
    def watches(self) -> bool:
        """Whether uploads are watched."""
        return self.quarantine > 0

    @property
    def defence(self) -> Defence:
        """These settings alone, without what a class that extends them adds."""
        return Defence(**{item.name: getattr(self, item.name) for item in fields(Defence)})

    def require_enough(self, contributors: int, way_out: str) -> None:
        """An error if as few contributors as there may be cannot keep the limit, whatever their weights.

        >>> Defence(share_limit=0.4).require_enough(2, "name more sites")
        Traceback (most recent call last):
        ...
        coterie.errors.CoterieError: share_limit = 0.4: a mix of 2 cannot keep it (at least 0.5); name more sites
        """
        require(
            contributors * self.share_limit >= 1 - 1e-9,
            f"share_limit = {self.share_limit:g}: a mix of {contributors} cannot keep it (at least "
            f"{1 / contributors:.4g}); {way_out}",
        )
