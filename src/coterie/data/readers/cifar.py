"""CIFAR-10 and CIFAR-100 in their binary version (the Python version is pickled, and never read)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.data.archives import MOST_ARRAY_BYTES, tar_members
from coterie.data.images import Decoded
from coterie.errors import require

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CifarLayout:
    """A record is `label_bytes` bytes (the last is the label) and 3,072 pixels, channel by channel."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    label_bytes: int


CIFAR10 = CifarLayout(
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
    "batches.meta.txt",
    label_bytes=1,
)
CIFAR100 = CifarLayout(
    "cifar-100-binary.tar.gz",
    "cifar-100-binary",
    ("train.bin",),
    "test.bin",
    "fine_label_names.txt",
    label_bytes=2,
)


def read_cifar(archive: Path, layout: CifarLayout) -> Decoded:
    """The whole archive: the training batches in order, then the test batch."""
    parts = (*layout.train, layout.test)
    wanted = {f"{layout.folder}/{part}" for part in (*parts, layout.names)}
    members = dict(tar_members(archive, wanted.__contains__, MOST_ARRAY_BYTES))
    records = []
    for part in parts:
        content = members.pop(f"{layout.folder}/{part}", None)
        require(content is not None, f"{archive} holds no {layout.folder}/{part}")
        values = np.frombuffer(content or b"", dtype=np.uint8)
        width = layout.label_bytes + PIXELS
        require(
            len(values) > 0 and len(values) % width == 0,
            f"{part} in {archive} is not made of {width}-byte records",
        )
        records.append(values.reshape(-1, width))
    names = members.get(f"{layout.folder}/{layout.names}", b"").decode().split()
    return Decoded(
        np.concatenate([part[:, layout.label_bytes :] for part in records]).reshape(-1, 3, 32, 32),
        np.concatenate([part[:, layout.label_bytes - 1] for part in records]).astype(np.int64),
        train_size=sum(len(part) for part in records[:-1]),
        class_names=tuple(names),
    )
