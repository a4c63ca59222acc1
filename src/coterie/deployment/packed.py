"""What a message carries: named tensors in one flat buffer per kind of number, and a note of plain values.

Nothing is pickled. Whoever unpacks says beforehand what must be inside; anything else is refused. How tensors come in
and out is in `wire`: whoever only passes messages on needs no PyTorch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coterie.errors import CoterieError

Note = dict[str, Any]
Purpose = Literal["hello", "work", "finish"]  # what a site is asked for

NUMBERS = ("float32", "float64", "int64", "bool")  # the kinds of numbers that messages carry
NUMBERS = ("float32", "float64", "int64", "bool")  # the kinds of numbers that messages carry
NUMBERS = ("float32", "float64", "int64", "bool")  # the kinds of numbers that messages carry
LONGEST_NOTE = 16 << 20  # characters


class RefusedError(CoterieError):
    """A message that is not what was agreed on."""


@dataclass(frozen=True)
class Packed:
    """A parcel as it travels: a buffer for each kind of number, and a text."""

    buffers: Mapping[str, bytes]
    text: str

    @property
    def bytes(self) -> int:
        """The length of all buffers."""
        return sum(map(len, self.buffers.values()))

    @property
    def digest(self) -> str:
        """The SHA-256 of all that travels: the text, then the buffers in the order of their kinds."""
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
