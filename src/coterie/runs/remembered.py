"""A run as it is in memory, read like one on disk: what its files say, without the files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from coterie.core.exchange import Applied
from coterie.errors import CoterieError, require
from coterie.runs.about import about_run
from coterie.runs.checksum import sealed
from coterie.setup.config import FORMAT, Config, complete, method_name, to_toml
from coterie.runs.history import History
from coterie.runs.kept import ABOUT, CONFIG, PARTITION, ROUNDS, STOPPED, SUMMARY, KeptRun, Tensors
from coterie.setup.prepared import Prepared
from coterie.partition import Partition

MOST = 64 << 20
"""Bytes of weights that are remembered; older rounds make way."""


class MixSource(Protocol):
    """Where it stands who learned from whom."""

    def recorded_rounds(self) -> list[int]:
        """The rounds that there are, in order."""
        ...

    def mixes(self, round: int) -> list[Applied]:
        """One of them."""
        ...


class RememberedMixes:
    """Who learned from whom in the last rounds, as many as fit into the memory that they may have.

    >>> import torch
    >>> one = Applied(torch.ones(1, 3), "all", "model", False, torch.arange(3), torch.arange(3))
    >>> kept = RememberedMixes(most=40)
    >>> for round in (1, 2, 3, 4):
    ...     kept.add(round, [one])
    >>> kept.recorded_rounds()
    [2, 3, 4]
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._size = most, 0
        self._rounds: dict[int, list[Applied]] = {}

    def add(self, round: int, mixes: Sequence[Applied]) -> None:
        """Remember a round; the method may go on to change its tensors."""
        size = _size(mixes)
        if size > self._most:
            return
        self._rounds[round] = [replace(mix, weights=mix.weights.clone()) for mix in mixes]
        self._size += size
        while self._size > self._most:
            self._size -= _size(self._rounds.pop(min(self._rounds)))

    def recorded_rounds(self) -> list[int]:
        """The rounds that are remembered."""
        return sorted(self._rounds)

    def mixes(self, round: int) -> list[Applied]:
        """One of them."""
        return self._rounds[round]


def _size(mixes: Sequence[Applied]) -> int:
    return sum(mix.weights.nbytes for mix in mixes)


class RememberedRun(KeptRun):
    """A run that has just ended. Its rows are the result's own."""

    def __init__(
        self, prepared: Prepared, history: History, summary: Mapping[str, Any], recorded: MixSource, path: Path | None
    ) -> None:
        super().__init__(path or Path(method_name(prepared.method)))
        self._prepared, self._history, self._summary, self._recorded = prepared, history, summary, recorded

    def has(self, name: str) -> bool:
        """Whether a run on disk would have a file of that name now."""
        return name in (CONFIG, ABOUT, PARTITION, ROUNDS, STOPPED if "stopped" in self._summary else SUMMARY)

    def content(self, name: str) -> bytes:
        """What would stand in that file."""
        require(self.has(name), f"run = {self.path}: {name} is missing")
        if name == CONFIG:
            return to_toml({"format": FORMAT, **complete(self._prepared.experiment)}).encode()
        if name == ABOUT:
            return json.dumps(about_run(self._prepared)).encode()
        if name == ROUNDS:
            return "".join(json.dumps(line) + "\n" for line in self._history.lines).encode()
        return json.dumps(sealed(self._summary)).encode()

    def names(self, folder: str) -> list[str]:
        """The files in a folder: none, as nothing is on disk."""
        return []

    def tensors(self, name: str) -> Tensors:
        """There are none besides those of the result."""
        raise CoterieError(f"run = {self.path}: {name} is missing")

    def partition(self) -> Partition:
        """The run's partition."""
        return self._prepared.partition

    def recorded_rounds(self) -> list[int]:
        """The rounds whose mixes were recorded, in order."""
        return self._recorded.recorded_rounds()

    def mixes(self, round: int) -> list[Applied]:
        """The recorded mixes of a round."""
        return self._recorded.mixes(round)

    def own_config(self) -> Config:
        """The run's configuration."""
        return self.config()
