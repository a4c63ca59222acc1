"""Where the files of a run are: in a directory, or in a .zip to hand over, which is read and never unpacked."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from safetensors import safe_open
from safetensors.torch import load

from coterie.errors import CoterieError, require, unknown
from coterie.files import resolved, safetensors_texts
from coterie.runs.tensors import Tensors, load_tensors

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
LOG = "log.txt"
COPIES = "plugins"
"""Where a run keeps copies of files of one's own."""

MOST = 1 << 28
"""Bytes that a compressed member may have when it is read; rows are not compressed, so the file itself bounds them."""
UNREADABLE = (zipfile.BadZipFile, EOFError, RuntimeError, ValueError, OverflowError, OSError, struct.error)
"""What reading an archive comes to where it is cut off, damaged, encrypted or compressed in unknown ways."""
NOT_COMPRESSED = (zlib.error, lzma.LZMAError)
EPOCH = (1980, 1, 1, 0, 0, 0)


class RunFiles(Protocol):
    """The files of one run, by name."""

    path: Path

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        ...

    def content(self, name: str) -> bytes:
        """The bytes of a file; an error if there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        ...

    def tensors(self, name: str) -> Tensors:
        """The tensors and texts of a safetensors file."""
        ...

    def texts(self, name: str) -> dict[str, str]:
        """The texts of a safetensors file alone."""
        ...


class Directory:
    """A directory of files."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
        require(self.has(name), f"run = {self.path}: {name} is missing")
        with safe_open(self.path / name, framework="pt") as file:
            return dict(file.metadata() or {})


class Archive:
    """One of the runs in a .zip. Members are read by the names that a run's files have, into memory alone."""

    def __init__(self, archive: Path, name: str = "") -> None:
        runs = runs_in(archive)
        if name and name not in runs:
            raise unknown(f"run in {archive}", name, runs)
        require(
            bool(name) or len(runs) == 1,
            f"run = {archive}: holds several runs; say which: {', '.join(f'{archive}/{run}' for run in runs)}",
        )
        self._archive, self._name = archive, name or runs[0]
        self.path = archive / self._name

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        with _opened(self._archive) as members:
            return f"{self._name}/{name}" in members.namelist()

    def content(self, name: str) -> bytes:
        """The bytes of a file; those that would fill the memory are refused."""
        require(self.has(name), f"run = {self.path}: {name} is missing")
        with _opened(self._archive) as members:
            about = members.getinfo(f"{self._name}/{name}")
            bounded = about.compress_type == zipfile.ZIP_STORED or about.file_size <= MOST
            require(bounded, f"run = {self.path}: {name} is too large ({about.file_size} bytes, at most {MOST})")
            # No more is read than the member says that it holds, and its checksum must be right.
            return members.read(about)

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        with _opened(self._archive) as members:
            parts = [member.split("/") for member in members.namelist()]
        return [rest[1] for name, *rest in parts if name == self._name and len(rest) == 2 and rest[0] == folder]

    def tensors(self, name: str) -> Tensors:
        """The tensors and texts of a safetensors file."""
        content = self.content(name)
        return load(content), safetensors_texts(content)

    def texts(self, name: str) -> dict[str, str]:
        """The texts of a safetensors file alone."""
        return safetensors_texts(self.content(name))


def store_of(path: Path) -> RunFiles:
    """Where a run is: in a directory, in a file `FILE.zip`, or in one that holds several, as `FILE.zip/NAME`."""
    if path.is_file():
        return Archive(path)
    return Archive(path.parent, path.name) if path.parent.is_file() else Directory(path)


def runs_in(archive: Path) -> list[str]:
    """The names of the runs in a .zip; an error if there are none."""
    with _opened(archive) as members:
        parts = [member.split("/") for member in members.namelist()]
    runs = [folder for folder, *rest in parts if rest == [CONFIG]]
    require(bool(runs), f"run = {archive}: holds no run")
    return runs


def pack(runs: Sequence[Path], out: Path, models: bool = False) -> list[str]:
    """Put runs into a new .zip, each under its directory's name: configuration, description, partition, numbers, `W`.

    With `models`, the rows too: those of the end, else of the last checkpoint. Logs and copies of files of one's own
    stay behind. Returns the runs' names. The same runs make the same bytes.
    """
    require(out.suffix == ".zip", f"out = {out}: must end in .zip")
    require(not out.exists(), f"out = {out}: is there already; name another file")
    require(bool(runs), "pack: name at least one run")
    named: dict[str, Directory] = {}
    for path in runs:
        name = resolved(path).name
        require(name not in named, f"run = {path}: another run is called {name} too; rename one of them")
        require(path.exists(), f"run = {path}: there is no such file or folder")
        require((path / CONFIG).is_file(), f"run = {path}: holds no run ({CONFIG} is missing)")
        named[name] = Directory(path)
    partial = out.with_name(f"{out.name}.partial")
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            for name, run in named.items():
                for file in _packed(run, models):
                    stored = file in (ROWS, CHECKPOINT)
                    about = zipfile.ZipInfo(f"{name}/{file}", EPOCH)
                    about.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
                    about.external_attr = 0o644 << 16
                    archive.writestr(about, run.content(file))
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return list(named)


def _packed(run: Directory, models: bool) -> Iterator[str]:
    rows = ROWS if run.has(ROWS) else CHECKPOINT
    names = [CONFIG, ABOUT, PARTITION, ROUNDS, QUALITY, SUMMARY, STOPPED, *([rows] if models else [])]
    yield from (name for name in names if run.has(name))
    yield from sorted(f"{MIXES}/{name}" for name in run.names(MIXES) if name.endswith(".safetensors"))


@contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(archive) as members:
            yield members
    except CoterieError:
        raise
    except (*UNREADABLE, *NOT_COMPRESSED) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CoterieError(f"run = {archive}: is no .zip of runs, or damaged ({reason})") from None
