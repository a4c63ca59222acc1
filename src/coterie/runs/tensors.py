"""Tensors and texts on disk, and whether what is there is, bit for bit, what was written."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from coterie.errors import require
from coterie.files import write_parts, write_whole

Tensors = tuple[dict[str, Tensor], dict[str, str]]
"""Tensors by name, and texts by name."""
STREAMED = 1 << 27
"""Files of more bytes are written piece by piece: many clients' rows are not held in memory twice for it."""
DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What the format calls types, in the order in which its own library writes tensors."""
PIECE = 1 << 24
"""Bytes that are written at a time."""
SEAL = "sha256"
"""What stands beside what is said: its checksum, and that of every bit of tensors that it is said about."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors and texts as one safetensors file."""
    apart: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        # The format refuses tensors that share memory, such as the cohort as rows and as columns of a mix.
        apart[name] = tensor.clone(memory_format=torch.contiguous_format) if place in memory else tensor.contiguous()
        memory.add(place)
    if sum(tensor.nbytes for tensor in apart.values()) > STREAMED:
        stream_tensors(path, apart, metadata)
    else:
        write_whole(path, save(apart, dict(metadata)))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_tensors` wrote."""
    require(path.is_file(), f"'{path}': there is no such file")
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def load_metadata(path: Path) -> dict[str, str]:
    """The texts alone that `save_tensors` wrote."""
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def stream_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write what `safetensors.torch.save` would, byte for byte, whole or not at all."""
    write_parts(path, _parts(tensors, metadata))


def _parts(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    order = list(DTYPES)
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in names:
        whole = tensors[name].detach().contiguous().flatten().view(torch.uint8).numpy()
        for begin in range(0, len(whole), PIECE):
            yield whole[begin : begin + PIECE].data


def sealed(about: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """What is said, and the SHA-256 of that (and of every bit of tensors that it is said about).

    >>> sealed({"round": 2}).keys()
    dict_keys(['round', 'sha256'])
    """
    return {**about, SEAL: _checksum(tensors or {}, json.dumps(about))}


def with_checksum(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """What is said about tensors, as JSON, with the SHA-256 of that and of every bit of the tensors.

    >>> json.loads(with_checksum({"row": torch.zeros(3)}, {"round": 2})).keys()
    dict_keys(['round', 'sha256'])
    """
    return json.dumps(sealed(about, tensors))


def require_intact(what: str, tensors: Mapping[str, Tensor], text: str) -> None:
    """An error if tensors, or what is said about them, are not what was written.

    >>> written = with_checksum({"row": torch.zeros(3)}, {"round": 2})
    >>> require_intact("rows", {"row": torch.zeros(3)}, written)
    >>> require_intact("rows", {"row": torch.ones(3)}, written)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: rows is damaged (its SHA-256 is another)
    """
    about = json.loads(text)
    written = about.pop(SEAL, None)
    require(written is not None, f"{what} is damaged (its SHA-256 is missing)")
    require(written == _checksum(tensors, json.dumps(about)), f"{what} is damaged (its SHA-256 is another)")


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
