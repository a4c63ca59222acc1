"""How a federation's server stands, in `status.json`: written so that it is true at any moment, and read so.

Free of PyTorch: launchers write and read it too.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from coterie.files import FULL, write_whole

STATUS = "status.json"
LOCK = "lock"  # is held as long as anything of a server runs from its folder
UNDER_WAY = ("waiting", "running")
DESERTED = "the server ended without a word, as in a power cut; start it again: it resumes"

State = Literal["waiting", "running", "finished", "failed"]


def write_state(folder: Path, state: State, **more: object) -> None:
    """Say how a server stands; `pid`, as long as it goes on, is the process that says so.

    On a full disk what stood there before is written over, which takes no room. Where not even that can be done,
    nothing is said any more: nobody shall read for ever that a server runs which has long ended.
    """
    path = folder / STATUS
    content = json.dumps({"state": state, **more}).encode()
    try:
        write_whole(path, content)
    except OSError as error:
        if error.errno not in FULL:
            raise
        try:
            with path.open("r+b") as file:
                file.write(content)
                file.truncate()
        except OSError:
            path.unlink(missing_ok=True)


def read_state(folder: Path) -> dict[str, Any]:
    """How a server stands; nothing if nobody has said so, or it cannot be read just now.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_state(folder, "finished", round=3)
    >>> read_state(folder)
    {'state': 'finished', 'round': 3}
    """
    try:
        values = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(values, dict):
        return {}
    if values.get("state") in UNDER_WAY and "pid" in values and _is_deserted(folder):
        return {**_without_process(values), "state": "failed", "message": DESERTED}
    return values


def is_gone(status: Mapping[str, Any]) -> bool:
    """Whether the process has ended that said it was under way."""
    if status.get("state") not in UNDER_WAY or "pid" not in status:
        return False
    try:
        os.kill(int(status["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is somebody else's
        return False
    return False


def note_end(folder: Path, state: State, message: str) -> None:
    """Say what became of a server that could not say so itself, if it was under way."""
    values = read_state(folder)
    if values.get("state") in UNDER_WAY:
        with suppress(OSError):
            write_state(folder, **(_without_process(values) | {"state": state, "message": message}))


def _without_process(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "pid"}


def _is_deserted(folder: Path) -> bool:
    """Whether a server once ran from a folder, and nothing of it does now."""
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except OSError:  # somebody holds it, or there never was one
        return False
