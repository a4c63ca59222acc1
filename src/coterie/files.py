"""Files that are whole at any time, and a log kept in one. Light: launchers import this without PyTorch."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import IO, Any

from coterie.errors import CoterieError, require

if sys.platform != "win32":
    import fcntl


FULL = (errno.ENOSPC, errno.EDQUOT)
"""The numbers of errors that say that there is no room on a disk."""
PARTIAL = ".partial"
"""What the name of a file ends with while it is written; whoever was killed then leaves it behind."""


SEALED = b'"sha256":"'
"""What the checksum of a line of JSON begins with."""
UNFIT = (ValueError, TypeError, AttributeError, LookupError, StopIteration, ArithmeticError, RecursionError)
"""What JSON may raise, when it is read or used, that does not say what was expected."""


class LockedError(Exception):
    """Somebody else holds a lock."""


def expanded(path: str | Path) -> Path:
    """A path whose `~` stands for a user's home.

    >>> expanded("data/own.csv").as_posix()
    'data/own.csv'
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise CoterieError(f"{path}: there is no such user; write the path in full") from None


def resolved(path: str | Path) -> Path:
    """A path in full, without symbolic links, from anywhere.

    >>> resolved("data/../own.csv") == Path.cwd() / "own.csv"
    True
    """
    try:
        return expanded(path).resolve()
    except (RuntimeError, OSError):  # Python 3.13 leaves it to whoever opens the file
        raise CoterieError(f"{path}: its symbolic links lead in a circle; name another path") from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds the old content or the new, never a part."""
    write_parts(path, [content])


def write_parts(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """The same with a content that is made part by part."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:  # a full disk, perhaps: what is half written must not fill it any further
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise at_path(error, path) from None


def at_path(error: OSError, path: Path) -> OSError:
    """The error with the file at which it happened: the system names none where a disk is full.

    >>> import errno
    >>> print(at_path(OSError(errno.ENOSPC, "No space left on device"), Path("rows")))
    [Errno 28] No space left on device: 'rows'
    """
    if error.filename is None and error.errno is not None:
        error.filename = str(path)
    return error


def flush_to_disk(path: Path) -> None:
    """See that what was written to a file outlives a power cut."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sealed_line(text: bytes) -> bytes:
    """A JSON object as a line, with the SHA-256 of all else in it at its end.

    >>> unsealed_line(sealed_line(b'{"round":1}'))
    b'{"round":1}'
    """
    mark = hashlib.sha256(text).hexdigest().encode()
    return text[:-1] + b"," * (text != b"{}") + SEALED + mark + b'"}\n'


def unsealed_line(line: bytes) -> bytes:
    """The JSON object in such a line; a `ValueError` if a bit of it is another.

    >>> unsealed_line(b'{"round":2,' + sealed_line(b'{"round":1}').partition(b",")[2])
    Traceback (most recent call last):
    ...
    ValueError: its SHA-256 is another
    """
    head, found, mark = line.rstrip(b"\n").rpartition(SEALED)
    if not found:
        raise ValueError("its SHA-256 is missing")
    text = head.removesuffix(b",") + b"}"
    if sealed_line(text).rstrip(b"\n") != head + found + mark:
        raise ValueError("its SHA-256 is another")
    return text


def remove_partial(folder: Path) -> None:
    """Remove what somebody who was killed left half written in a folder of which nobody else makes use."""
    for path in folder.glob(f"*{PARTIAL}"):
        path.unlink(missing_ok=True)


def link_whole(source: Path, path: Path) -> None:
    """Let a path name the content of another file as well, at once; a copy where the file system knows no links.

    Neither file may be written in place afterwards, which `write_whole` never does.
    """
    partial = path.with_name(path.name + PARTIAL)
    partial.unlink(missing_ok=True)
    try:
        partial.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, partial)
    partial.replace(path)
    partial.unlink(missing_ok=True)  # where both are the same file already, a system may leave them as they are


def private_folder(path: Path) -> Path:
    """A folder for its owner alone, made if need be, and made so if it was there and open to others."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold a lock while inside; it ends with this process at the latest, however it ends.

    Where somebody else holds it, wait for them or raise `LockedError`. The file is there as long as the lock is held,
    and stays where its holder was killed.
    """
    file = _held_file(path, wait)
    try:
        yield
    finally:
        with suppress(OSError):  # it may be gone with the folder
            path.unlink()
        file.close()


def _held_file(path: Path, wait: bool) -> IO[str]:
    """The open file of a lock that is held."""
    while True:
        file = path.open("a", encoding="utf-8")
        try:
            if sys.platform == "win32":  # which has no such locks
                return file
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it has taken the file away: others would lock the next one.
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    return file
            file.close()
        except BlockingIOError as error:
            file.close()
            raise LockedError(str(path)) from error
        except BaseException:
            file.close()
            raise


def require_format(what: str, written: object, readable: int, way_out: str) -> None:
    """An error unless something on disk was written in the format that this version reads.

    >>> require_format("run = x", 2, 1, "again")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: run = x: was written by a newer version of Coterie (format 2, this one reads 1)
    >>> require_format("run = x", None, 1, "again")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: run = x: was written by an older version of Coterie (this one reads format 1); again
    """
    newer = str(written).isdecimal() and int(str(written)) > readable
    require(
        not newer, f"{what}: was written by a newer version of Coterie (format {written}, this one reads {readable})"
    )
    require(
        str(written) == str(readable),
        f"{what}: was written by an older version of Coterie (this one reads format {readable}); {way_out}",
    )


def safetensors_texts(content: bytes) -> dict[str, str]:
    """The texts that stand beside the tensors of a safetensors file, given its bytes."""
    length = int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8 : 8 + length]).get("__metadata__", {}))


class _PatientHandler(WatchedFileHandler):
    """A log in a file; on a full disk a line is lost, and whatever else could not be written is reported."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name that logging calls)
        """Print the traceback of anything but an error of the disk."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Keep Coterie's log in a file as well, from `INFO` upwards; where that is moved away, a new one is begun."""
    log = logging.getLogger("coterie")
    handler = _PatientHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        handler.close()


@contextmanager
def silence() -> Iterator[None]:
    """Nothing below a critical error is logged: for toys, on which methods would warn of what nobody needs to hear."""
    log = logging.getLogger("coterie")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def json_text(content: Mapping[str, Any]) -> str:
    """An object as JSON to be read by people too; of a list of objects, each stands on a line of its own.

    There may be a hundred thousand of those, and JSON that is indented throughout takes a minute to write then.

    >>> print(json_text({"rounds": 2, "clients": [{"name": "a", "size": 3}, {"name": "b", "size": 4}]}), end="")
    {
      "rounds": 2,
      "clients": [
        {"name": "a", "size": 3},
        {"name": "b", "size": 4}
      ]
    }
    """
    parts = ",\n".join(f"  {json.dumps(key)}: {_spelled(value)}" for key, value in content.items())
    return f"{{\n{parts}\n}}\n"


def _spelled(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        lines = ",\n".join(f"    {json.dumps(entry)}" for entry in value)
        return f"[\n{lines}\n  ]"
    return json.dumps(value, indent=2).replace("\n", "\n  ")
