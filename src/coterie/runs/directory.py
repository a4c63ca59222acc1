"""The run directory: everything a run leaves on disk. Plain formats only, each file written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from coterie.core.exchange import Applied
from coterie.core.federation import Federation, described_rows
from coterie.errors import CoterieError, require, said
from coterie.runs.about import BEGUN, FORMER, About
from coterie.runs.lock import lock_of
from coterie.runs.checksum import sealed, with_checksum
from coterie.setup.config import FORMAT, PLUGINS, REFERENCES, Config, to_toml
from coterie.runs.history import Line
from coterie.setup.identity import Identity
from coterie.runs.kept import (
    ABOUT,
    CHECKPOINT,
    CONFIG,
    LAYOUT,
    LINES,
    MIXES,
    PARTITION,
    PREVIOUS,
    QUALITY,
    RECORDED,
    ROUNDS,
    ROWS,
    STOPPED,
    SUMMARY,
    KeptRun,
    Tensors,
    mixes_name,
)
from coterie.runs.streamed import stream_tensors
from coterie.files import PARTIAL, at_path, flush_to_disk, json_text, link_whole, write_whole
from coterie.options import references_in
from coterie.partition import Partition
from coterie.registry import PluginFile, file_of, short_name, split_reference, stand_in

log = logging.getLogger("coterie")

LOG = "log.txt"
STREAMED = 1 << 27
"""Files of more bytes are written piece by piece."""
COPIES = "plugins"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors and texts as one safetensors file."""
    apart: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        # The format refuses tensors that share memory, such as the cohort as rows and as columns of a mix.
        apart[name] = tensor.clone(memory_format=torch.contiguous_format) if place in memory else tensor.contiguous()
        memory.add(place)
    if sum(tensor.nbytes for tensor in apart.values()) > STREAMED:
        stream_tensors(path, apart, metadata)
    else:
        write_whole(path, save(apart, dict(metadata)))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_tensors` wrote."""
    require(path.is_file(), f"'{path}': there is no such file")
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def load_metadata(path: Path) -> dict[str, str]:
    """The texts alone that `save_tensors` wrote."""
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


class RunDirectory(KeptRun):
    """A directory that holds one run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lost: set[int] = set()  # rounds of which it was recorded who learned from whom, and is no longer there

    @classmethod
    def create(cls, path: Path, config: Config, partition: Partition, about: About) -> RunDirectory:
        """Begin a run in a directory that holds none, at which nobody else is (`alone`)."""
        refuse_existing(path)
        clear_unbegun(path)
        try:
            return cls._begun(path, config, partition, about)
        except BaseException:  # a full disk, perhaps: the same can be tried again
            with suppress(OSError):
                clear_unbegun(path)
            raise

    @classmethod
    def _begun(cls, path: Path, config: Config, partition: Partition, about: About) -> RunDirectory:
        (path / MIXES).mkdir(parents=True, exist_ok=True)
        for original, digest in config.get(PLUGINS, {}).items():
            file = file_of(original)
            require(file.sha256 == digest, f"{original}: was changed while the run began; begin it again")
            (path / COPIES).mkdir(exist_ok=True)
            write_whole(path / copy_name(original, file.sha256), file.source)
        partition.save(path / PARTITION)
        (path / ROUNDS).write_text("", encoding="utf-8")
        directory = cls(path)
        directory.write_about(about)
        directory.write_config(config)
        return directory

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open a directory that holds a run."""
        directory = cls(path)
        directory.require_readable()
        return directory

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self.path / name).is_file()

    def content(self, name: str) -> bytes:
        """The bytes of a file."""
        require(self.has(name), f"run = {self.path}: {name} is missing")
        return (self.path / name).read_bytes()

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        return [file.name for file in (self.path / folder).glob("*")]

    def tensors(self, name: str) -> Tensors:
        """The tensors and texts of a safetensors file."""
        return load_tensors(self.path / name)

    def texts(self, name: str) -> dict[str, str]:
        """The texts of a safetensors file alone."""
        with safe_open(self.path / name, framework="pt") as file:
            return dict(file.metadata() or {})

    def write_config(self, config: Config) -> None:
        """Say how the run is set up."""
        write_whole(self.path / CONFIG, to_toml({"format": FORMAT, **config}).encode())

    def write_about(self, about: About) -> None:
        """Describe the run as a whole."""
        write_whole(self.path / ABOUT, json_text(sealed(about)).encode())

    def add_session(self, session: About, settings: Config, identity: Identity) -> None:
        """Note that a process works on the run from here on, and with which settings: no former plan holds any more."""
        about = {key: value for key, value in self.about().items() if key != FORMER}
        news = {"identity": identity, BEGUN: self.config(), "settings": settings}
        self.write_about({**about, **news, "sessions": [*about["sessions"], session]})

    def own_config(self) -> Config:
        """The run's configuration with the run's own copies in place of files of one's own.

        A file that has changed since is an error: it would look as if the run had used it.
        """
        config = self.config()
        for original, digest in config.get(PLUGINS, {}).items():
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
        config.pop(PLUGINS, None)
        return config

    def add_line(self, line: Line) -> None:
        """Append a round to the metrics."""
        with (self.path / ROUNDS).open("ab") as file:
            begin = file.seek(0, os.SEEK_END)
            try:
                file.write((json.dumps(line) + "\n").encode())
                file.flush()
            except OSError as error:  # a full disk: half a line would make the next one unreadable
                with suppress(OSError):
                    os.ftruncate(file.fileno(), begin)
                raise at_path(error, self.path / ROUNDS) from None

    def cut_back(self, last: int) -> list[Line]:
        """Forget the rounds after `last`, which will be run again; those that are left."""
        found = [line for line in self.lines() if line["round"] <= last]
        self.write_lines(found)
        return found

    def write_lines(self, lines: Sequence[Line]) -> None:
        """Replace the metrics of all rounds."""
        write_whole(self.path / ROUNDS, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def add_mixes(self, round: int, mixes: list[Applied]) -> None:
        """Record who learned from whom in a round."""
        tensors: dict[str, Tensor] = {}
        for number, mix in enumerate(mixes):
            tensors |= {f"{number}.{part}": getattr(mix, part) for part in ("weights", "rows", "columns")}
        about = [{"group": mix.group, "target": mix.target, "gated": mix.gated} for mix in mixes]
        told = with_checksum(tensors, {"round": round, "mixes": about})
        save_tensors(self.path / mixes_name(round), tensors, {"mixes": told})

    def checkpoint(self, federation: Federation, tested: str, lines: str) -> None:
        """Save the state after a round; the old checkpoint becomes the one to fall back on.

        The lines of all rounds, whose digest is given, are on the disk before: no power cut leaves a checkpoint ahead
        of them.
        """
        flush_to_disk(self.path / ROUNDS)
        if self.has(CHECKPOINT):
            link_whole(self.path / CHECKPOINT, self.path / PREVIOUS)
        self._save_state(CHECKPOINT, federation, tested, lines)

    def _save_state(self, name: str, federation: Federation, tested: str, lines: str) -> None:
        # One text: several would be written in any order, and equal states would not be equal bytes.
        recorded = sorted(self._lost.union(self.recorded_rounds()))
        about = {"round": federation.round, "tested": tested, LINES: lines, RECORDED: recorded}
        about |= described_rows(federation)
        state = dict(federation.state())
        save_tensors(self.path / name, state, {LAYOUT: with_checksum(state, about)})

    def checkpointed_round(self) -> int:
        """The round of the last checkpoint; 0 if there is none."""
        for name in (ROWS, CHECKPOINT, PREVIOUS):
            with suppress(CoterieError):  # a damaged one
                return self._round_of(name)
        return 0

    def newest_round(self) -> int:
        """The round after which rows were kept last; 0 if none were. Damaged ones are an error."""
        if not any(map(self.has, (ROWS, CHECKPOINT, PREVIOUS))):
            return 0
        return int(json.loads(self.newest_state()[1][LAYOUT])["round"])

    def _round_of(self, name: str) -> int:
        require(self.has(name), f"run = {self.path}: {name} is missing")
        return int(self._described(name)["round"])

    def plan(self, rounds: int) -> None:
        """Plan more rounds. Until the configuration says so the run is as it was; from then on it is one that goes on.

        What is left of its end stays until there is something newer: its rows are its checkpoint, and its summary is
        replaced by that of the new end.
        """
        about, before = self.about(), self.config()
        longer = {**before, "rounds": rounds}
        if BEGUN in about:
            self.write_about({**about, BEGUN: longer, FORMER: before["rounds"]})
        self.write_config(longer)

    def remove_mixes(self, round: int) -> None:
        """Forget who learned from whom in a round."""
        (self.path / mixes_name(round)).unlink(missing_ok=True)

    def keep_mixes(self, wanted: Callable[[int], bool]) -> None:
        """Forget who learned from whom in all rounds but those that are wanted; of those, say which are lost."""
        for round in self.recorded_rounds():
            if not wanted(round):
                self.remove_mixes(round)
        name = next((name for name in (CHECKPOINT, PREVIOUS) if self._is_whole(name)), None)
        known = self._described(name).get(RECORDED, []) if name else []
        for round in filter(wanted, known):
            try:
                require(self.has(mixes_name(round)), f"run = {self.path}: {mixes_name(round)} is missing")
                self.mixes(round)
            except CoterieError as error:
                self._lost.add(round)
                log.warning("%s: who learned from whom in round %d is lost; nothing else depends on it", error, round)

    def restore(self, federation: Federation) -> None:
        """Put a federation back to the last checkpoint, if there is one: the rows of a former end, if there are any."""
        if self.has(ROWS):
            if self.has(CHECKPOINT):
                (self.path / CHECKPOINT).replace(self.path / PREVIOUS)
            (self.path / ROWS).replace(self.path / CHECKPOINT)
        if not any(map(self.has, (CHECKPOINT, PREVIOUS))):
            return
        state, metadata = self.last_checkpoint()
        with self._reading(CHECKPOINT):
            federation.restore(state)
            federation.round = int(json.loads(metadata[LAYOUT])["round"])

    def write_quality(self, quality: Mapping[str, Tensor]) -> None:
        """Keep what the task says of the clients' finished models, if it says anything."""
        if quality:
            save_tensors(self.path / QUALITY, quality, {})

    def finish(self, federation: Federation, tested: str, lines: str, summary: Mapping[str, Any]) -> None:
        """Save the final rows and the summary."""
        flush_to_disk(self.path / ROUNDS)
        self._save_state(ROWS, federation, tested, lines)
        (self.path / PREVIOUS).unlink(missing_ok=True)
        write_whole(self.path / SUMMARY, json_text(sealed({**summary, LINES: lines})).encode())

    def stop(self, summary: Mapping[str, Any]) -> None:
        """Record that the run was stopped before its end, with its summary until then."""
        write_whole(self.path / STOPPED, json_text(sealed(summary)).encode())

    def carry_on(self) -> None:
        """The run goes on: it counts as stopped no longer."""
        (self.path / STOPPED).unlink(missing_ok=True)
        (self.path / QUALITY).unlink(missing_ok=True)


def copy_name(original: str, digest: str) -> str:
    """Where a run keeps its copy of a file of one's own."""
    return f"{COPIES}/{Path(original).stem}-{digest[:12]}{Path(original).suffix}"


def refuse_existing(path: Path) -> None:
    """An error if a run (or anything else) would be overwritten."""
    lock = lock_of(path)  # an error where no run can be
    if path.is_file():
        raise CoterieError(f"out = {path}: is a file; name a directory")
    if (path / CONFIG).exists():
        way = said("coterie", "resume", path)
        raise CoterieError(f"out = {path}: already holds a run; name another directory, or {way}")
    if not path.is_dir():
        return
    # Whoever was killed before the run had begun left its lock behind, too.
    unbegun = lock.exists() and is_unbegun(path)
    if any(path.iterdir()) and not unbegun:
        raise CoterieError(f"out = {path}: is not empty; name a new directory")


def clear_unbegun(path: Path) -> None:
    """Take away what a process left that was killed before its run had begun; an error if there is anything else."""
    if not path.is_dir():
        return
    if not is_unbegun(path):
        raise CoterieError(f"out = {path}: is not empty and holds no run; name another directory")
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def is_unbegun(path: Path) -> bool:
    """Whether a directory holds nothing but what is there before a run begins."""
    left = {entry.name.removesuffix(PARTIAL) for entry in path.iterdir()}
    return left <= {MIXES, COPIES, PARTITION, ROUNDS, ABOUT, CONFIG}
