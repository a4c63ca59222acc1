"""Errors that name the way out: the option, the value, and what is allowed."""

from __future__ import annotations

import difflib
import shlex
import unicodedata
from collections.abc import Iterable

ORDERS = ("Cc", "Cf", "Cs")
"""The kinds of characters that are no signs: control, format (which turn a line around), halves of pairs."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")


class CoterieError(ValueError):
    """A mistake that its message explains in one line; the command line prints just that line.

    >>> raise CoterieError("alpha = -1: must be greater than 0")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: alpha = -1: must be greater than 0
    """


class PassingError(CoterieError):
    """A trouble that may be over at the next attempt: nothing about the command needs to be changed."""


class UnwelcomeError(CoterieError):
    """A server that does not take this site, or is not the one expected; what to change may be at the other end."""


def unknown(kind: str, name: str, allowed: Iterable[str], also: str = "") -> CoterieError:
    """The error for a name that is not on the list, with the nearest match for a typo; `also` says what else may be.

    >>> str(unknown("method", "fedpre", ["fedavg", "fedper"]))
    "unknown method 'fedpre'; did you mean 'fedper'? (allowed: fedavg, fedper)"
    """
    names = sorted(allowed)
    spelt = {allowed.lower(): allowed for allowed in names}
    near = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=0.6)
    hint = f"; did you mean '{spelt[near[0]]}'?" if near else ""
    listed = ", ".join(names) or "none"
    return CoterieError(f"unknown {kind} '{name}'{hint} (allowed: {listed}{f', or {also}' if also else ''})")


def require(condition: bool, message: str) -> None:
    """Raise `CoterieError(message)` unless the condition holds.

    >>> require(2 > 1, "never raised")
    """
    if not condition:
        raise CoterieError(message)


def printable(text: str) -> str:
    """A text in which nothing is an order to a terminal: what somebody else wrote may hold any characters.

    >>> printable("class \\x1b[2Ja\\tb\\n")
    'class �[2Ja\\tb\\n'
    """
    return "".join(sign if sign in "\n\t" or unicodedata.category(sign) not in ORDERS else "\ufffd" for sign in text)


def spreadsheet_cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula.

    >>> spreadsheet_cell("=HYPERLINK(1)"), spreadsheet_cell("-0.5"), spreadsheet_cell("-a")
    ("'=HYPERLINK(1)", '-0.5', "'-a")
    """
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(FORMULA) else text
    return text


def described(error: BaseException) -> str:
    """An error of somebody else's code on one line, with its kind.

    >>> described(KeyError("colour"))
    "KeyError: 'colour'"
    """
    return " ".join(f"{type(error).__name__}: {error}".split())


def said(*words: object) -> str:
    """A command in a message, in quotes: what is between them can be typed into a shell as it stands.

    >>> print(said("coterie", "resume", "runs/fedavg-1"), said("coterie", "resume", "my runs"))
    'coterie resume runs/fedavg-1' `coterie resume 'my runs'`
    """
    line = shlex.join(map(str, words))
    return f"`{line}`" if "'" in line else f"'{line}'"
