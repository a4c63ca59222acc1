"""The run directory: everything a run leaves on disk. Plain formats only, each file written whole or not at all."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from coterie.core.exchange import Applied
from coterie.core.federation import Federation, described_rows
from coterie.errors import CoterieError, require, said
from coterie.files import (
    PARTIAL,
    LockedError,
    at_path,
    flush_to_disk,
    json_text,
    link_whole,
    locked,
    resolved,
    write_whole,
)
from coterie.partition import Partition
from coterie.registry import file_of
from coterie.runs.reader import LAYOUT, LINES, Kept, copy_name, mixes_name, round_of
from coterie.runs.record import Line, RunAbout, Session, as_text, plain
from coterie.runs.store import (
    ABOUT,
    CHECKPOINT,
    CONFIG,
    COPIES,
    MIXES,
    PARTITION,
    PREVIOUS,
    QUALITY,
    ROUNDS,
    ROWS,
    STOPPED,
    SUMMARY,
    Directory,
)
from coterie.runs.tensors import save_tensors, sealed, with_checksum
from coterie.setup.config import FORMAT, PLUGINS, Config, to_toml
from coterie.setup.identity import Identity

log = logging.getLogger("coterie")

_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""The directories at which this thread is already: who holds one may begin or carry on the run in it."""


def lock_of(directory: Path) -> Path:
    """The file beside a run directory that says who is at it; whoever was killed there leaves it behind.

    >>> lock_of(Path("/runs/mine")).as_posix()
    '/runs/.mine.lock'
    """
    whole = resolved(directory)
    require(bool(whole.name), f"run = {directory}: is no directory for a run; name one within it")
    return whole.with_name(f".{whole.name}.lock")


@contextmanager
def alone(directory: Path, wait: bool = False) -> Iterator[None]:
    """Be the only process at a run directory while inside; where another one is, wait for it or raise an error."""
    place = resolved(directory)
    if place in _held.get():
        yield
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock_of(place)))
        except LockedError:
            if not wait:
                raise CoterieError(f"run = {directory}: another process is at it; wait until that has ended") from None
            log.warning("%s: another process is at this run; waiting for it", directory)
            stack.enter_context(locked(lock_of(place), wait=True))
        before = _held.set(_held.get() | {place})
        try:
            yield
        finally:
            _held.reset(before)


