"""Messages carry tensors bit for bit, and nothing that was not agreed on."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from coterie.deployment.messages import LONGEST_NOTE, Packed, RefusedError
from coterie.deployment.wire import KINDS, Expected, Parcel, pack, unpack
from coterie.errors import CoterieError

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    shape = draw(SHAPES)
    stream = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randn(shape, generator=stream, dtype=torch.float64) * 1e3
    if dtype == torch.float32 and draw(st.booleans()):
        values = torch.full(shape, torch.nan)
    return values > 0 if dtype == torch.bool else values.to(dtype)


@pytest.mark.thorough
@given(st.dictionaries(st.text(max_size=8), tensors(), max_size=6))
@settings(max_examples=80, deadline=None)
def test_what_is_packed_comes_out_bit_for_bit(parcel: dict[str, Tensor]) -> None:
    packed = pack(Parcel(parcel, {"round": 3}))
    assert packed.bytes == Parcel(parcel).bytes
    found = unpack(packed, {name: Expected.like(tensor) for name, tensor in parcel.items()})
    assert found.note == {"round": 3}
    for name, tensor in parcel.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name].nan_to_num(), tensor.nan_to_num())


def test_booleans_travel_as_bits() -> None:
    assert pack(Parcel({"a": torch.ones(9, dtype=torch.bool)})).bytes == 2


def test_a_kind_that_messages_do_not_carry_is_named() -> None:
    with pytest.raises(CoterieError, match=r"'a' is torch\.float16"):
        pack(Parcel({"a": torch.zeros(1, dtype=torch.float16)}))


def test_numbers_that_json_lacks_are_not_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        pack(Parcel({}, {"loss": float("nan")}))


GOOD = pack(Parcel({"a": torch.ones(2), "b": torch.ones(3, dtype=torch.int64)}))
EXPECTED = {"a": Expected((2,)), "b": Expected((3,), torch.int64)}


def text(**changes: Any) -> str:
    return json.dumps({**json.loads(GOOD.text), **changes})


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (Packed(GOOD.buffers, "no json"), "not JSON"),
        (Packed(GOOD.buffers, "[" * 100_000), "not JSON"),
        (Packed(GOOD.buffers, " " * (LONGEST_NOTE + 1)), "characters long"),
        (Packed(GOOD.buffers, "[]"), "lacks the list"),
        (Packed(GOOD.buffers, text(note=1)), "lacks the list"),
        (Packed(GOOD.buffers, text(tensors=[["a", "float32"]])), "malformed"),
        (Packed(GOOD.buffers, text(tensors=[["a", "float32", [-2]]])), "malformed"),
        (Packed(GOOD.buffers, text(tensors=[["a", "float32", [True]]])), "malformed"),
        (Packed(GOOD.buffers, text(tensors=[["a", "float32", [2]]])), "expected are a, b"),
        (Packed(GOOD.buffers, text(tensors=[["a", "float32", [2]], ["a", "float32", [2]]])), "expected are a, b"),
        (Packed(GOOD.buffers, text(tensors=[["a", "float64", [2]], ["b", "int64", [3]]])), "expected is float32"),
        (Packed(GOOD.buffers, text(tensors=[["a", "object", [2]], ["b", "int64", [3]]])), "expected is float32"),
        (Packed({"float32": GOOD.buffers["float32"]}, GOOD.text), "bytes long"),
        (Packed({**GOOD.buffers, "bool": b"\x01"}, GOOD.text), "bytes long"),
        (Packed({**GOOD.buffers, "float32": b"\x00" * 9}, GOOD.text), "bytes long"),
        (Packed({**GOOD.buffers, "float32": b"\x00\x00\x80\x7f" * 2}, GOOD.text), "NaN or infinite"),
    ],
)
def test_anything_else_is_refused(packed: Packed, reason: str) -> None:
    assert unpack(GOOD, EXPECTED).tensors["b"].tolist() == [1, 1, 1]
    with pytest.raises(RefusedError, match=reason):
        unpack(packed, EXPECTED)


def test_nan_may_stand_for_what_is_not_known_and_infinity_for_nothing() -> None:
    for value in (torch.nan, torch.inf, -torch.inf):
        packed = pack(Parcel({"means": torch.tensor([1.0, value])}))
        with pytest.raises(RefusedError, match="holds NaN or infinite values"):
            unpack(packed, {"means": Expected((2,))})
    unpack(pack(Parcel({"means": torch.tensor([1.0, torch.nan])})), {"means": Expected((2,), finite=False)})
    with pytest.raises(RefusedError, match="holds NaN or infinite values"):
        unpack(pack(Parcel({"means": torch.tensor([torch.nan, torch.inf])})), {"means": Expected((2,), finite=False)})
