"""Strategies that several targets share: odd values, and damage done to what was whole."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

ODD_NUMBERS = (
    "0", "1", "-1", "2", "-0.0", "0.5", "1.5", "1e-300", "5e-324", "1e-12", "0.999999999", "1e6", "1e18", "1e39",
    "1e308", "-1e308", "inf", "-inf", "nan", "1e400", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "340282346638528859811704183484516925440", "1_000", "0x10", "1e",
    "٣", "１", "1" + "0" * 400, "9" * 5000,
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "none", "None", "null", "true", "no", "[]", "[1]", "{}", "a,b", ",", ".", "..", "/", "~", "-", "--", "=",
    ":", "a:b", "./x.py:Y", "a\nb", "a\tb", "\x00", "\u2028", "ä", "𝔘", "%s", "{0}", "$(id)", "'", '"',
    "../../etc/passwd", "x" * 300,
)  # fmt: skip

odd_numbers = st.one_of(
    st.sampled_from(ODD_NUMBERS),
    st.integers(-3, 12).map(str),
    st.floats(-2, 2).map(repr),
    st.integers().map(str),
    st.floats().map(repr),
)
odd_texts = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=8))
odd_values = st.one_of(odd_numbers, odd_texts)

plain_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 12),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        odd_texts,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
"""Anything that JSON can say."""


@st.composite
def spoilt_json(draw: st.DrawFn, whole: Any, values: st.SearchStrategy[Any] = plain_values) -> Any:
    """A JSON value in which one to three places are replaced, taken away, doubled or added."""
    value = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        value = _changed(draw, value, values)
    return value


def _changed(draw: st.DrawFn, value: Any, values: st.SearchStrategy[Any]) -> Any:
    inside = isinstance(value, dict | list) and len(value) > 0
    if not inside or draw(st.integers(0, 9)) == 0:
        return draw(values)
    place = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    action = draw(st.sampled_from(("into", "into", "into", "replace", "remove", "add")))
    if action == "into":
        value[place] = _changed(draw, value[place], values)
    elif action == "replace":
        value[place] = draw(values)
    elif action == "remove":
        value.pop(place)
    elif isinstance(value, dict):
        value[draw(odd_texts)] = draw(values)
    else:
        value.insert(place, draw(st.one_of(values, st.just(value[place]))))
    return value


@st.composite
def damages(draw: st.DrawFn, length: int) -> list[list[Any]]:
    """What happens to a file of some length: bits flip; bytes are lost, repeated, zeroed or put in; its end is lost."""
    found: list[list[Any]] = []
    place = st.integers(0, max(length - 1, 0))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("flip", "flip", "cut", "lose", "zero", "put", "repeat")))
        at = draw(place)
        if kind == "flip":
            found.append([kind, at, draw(st.integers(0, 7))])
        elif kind == "cut":
            found.append([kind, at])
        elif kind == "put":
            found.append([kind, at, draw(st.binary(min_size=1, max_size=8)).hex()])
        else:
            found.append([kind, at, draw(st.integers(1, 64))])
    return found


def damaged(content: bytes, what: list[list[Any]]) -> bytes:
    """A file's content after all that has happened to it.

    >>> damaged(b"abc", [["flip", 0, 1], ["lose", 1, 1]])
    b'cc'
    """
    found = bytearray(content)
    for kind, at, *more in what:
        if kind == "flip" and at < len(found):
            found[at] ^= 1 << more[0]
        elif kind == "cut":
            del found[at:]
        elif kind == "lose":
            del found[at : at + more[0]]
        elif kind == "zero":
            count = len(found[at : at + more[0]])
            found[at : at + count] = bytes(count)
        elif kind == "put":
            found[at:at] = bytes.fromhex(more[0])
        elif kind == "repeat":
            found[at:at] = found[at : at + more[0]]
    return bytes(found)
