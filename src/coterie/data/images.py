"""Images: encoded ones and folders of them decoded to arrays `[N, channels, height, width]`, which are kept on disk.

An entry of the cache is a folder `<name>-<key>` with `images.npy`, `labels.npy`, where needed `owners.npy`, and
`entry.json` with the names and a CRC-32 of each array. The key covers the size and the modification time
of every source file. Entries may be deleted at any time; a damaged one is rebuilt.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from coterie.core.task import Task
from coterie.data.archives import MOST_IMAGE_BYTES, Advance, progress_bar, read_limited, readable, user_cache
from coterie.data.arrays import Classes, from_arrays
from coterie.data.dataset import Dataset, Ints
from coterie.errors import CoterieError, require
from coterie.files import expanded

Bytes = npt.NDArray[np.uint8]

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""The encodings that are accepted: no others, because some of Pillow's decoders start other programs."""
MOST_PIXELS = 50_000_000
THREADS = 2
"""For images of any size. Small ones decode faster in one thread: two only fight for the interpreter."""
BATCH = 512
GREY_MODES = ("1", "L")
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True)
class ImageSpec:
    """What every image of a data set is turned into.

    >>> ImageSpec(3, 32, 32).shape
    (3, 32, 32)
    """

    channels: int
    height: int
    width: int
    resize: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return (self.channels, self.height, self.width)


@dataclass(frozen=True)
class Decoded:
    """A data set before normalisation: `images [N, channels, height, width]`, the training split first."""

    images: Bytes
    labels: Ints
    train_size: int
    class_names: tuple[str, ...] = ()
    owners: Ints | None = None
    owner_names: tuple[str, ...] = ()

    def reordered(self, order: Ints) -> Decoded:
        """The same samples, sample `order[i]` at place i."""
        owners = None if self.owners is None else self.owners[order]
        return replace(self, images=self.images[order], labels=self.labels[order], owners=owners)


def open_image(content: bytes, what: str) -> Image.Image:
    """An image whose header has been read and found sensible; its pixels are not decoded yet."""
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise CoterieError(f"cannot read image {what}: it is damaged or none of {', '.join(FORMATS)}") from error
    if image.width * image.height > MOST_PIXELS:
        raise CoterieError(f"image {what} has {image.width} × {image.height} pixels; at most {MOST_PIXELS:,} are read")
    if image.mode in DEEP_MODES:
        raise CoterieError(f"image {what} has more than 8 bits a channel; convert it to 8 bits")
    return image


def decode(content: bytes, spec: ImageSpec, what: str) -> Bytes:
    """One encoded image as uint8 `[channels, height, width]`; `what` names it in errors.

    >>> file = io.BytesIO()
    >>> Image.new("RGB", (2, 1), (255, 0, 9)).save(file, "PNG")
    >>> decode(file.getvalue(), ImageSpec(3, 1, 2), "red").tolist()
    [[[255, 255]], [[0, 0]], [[9, 9]]]
    """
    image = open_image(content, what)
    try:
        flat = image.convert("L" if spec.channels == 1 else "RGB")
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise CoterieError(f"cannot read image {what}: {' '.join(str(error).split())}") from error
    if flat.size != (spec.width, spec.height):
        if not spec.resize:
            raise CoterieError(
                f"image {what} has {flat.width} × {flat.height} pixels, not {spec.width} × {spec.height}"
            )
        flat = flat.resize((spec.width, spec.height), Image.Resampling.BILINEAR)
    pixels = np.asarray(flat, dtype=np.uint8).reshape(spec.height, spec.width, spec.channels)
    return pixels.transpose(2, 0, 1)


def decode_all(items: Iterable[tuple[str, bytes]], spec: ImageSpec, advance: Advance) -> Bytes:
    """Decode a stream of (name, content) in its order: uint8 `[N, channels, height, width]`.

    Only a few batches of encoded images are held at a time.
    """
    batches = list(_decoded_batches(items, spec, advance))
    images = np.empty((sum(len(batch) for batch in batches), *spec.shape), dtype=np.uint8)
    # Filled from the end, each batch dropped at once: the pixels are never held twice.
    end = len(images)
    while batches:
        batch = batches.pop()
        images[end - len(batch) : end] = batch
        end -= len(batch)
    return images


def decode_own(
    encoded: Callable[[], Iterable[tuple[str, bytes]]],
    size: tuple[int, int] | None,
    what: str,
    progress: bool,
) -> Bytes:
    """Decode images about which nothing is known yet: uint8 `[N, channels, height, width]`.

    They are grey if all of them are, else RGB. They are resized to `size` (height, width); without it, to the
    first image's size where sizes differ. `encoded()` is gone through twice: headers first, then pixels.
    """
    channels, count = 1, 0
    for name, content in encoded():
        image = open_image(content, name)
        size = size or (image.height, image.width)
        channels = channels if image.mode in GREY_MODES else 3
        count += 1
    if size is None or min(size) < 1:
        raise CoterieError(f"size = {size}: height and width must be at least 1")
    with progress_bar(f"decoding {what}", count, progress) as advance:
        return decode_all(encoded(), ImageSpec(channels, *size, resize=True), advance)


def _decoded_batches(items: Iterable[tuple[str, bytes]], spec: ImageSpec, advance: Advance) -> Iterator[Bytes]:
    def work(batch: list[tuple[str, bytes]]) -> Bytes:
        pixels = np.empty((len(batch), *spec.shape), dtype=np.uint8)
        for place, (name, content) in enumerate(batch):
            pixels[place] = decode(content, spec, name)
        return pixels

    stream = iter(items)
    waiting: deque[Future[Bytes]] = deque()
    threads = THREADS if spec.resize else 1
    with ThreadPoolExecutor(threads) as pool:
        while batch := list(islice(stream, BATCH)):
            waiting.append(pool.submit(work, batch))
            if len(waiting) > threads:
                done = waiting.popleft().result()
                advance(len(done))
                yield done
        for future in waiting:
            done = future.result()
            advance(len(done))
            yield done


def decoded_folder() -> Path | None:
    """Where decoded images are kept: `COTERIE_CACHE`, else `coterie/decoded` in the user's cache."""
    if chosen := os.environ.get("COTERIE_CACHE", ""):
        return expanded(chosen)
    cache = user_cache()
    return None if cache is None else cache / "coterie" / "decoded"


@dataclass(frozen=True)
class ImageFiles:
    """Files of a data set in one of its layouts, how to read them, and the size they are read at."""

    files: tuple[Path, ...]
    read: Callable[[], Decoded]
    spec: ImageSpec

    def decoded(self, name: str) -> Decoded:
        """The images from the cache, or from the files and then into the cache."""
        cache = decoded_folder()
        if cache is None:
            return self.read()
        entry = cache / cache_key(name, self.files, str(self.spec.shape))
        decoded = read_entry(entry)
        if decoded is None:
            decoded = self.read()
            write_entry(entry, decoded)
        return decoded


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


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
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
        files = sorted(file for file in sub.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
        require(bool(files), f"{sub} holds no images ({', '.join(IMAGE_SUFFIXES)})")
        samples += [(sub.name, file) for file in files]
    return samples


def decode_files(files: list[Path], size: tuple[int, int] | None, name: str, progress: bool) -> Bytes:
    """Image files as uint8 `[N, channels, height, width]`."""

    def encoded() -> Iterator[tuple[str, bytes]]:
        for file in files:
            yield str(file), _file_content(file)

    return decode_own(encoded, size, name, progress)


def _file_content(file: Path) -> bytes:
    with readable(file), file.open("rb") as stream:
        return read_limited(stream, MOST_IMAGE_BYTES, str(file))
