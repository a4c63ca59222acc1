"""What a message carries, as it travels: buffers of numbers, a note of plain values; or the number of a fault.

Nothing is pickled. Whoever unpacks says beforehand what must be inside; anything else is refused. How tensors come in
and out is in `wire`: whoever only passes messages on needs no PyTorch.

What a site tells its server when it cannot do what it was asked is a number. The reason itself stays at the site: error
texts hold names of files, and these what is in them; none of it is the server's business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from coterie.errors import CoterieError

Note = dict[str, Any]
Purpose = Literal["hello", "work", "finish"]  # what a site is asked for
PURPOSES = get_args(Purpose)

NUMBERS = ("float32", "float64", "int64", "int16", "bool")  # the kinds of numbers that messages carry
LONGEST_NOTE = 16 << 20  # characters


class RefusedError(CoterieError):
    """A message that is not what was agreed on."""


@dataclass(frozen=True)
class Packed:
    """A parcel as it travels: a buffer for each kind of number, a text, and in `seal` its signed envelope, if any."""

    buffers: Mapping[str, bytes]
    text: str
    seal: str = ""

    @property
    def bytes(self) -> int:
        """The length of all buffers."""
        return sum(map(len, self.buffers.values()))

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the content: the text, then the buffers in the order of their kinds."""
        mark = hashlib.sha256(self.text.encode())
        for kind in sorted(self.buffers):
            mark.update(self.buffers[kind])
        return mark.hexdigest()


def read_text(text: str) -> Note:
    """A message's text as plain values: a list of tensors and a note."""
    if len(text) > LONGEST_NOTE:
        raise RefusedError(f"its text is {len(text):,} characters long; at most {LONGEST_NOTE:,} are read")
    try:
        contents = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are no JSON error, but a ValueError
        raise RefusedError(f"its text is not JSON ({one_line(error)})") from None
    shaped = isinstance(contents, dict) and isinstance(contents.get("note"), dict)
    if not shaped or not isinstance(contents.get("tensors"), list):
        raise RefusedError("its text lacks the list of tensors or the note")
    for item in contents["tensors"]:
        if not (isinstance(item, list) and len(item) == 3 and _is_listing(*item)):
            raise RefusedError("its list of tensors is malformed")
    return dict(contents)


def _no_number(word: str) -> float:
    """NaN and infinities, which JSON does not have: what is written down of them could not be read again."""
    raise ValueError(f"{word} is no number")


def one_line(words: object, longest: int = 300) -> str:
    """What somebody else says, for a log of ours: in one line of printable characters that ends somewhere.

    >>> one_line("fine\\n2026-01-01 INFO site b is here")
    'fine 2026-01-01 INFO site b is here'
    """
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in str(words)[: 2 * longest]).split())
    return text if len(text) <= longest else f"{text[:longest]}…"


def _is_listing(name: object, kind: object, shape: object) -> bool:
    whole = isinstance(shape, list) and all(type(side) is int and side >= 0 for side in shape)
    return isinstance(name, str) and isinstance(kind, str) and whole


OTHER, REFUSED, DATA, DISK, MEMORY, GONE = 1000, 1001, 1002, 1003, 1004, 1005

# What a site writes above the text of an error, which it keeps to itself.
UNANSWERED = "the server was told only that something went wrong"

FAULTS = {
    REFUSED: "the site refuses the task: it is not as agreed (the site's log says what)",
    DATA: "the site cannot use its data or its settings (the site's log says why)",
    DISK: "the site cannot read or write a file (the site's log says which)",
    MEMORY: "the site has too little memory",
    GONE: "the site's process that trains does not run, or ends at this task (the site's log says more)",
    OTHER: "an error happened at the site (the site's log has it)",
}


def code_of(error: Exception) -> int:
    """The number that stands for an error at a site.

    >>> code_of(FileNotFoundError("patients-with-hiv.csv")) == DISK
    True
    """
    if isinstance(error, RefusedError):
        return REFUSED
    if isinstance(error, CoterieError):
        return DATA
    if isinstance(error, OSError):
        return DISK
    return MEMORY if isinstance(error, MemoryError) else OTHER


def spoken_fault(code: int) -> str:
    """What a number means; those of Flower itself are about the connection.

    >>> print(spoken_fault(DISK))
    the site cannot read or write a file (the site's log says which)
    >>> spoken_fault(3)
    'no answer came through (code 3)'
    """
    return FAULTS.get(code, f"no answer came through (code {code})")
