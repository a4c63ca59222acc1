"""How long sites take, learned from their answers: what a round waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

REMEMBERED = 5  # answers
SLACK = 3.0  # times the slowest of them
LEAST = 60.0  # seconds: a site that is gone is noticed in about as many, and below that every hiccup would tell


class AnswerTimes:
    """The seconds from question to answer of every site, late answers included.

    >>> times = AnswerTimes()
    >>> times.took("a", 30.0)
    >>> times.deadline(["a"], most=600.0), times.deadline(["a"], most=45.0), times.deadline(["a", "b"], most=600.0)
    (90.0, 45.0, 600.0)
    """

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}

    def took(self, site: str, seconds: float) -> None:
        """Take note of an answer, whether it came in time or not."""
        self._seconds.setdefault(site, deque(maxlen=REMEMBERED)).append(seconds)

    def deadline(self, sites: Iterable[str], most: float) -> float:
        """How long to wait for the answers of these sites.

        Three times the slowest of a site's last five answers, at least a minute and at the most `most`, which
        holds for sites that have not answered yet; the slowest site decides.
        """
        known = (SLACK * max(self._seconds[site]) if site in self._seconds else most for site in sites)
        return min(most, max((LEAST, *known)))
