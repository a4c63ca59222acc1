"""The idx files of MNIST, Fashion-MNIST and EMNIST, plain or compressed."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from coterie.data.archives import MOST_ARRAY_BYTES, gunzip, open_zip, read_limited, readable, zip_member
from coterie.data.images import Bytes, Decoded
from coterie.errors import require

MNIST_PARTS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""Training images, training labels, test images, test labels."""
EMNIST_PARTS = (
    "emnist-byclass-train-images-idx3-ubyte",
    "emnist-byclass-train-labels-idx1-ubyte",
    "emnist-byclass-test-images-idx3-ubyte",
    "emnist-byclass-test-labels-idx1-ubyte",
)
UNSIGNED_BYTES = 0x08


def find_idx(folder: Path, parts: tuple[str, ...]) -> tuple[Path, ...]:
    """The four files, each `name.gz` or `name`; empty where one of them is missing."""
    found = tuple(
        next((file for file in (folder / f"{part}.gz", folder / part) if file.is_file()), None) for part in parts
    )
    return tuple(file for file in found if file is not None) if None not in found else ()


def parse_idx(content: bytes, what: str) -> Bytes:
    """An idx file of unsigned bytes as an array of its own shape.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "example").tolist()
    [7, 8, 9]
    """
    sound = len(content) >= 4 and content[:3] == bytes([0, 0, UNSIGNED_BYTES]) and len(content) >= 4 + 4 * content[3]
    require(sound, f"{what} is not an idx file of unsigned bytes")
    rank = content[3]
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=rank, offset=4))
    require(all(shape), f"{what} is empty (its header says {' x '.join(map(str, shape))} values)")
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank)
    expected = int(np.prod(shape, dtype=object))
    require(len(values) == expected, f"{what} holds {len(values)} values; its header says {expected}")
    return values.reshape(shape)


def read_idx(files: tuple[Path, ...]) -> Decoded:
    """Four idx files in the order of `MNIST_PARTS`."""
    return assemble([parse_idx(_content(file), str(file)) for file in files], str(files[0]))


def read_emnist(files: tuple[Path, ...]) -> Decoded:
    """EMNIST by class, from four idx files or from the published `gzip.zip`; images are turned upright."""
    if len(files) == 4:
        return upright(read_idx(files))
    with open_zip(files[0]) as archive:
        arrays = []
        for part in EMNIST_PARTS:
            what = f"{part}.gz in {files[0]}"
            packed = io.BytesIO(zip_member(archive, f"gzip/{part}.gz", MOST_ARRAY_BYTES))
            arrays.append(parse_idx(gunzip(packed, MOST_ARRAY_BYTES, what), what))
    return upright(assemble(arrays, str(files[0])))


def upright(decoded: Decoded) -> Decoded:
    """EMNIST stores each image with rows and columns exchanged; exchange them back."""
    turned = np.ascontiguousarray(decoded.images.transpose(0, 1, 3, 2))
    return Decoded(turned, decoded.labels, decoded.train_size)


def assemble(arrays: list[Bytes], what: str) -> Decoded:
    """Training images, training labels, test images and test labels as one data set."""
    train_images, train_labels, test_images, test_labels = arrays
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        require(images.ndim == 3 and labels.ndim == 1, f"{what}: images must be [N, H, W] and labels [N]")
        require(len(images) == len(labels), f"{what}: {len(images)} images but {len(labels)} labels")
    sizes = [" x ".join(map(str, images.shape[1:])) for images in (train_images, test_images)]
    require(sizes[0] == sizes[1], f"{what}: training images are {sizes[0]}, test images {sizes[1]}")
    return Decoded(
        np.concatenate([train_images, test_images])[:, None],
        np.concatenate([train_labels, test_labels]).astype(np.int64),
        len(train_labels),
    )


def _content(file: Path) -> bytes:
    with readable(file), file.open("rb") as stream:
        if file.suffix == ".gz":
            return gunzip(stream, MOST_ARRAY_BYTES, str(file))
        return read_limited(stream, MOST_ARRAY_BYTES, str(file))
