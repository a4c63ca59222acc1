"""Own data from a folder of images per class, optionally below `train/` and `test/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coterie.core.task import Task
from coterie.data.archives import MOST_IMAGE_BYTES, read_limited, readable
from coterie.data.arrays import from_arrays
from coterie.data.dataset import Dataset
from coterie.data.images import Bytes, decode_own
from coterie.data.labels import Classes
from coterie.errors import require

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TEST_FOLDERS = ("test", "valid", "val")

Sample = tuple[str, Path]
"""A class name and an image file."""


def load_folder(
    path: Path,
    *,
    size: tuple[int, int] | None = None,
    name: str = "own",
    progress: bool = True,
    classes: Classes | None = None,
    task: str | Task = "",
) -> Dataset:
    """`path/<class>/*`, or `path/train/<class>/*` and `path/test/<class>/*` (or `valid`, `val`).

    Classes are numbered in the sorted order of their folders, or as `classes` says. Images are grey if all of them
    are, else RGB. They are resized to `size` (height, width); without it, to the first image's size where sizes differ.
    """
    train_folder = path / "train"
    if not train_folder.is_dir():
        samples = class_images(path)
        images = decode_files([file for _, file in samples], size, name, progress)
        return from_arrays(images, [label for label, _ in samples], classes=classes, name=name, task=task)
    test_folder = next((path / split for split in TEST_FOLDERS if (path / split).is_dir()), None)
    train = class_images(train_folder)
    test = class_images(test_folder) if test_folder is not None else []
    known = {label for label, _ in (train if classes is None else train + test)}
    for label, file in test:
        require(label in known, f"{file.parent}: class '{label}' has test images but no folder in {train_folder}")
    images = decode_files([file for _, file in train + test], size, name, progress)
    border = len(train)
    labels = [label for label, _ in train + test]
    split = (images[border:], labels[border:]) if test else None
    return from_arrays(images[:border], labels[:border], test=split, classes=classes, name=name, task=task)


def class_images(folder: Path) -> list[Sample]:
    """All images of all class folders, sorted by class and path; an empty class is an error."""
    classes = sorted(sub for sub in folder.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    require(bool(classes), f"{folder} is empty: it needs one sub-folder of images per class")
    samples: list[Sample] = []
    for sub in classes:
        files = sorted(file for file in sub.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        require(bool(files), f"{sub} holds no images ({', '.join(SUFFIXES)})")
        samples += [(sub.name, file) for file in files]
    return samples


def decode_files(files: list[Path], size: tuple[int, int] | None, name: str, progress: bool) -> Bytes:
    """Image files as uint8 `[N, channels, height, width]`."""

    def encoded() -> Iterator[tuple[str, bytes]]:
        for file in files:
            yield str(file), _content(file)

    return decode_own(encoded, size, name, progress)


def _content(file: Path) -> bytes:
    with readable(file), file.open("rb") as stream:
        return read_limited(stream, MOST_IMAGE_BYTES, str(file))
