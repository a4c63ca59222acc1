"""Our parcels in Flower's messages."""

from __future__ import annotations

import io

import numpy as np

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
except ImportError as error:
    raise ImportError("federations need Flower: pip install 'coterie[flower]'") from error

from coterie.deployment.messages import NUMBERS, Packed, Purpose, RefusedError, one_line

# Flower's kinds of message, each with a handler of ours.
KIND_OF: dict[Purpose, str] = {"hello": "query.hello", "work": "train", "finish": "train.finish"}
# An array's own header, beside the numbers.
HEADER = 4096


def as_records(packed: Packed) -> RecordDict:
    """A packed parcel as Flower's records: one array for each kind of number, and the text."""
    arrays = {kind: Array(np.frombuffer(buffer, np.uint8)) for kind, buffer in packed.buffers.items()}
    return RecordDict({"arrays": ArrayRecord(arrays), "text": ConfigRecord({"json": packed.text, "seal": packed.seal})})


def from_records(records: RecordDict, most_bytes: int) -> Packed:
    """The packed parcel in Flower's records; anything else, or more bytes than are due, is refused."""
    arrays, text = records.get("arrays"), records.get("text")
    if not isinstance(arrays, ArrayRecord) or not isinstance(text, ConfigRecord) or set(records) != {"arrays", "text"}:
        raise RefusedError(f"its records are {', '.join(sorted(records)) or 'none'}; expected are arrays, text")
    json, seal = text.get("json"), text.get("seal", "")
    if not isinstance(json, str) or not isinstance(seal, str):
        raise RefusedError("its text or its envelope is missing")
    if not set(arrays) <= set(NUMBERS):
        raise RefusedError(f"its arrays are {', '.join(sorted(arrays))}; allowed are {', '.join(NUMBERS)}")
    total = sum(len(array.data) for array in arrays.values())
    if total > most_bytes + HEADER * len(arrays):
        raise RefusedError(f"it holds {total:,} bytes; at most {most_bytes:,} are due")
    buffers = {}
    for kind, array in arrays.items():
        buffers[kind] = _plain_bytes(kind, array)
    return Packed(buffers, json, seal)


def _plain_bytes(kind: str, array: Array) -> bytes:
    """The bytes that an array of bytes holds. What its header claims is compared with what is there before it counts:
    whoever believes it reserves memory for a shape that somebody made up.
    """
    try:
        file = io.BytesIO(array.data)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file, max_header_size=HEADER)
    except Exception as error:  # headers are parsed as Python literals, with every error that these may have
        raise RefusedError(f"its array '{kind}' cannot be read ({type(error).__name__})") from None
    content = array.data[file.tell() :]
    if dtype != np.uint8 or shape != (len(content),):
        claimed = f"{dtype} {one_line(shape)}"
        raise RefusedError(f"its array '{kind}' is {claimed} in {len(content)} bytes; expected are bytes")
    return content
