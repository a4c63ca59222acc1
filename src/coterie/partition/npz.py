"""The plain file that a partition is handed over in: NumPy's `.npz`, which any program reads and writes.

Arrays `train`, `train_offsets`, `test`, `test_offsets`, and where wanted `validation`, `validation_offsets` and the
clients' `names` (text): client k holds `train[train_offsets[k]:train_offsets[k+1]]`. Indices count through the data
set as it is loaded, official training samples first. A data set may come in several files' orders: `labels_sha256`
(text), where given, says which one is meant.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from coterie.data.arrays import Array, read_npz
from coterie.errors import require
from coterie.files import write_whole
from coterie.partition.split import Indices

SUFFIX = ".npz"
NEEDED = ("train", "train_offsets", "test", "test_offsets")


def is_partition_file(text: str | Path) -> bool:
    """Whether a text names such a file: by its suffix.

    >>> is_partition_file("mine.npz"), is_partition_file("dirichlet"), is_partition_file("run/partition.safetensors")
    (True, False, False)
    """
    return Path(text).suffix.lower() == SUFFIX


def joined(rows: Sequence[Indices]) -> tuple[Indices, Indices]:
    """The clients' arrays one after the other, and where each begins and the last ends.

    >>> joined([np.array([4, 5]), np.array([9])])
    (array([4, 5, 9]), array([0, 2, 3]))
    """
    return np.concatenate(rows), np.cumsum([0, *map(len, rows)], dtype=np.int64)


def parted(indices: Indices, offsets: Indices) -> list[Indices]:
    """The clients' arrays again."""
    return [indices[start:end] for start, end in pairwise(offsets)]


def write_partition(path: Path, parts: Mapping[str, Sequence[Indices]], names: Sequence[str]) -> None:
    """Write the file, whole or not at all."""
    arrays: dict[str, Array] = {"names": np.array(list(names), dtype=np.str_)}
    for part, rows in parts.items():
        arrays[part], arrays[f"{part}_offsets"] = joined(rows)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_whole(path, content.getvalue())


def labels_sha256(labels: Array) -> str:
    """What tells the order of a data set's samples: the SHA-256 of `labels [N]` as little-endian 64-bit numbers.

    >>> labels_sha256(np.array([0, 1]))[:12]
    '9d34149fbd1f'
    """
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def read_partition(path: Path) -> tuple[dict[str, list[Indices]], tuple[str, ...], str]:
    """Each part's index arrays, one a client, the clients' names if there are any, and the labels' hash likewise.

    Whatever is wrong is said.
    """
    what = f"partition file '{path}'"
    require(path.is_file(), f"{what} does not exist")
    arrays = read_npz(path)
    missing = [key for key in NEEDED if key not in arrays]
    require(not missing, f"{what}: has no array '{', '.join(missing)}' (needed: {', '.join(NEEDED)})")
    parts = {part: _part(arrays, part, what) for part in ("train", "test")}
    if "validation" in arrays or "validation_offsets" in arrays:
        parts["validation"] = _part(arrays, "validation", what)
    for part, rows in parts.items():
        count = len(parts["train"])
        require(len(rows) == count, f"{what}: '{part}' is of {len(rows)} clients, 'train' of {count}")
    digest = arrays.get("labels_sha256", np.array(""))
    require(digest.dtype.kind == "U" and digest.ndim == 0, f"{what}: 'labels_sha256' must be one text")
    return parts, _names(arrays, len(parts["train"]), what), str(digest)


def _part(arrays: Mapping[str, Array], part: str, what: str) -> list[Indices]:
    for key in (part, f"{part}_offsets"):
        require(key in arrays, f"{what}: has no array '{key}', which goes with the other one of '{part}'")
        found = arrays[key]
        require(
            found.ndim == 1 and found.dtype.kind in "iu",
            f"{what}: '{key}' is {found.dtype} of shape {found.shape}; it must be a list of whole numbers",
        )
    indices, offsets = (arrays[key].astype(np.int64) for key in (part, f"{part}_offsets"))
    require(
        len(offsets) >= 2 and offsets[0] == 0 and offsets[-1] == len(indices) and bool((np.diff(offsets) >= 0).all()),
        f"{what}: '{part}_offsets' must start at 0, never fall, and end at {len(indices)}, the length of '{part}'",
    )
    return parted(indices, offsets)


def _names(arrays: Mapping[str, Array], clients: int, what: str) -> tuple[str, ...]:
    if "names" not in arrays:
        return ()
    names = arrays["names"]
    require(
        names.dtype.kind == "U" and names.shape == (clients,),
        f"{what}: 'names' is {names.dtype} of shape {names.shape}; it must be {clients} texts, one a client",
    )
    return tuple(names.tolist())
