"""Output for terminals that know no more than ASCII."""

from __future__ import annotations

import codecs
import io
import sys

PLAIN = {"±": "+-", "–": "-", "—": "-", "─": "-", "…": "...", "×": "x", "→": "->", "‖": "||", "−": "-", "·": "."}
NAME = "coterie.plain"


def speak_plainly() -> None:
    """From now on stdout writes what its encoding lacks in plain characters, where it would have failed before."""
    codecs.register_error(NAME, _plain)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors=NAME)


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
