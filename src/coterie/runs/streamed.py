"""Tensors written as a safetensors file piece by piece: many clients' rows are not held in memory twice for it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from coterie.files import write_parts

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
