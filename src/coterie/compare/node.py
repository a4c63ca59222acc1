"""A node's side of runs on a cluster: it does a run in a folder of its own, and sends back what that leaves."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Queue
from uuid import uuid4

import torch

from coterie.compare.parcels import Inbox, Outbox
from coterie.compare.pool import Message, Tell, answer, failure, warnings_told
from coterie.files import LockedError, locked
from coterie.processes import use_one_core
from coterie.rounds.listeners import Listener
from coterie.rounds.report import RoundReport
from coterie.runs.kept import CHECKPOINT
from coterie.version import VERSION

PREFIX = "coterie-cell-"
# Messages that may wait for the main process: the run waits then, rather than pile checkpoints up.
AHEAD = 4


def versions() -> dict[str, str]:
    """What must be the same on all machines, so that they compute the same."""
    return {"Coterie": VERSION, "PyTorch": torch.__version__, "Python": platform.python_version()}


def carry_out(task: Message, parcels: Iterable[Message], environment: Mapping[str, str], cwd: str) -> Iterator[Message]:
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


def _performed(task: Message, parcels: Iterable[Message], tell: Tell) -> Iterator[Message]:
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
