"""A run as it was kept, wherever that is: what its files say. Plain formats only; nothing here writes."""

from __future__ import annotations

import json
import logging
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from coterie.core.exchange import Applied
from coterie.errors import CoterieError, require
from coterie.runs.about import BEGUN, FORMER, About, misfit
from coterie.runs.about import FORMAT as ABOUT_FORMAT
from coterie.runs.checksum import KEY as CHECKSUM
from coterie.runs.checksum import require_intact
from coterie.setup.config import FORMAT, PLUGINS, Config, differences
from coterie.runs.history import Line
from coterie.setup.identity import Identity, require_identity
from coterie.runs.lines import LinesDigest, fault_of_line
from coterie.files import require_format
from coterie.partition import Partition

CONFIG = "config.toml"
ABOUT = "about.json"
PARTITION = "partition.safetensors"
ROUNDS = "rounds.jsonl"
MIXES = "mixes"
ROWS = "rows.safetensors"
CHECKPOINT = "checkpoint.safetensors"
PREVIOUS = "checkpoint-previous.safetensors"
"""The checkpoint before: what is fallen back on if the last one is damaged."""
SUMMARY = "summary.json"
STOPPED = "stopped.json"
QUALITY = "quality.safetensors"
LAYOUT = "layout"
"""The text in a file of rows that says how they are read, and after which round they are."""
LINES = "lines"
"""Where that text, and a summary, hold the digest of the lines of all rounds until then."""
RECORDED = "recorded"
"""Where that text holds the rounds of which it was recorded who learned from whom."""

FEDERATION = "federation"
"""The engine in the configuration of what a federation's server kept: sites trained, each for itself."""

ESSENTIAL = ("method", "data", "partition", "model", "rounds", "seed", "engine", "threads", "memory", "set")
"""What no configuration lacks that a run has written."""

