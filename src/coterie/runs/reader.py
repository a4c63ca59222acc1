"""What a run tells, whether it lies on disk or is still in memory; nothing here writes."""

from __future__ import annotations

import json
import logging
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct, structs
from safetensors import SafetensorError
from torch import Tensor

from coterie.core.exchange import Applied
from coterie.errors import CoterieError, require
from coterie.files import UNFIT, require_format
from coterie.options import references_in
from coterie.partition import Partition
from coterie.registry import PluginFile, short_name, split_reference, stand_in
from coterie.runs.record import (
    Count,
    Line,
    LinesDigest,
    RunAbout,
    Skipped,
    decoded,
    lines_in_order,
    read_lines,
)
from coterie.runs.store import (
    ABOUT,
    CHECKPOINT,
    CONFIG,
    COPIES,
    LOG,
    MIXES,
    PARTITION,
    PREVIOUS,
    QUALITY,
    ROUNDS,
    ROWS,
    STOPPED,
    SUMMARY,
    Archive,
    RunFiles,
    store_of,
)
from coterie.runs.summary import require_summary
from coterie.runs.tensors import SEAL, Tensors, require_intact
from coterie.setup.config import FORMAT, PLUGINS, REFERENCES, Config, differences
from coterie.setup.identity import Identity, require_identity

LAYOUT = "layout"
"""The text in a file of rows that says how they are read, and after which round they are."""
LINES = "lines"
"""Where that text, and a summary, hold the digest of the lines of all rounds until then."""
FEDERATION = "federation"
"""The engine in the configuration of what a federation's server kept: sites trained, each for itself."""
ESSENTIAL = ("method", "data", "partition", "model", "rounds", "seed", "engine", "threads", "memory", "set")
"""What no configuration lacks that a run has written."""

log = logging.getLogger("coterie")


class RowsAbout(Struct, frozen=True):
    """What a file of rows says of them: the round, the digest of all lines until then, whose mixes were recorded."""

    round: Count
    lines: str
    recorded: list[Count]


class MixAbout(Struct, frozen=True):
    """One of the mixes of a round."""

    group: str
    target: str
    gated: bool


class MixesAbout(Struct, frozen=True):
    """What a file of mixes says of them."""

    round: Count
    mixes: list[MixAbout]


class Record(ABC):
    """What a run tells, of its beginning, its rounds and its end. `path` is what messages call it."""

    path: Path

    @abstractmethod
    def config(self) -> Config:
        """The run's configuration."""

    @abstractmethod
    def about(self) -> RunAbout:
        """What describes the run as a whole."""

    @abstractmethod
    def partition(self) -> Partition:
        """The run's partition."""

    @abstractmethod
    def lines(self) -> list[Line]:
        """The recorded rounds, in order: 1, 2, 3 …"""

    @abstractmethod
    def recorded_rounds(self) -> list[int]:
        """The rounds whose mixes were recorded, in order."""

    @abstractmethod
    def mixes(self, round: int) -> list[Applied]:
        """The recorded mixes of a round."""

    @abstractmethod
    def summary(self) -> dict[str, Any] | None:
        """The summary, if the run is finished or stopped."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether the run came to its end."""

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether a listener stopped the run, and it was not carried on."""

    def readable_lines(self) -> list[tuple[int, Line | Skipped]]:
        """The lines of all rounds with their numbers, whatever can be read of them; for the others, why not."""
        return list(enumerate(self.lines(), 1))

    def log(self) -> str:
        """What was logged while it ran."""
        return ""

    def quality(self) -> dict[str, Tensor]:
        """What was said of the clients' finished models; nothing if the run has not ended."""
        return {}

    def newest_state(self) -> Tensors:
        """All slots and values after the last round that was kept."""
        raise CoterieError(f"run = {self.path}: holds no models")

    def own_config(self) -> Config:
        """The run's configuration with the run's own copies in place of files of one's own."""
        return self.config()

    def edits(self, about: RunAbout, left_out: Collection[str] = ()) -> list[str]:
        """What the configuration says otherwise than when the run was begun, in words."""
        now, begun = self.config(), about.config
        # Whoever was killed while more rounds were planned left one plan here and the other there; none has begun.
        planned = about.former_rounds if now.get("rounds") == about.former_rounds else begun.get("rounds")
        return differences(now, {**begun, "rounds": planned}, left_out)

    def require_as_begun(self, about: RunAbout, left_out: Collection[str] = ()) -> None:
        """An error if the configuration was changed since the run began: its numbers are not those of what it says."""
        edits = self.edits(about, left_out)
        require(
            not edits,
            f"run = {self.path}: {CONFIG} was changed since the run began: {'; '.join(edits)}; bring it back, and run "
            "what it says now in another directory",
        )

    def identity(self) -> Identity:
        """What makes it the same as another run."""
        return require_identity(self.about().identity, f"run = {self.path}: {ABOUT}")


def record_of(path: Path) -> Kept:
    """A run that is kept: in a directory, a packed run `FILE.zip`, or one of several, `FILE.zip/NAME`."""
    return Kept.at(store_of(path))


