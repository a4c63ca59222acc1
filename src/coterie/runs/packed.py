"""Runs in one file, to hand over: a .zip of their plain files, which is read member by member and never unpacked."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load

from coterie.errors import CoterieError, require, unknown
from coterie.setup.config import PLUGINS, Config
from coterie.runs.directory import RunDirectory
from coterie.runs.kept import (
    ABOUT,
    CHECKPOINT,
    CONFIG,
    MIXES,
    PARTITION,
    QUALITY,
    ROUNDS,
    ROWS,
    STOPPED,
    SUMMARY,
    KeptRun,
    Tensors,
)
from coterie.files import resolved, safetensors_texts

MOST = 1 << 28
"""Bytes that a compressed member may have when it is read; rows are not compressed, so the file itself bounds them."""
UNREADABLE = (zipfile.BadZipFile, EOFError, RuntimeError, ValueError, OverflowError, OSError, struct.error)
"""What reading an archive comes to where it is cut off, damaged, encrypted or compressed in unknown ways."""
NOT_COMPRESSED = (zlib.error, lzma.LZMAError)
EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(runs: Sequence[Path], out: Path, models: bool = False) -> list[str]:
    """Put runs into a new .zip, each under its directory's name: configuration, description, partition, numbers, `W`.

    With `models`, the rows too: those of the end, else of the last checkpoint. Logs and copies of files of one's own
    stay behind. Returns the runs' names. The same runs make the same bytes.
    """
    require(out.suffix == ".zip", f"out = {out}: must end in .zip")
    require(not out.exists(), f"out = {out}: is there already; name another file")
    require(bool(runs), "pack: name at least one run")
    named: dict[str, RunDirectory] = {}
    for path in runs:
        name = resolved(path).name
        require(name not in named, f"run = {path}: another run is called {name} too; rename one of them")
        named[name] = RunDirectory.open(path)
    partial = out.with_name(f"{out.name}.partial")
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            for name, run in named.items():
                for file in _files(run, models):
                    stored = file in (ROWS, CHECKPOINT)
                    about = zipfile.ZipInfo(f"{name}/{file}", EPOCH)
                    about.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
                    about.external_attr = 0o644 << 16
                    archive.writestr(about, run.content(file))
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return list(named)


def runs_in(archive: Path) -> list[str]:
    """The names of the runs in a .zip; an error if there are none."""
    with _opened(archive) as members:
        parts = [member.split("/") for member in members.namelist()]
    runs = [folder for folder, *rest in parts if rest == [CONFIG]]
    require(bool(runs), f"run = {archive}: holds no run")
    return runs


def _files(run: RunDirectory, models: bool) -> Iterator[str]:
    rows = ROWS if run.has(ROWS) else CHECKPOINT
    wanted = [CONFIG, ABOUT, PARTITION, ROUNDS, QUALITY, SUMMARY, STOPPED, *([rows] if models else [])]
    yield from (name for name in wanted if run.has(name))
    yield from sorted(f"{MIXES}/{name}" for name in run.names(MIXES) if name.endswith(".safetensors"))


class PackedRun(KeptRun):
    """One of the runs in a .zip. Members are read by the names that a run's files have, into memory alone."""

    def __init__(self, archive: Path, name: str) -> None:
        super().__init__(archive / name)
        self._archive, self._name = archive, name

    @classmethod
    def open(cls, archive: Path, name: str = "") -> PackedRun:
        """Open a run in a .zip; without a name, the only one."""
        runs = runs_in(archive)
        if name and name not in runs:
            raise unknown(f"run in {archive}", name, runs)
        require(
            bool(name) or len(runs) == 1,
            f"run = {archive}: holds several runs; say which: {', '.join(f'{archive}/{run}' for run in runs)}",
        )
        found = cls(archive, name or runs[0])
        found.require_readable()
        return found

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

    def own_config(self) -> Config:
        """The run's configuration; files of one's own are not packed, and nobody else's are run."""
        config = self.config()
        code = [path for path in config.get(PLUGINS, ()) if path.endswith(".py")]
        require(
            not code,
            f"run = {self.path}: files of one's own are not packed ({', '.join(code)}); pass what "
            f"it was run with: coterie.open_run({str(self.path)!r}, experiment=…)",
        )
        config.pop(PLUGINS, None)
        return config


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