class RunDirectory(Kept):
    """A directory that holds one run: what is read of it, and all that is written there."""

    def __init__(self, path: Path) -> None:
        super().__init__(Directory(path))
        self._lost: set[int] = set()  # rounds of which it was recorded who learned from whom, and is no longer there

    @classmethod
    def create(cls, path: Path, config: Config, partition: Partition, about: RunAbout) -> RunDirectory:
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
    def _begun(cls, path: Path, config: Config, partition: Partition, about: RunAbout) -> RunDirectory:
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

    def write_config(self, config: Config) -> None:
        """Say how the run is set up."""
        write_whole(self.path / CONFIG, to_toml({"format": FORMAT, **config}).encode())

    def write_about(self, about: RunAbout) -> None:
        """Describe the run as a whole."""
        write_whole(self.path / ABOUT, json_text(sealed(plain(about))).encode())

    def add_session(self, session: Session, settings: Config, identity: Identity) -> None:
        """Note that a process works on the run from here on, and with which settings: no former plan holds any more."""
        about, begun = self.about(), self.config()
        sessions = [*about.sessions, session]
        self.write_about(
            replace(about, config=begun, settings=settings, identity=identity, sessions=sessions, former_rounds=None)
        )

    def add_line(self, line: Line) -> None:
        """Append a round to the metrics."""
        with (self.path / ROUNDS).open("ab") as file:
            begin = file.seek(0, os.SEEK_END)
            try:
                file.write(as_text(line))
                file.flush()
            except OSError as error:  # a full disk: half a line would make the next one unreadable
                with suppress(OSError):
                    os.ftruncate(file.fileno(), begin)
                raise at_path(error, self.path / ROUNDS) from None

    def write_lines(self, lines: Sequence[Line]) -> None:
        """Replace the metrics of all rounds."""
        write_whole(self.path / ROUNDS, b"".join(map(as_text, lines)))

    def add_mixes(self, round: int, mixes: list[Applied]) -> None:
        """Record who learned from whom in a round."""
        tensors: dict[str, Tensor] = {}
        for number, mix in enumerate(mixes):
            tensors |= {f"{number}.{part}": getattr(mix, part) for part in ("weights", "rows", "columns")}
        about = [{"group": mix.group, "target": mix.target, "gated": mix.gated} for mix in mixes]
        described = with_checksum(tensors, {"round": round, "mixes": about})
        save_tensors(self.path / mixes_name(round), tensors, {"mixes": described})

    def checkpoint(self, federation: Federation, tested: str, lines: str) -> None:
        """Save the state after a round; the old checkpoint becomes the one to fall back on.

        The lines of all rounds, whose digest is given, are on the disk before: no power cut leaves a checkpoint ahead
        of them.
        """
        flush_to_disk(self.path / ROUNDS)
        if self.store.has(CHECKPOINT):
            link_whole(self.path / CHECKPOINT, self.path / PREVIOUS)
        self._save_state(CHECKPOINT, federation, tested, lines)

    def _save_state(self, name: str, federation: Federation, tested: str, lines: str) -> None:
        # One text: several would be written in any order, and equal states would not be equal bytes.
        recorded = sorted(self._lost.union(self.recorded_rounds()))
        about = {"round": federation.round, "tested": tested, LINES: lines, "recorded": recorded}
        about |= described_rows(federation)
        state = dict(federation.state())
        save_tensors(self.path / name, state, {LAYOUT: with_checksum(state, about)})

    def checkpointed_round(self) -> int:
        """The round of the last checkpoint; 0 if there is none."""
        for name in (ROWS, CHECKPOINT, PREVIOUS):
            with suppress(CoterieError):  # a damaged one
                require(self.store.has(name), f"run = {self.path}: {name} is missing")
                return self._described(name).round
        return 0

    def newest_round(self) -> int:
        """The round after which rows were kept last; 0 if none were. Damaged ones are an error."""
        return round_of(self.newest_state()) if any(map(self.store.has, (ROWS, CHECKPOINT, PREVIOUS))) else 0

    def plan(self, rounds: int) -> None:
        """Plan more rounds. Until the configuration says so the run is as it was; from then on it is one that goes on.

        What is left of its end stays until there is something newer: its rows are its checkpoint, and its summary is
        replaced by that of the new end.
        """
        before = self.config()
        longer = {**before, "rounds": rounds}
        self.write_about(replace(self.about(), config=longer, former_rounds=before["rounds"]))
        self.write_config(longer)

    def remove_mixes(self, round: int) -> None:
        """Forget who learned from whom in a round."""
        (self.path / mixes_name(round)).unlink(missing_ok=True)

    def keep_mixes(self, is_recorded: Callable[[int], bool]) -> None:
        """Forget who learned from whom in all rounds but those to be recorded; of those, say which are lost."""
        for round in self.recorded_rounds():
            if not is_recorded(round):
                self.remove_mixes(round)
        name = next((name for name in (CHECKPOINT, PREVIOUS) if self._is_whole(name)), None)
        known = self._described(name).recorded if name else []
        for round in filter(is_recorded, known):
            try:
                require(self.store.has(mixes_name(round)), f"run = {self.path}: {mixes_name(round)} is missing")
                self.mixes(round)
            except CoterieError as error:
                self._lost.add(round)
                log.warning("%s: who learned from whom in round %d is lost; nothing else depends on it", error, round)

    def restore(self, federation: Federation) -> None:
        """Put a federation back to the last checkpoint, if there is one: the rows of a former end, if there are any."""
        if self.store.has(ROWS):
            if self.store.has(CHECKPOINT):
                (self.path / CHECKPOINT).replace(self.path / PREVIOUS)
            (self.path / ROWS).replace(self.path / CHECKPOINT)
        if not any(map(self.store.has, (CHECKPOINT, PREVIOUS))):
            return
        checkpoint = self.last_checkpoint()
        with self._reading(CHECKPOINT):
            federation.restore(checkpoint[0])
            federation.round = round_of(checkpoint)

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
