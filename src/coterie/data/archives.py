"""The files of data sets: where they lie, downloads that are checked while they stream in, archives read in memory.

Files of a data set lie in `<root>/<name>/`; `root` is the argument, else the environment variable
`COTERIE_DATA`, else `coterie/data` in the user's cache directory (`XDG_CACHE_HOME`, or `~/.cache`). Nothing is ever
extracted to disk, so names inside an archive can do no harm. What takes a moment shows a bar.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import lzma
import os
import struct
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from coterie.errors import CoterieError, require
from coterie.files import expanded

DATA = "COTERIE_DATA"
"""The variable of the environment that names the folder of data sets."""


def user_cache() -> Path | None:
    """The user's cache directory, or None where there is no home directory to hold one."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if chosen and Path(chosen).is_absolute():
        return Path(chosen)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def data_folder(name: str, root: Path | None = None) -> Path:
    """The folder that holds (or is to hold) the files of data set `name`.

    >>> data_folder("mnist", Path("somewhere")).as_posix()
    'somewhere/mnist'
    """
    if root is not None:
        return Path(root) / name
    if chosen := os.environ.get(DATA, ""):
        return expanded(chosen) / name
    cache = user_cache()
    if cache is None:
        raise CoterieError(f"data '{name}': there is no home directory to keep files in; set COTERIE_DATA to a folder")
    return cache / "coterie" / "data" / name


PATIENCE_SECONDS = 2.0
"""Work that is done sooner than this shows no bar."""

Advance = Callable[[int], None]
"""Called from one thread with the number of items (or bytes) done since the last call."""


@contextmanager
def progress_bar(what: str, total: int | None, enabled: bool, *, in_bytes: bool = False) -> Iterator[Advance]:
    """A bar on stderr that appears after `PATIENCE_SECONDS`, and only where stderr is a terminal.

    >>> with progress_bar("decoding", 3, enabled=False) as advance:
    ...     advance(3)
    """
    shown = enabled and sys.stderr.isatty()
    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        count,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not shown,
    )
    task = bar.add_task(what, total=total)
    begin = time.monotonic()
    started = False

    def advance(amount: int) -> None:
        nonlocal started
        if shown and not started and time.monotonic() - begin > PATIENCE_SECONDS:
            bar.start()
            started = True
        bar.advance(task, amount)

    try:
        yield advance
    finally:
        if started:
            bar.stop()


MOST_IMAGE_BYTES = 64 << 20
"""An encoded image larger than this is refused."""
MOST_ARRAY_BYTES = 1 << 30
"""An array file (EMNIST's training images are 547 MB) larger than this is refused."""


DAMAGE = (
    OSError,
    EOFError,
    UnicodeError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
)
"""What Python's readers of archives raise where a file is damaged."""


class SupportsRead(Protocol):
    """Anything that gives up to `size` bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes."""


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn a damaged or missing file into one line that names it."""
    try:
        yield
    except DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CoterieError(f"cannot read {path} ({reason}); remove it and fetch it again") from error


def read_limited(file: SupportsRead, limit: int, what: str) -> bytes:
    """The whole of `file`, unless it holds more than `limit` bytes.

    >>> import io
    >>> read_limited(io.BytesIO(b"abc"), 3, "memory")
    b'abc'
    """
    content = file.read(limit + 1)
    require(len(content) <= limit, f"{what} holds more than {limit:,} bytes, more than any such file should")
    return content


def tar_members(path: Path, chosen: Callable[[str], bool], limit: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of the plain files of a tar archive whose name is wanted, in the archive's order."""
    with readable(path), tarfile.open(path, "r:*") as archive:
        for member in archive:
            if member.isfile() and chosen(member.name):
                file = archive.extractfile(member)
                if file is not None:
                    yield member.name, read_limited(file, limit, f"{member.name} in {path}")


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive; damage is reported in one line."""
    with readable(path), zipfile.ZipFile(path) as archive:
        yield archive


def zip_member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """One member's content; a name that the archive does not hold is an error."""
    try:
        with archive.open(name) as file:
            return read_limited(file, limit, f"{name} in {archive.filename}")
    except KeyError:
        raise CoterieError(f"{archive.filename} holds no {name}") from None
    except RuntimeError as error:  # zipfile's error for encryption and for unknown compression
        raise CoterieError(f"cannot read {name} in {archive.filename} ({error})") from error


def gunzip(content: IO[bytes], limit: int, what: str) -> bytes:
    """The decompressed content of an open gzip file."""
    with gzip.GzipFile(fileobj=content) as file:
        return read_limited(file, limit, what)


CHUNK_BYTES = 1 << 18
MOST_BYTES = 4 << 30
"""No published archive that Coterie fetches is larger than this."""
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Remote:
    """One published file: where it is, what it is called here, and the checksum its publisher (or a
    long-standing mirror) states for it.

    >>> Remote("https://example.org/a/b.tar.gz", "md5", "0" * 32).file
    'b.tar.gz'
    """

    url: str
    kind: Literal["sha256", "md5"]
    digest: str

    @property
    def file(self) -> str:
        """The file's name, the last part of its address."""
        return self.url.rsplit("/", 1)[-1]


def download(remote: Remote, folder: Path, progress: bool = True) -> Path:
    """Fetch one file into `folder`: streamed into a `.part` file, checked, then renamed.

    A wrong checksum or a broken connection leaves nothing behind.
    """
    require(remote.url.startswith(("https://", "http://")), f"url = {remote.url}: must be http or https")
    target = folder / remote.file
    part: Path | None = None
    # MD5 only guards against damage here; it is used where nothing stronger is published.
    checksum = hashlib.new(remote.kind, usedforsecurity=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=remote.file + ".", suffix=".part", delete=False) as file:
            part = Path(file.name)
            with urllib.request.urlopen(remote.url, timeout=TIMEOUT_SECONDS) as answer:
                expected = _length(answer.headers.get("Content-Length"))
                received = 0
                with progress_bar(f"downloading {remote.file}", expected, progress, in_bytes=True) as advance:
                    while block := answer.read(CHUNK_BYTES):
                        received += len(block)
                        require(received <= MOST_BYTES, f"{remote.url} is larger than {MOST_BYTES >> 30} GiB")
                        checksum.update(block)
                        file.write(block)
                        advance(len(block))
        if checksum.hexdigest() != remote.digest:
            raise CoterieError(
                f"{remote.url} has {remote.kind} {checksum.hexdigest()}, not the published {remote.digest}"
            )
        part.chmod(0o644)
        part.replace(target)
    except (OSError, http.client.HTTPException) as error:
        reason: object = error
        if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
            reason = error.reason
        raise CoterieError(f"could not download {remote.url} ({_one_line(reason)})") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return target


def _length(header: str | None) -> int | None:
    return int(header) if header is not None and header.isdecimal() else None


def _one_line(reason: object) -> str:
    return " ".join(str(reason).split()) or type(reason).__name__
