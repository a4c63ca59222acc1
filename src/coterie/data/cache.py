"""Decoded images kept on disk, so that only the first use of a data set pays for decoding.

An entry is a folder `<name>-<key>` with `images.npy`, `labels.npy`, where needed `owners.npy`, and
`entry.json` with the names and a CRC-32 of each array. The key covers the size and the modification time
of every source file. Entries may be deleted at any time; a damaged one is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.images import Decoded

VERSION = 1
"""Part of the key: raised when decoding changes, so that old entries are no longer used."""


def cache_key(name: str, files: Iterable[Path], variant: str) -> str:
    """The entry's folder name: the data set, and a digest of its files' names, sizes and times.

    `variant` distinguishes ways to decode the same files, such as the size of the images.
    """
    facts = [str(VERSION), variant]
    for file in files:
        state = file.stat()
        facts.append(f"{file.resolve()}|{state.st_size}|{state.st_mtime_ns}")
    return f"{name}-{hashlib.sha256(chr(10).join(facts).encode()).hexdigest()[:16]}"


def read_entry(folder: Path) -> Decoded | None:
    """The entry in `folder`, or None if there is none or it is not exactly what was written."""
    try:
        facts = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
        images = _read_array(folder, "images", facts)
        labels = _read_array(folder, "labels", facts)
        owners = _read_array(folder, "owners", facts) if "owners" in facts["checksums"] else None
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels):
            return None
        return Decoded(
            images,
            np.array(labels),
            int(facts["train_size"]),
            tuple(facts["class_names"]),
            None if owners is None else np.array(owners),
            tuple(facts["owner_names"]),
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def write_entry(folder: Path, decoded: Decoded) -> None:
    """Write the entry whole or not at all; a cache that cannot be written to is simply not used."""
    scratch: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=folder.name + ".", suffix=".part"))
        arrays: dict[str, npt.NDArray[Any]] = {"images": decoded.images, "labels": decoded.labels}
        if decoded.owners is not None:
            arrays["owners"] = decoded.owners
        for kind, array in arrays.items():
            np.save(scratch / f"{kind}.npy", array, allow_pickle=False)
        facts = {
            "train_size": decoded.train_size,
            "class_names": decoded.class_names,
            "owner_names": decoded.owner_names,
            "checksums": {kind: _checksum(array) for kind, array in arrays.items()},
        }
        (scratch / "entry.json").write_text(json.dumps(facts), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        # Fails where another process has just written the same entry: then that one stays.
        scratch.rename(folder)
    except OSError:
        pass
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _read_array(folder: Path, kind: str, facts: dict[str, dict[str, int]]) -> npt.NDArray[Any]:
    # Mapped, not read: images stay in the file, and all processes of the machine share what is there.
    array: npt.NDArray[Any] = np.load(folder / f"{kind}.npy", mmap_mode="r", allow_pickle=False)
    if _checksum(array) != facts["checksums"][kind]:
        raise ValueError(f"{kind}.npy is damaged")
    return array


def _checksum(array: npt.NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data)
