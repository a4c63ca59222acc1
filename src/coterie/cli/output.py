"""What commands write: lines with the time on stderr, or JSON objects for machines to read, while they run for days;
and what has to be mended before, for terminals that know no more than ASCII, for none at all, or for a wrong width.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from coterie.errors import printable

VARIABLE, JSON = "COTERIE_LOG", "json"
WARNING = "warning"
PLAIN = {"±": "+-", "–": "-", "—": "-", "─": "-", "…": "...", "×": "x", "→": "->", "‖": "||", "−": "-", "·": "."}
NAME = "coterie.plain"


def as_json() -> bool:
    """Whether `COTERIE_LOG=json` asks for JSON."""
    return os.environ.get(VARIABLE) == JSON


def tell(line: str, level: str = "info") -> None:
    """A line on stderr, with the time; what begins with 'warning:' is one."""
    if not as_json():
        print(f"{time.strftime('%H:%M:%S')} {printable(line)}", file=sys.stderr, flush=True)
        return
    if line.startswith(f"{WARNING}: "):
        level, line = WARNING, line.removeprefix(f"{WARNING}: ")
    _print_object(level, line)


def complain(line: str) -> None:
    """The last words of a command that did not end well."""
    if as_json():
        _print_object("error", line)
    else:
        print(f"coterie: {printable(line)}", file=sys.stderr)


def _print_object(level: str, message: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    print(json.dumps({"time": now, "level": level, "message": message}), file=sys.stderr, flush=True)


def speak_plainly() -> None:
    """From now on stdout writes what its encoding lacks in plain characters, where it would have failed before."""
    codecs.register_error(NAME, _plain)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors=NAME)


def mend_surroundings() -> None:
    """Let a process speak into nothing where it was started without stdout or stderr, and forget a width that is none.

    Python has no stream there, prints what is meant for one to the other, and the next file to be opened takes its
    number: whatever a library writes to it would stand in a file of the run.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (for good)
    width = os.environ.get("COLUMNS", "")
    if width.isdigit() and int(width) == 0:  # everything that draws would take it at its word
        del os.environ["COLUMNS"]


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that cannot be encoded.

    >>> codecs.register_error(NAME, _plain)
    >>> "62.0±1.2 – Größe".encode("ascii", NAME)
    b'62.0+-1.2 - Gr??e'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(PLAIN.get(mark, "?") for mark in lacking), error.end
