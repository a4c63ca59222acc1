"""CINIC-10: `train/`, `valid/` and `test/` with one folder of PNG files per class, in one tar archive.

The validation split is counted as training data: 180,000 samples to train and 90,000 to test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from coterie.data.archives import MOST_IMAGE_BYTES, tar_members
from coterie.data.images import Decoded, ImageSpec, decode_all
from coterie.data.progress import progress_bar
from coterie.errors import CoterieError

ARCHIVE = "CINIC-10.tar.gz"
SPLITS = ("train", "valid", "test")
SAMPLES = 270_000


def read_cinic(archive: Path, spec: ImageSpec, class_names: tuple[str, ...], progress: bool = True) -> Decoded:
    """Samples ordered by split, class and file name, whatever the archive's own order."""
    keys: list[tuple[int, int, str]] = []

    def encoded() -> Iterator[tuple[str, bytes]]:
        for name, content in tar_members(archive, lambda name: name.lower().endswith(".png"), MOST_IMAGE_BYTES):
            parts = PurePosixPath(name).parts
            split, label = parts[-3:-1] if len(parts) >= 3 else ("", "")
            if split not in SPLITS or label not in class_names:
                raise CoterieError(f"{name} in {archive} is not in a folder train|valid|test/<class>")
            keys.append((SPLITS.index(split), class_names.index(label), parts[-1]))
            yield f"{name} in {archive}", content

    with progress_bar("decoding cinic10", SAMPLES, progress) as advance:
        images = decode_all(encoded(), spec, advance)
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
    labels = np.array([label for _, label, _ in keys], dtype=np.int64)
    train_size = sum(SPLITS[split] != "test" for split, _, _ in keys)
    return Decoded(images, labels, train_size, class_names).reordered(order)
