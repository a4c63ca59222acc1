"""Tensors in messages: how a parcel is packed, and how it is unpacked by somebody who says beforehand what is due."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.downloads import tensor_bytes
from coterie.core.federation import Federation
from coterie.deployment.messages import NUMBERS, Note, Packed, RefusedError, read_text
from coterie.errors import CoterieError

KINDS: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NUMBERS}
NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Parcel:
    """Tensors by name, and a note that can be written as JSON."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    note: Note = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What the tensors weigh on the wire."""
        return sum(tensor_bytes(tensor) for tensor in self.tensors.values())

    @property
    def digest(self) -> str:
        """A text that differs if anything in it does.

        >>> Parcel({}, {"round": 1}).digest == Parcel({}, {"round": 2}).digest
        False
        """
        return pack(self).digest


@dataclass(frozen=True)
class Expected:
    """What a tensor in a message must be like.

    NaN may stand for what is not known, such as the mean of a class without samples, unless it must be `finite`; an
    infinite number never: it would spoil everybody's.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    finite: bool = True

    def accepts(self, tensor: Tensor) -> bool:
        """Whether a tensor of that shape holds no numbers but those that may stand in it."""
        return _is_finite(tensor) or not (self.finite or bool(tensor.isinf().any()))

    @classmethod
    def like(cls, tensor: Tensor, finite: bool = False) -> Expected:
        """The same shape and kind as another tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, finite)


def pack(parcel: Parcel) -> Packed:
    """Put a parcel's tensors one after the other.

    >>> packed = pack(Parcel({"a": torch.ones(2), "b": torch.zeros(3)}, {"round": 1}))
    >>> {kind: len(buffer) for kind, buffer in packed.buffers.items()}
    {'float32': 20}
    """
    pieces: dict[str, list[bytes]] = {}
    listed = []
    for name, tensor in parcel.tensors.items():
        if tensor.dtype not in NAMES:
            raise CoterieError(f"tensor '{name}' is {tensor.dtype}; messages carry {', '.join(KINDS)}")
        kind = NAMES[tensor.dtype]
        array = tensor.detach().contiguous().cpu().numpy()
        pieces.setdefault(kind, []).append((np.packbits(array) if kind == "bool" else array).tobytes())
        listed.append([name, kind, list(tensor.shape)])
    buffers = {kind: b"".join(parts) for kind, parts in pieces.items()}
    return Packed(buffers, json.dumps({"tensors": listed, "note": parcel.note}, allow_nan=False))


def unpack(packed: Packed, expected: Mapping[str, Expected]) -> Parcel:
    """The parcel, if it holds just the tensors that were expected.

    >>> packed = pack(Parcel({"a": torch.ones(2)}))
    >>> unpack(packed, {"a": Expected((2,))}).tensors["a"]
    tensor([1., 1.])
    >>> unpack(packed, {"a": Expected((3,))})
    Traceback (most recent call last):
    ...
    coterie.deployment.messages.RefusedError: tensor 'a' is float32 (2,); expected is float32 (3,)
    """
    contents = read_text(packed.text)
    listed = contents["tensors"]
    names = [item[0] for item in listed]
    if sorted(names) != sorted(expected):
        raise RefusedError(f"it holds the tensors {_spoken(names)}; expected are {_spoken(expected)}")
    sizes = dict.fromkeys(KINDS, 0)
    for name, kind, shape in listed:
        due = expected[name]
        if KINDS.get(kind) != due.dtype or tuple(shape) != due.shape:
            asked = f"{NAMES[due.dtype]} {due.shape}"
            raise RefusedError(f"tensor '{name}' is {kind} {tuple(shape)}; expected is {asked}")
        sizes[kind] += _length(kind, due.shape)
    lengths = {kind: len(buffer) for kind, buffer in packed.buffers.items()}
    if lengths != {kind: size for kind, size in sizes.items() if kind in lengths or size}:
        raise RefusedError(f"its buffers are {lengths} bytes long; expected are {sizes}")
    tensors = _cut(packed.buffers, listed)
    for name, tensor in tensors.items():
        if not expected[name].accepts(tensor):
            raise RefusedError(f"tensor '{name}' holds NaN or infinite values")
    return Parcel(tensors, contents["note"])


def most_bytes(federation: Federation) -> int:
    """More than any honest message holds: every slot of every client, and room for what is measured."""
    width = sum(slot.width for slot in federation.slots.values())
    return 4 * width * (federation.clients + 1) + (64 << 20)


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite: so is their sum then, which is quicker to tell (unless it overflows)."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _length(kind: str, shape: tuple[int, ...]) -> int:
    """The bytes of a tensor of that kind."""
    count = math.prod(shape)
    return -(-count // 8) if kind == "bool" else count * KINDS[kind].itemsize


def _cut(buffers: Mapping[str, bytes], listed: list[tuple[str, str, list[int]]]) -> dict[str, Tensor]:
    """The tensors, copied out of the buffers."""
    place = dict.fromkeys(KINDS, 0)
    tensors = {}
    for name, kind, shape in listed:
        begin = place[kind]
        place[kind] = end = begin + _length(kind, tuple(shape))
        raw = buffers.get(kind, b"")[begin:end]
        if kind == "bool":
            bits = np.unpackbits(np.frombuffer(raw, np.uint8), count=math.prod(shape))
            tensors[name] = torch.from_numpy(bits.astype(bool)).reshape(shape)
        else:
            tensors[name] = torch.from_numpy(np.frombuffer(raw, kind).copy()).reshape(shape)
    return tensors


def _spoken(names: Any) -> str:
    listed = sorted(names)
    shown = ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
    return shown or "none"