class Kept(Record):
    """A run as its files tell it. Faults are one line that names the file, the place and what is wrong."""

    def __init__(self, store: RunFiles) -> None:
        self.store, self.path = store, store.path

    @classmethod
    def at(cls, store: RunFiles) -> Kept:
        """The run in a store; an error unless there is one, in the format that this version reads."""
        kept = cls(store)
        kept.require_readable()
        return kept

    def require_readable(self) -> None:
        """An error unless this is a run, in the format that this version reads."""
        here = self.store.has(CONFIG)  # perhaps in a file of runs
        require(here or self.path.exists(), f"run = {self.path}: there is no such file or folder")
        require(here, f"run = {self.path}: holds no run ({CONFIG} is missing)")
        require_format(f"run = {self.path}", self._toml().get("format"), FORMAT, "run it again")

    def _toml(self) -> Config:
        try:
            return tomllib.loads(self.store.content(CONFIG).decode())
        except (ValueError, RecursionError) as error:  # besides no TOML: no text, or thousands of digits or levels
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
        kinds = {"rounds": int, "seed": int, "threads": int, "set": dict, PLUGINS: dict}
        wrong = [key for key, kind in kinds.items() if not isinstance(config.get(key, kind()), kind)]
        require(not wrong, f"run = {self.path}: {CONFIG} is damaged (in {', '.join(wrong)})")

    def own_config(self) -> Config:
        """The run's configuration with the run's own copies in place of files of one's own.

        A file that has changed since is an error: it would look as if the run had used it. Files are not packed, and
        nobody else's are run.
        """
        config = self.config()
        files = config.pop(PLUGINS, {})
        code = [path for path in files if path.endswith(".py") and isinstance(self.store, Archive)]
        require(
            not code,
            f"run = {self.path}: files of one's own are not packed ({', '.join(code)}); pass what "
            f"it was run with: coterie.open_run({str(self.path)!r}, experiment=…)",
        )
        for original, digest in {} if isinstance(self.store, Archive) else files.items():
            kept = self.path / copy_name(original, digest)
            require(kept.is_file(), f"run = {self.path}: its copy of {original} is missing ({kept})")
            file = PluginFile(original, kept.read_bytes())
            require(file.sha256 == digest, f"run = {self.path}: its copy of {original} was changed ({kept})")
            now = PluginFile.read(original) if Path(original).is_file() else file
            require(
                now.sha256 == digest,
                f"run = {self.path}: {original} has changed since (SHA-256 {digest[:12]}… then, {now.sha256[:12]}… "
                f"now); bring it back or move it away, the run's copy is {kept}",
            )
            stand_in(kept, original)
            for key in REFERENCES:
                for text in references_in(str(config.get(key, ""))):
                    if split_reference(text)[0] == original:
                        config[key] = config[key].replace(text, f"{kept}:{short_name(text)}")
        return config

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

    def about(self) -> RunAbout:
        """What describes the run as a whole."""
        content = self.store.content(ABOUT)
        about = decoded(content, RunAbout, f"run = {self.path}: {ABOUT} is damaged")
        require_intact(f"run = {self.path}: {ABOUT}", {}, content.decode())
        return about

    def partition(self) -> Partition:
        """The run's partition."""
        with self._reading(PARTITION):
            return Partition.read(self.store.content(PARTITION), f"{self.path}/{PARTITION}")

    def lines(self) -> list[Line]:
        """The recorded rounds, in order, as the last rows know them; half a line at the end is what a kill leaves."""
        lines = lines_in_order(self.store.content(ROUNDS), f"run = {self.path}: {ROUNDS}")
        self._require_known(lines)
        return lines

    def readable_lines(self) -> list[tuple[int, Line | Skipped]]:
        """The lines of all rounds with their numbers, whatever can be read of them; for the others, why not."""
        return list(read_lines(self.store.content(ROUNDS)))

    def _require_known(self, lines: Sequence[Line]) -> None:
        """An error if lines are not those that the last rows tell of, or where there are none the summary."""
        name = next((name for name in (ROWS, CHECKPOINT, PREVIOUS) if self._is_whole(name)), None)
        if name is not None:
            about = self._described(name)
            round, written = about.round, about.lines
        elif self.finished:  # packed without its rows
            summary, name = self._summary(SUMMARY), SUMMARY
            round, written = summary.get("rounds", 0), summary.get(LINES, "")
        else:
            return
        if len(lines) < round or not written:
            return  # somebody is at the run, or whoever carries it on will ask for them
        known = LinesDigest(int(self.config().get("evaluate_every", 1)), lines[:round])
        require(
            known.text == written,
            f"run = {self.path}: {ROUNDS} is damaged (it tells something else of the first {round} rounds than {name} "
            "knows); bring the file back, or run it again in another directory",
        )

    def _is_whole(self, name: str) -> bool:
        try:
            return self.store.has(name) and bool(self._described(name))
        except CoterieError:
            return False

    def _described(self, name: str) -> RowsAbout:
        """What a file of rows says of them."""
        with self._reading(name):
            text = self.store.texts(name)[LAYOUT]
        return decoded(text.encode(), RowsAbout, f"run = {self.path}: {name} is damaged")

    def mixes(self, round: int) -> list[Applied]:
        """The recorded mixes of a round."""
        name = mixes_name(round)
        with self._reading(name):
            tensors, texts = self.store.tensors(name)
            described = decoded(texts["mixes"].encode(), MixesAbout, f"run = {self.path}: {name} is damaged")
            require_intact(f"run = {self.path}: {name}", tensors, texts["mixes"])
            whose = f"it is of round {described.round}"
            require(described.round == round, f"run = {self.path}: {name} is damaged ({whose})")
            return [
                Applied(
                    weights=tensors[f"{number}.weights"],
                    rows=tensors[f"{number}.rows"],
                    columns=tensors[f"{number}.columns"],
                    **structs.asdict(mix),
                )
                for number, mix in enumerate(described.mixes)
            ]

    def recorded_rounds(self) -> list[int]:
        """The rounds whose mixes were recorded, in order."""
        files = (PurePosixPath(name) for name in self.store.names(MIXES))
        return sorted(int(file.stem) for file in files if file.suffix == ".safetensors" and file.stem.isdecimal())

    def newest_state(self) -> Tensors:
        """All slots and values after the last round that was kept: that of the end, else of the last checkpoint."""
        name = ROWS if self.store.has(ROWS) else CHECKPOINT
        require(
            self.store.has(name) or self.store.has(PREVIOUS),
            f"run = {self.path}: holds no models ({ROWS} and {CHECKPOINT} are missing); they come with the first "
            "checkpoint, and into a packed run with --models",
        )
        return self.state(name) if name == ROWS else self.last_checkpoint()

    def state(self, name: str) -> Tensors:
        """A file of rows, if every bit of it is as it was written."""
        self._described(name)
        with self._reading(name):
            tensors, texts = self.store.tensors(name)
            require_intact(f"run = {self.path}: {name}", tensors, texts[LAYOUT])
            return tensors, texts

    def last_checkpoint(self) -> Tensors:
        """The last checkpoint; where that is damaged or missing, the one before, and a warning that says so."""
        try:
            return self.state(CHECKPOINT)
        except CoterieError as error:
            if not self.store.has(PREVIOUS):
                raise CoterieError(f"{error}; there is no other checkpoint: run it again") from None
            before = self.state(PREVIOUS)
            log.warning("%s; falling back on the checkpoint before, after round %d", error, round_of(before))
            return before

    def log(self) -> str:
        """What was logged while it ran."""
        return self.store.content(LOG).decode(errors="replace") if self.store.has(LOG) else ""

    def quality(self) -> dict[str, Tensor]:
        """What was said of the clients' finished models; nothing if the run has not ended."""
        if not self.store.has(QUALITY):
            return {}
        with self._reading(QUALITY):
            return self.store.tensors(QUALITY)[0]

    @property
    def finished(self) -> bool:
        """Whether the run came to its end. A summary of fewer rounds than are planned is that of a former end."""
        if not self.store.has(SUMMARY):
            return False
        try:
            done, planned = json.loads(self.store.content(SUMMARY))["rounds"], self._toml()["rounds"]
            return bool(done >= planned)
        except UNFIT:
            return True  # a damaged one, and whoever reads it will say so

    @property
    def stopped(self) -> bool:
        """Whether a listener stopped the run, and it was not carried on."""
        return self.store.has(STOPPED)

    def _summary(self, name: str) -> dict[str, Any]:
        return decoded(self.store.content(name), dict[str, Any], f"run = {self.path}: {name} is damaged")

    def summary(self) -> dict[str, Any] | None:
        """The summary, if the run is finished or stopped, and every number in it is as it was written."""
        if not self.finished and not self.stopped:
            return None
        name = SUMMARY if self.finished else STOPPED
        file = f"run = {self.path}: {name}"
        summary = self._summary(name)
        try:
            require_intact(file, {}, self.store.content(name).decode())
            require_summary(summary, f"{file} is damaged")
            others = summary["config"]
            config = {key: value for key, value in self.config().items() if key in others}
            differing = differences({key: others[key] for key in config}, config, (PLUGINS,))
            require(not differing, f"{file} is of another run than {CONFIG}: {'; '.join(differing)}")
        except CoterieError as error:
            raise CoterieError(f"{error}; bring it back, or remove it and resume the run to have it again") from None
        return {key: value for key, value in summary.items() if key not in (SEAL, LINES)}


def round_of(state: Tensors) -> int:
    """The round after which a file of rows was written."""
    return int(json.loads(state[1][LAYOUT])["round"])


def mixes_name(round: int) -> str:
    """Where a round's mixes are kept.

    >>> mixes_name(7)
    'mixes/00007.safetensors'
    """
    return f"{MIXES}/{round:05d}.safetensors"


def copy_name(original: str, digest: str) -> str:
    """Where a run keeps its copy of a file of one's own."""
    return f"{COPIES}/{Path(original).stem}-{digest[:12]}{Path(original).suffix}"
