"""How long anybody is waited for, when that is said, and when somebody is asked again."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

POLL = 0.05  # seconds between two looks for answers
LISTEN = 1.0  # seconds between two looks for new sites
RECONNECT = 120.0  # seconds that sites may take to find a server again that was gone
AGAIN = 5.0  # seconds before somebody is asked again; from time to time twice as long
SELDOM = 320.0  # seconds at most, where it does not help
NEWS = 15.0  # seconds of waiting after which it is said for whom
REMEMBERED = 5  # answers
SLACK = 3.0  # times the slowest of them
LEAST = 60.0  # seconds: a site that is gone is noticed in about as many, and below that every hiccup would tell


class AnswerTimes:
    """The seconds from question to answer of every site, late answers included, and how often in a row none came.

    >>> times = AnswerTimes()
    >>> times.took("a", 30.0)
    >>> times.deadline("a", most=600.0), times.deadline("a", most=45.0), times.deadline("b", most=600.0)
    (90.0, 45.0, 600.0)
    >>> times.missed("b")
    >>> times.deadline("b", most=600.0)
    300.0
    """

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}
        self._missed: dict[str, int] = {}

    def took(self, site: str, seconds: float) -> None:
        """Take note of an answer, whether it came in time or not."""
        self._seconds.setdefault(site, deque(maxlen=REMEMBERED)).append(seconds)
        self._missed.pop(site, None)

    def missed(self, site: str) -> None:
        """Take note of a site whose answer did not come in time."""
        self._missed[site] = self._missed.get(site, 0) + 1

    def deadline(self, site: str, most: float) -> float:
        """How long to wait for the answer of a site.

        Three times the slowest of its last five answers, at least a minute and at the most `most`, which holds for a
        site that has not answered yet. Half as long after each question in a row that it left unanswered.
        """
        usual = SLACK * max(self._seconds[site]) if site in self._seconds else most
        return min(most, max(LEAST, math.ldexp(min(most, usual), -self._missed.get(site, 0))))


class WaitingNews:
    """When it is time to say what is waited for: after 15 seconds, and then each time after twice as long."""

    def __init__(self, begin: float) -> None:
        self._next, self._pause = begin + NEWS, NEWS

    def due(self, now: float) -> bool:
        """Whether it is time."""
        if now < self._next:
            return False
        self._pause *= 2
        self._next = now + self._pause
        return True


@dataclass(frozen=True)
class Pause:
    """How long somebody is not asked."""

    seconds: float = AGAIN / 2
    until: float = 0.0

    def longer(self, now: float) -> Pause:
        """Twice as long, from now on."""
        seconds = min(2 * self.seconds, SELDOM)
        return Pause(seconds, now + seconds)
