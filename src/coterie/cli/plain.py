"""Output for surroundings that offer little: terminals that know no more than ASCII, none at all, or a wrong width."""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path

PLAIN = {"±": "+-", "–": "-", "—": "-", "─": "-", "…": "...", "×": "x", "→": "->", "‖": "||", "−": "-", "·": "."}
NAME = "coterie.plain"


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
