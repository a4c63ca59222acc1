"""Certificates end. So they are watched while a federation runs, and a new one is taken up without a restart."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from coterie.deployment.flower.keys import days_left
from coterie.errors import CoterieError

DAYS_OF_WARNING = 30
LOOK = 3600.0  # seconds between two looks at how long certificates hold
AGAIN = 86400.0  # seconds between two warnings of the same
RENEWAL = 5.0  # seconds between two looks for new ones

Stamps = tuple[tuple[int, int, int] | None, ...]


def warning_of(what: str, certificate: Path, way_out: str) -> str:
    """What is to be done about a certificate that ends within a month; nothing before."""
    try:
        left = days_left(certificate)
    except (CoterieError, OSError):  # it is being replaced, or was taken away
        return ""
    if left >= DAYS_OF_WARNING:
        return ""
    return f"{what} {'has expired' if left < 0 else f'expires in {left} days'}; {way_out}"


class ExpiryWatch:
    """Warns of certificates that end within thirty days: once a day, as long as nothing is done about it.

    `certificates` are the files by what they are, each with what to do in time.
    """

    def __init__(
        self, certificates: Mapping[str, tuple[Path, str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._certificates, self._clock = certificates, clock
        self._looked: float | None = None
        self._told: dict[str, float] = {}

    def news(self) -> list[str]:
        """What has to be said now."""
        now = self._clock()
        if self._looked is not None and now - self._looked < LOOK:
            return []
        self._looked, found = now, []
        for what, (path, way_out) in self._certificates.items():
            warning = warning_of(what, path, way_out)
            if warning and now - self._told.get(what, -AGAIN) >= AGAIN:
                self._told[what] = now
                found.append(warning)
        return found


class Renewal:
    """Files that are read again when they have changed: by `renew`, which fails as long as they do not fit together.

    It must change nothing then, so that the old ones stay in use.
    """

    def __init__(self, paths: tuple[Path, ...], renew: Callable[[], None], told: str) -> None:
        self._paths, self._renew, self._told = paths, renew, told
        self._seen = self._stamps()
        self._unfit = Counter[Stamps]()  # how often they were looked at as they were, and could not be used

    def look(self) -> str:
        """Read them again if need be; what there is to be said about it."""
        stamps = self._stamps()
        if stamps == self._seen:
            return ""
        try:
            self._renew()
        except (OSError, ValueError) as error:  # TLS errors are the first
            self._unfit[stamps] += 1
            if self._unfit[stamps] != 2:  # at first sight, the other half may still be being written
                return ""
            names = " and ".join(map(str, self._paths))
            return f"the old certificate stays in use: {names} cannot be used ({error})"
        self._seen = stamps
        self._unfit.clear()
        return self._told

    async def watch(self) -> None:
        """Look from time to time, for ever."""
        while True:
            await asyncio.sleep(RENEWAL)
            if news := self.look():
                print(news, flush=True)

    def _stamps(self) -> Stamps:
        found: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                about = path.stat()
                found.append((about.st_mtime_ns, about.st_size, about.st_ino))
            except OSError:
                found.append(None)
        return tuple(found)
