"""A run as it was kept, wherever that is: what its files say. Plain formats only; nothing here writes."""

from __future__ import annotations

import json
import tomllib
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from coterie.core.exchange import Applied
from coterie.errors import CoterieError, require
from coterie.experiment.about import FORMAT as ABOUT_FORMAT
from coterie.experiment.about import About
from coterie.experiment.config import FORMAT, Config
from coterie.experiment.history import Line
from coterie.files import require_format
from coterie.partition import Partition

CONFIG = "config.toml"
ABOUT = "about.json"
PARTITION = "partition.safetensors"
ROUNDS = "rounds.jsonl"
MIXES = "mixes"
ROWS = "rows.safetensors"
CHECKPOINT = "checkpoint.safetensors"
SUMMARY = "summary.json"
STOPPED = "stopped.json"
QUALITY = "quality.safetensors"
LAYOUT = "layout"
"""The text in a file of rows that says how they are read, and after which round they are."""

Tensors = tuple[dict[str, Tensor], dict[str, str]]
"""Tensors by name, and texts by name."""


class KeptRun(ABC):
    """The files of one run, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""

    @abstractmethod
    def content(self, name: str) -> bytes:
        """The bytes of a file."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""

    @abstractmethod
    def tensors(self, name: str) -> Tensors:
        """The tensors and texts of a safetensors file."""

    def require_readable(self) -> None:
        """An error unless this is a run, in the format that this version reads."""
        require(self.has(CONFIG), f"run = {self.path}: holds no run ({CONFIG} is missing)")
        require_format(f"run = {self.path}", self._toml().get("format"), FORMAT, "run it again")

    def _toml(self) -> Config:
        try:
            return tomllib.loads(self.content(CONFIG).decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CoterieError(f"run = {self.path}: {CONFIG} is not a TOML file ({error})") from None

    def config(self) -> Config:
        """The run's configuration."""
        config = self._toml()
        config.pop("format", None)
        return config

    @abstractmethod
    def own_config(self) -> Config:
        """The run's configuration with the run's own copies in place of files of one's own."""

    def about(self) -> About:
        """What describes the run as a whole."""
        found = self._json(ABOUT)
        require_format(f"run = {self.path}: {ABOUT}", found.get("format"), ABOUT_FORMAT, "run it again")
        lacking = {"protocol", "data", "model", "clients", "settings", "sessions"} - found.keys()
        require(not lacking, f"run = {self.path}: {ABOUT} is damaged (it lacks {', '.join(sorted(lacking))})")
        return found

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self.content(name))
        except ValueError as error:
            raise CoterieError(f"run = {self.path}: {name} is damaged ({error})") from None
        require(isinstance(found, dict), f"run = {self.path}: {name} is damaged (it holds no table)")
        assert isinstance(found, dict)
        return found

    def partition(self) -> Partition:
        """The run's partition."""
        return Partition.read(self.content(PARTITION), f"{self.path}/{PARTITION}")

    def lines(self) -> list[Line]:
        """The recorded rounds."""
        found: list[Line] = []
        for text in self.content(ROUNDS).decode(errors="replace").splitlines():
            try:
                found.append(json.loads(text))
            except json.JSONDecodeError:
                break  # the run was killed while it wrote this line, or is writing it
        return found

    def mixes(self, round: int) -> list[Applied]:
        """The recorded mixes of a round."""
        tensors, metadata = self.tensors(mixes_name(round))
        return [
            Applied(
                weights=tensors[f"{number}.weights"],
                rows=tensors[f"{number}.rows"],
                columns=tensors[f"{number}.columns"],
                **about,
            )
            for number, about in enumerate(json.loads(metadata["mixes"]))
        ]

    def recorded_rounds(self) -> list[int]:
        """The rounds whose mixes were recorded, in order."""
        files = (PurePosixPath(name) for name in self.names(MIXES))
        return sorted(int(file.stem) for file in files if file.suffix == ".safetensors" and file.stem.isdecimal())

    def newest_state(self) -> Tensors:
        """All slots and values after the last round that was kept: that of the end, else of the last checkpoint."""
        name = ROWS if self.has(ROWS) else CHECKPOINT
        require(
            self.has(name),
            f"run = {self.path}: holds no models ({ROWS} and {CHECKPOINT} are missing); they come with the first "
            "checkpoint, and into a packed run with --models",
        )
        try:
            return self.tensors(name)
        except SafetensorError as error:
            raise CoterieError(f"run = {self.path}: {name} is damaged ({error})") from None

    def quality(self) -> dict[str, Tensor]:
        """What was said of the clients' finished models; nothing if the run has not ended, or is an older one."""
        if not self.has(QUALITY):
            return {}
        try:
            return self.tensors(QUALITY)[0]
        except SafetensorError as error:
            raise CoterieError(f"run = {self.path}: {QUALITY} is damaged ({error})") from None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.has(SUMMARY)

    @property
    def stopped(self) -> bool:
        """Whether a listener stopped the run, and it was not carried on."""
        return self.has(STOPPED)

    def summary_text(self) -> str:
        """The summary of a run that is finished or stopped, as it was written."""
        return self.content(SUMMARY if self.finished else STOPPED).decode()

    def summary(self) -> dict[str, Any] | None:
        """The summary, if the run is finished or stopped."""
        return self._json(SUMMARY if self.finished else STOPPED) if self.finished or self.stopped else None


def mixes_name(round: int) -> str:
    """Where a round's mixes are kept.

    >>> mixes_name(7)
    'mixes/00007.safetensors'
    """
    return f"{MIXES}/{round:05d}.safetensors"
