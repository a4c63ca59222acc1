"""Runs as they go on, read as far as they have been written and nothing twice: many can be looked at every second."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError

from coterie.core.scale import ACCURACY
from coterie.errors import CoterieError, require
from coterie.registry import short_name
from coterie.report.learning import learning_matrix, most_personal
from coterie.report.onerun import whole_numbers
from coterie.report.rounding import Content
from coterie.rounds.evaluate import MOMENTS
from coterie.runs.directory import LOG, RunDirectory
from coterie.runs.history import plain_number
from coterie.runs.kept import CONFIG, MIXES, PARTITION, ROUNDS, STOPPED, SUMMARY
from coterie.setup.config import read_toml

# Folders below the one that is watched.
DEEPEST = 4
# Points of a curve in the overview, bytes of the log's end.
MOST_POINTS, LOG_END, LOG_LINES = 60, 16_384, 40
# Bytes of rounds that are read at a time, and seconds that an answer may spend on reading.
PLAN = (SUMMARY, CONFIG)
"""The files that say between them whether a run is over."""
AT_ONCE, PATIENCE = 1 << 18, 0.02
# What is drawn of what a line says of a moment, and what it says besides metrics.
POINTS = {"mean": "mean", "worst": "worst_decile"}
SUMS = {"mean", "weighted", "std", "worst_decile", "loss"}  # the metric follows, before anything else


@dataclass
class WatchedRun:
    """What a run's rounds have told so far. `read` takes in what is new."""

    name: str
    folder: Path
    method: str
    data: str
    seed: int
    planned: int
    metric: str = ""
    done: int = 0
    curves: dict[str, Content] = field(default_factory=dict)
    _read: int = 0
    _written: float = 0.0
    _file: int = 0
    _overview: str = ""
    _state: str = ""
    _ends: tuple[int, ...] = ()
    _over: bool = True
    _clients: list[str] | None = None

    @classmethod
    def of(cls, name: str, folder: Path) -> WatchedRun:
        """Begin to watch a run."""
        config = read_toml(folder / CONFIG)
        method, data = (short_name(str(config.get(key, "?"))) for key in ("method", "data"))
        return cls(name, folder, method, data, int(config.get("seed", 0)), int(config.get("rounds", 0)))

    def look(self) -> str:
        """The run in short as far as it was read, as JSON."""
        ends = ((SUMMARY, "finished"), (STOPPED, "stopped"))
        state = next((word for name, word in ends if own_file(f"{self.folder}/{name}")), "")
        if state == "finished" and not self._is_over():
            state = ""
        if state != self._state or not self._overview:
            self._state = state
            curve = self.curves.get("received", {"rounds": [], "mean": []})
            every = max(1, -(-len(curve["rounds"]) // MOST_POINTS))
            # From the end, so that the newest round is among them.
            points = {key: curve[key][::-1][::every][::-1] for key in ("rounds", "mean")}
            about = {
                "name": self.name,
                "method": self.method,
                "data": self.data,
                "seed": self.seed,
                "metric": self._scale(),
                "done": self.done,
                "planned": self.planned,
                "state": state,
                "written": self._written,
                "curve": points,
            }
            self._overview = json.dumps(about)
        return self._overview

    def _is_over(self) -> bool:
        """Whether the summary is that of all rounds that are planned; both are read again if they have changed."""
        ends = tuple(0 if (now := own_file(f"{self.folder}/{name}")) is None else now.st_mtime_ns for name in PLAN)
        if ends != self._ends:
            with suppress(CoterieError):  # a configuration that was damaged since
                self.planned = int(read_toml(self.folder / CONFIG).get("rounds", 0))
                self._ends, self._over = ends, RunDirectory(self.folder).finished
        return self._over

    def details(self) -> Content:
        """The run at length: its curves, who learned from whom in the last recorded round, the end of its log."""
        while self.read():
            pass
        told = {"name": self.name, "metric": self._scale(), "curves": self.curves, "log": self._log()}
        return {**told, **self._learning()}

    def _scale(self) -> Content:
        usual = self.metric in ("", ACCURACY.name)
        return {"name": self.metric or ACCURACY.name, "share": usual, "higher": usual}

    def read(self) -> bool:
        """Take in some of the lines that were added; whether there are more."""
        path = self.folder / ROUNDS
        now = own_file(path)
        if now is None:
            return False
        self._written = now.st_mtime
        if now.st_ino != self._file or now.st_size < self._read:
            # A run that is carried on from a checkpoint cuts its rounds back, in a new file.
            self._read, self._file, self.done, self.curves, self._overview = 0, now.st_ino, 0, {}, ""
        if now.st_size == self._read:
            return False
        with path.open("rb") as file:
            file.seek(self._read)
            found = file.read(min(AT_ONCE, now.st_size - self._read))
            if b"\n" not in found:  # a line may be longer, and the last one not whole yet
                found += file.readline()
        new, end, _ = found.rpartition(b"\n")
        self._read += len(new) + len(end)
        for text in new.splitlines():
            self._take(text)
            self._overview = ""
        return bool(end) and self._read < now.st_size

    def _take(self, text: bytes) -> None:
        try:
            line = json.loads(text)
            done = int(line["round"])
            told = {moment: line[moment] for moment in MOMENTS if moment in line}
            points = {m: {key: _point(one[name]) for key, name in POINTS.items()} for m, one in told.items()}
        except (ValueError, KeyError, TypeError):
            return  # a damaged line: `coterie report` names it
        self.done = done
        for moment, point in points.items():
            self.metric = self.metric or next((name for name in told[moment] if name not in SUMS), "")
            curve = self.curves.setdefault(moment, {"rounds": [], "mean": [], "worst": []})
            for key, value in {"rounds": done, **point}.items():
                curve[key].append(value)

    def _learning(self) -> Content:
        """The last recorded weights, where they can be read; they may be about to be written."""
        if (self.folder / MIXES).is_symlink() or not own_file(self.folder / PARTITION):
            return {"learning": None}
        directory = RunDirectory(self.folder)
        try:
            if self._clients is None:
                partition = directory.partition()
                everyone = range(partition.clients)
                self._clients = [partition.names[k] for k in everyone if k not in partition.held_out]
            recorded = directory.recorded_rounds()
            if not recorded or not own_file(self.folder / MIXES / f"{recorded[-1]:05d}.safetensors"):
                return {"learning": None}
            mixes = directory.mixes(recorded[-1])
            mix = most_personal(mixes)
            weights = whole_numbers(learning_matrix(mixes, len(self._clients)))
        except (CoterieError, SafetensorError, KeyError, IndexError, ValueError, OSError):
            return {"learning": None}
        track = {"group": mix.group, "target": mix.target, "rounds": [recorded[-1]], "weights": [weights]}
        return {"learning": track, "clients": self._clients}

    def _log(self) -> list[str]:
        path = self.folder / LOG
        now = own_file(path)
        if now is None:
            return []
        with path.open("rb") as file:
            file.seek(max(0, now.st_size - LOG_END))
            return file.read(LOG_END).decode(errors="replace").splitlines()[-LOG_LINES:]


def _point(value: float | None) -> float | None:
    return None if value is None else plain_number(round(float(value), 5))


def own_file(path: Path | str) -> os.stat_result | None:
    """What the system knows of a file; nothing if there is none, or a link to another place."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


class Watch:
    """All runs below a folder. Links are not followed, so nothing outside it is ever read."""

    def __init__(self, folder: Path) -> None:
        require(folder.is_dir(), f"folder = {folder}: there is no such folder")
        self.folder = folder
        self._runs: dict[str, WatchedRun] = {}
        self._lock = threading.Lock()
        self._turn = 0

    def overview(self) -> str:
        """All runs in short, as JSON, by name. What there is no time to read now is read by `read_on`, or next time."""
        with self._lock:
            self._find()
            end = time.monotonic() + PATIENCE
            for run in self._in_turn():
                while run.read() and time.monotonic() < end:
                    pass
                if time.monotonic() >= end:
                    break
            found = [self._runs[name].look() for name in sorted(self._runs)]
        return f'{{"folder": {json.dumps(str(self.folder))}, "runs": [{", ".join(found)}]}}'

    def read_on(self) -> bool:
        """Read a little of a run, or find new ones; whether there may be more. Others are answered in between."""
        with self._lock:
            if any(run.read() for run in self._in_turn()):
                return True
            known = set(self._runs)
            self._find()
            return not self._runs.keys() <= known

    def _in_turn(self) -> Iterator[WatchedRun]:
        """All runs, beginning with the one after which the last reader stopped."""
        names = sorted(self._runs)
        first = self._turn % max(len(names), 1)
        for name in names[first:] + names[:first]:
            self._turn += 1
            yield self._runs[name]

    def details(self, name: str) -> str | None:
        """One run at length, as JSON; nothing if there is no run of that name."""
        with self._lock:
            run = self._runs.get(name)
            return None if run is None else json.dumps(run.details())

    def _find(self) -> None:
        there = dict(run_places(self.folder))
        self._runs = {name: run for name, run in self._runs.items() if name in there}
        for name, folder in there.items():
            if name not in self._runs:
                try:
                    self._runs[name] = WatchedRun.of(name, folder)
                except (CoterieError, ValueError, OSError):
                    continue  # its configuration is damaged or just being written


def run_places(folder: Path, name: str = "", depth: int = 0) -> Iterator[tuple[str, Path]]:
    """The runs in a folder and below, by their path from there; runs are not searched for further ones."""
    if own_file(f"{folder}/{CONFIG}"):
        yield name or folder.resolve().name, folder
        return
    if depth > DEEPEST:
        return
    with os.scandir(folder) as entries:
        below = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    for one in below:
        yield from run_places(folder / one, f"{name}/{one}" if name else one, depth + 1)
