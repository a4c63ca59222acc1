"""A node's side of runs on a cluster: it does a run in a folder of its own, and sends back what that leaves.

Machines need no folder in common: the files of a run directory travel in pieces, and each is checked when it is whole.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from queue import Queue
from uuid import uuid4

import torch

from coterie.compare.workers import Message, Tell, answer, failure, warnings_told
from coterie.errors import require
from coterie.files import PARTIAL, LockedError, at_path, locked
from coterie.processes import use_one_core
from coterie.rounds.listeners import Listener, RoundReport
from coterie.runs.store import CHECKPOINT, CONFIG, PREVIOUS, ROUNDS, ROWS, STOPPED, SUMMARY
from coterie.version import VERSION

PIECE = 16 * 2**20
"""The bytes that travel at once: a file may be larger than what a machine wants to hold in memory."""

Parcel = Message
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

    def news(self) -> Iterator[Parcel]:
        """What has changed, in pieces."""
        present, before = self._present(), self._sent
        self._sent = present
        for name in before.keys() - present.keys():
            yield {"gone": name}
        changed = (name for name, stamp in present.items() if stamp != before.get(name) and name != PREVIOUS)
        for name in sorted(changed, key=lambda file: (_LAST.index(file) if file in _LAST else -1, file)):
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

    def take(self, message: Parcel) -> None:
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
    file = path.stat()
    return file.st_mtime_ns, file.st_size


def _pieces(path: Path, name: str) -> Iterator[Parcel]:
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


PREFIX = "coterie-cell-"
# Messages that may wait for the main process: the run waits then, rather than pile checkpoints up.
AHEAD = 4


def versions() -> dict[str, str]:
    """What must be the same on all machines, so that they compute the same."""
    return {"Coterie": VERSION, "PyTorch": torch.__version__, "Python": platform.python_version()}


def carry_out(task: Message, parcels: Iterable[Parcel], environment: Mapping[str, str], cwd: str) -> Iterator[Message]:
    """Do the run of a task; `parcels` are the files that there are of it already.

    Gives messages: where it runs, then what a worker process would tell, and the files of the run: whenever there is a
    checkpoint, and before the last message. What the node's own environment does not say is taken from `environment`.
    """
    yield {"where": f"{socket.gethostname()}, process {os.getpid()}", "versions": versions()}
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    with suppress(OSError):  # paths are meant from there, where machines share them
        os.chdir(cwd)
    messages: Queue[Message | None] = Queue(AHEAD)

    def work() -> None:
        try:
            with warnings_told(messages.put):
                for message in _performed(task, parcels, messages.put):
                    messages.put(message)
        except Exception as error:  # a full disk on the node, perhaps
            messages.put(failure(error))
        finally:
            messages.put(None)

    threading.Thread(target=work, daemon=True).start()
    while (message := messages.get()) is not None:
        yield message


def _performed(task: Message, parcels: Iterable[Parcel], tell: Tell) -> Iterator[Message]:
    """Do a run, and give what there is to say in the end."""
    use_one_core()
    if task["out"] is None:
        yield answer(task, tell)
        return
    with scratch_folder() as folder:
        place = folder / Path(task["out"]).name
        inbox, outbox = Inbox(place), Outbox(place)
        for parcel in parcels:
            inbox.take(parcel)
        outbox.skip()
        last = answer({**task, "out": str(place)}, tell, [_Sender(outbox, tell)])
        yield from outbox.news()
        if "mistake" in last:  # which is mended where the run is kept
            last["mistake"] = last["mistake"].replace(str(place), task["out"])
        yield last


class _Sender(Listener):
    """Sends the files of a run when there is a new checkpoint among them."""

    def __init__(self, outbox: Outbox, tell: Tell) -> None:
        self._outbox, self._tell = outbox, tell

    def round(self, report: RoundReport) -> None:
        if self._outbox.has_new(CHECKPOINT):
            for message in self._outbox.news():
                self._tell(message)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for a run, for its owner alone, while inside. Those of processes that were killed are removed."""
    root = Path(tempfile.gettempdir())
    for lock in root.glob(f"{PREFIX}*.lock"):
        with suppress(LockedError, OSError), locked(lock):  # held: its process lives; not to be opened: another user's
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    folder = root / f"{PREFIX}{uuid4().hex}"
    with ExitStack() as stack:
        stack.enter_context(locked(folder.with_suffix(".lock"), wait=True))
        folder.mkdir(mode=0o700)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder
