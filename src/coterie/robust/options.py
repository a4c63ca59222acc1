"""How much one client may do to the others: settings of a run and of a federation alike. Free of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coterie.errors import require
from coterie.options import setting
from coterie.typed import TypedOptions

FEWEST = 3
"""So many uploads are needed to tell an unusual one from the others: two that differ could both be meant."""


@dataclass(frozen=True, kw_only=True)
class Defence(metaclass=TypedOptions):
    """What keeps one client from taking over; nothing unless asked for.

    `defence` names how mixes are made instead of as weighted means (`coterie.robust.defences`), and `share_limit`
    bounds another client's weight in any mix (`coterie.robust.reducing`). `quarantine` sets uploads aside whose norm or
    loss jumps (`coterie.robust.quarantine`): it is a distance in robust standard deviations.

    >>> Defence(share_limit=0.5).reduces, Defence(defence="median").reduces, Defence().reduces
    (True, True, False)
    """

    defence: str = setting(
        "",
        "How mixes are made: clip:1, median, trimmed-mean:0.2, krum:2, multi-krum:2, influence:0.1; joined by +.",
        "defence",
        shown="weighted means",
    )
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

    def asked_for(self) -> Iterator[str]:
        """The stages that are asked for, by their places."""
        if self.quarantine:
            yield "coterie.robust.quarantine:Quarantine"
        if self.reduces:
            yield "coterie.robust.defended:Defended"

    @property
    def reduces(self) -> bool:
        """Whether mixes are made otherwise than as weighted means."""
        return self.share_limit < 1 or bool(self.defence)

    @property
    def spoken(self) -> str:
        """What is asked of mixes, as it was given.

        >>> Defence(share_limit=0.5, defence="median").spoken
        "share_limit = 0.5, defence = 'median'"
        """
        limit = [f"share_limit = {self.share_limit:g}"] if self.share_limit < 1 else []
        return ", ".join([*limit, *([f"defence = '{self.defence}'"] if self.defence else [])])
