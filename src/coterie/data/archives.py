"""Archives read member by member, in memory, with a limit on how large a member may become.

Nothing is ever extracted to disk, so names inside an archive can do no harm.
"""

from __future__ import annotations

import gzip
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from coterie.errors import CoterieError, require

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


def tar_members(path: Path, wanted: Callable[[str], bool], limit: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of the plain files of a tar archive whose name is wanted, in the archive's order."""
    with readable(path), tarfile.open(path, "r:*") as archive:
        for member in archive:
            if member.isfile() and wanted(member.name):
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
