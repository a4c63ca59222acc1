"""What makes a server begin anew: a next version of its agreement, or other keys."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PATIENCE = 900.0  # seconds that a round under way may take before what is new begins without it


class NextVersion:
    """Whether an agreement's file holds a newer version or other keys are accepted than at the start, and whether it is
    time for that: after the round under way. A file that cannot be read just now is no newer version.
    """

    def __init__(
        self, agreement: Path, version: int, keys: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._version, self._folder, self._clock = agreement, version, keys, clock
        self._stamp: tuple[int, int] | None = None
        self._seen: tuple[float, int] | None = None  # when, and which round was under way
        self._found, self._keys = version, self._accepted()

    def is_due(self, status: Mapping[str, Any]) -> bool:
        """Given how the federation stands, whether what is new begins now."""
        if not self._is_newer() and self._accepted() == self._keys:
            return False
        if self._seen is None:
            self._seen = (self._clock(), int(status.get("round", 0)))
        since, first = self._seen
        under_way = status.get("state") == "running" and str(status.get("message", "")).startswith(f"round {first} ")
        return not under_way or self._clock() - since > PATIENCE

    def _is_newer(self) -> bool:
        try:
            about = self._path.stat()
            if (stamp := (about.st_mtime_ns, about.st_size)) != self._stamp:
                self._found = int(tomllib.loads(self._path.read_text(encoding="utf-8")).get("version", 1))
                self._stamp = stamp
        except (OSError, ValueError):  # no TOML is a ValueError too
            return False
        return self._found > self._version

    def _accepted(self) -> dict[str, tuple[int, int]]:
        """The public keys that are accepted, each with what changes if it does."""
        found = {}
        for path in [] if self._folder is None else self._folder.glob("*.pub"):
            try:
                about = path.stat()
            except OSError:  # it was removed just now
                continue
            found[path.name] = (about.st_mtime_ns, about.st_size)
        return found