log = logging.getLogger("coterie")

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

    def texts(self, name: str) -> dict[str, str]:
        """The texts of a safetensors file alone."""
        return self.tensors(name)[1]

    def require_readable(self) -> None:
        """An error unless this is a run, in the format that this version reads."""
        require(self.has(CONFIG), f"run = {self.path}: holds no run ({CONFIG} is missing)")
        require_format(f"run = {self.path}", self._toml().get("format"), FORMAT, "run it again")

    def _toml(self) -> Config:
        try:
            return tomllib.loads(self.content(CONFIG).decode())
        except ValueError as error:  # besides what is no TOML: no text, or numbers of thousands of digits
            raise CoterieError(f"run = {self.path}: {CONFIG} is not a TOML file ({error})") from None

    def config(self) -> Config:
        """The run's configuration."""
        config = self._toml()
        config.pop("format", None)
        return config

    def require_complete(self) -> None:
        """An error if the configuration is not one that a run has written in full."""
        config = self.config()
        lacking = [key for key in ESSENTIAL if key not in config]
        require(not lacking, f"run = {self.path}: {CONFIG} is damaged (it lacks {', '.join(lacking)})")
        wanted = {"rounds": int, "seed": int, "threads": int, "set": dict, PLUGINS: dict}
        wrong = [key for key, kind in wanted.items() if not isinstance(config.get(key, kind()), kind)]
        require(not wrong, f"run = {self.path}: {CONFIG} is damaged (in {', '.join(wrong)})")

    def edits(self, about: About, left_out: Collection[str] = ()) -> list[str]:
        """What the configuration says otherwise than when the run was begun, in words; of older runs it is unknown."""
        if BEGUN not in about:
            return []
        now, begun = self.config(), about[BEGUN]
        # Whoever was killed while more rounds were planned left one plan here and the other there; none has begun.
        planned = about[FORMER] if now.get("rounds") == about.get(FORMER) else begun.get("rounds")
        return differences(now, {**begun, "rounds": planned}, left_out)

    def require_as_begun(self, about: About, left_out: Collection[str] = ()) -> None:
        """An error if the configuration was changed since the run began: its numbers are not those of what it says."""
        edits = self.edits(about, left_out)
        require(
            not edits,
            f"run = {self.path}: {CONFIG} was changed since the run began: {'; '.join(edits)}; bring it back, and run "
            "what it says now in another directory",
        )

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Whatever goes wrong with the content of a file is an error in one line."""
        try:
            yield
        except CoterieError:
            raise
        except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise CoterieError(f"run = {self.path}: {name} is damaged ({type(error).__name__}: {reason})") from None

    @abstractmethod
    def own_config(self) -> Config:
        """The run's configuration with the run's own copies in place of files of one's own."""

    def about(self) -> About:
        """What describes the run as a whole."""
        found = self._json(ABOUT)
        require_format(f"run = {self.path}: {ABOUT}", found.get("format"), ABOUT_FORMAT, "run it again")
        fault = misfit(found)
        require(not fault, f"run = {self.path}: {ABOUT} is damaged ({fault})")
        require_intact(f"run = {self.path}: {ABOUT}", {}, json.dumps(found))
        found.pop(CHECKSUM, None)
        return found

    def identity(self) -> Identity:
        """What makes it the same as another run; nothing if an earlier version has recorded it."""
        return require_identity(self.about().get("identity", {}), f"run = {self.path}: {ABOUT}")

    def _json(self, name: str) -> dict[str, Any]:
        with self._reading(name):
            found = json.loads(self.content(name))
        require(isinstance(found, dict), f"run = {self.path}: {name} is damaged (it holds no table)")
        assert isinstance(found, dict)
        return found

    def partition(self) -> Partition:
        """The run's partition."""
        with self._reading(PARTITION):
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

    def lines_in_order(self) -> list[Line]:
        """The same, where each must tell of the round after the one before, from 1.

        A run that is killed while it writes leaves half a line at the end; anything else is damage.
        """
        found, written = self.lines(), len(self.content(ROUNDS).splitlines())
        damaged = f"run = {self.path}: {ROUNDS} is damaged (line"
        require(len(found) >= written - 1, f"{damaged} {len(found) + 1} cannot be read)")
        for number, line in enumerate(found, 1):
            told = line.get("round") if isinstance(line, dict) else None
            require(told == number, f"{damaged} {number} tells of round {told}; none may be missing, twice or moved)")
            fault = fault_of_line(line)
            require(not fault, f"{damaged} {number} {fault})")
        self._require_known(found)
        return found

    def _require_known(self, lines: list[Line]) -> None:
        """An error if lines are not those that the last rows tell of; older rows tell of none."""
        name = next((name for name in (ROWS, CHECKPOINT, PREVIOUS) if self._is_whole(name)), None)
        if name is not None:
            about = self._described(name)
            round, written = about["round"], about.get(LINES)
        elif self.finished:  # packed without its rows
            about, name = self._json(SUMMARY), SUMMARY
            round, written = about.get("rounds"), about.get(LINES)
        else:
            return
        if written is None or len(lines) < round:
            return  # somebody is at the run, or whoever carries it on will ask for them
        known = LinesDigest(int(self.config().get("evaluate_every", 1)), lines[:round])
        require(
            known.text == written,
            f"run = {self.path}: {ROUNDS} is damaged (it tells something else of the first {round} rounds than {name} "
            "knows); bring the file back, or run it again in another directory",
        )

    def _is_whole(self, name: str) -> bool:
        try:
            return self.has(name) and bool(self._described(name))
        except CoterieError:
            return False

    def _described(self, name: str) -> dict[str, Any]:
        """What a file of rows says of them."""
        with self._reading(name):
            about = json.loads(self.texts(name)[LAYOUT])
            return {**about, "round": int(about["round"])}

    def mixes(self, round: int) -> list[Applied]:
        """The recorded mixes of a round."""
        name = mixes_name(round)
        with self._reading(name):
            tensors, metadata = self.tensors(name)
            told = json.loads(metadata["mixes"])
            if isinstance(told, dict):  # older ones say neither of which round they are nor whether they are intact
                require_intact(f"run = {self.path}: {name}", tensors, metadata["mixes"])
                whose = f"it is of round {told['round']}"
                require(told["round"] == round, f"run = {self.path}: {name} is damaged ({whose})")
                told = told["mixes"]
            return [
                Applied(
                    weights=tensors[f"{number}.weights"],
                    rows=tensors[f"{number}.rows"],
                    columns=tensors[f"{number}.columns"],
                    **about,
                )
                for number, about in enumerate(told)
            ]

    def recorded_rounds(self) -> list[int]:
        """The rounds whose mixes were recorded, in order."""
        files = (PurePosixPath(name) for name in self.names(MIXES))
        return sorted(int(file.stem) for file in files if file.suffix == ".safetensors" and file.stem.isdecimal())

    def newest_state(self) -> Tensors:
        """All slots and values after the last round that was kept: that of the end, else of the last checkpoint."""
        name = ROWS if self.has(ROWS) else CHECKPOINT
        require(
            self.has(name) or self.has(PREVIOUS),
            f"run = {self.path}: holds no models ({ROWS} and {CHECKPOINT} are missing); they come with the first "
            "checkpoint, and into a packed run with --models",
        )
        return self.state(name) if name == ROWS else self.last_checkpoint()

    def state(self, name: str) -> Tensors:
        """A file of rows, if every bit of it is as it was written."""
        with self._reading(name):
            tensors, texts = self.tensors(name)
            require_intact(f"run = {self.path}: {name}", tensors, texts[LAYOUT])
            int(json.loads(texts[LAYOUT])["round"])
            return tensors, texts

    def last_checkpoint(self) -> Tensors:
        """The last checkpoint; where that is damaged or missing, the one before, and a warning that says so."""
        try:
            return self.state(CHECKPOINT)
        except CoterieError as error:
            if not self.has(PREVIOUS):
                raise CoterieError(f"{error}; there is no other checkpoint: run it again") from None
            found = self.state(PREVIOUS)
            round = json.loads(found[1][LAYOUT])["round"]
            log.warning("%s; falling back on the checkpoint before, after round %d", error, round)
            return found

    def quality(self) -> dict[str, Tensor]:
        """What was said of the clients' finished models; nothing if the run has not ended, or is an older one."""
        if not self.has(QUALITY):
            return {}
        with self._reading(QUALITY):
            return self.tensors(QUALITY)[0]

    @property
    def finished(self) -> bool:
        """Whether the run came to its end. A summary of fewer rounds than are planned is that of a former end."""
        if not self.has(SUMMARY):
            return False
        try:
            done, planned = json.loads(self.content(SUMMARY))["rounds"], self._toml()["rounds"]
            return bool(done >= planned)
        except (ValueError, LookupError, TypeError):
            return True  # a damaged one, and whoever reads it will say so

    @property
    def stopped(self) -> bool:
        """Whether a listener stopped the run, and it was not carried on."""
        return self.has(STOPPED)

    def summary(self) -> dict[str, Any] | None:
        """The summary, if the run is finished or stopped, and every number in it is as it was written."""
        if not self.finished and not self.stopped:
            return None
        name = SUMMARY if self.finished else STOPPED
        found, sealed = self._json(name), BEGUN in self.about()  # of older runs neither is
        file = f"run = {self.path}: {name}"
        try:
            require(not sealed or CHECKSUM in found, f"{file} is damaged (its SHA-256 is missing)")
            require_intact(file, {}, json.dumps(found))
            others = found.get("config", {})
            config = {key: value for key, value in self.config().items() if key in others}
            differing = differences({key: others[key] for key in config}, config, (PLUGINS,))
            require(not differing, f"{file} is of another run than {CONFIG}: {'; '.join(differing)}")
        except CoterieError as error:
            raise CoterieError(f"{error}; bring it back, or remove it and resume the run to have it again") from None
        return {key: value for key, value in found.items() if key not in (CHECKSUM, LINES)}


def mixes_name(round: int) -> str:
    """Where a round's mixes are kept.

    >>> mixes_name(7)
    'mixes/00007.safetensors'
    """
    return f"{MIXES}/{round:05d}.safetensors"
