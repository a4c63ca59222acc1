"""The files of a run directory on their way from one machine to another, in pieces, each file checked when it is whole.

So machines need no folder in common: a run takes place in a folder of its own wherever it is, and what it leaves is
sent to the directory in which it is kept.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from coterie.errors import require
from coterie.files import PARTIAL, at_path
from coterie.runs.kept import CHECKPOINT, CONFIG, PREVIOUS, ROUNDS, ROWS, STOPPED, SUMMARY

PIECE = 16 * 2**20
"""The bytes that travel at once: a file may be larger than what a machine wants to hold in memory."""

Message = dict[str, Any]
"""A piece of a file, `{"file": name, "piece": bytes, "sha256": of the whole file, or nothing before its last piece}`;
or `{"gone": name}` for a file that is there no longer."""

# Who is cut off half-way must hold a run that can be carried on: rows come after the lines that they know of, and
# what says that a run has begun, or is over, comes last.
_LAST = (ROUNDS, CHECKPOINT, ROWS, CONFIG, STOPPED, SUMMARY)


class Outbox:
    """Sends what has changed in a folder since it was last sent.

    The checkpoint before the last is not sent: whoever is sent each of them has had it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[str, tuple[int, int]] = {}  # name -> when it was written, size

    def skip(self) -> None:
        """Count everything that is there now as sent."""
        self._sent = self._present()

    def has_new(self, name: str) -> bool:
        """Whether there is a file that was not sent as it is now."""
        path = self._folder / name
        return path.is_file() and _stamp(path) != self._sent.get(name)

    def news(self) -> Iterator[Message]:
        """What has changed, in pieces."""
        present, before = self._present(), self._sent
        self._sent = present
        for name in before.keys() - present.keys():
            yield {"gone": name}
        changed = (name for name, stamp in present.items() if stamp != before.get(name) and name != PREVIOUS)
        for name in sorted(changed, key=lambda one: (_LAST.index(one) if one in _LAST else -1, one)):
            yield from _pieces(self._folder / name, name)

    def _present(self) -> dict[str, tuple[int, int]]:
        files = (path for path in self._folder.rglob("*") if path.is_file() and not path.name.endswith(PARTIAL))
        return {path.relative_to(self._folder).as_posix(): _stamp(path) for path in files}


class Inbox:
    """Writes the files that are sent to a folder: each is there whole and as it was, or as it was before.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as here, TemporaryDirectory() as there:
    ...     _ = Path(here, "log.txt").write_text("all well")
    ...     inbox = Inbox(Path(there))
    ...     for message in Outbox(Path(here)).news():
    ...         inbox.take(message)
    ...     Path(there, "log.txt").read_text()
    'all well'
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._partial = ""  # the name of the file that is being received
        self._digest = hashlib.sha256()

    def take(self, message: Message) -> None:
        """Take in a message of an outbox; an error if a file did not arrive as it was sent."""
        if "gone" in message:
            self._place(message["gone"]).unlink(missing_ok=True)
            return
        name, piece, expected = message["file"], message["piece"], message["sha256"]
        path = self._place(name)
        partial = path.with_name(path.name + PARTIAL)
        begins = name != self._partial
        if begins:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._partial, self._digest = name, hashlib.sha256()
        self._digest.update(piece)
        try:
            with partial.open("wb" if begins else "ab") as file:
                file.write(piece)
                if expected is not None:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:  # a full disk, perhaps
            partial.unlink(missing_ok=True)
            raise at_path(error, path) from None
        if expected is not None:
            self._partial = ""
            if self._digest.hexdigest() != expected:
                partial.unlink()
            require(partial.exists(), f"'{path}': arrived damaged from another machine; the same command tries again")
            partial.replace(path)

    def _place(self, name: str) -> Path:
        """Where a file belongs, which is within the folder, whatever a machine may send."""
        parts = PurePosixPath(name).parts
        inside = bool(parts) and ".." not in parts and not PurePosixPath(name).is_absolute()
        require(inside, f"'{name}': a machine sent a file that belongs elsewhere")
        return self._folder.joinpath(*parts)


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _pieces(path: Path, name: str) -> Iterator[Message]:
    digest, left = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while True:
            piece = file.read(min(PIECE, left))
            digest.update(piece)
            left -= len(piece)
            over = left == 0 or not piece
            yield {"file": name, "piece": piece, "sha256": digest.hexdigest() if over else None}
            if over:
                return
