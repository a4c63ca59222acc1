"""The layouts in which known image sets are published: where each is found in a folder, and how it is read."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from coterie.data.archives import (
    MOST_ARRAY_BYTES,
    MOST_IMAGE_BYTES,
    gunzip,
    open_zip,
    progress_bar,
    read_limited,
    readable,
    tar_members,
    zip_member,
)
from coterie.data.images import Bytes, Decoded, ImageSpec, decode_all
from coterie.errors import CoterieError, require

CIFAR_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CifarLayout:
    """A record is `label_bytes` bytes (the last is the label) and 3,072 pixels, channel by channel."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    label_bytes: int


CIFAR10_LAYOUT = CifarLayout(
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
    "batches.meta.txt",
    label_bytes=1,
)
CIFAR100_LAYOUT = CifarLayout(
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
    names_in_archive = {f"{layout.folder}/{part}" for part in (*parts, layout.names)}
    members = dict(tar_members(archive, names_in_archive.__contains__, MOST_ARRAY_BYTES))
    records = []
    for part in parts:
        content = members.pop(f"{layout.folder}/{part}", None)
        require(content is not None, f"{archive} holds no {layout.folder}/{part}")
        values = np.frombuffer(content or b"", dtype=np.uint8)
        width = layout.label_bytes + CIFAR_PIXELS
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


CINIC_ARCHIVE = "CINIC-10.tar.gz"
CINIC_SPLITS = ("train", "valid", "test")
CINIC_SAMPLES = 270_000


def read_cinic(archive: Path, spec: ImageSpec, class_names: tuple[str, ...], progress: bool = True) -> Decoded:
    """Samples ordered by split, class and file name, whatever the archive's own order."""
    keys: list[tuple[int, int, str]] = []

    def encoded() -> Iterator[tuple[str, bytes]]:
        for name, content in tar_members(archive, lambda name: name.lower().endswith(".png"), MOST_IMAGE_BYTES):
            parts = PurePosixPath(name).parts
            split, label = parts[-3:-1] if len(parts) >= 3 else ("", "")
            if split not in CINIC_SPLITS or label not in class_names:
                raise CoterieError(f"{name} in {archive} is not in a folder train|valid|test/<class>")
            keys.append((CINIC_SPLITS.index(split), class_names.index(label), parts[-1]))
            yield f"{name} in {archive}", content

    with progress_bar("decoding cinic10", CINIC_SAMPLES, progress) as advance:
        images = decode_all(encoded(), spec, advance)
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
    labels = np.array([label for _, label, _ in keys], dtype=np.int64)
    train_size = sum(CINIC_SPLITS[split] != "test" for split, _, _ in keys)
    return Decoded(images, labels, train_size, class_names).reordered(order)


DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
DOMAIN_SPLITS = ("train", "test")
DOMAINNET_CLASSES = 345


@dataclass(frozen=True)
class ListedImage:
    """One line of a list: the image's path in the zip, its class, its domain."""

    path: str
    label: int
    domain: str


def domainnet_files(folder: Path) -> tuple[Path, ...]:
    """For each domain whose zip is there: the zip and its two lists; a missing list is an error."""
    files: list[Path] = []
    for domain in DOMAINS:
        archive = folder / f"{domain}.zip"
        if archive.is_file():
            lists = [folder / f"{domain}_{split}.txt" for split in DOMAIN_SPLITS]
            for file in lists:
                require(file.is_file(), f"{archive} needs {file.name} beside it; place it in {folder}")
            files += [archive, *lists]
    return tuple(files)


def read_domainnet(files: tuple[Path, ...], spec: ImageSpec, progress: bool = True) -> Decoded:
    """All training images, domain by domain, then all test images; resized to `spec`."""
    archives = {file.stem: file for file in files if file.suffix == ".zip"}
    listed = {
        split: [
            line
            for domain, zip_ in archives.items()
            for line in _listed_images(zip_.with_name(f"{domain}_{split}.txt"), domain)
        ]
        for split in DOMAIN_SPLITS
    }
    samples = listed["train"] + listed["test"]
    with ExitStack() as stack:
        opened = {domain: stack.enter_context(open_zip(file)) for domain, file in archives.items()}

        def encoded() -> Iterator[tuple[str, bytes]]:
            for sample in samples:
                content = zip_member(opened[sample.domain], sample.path, MOST_IMAGE_BYTES)
                yield f"{sample.path} in {archives[sample.domain]}", content

        with progress_bar("decoding domainnet", len(samples), progress) as advance:
            images = decode_all(encoded(), spec, advance)
    names = {sample.label: sample.path.split("/")[-2] for sample in samples}
    complete = len(names) == DOMAINNET_CLASSES
    domains = tuple(archives)
    return Decoded(
        images,
        np.array([sample.label for sample in samples], dtype=np.int64),
        len(listed["train"]),
        tuple(names[label] for label in sorted(names)) if complete else (),
        np.array([domains.index(sample.domain) for sample in samples], dtype=np.int64),
        domains,
    )


def _listed_images(file: Path, domain: str) -> list[ListedImage]:
    """Lines of `domain/class/image.jpg label`."""
    with readable(file):
        lines = file.read_text(encoding="utf-8").splitlines()
    samples = []
    for number, line in enumerate(lines, start=1):
        path, _, label = line.strip().rpartition(" ")
        if path and "/" in path and label.isdecimal():
            samples.append(ListedImage(path, int(label), domain))
        elif line.strip():
            raise CoterieError(f"line {number} of {file} is not '<domain>/<class>/<image> <label>'")
    return samples


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
    files = tuple(
        next((file for file in (folder / f"{part}.gz", folder / part) if file.is_file()), None) for part in parts
    )
    return tuple(file for file in files if file is not None) if None not in files else ()


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


TINY_ARCHIVE = "tiny-imagenet-200.zip"
TINY_FOLDER = "tiny-imagenet-200"


def read_tiny_imagenet(archive: Path, spec: ImageSpec, progress: bool = True) -> Decoded:
    """Classes are the WordNet ids of `wnids.txt` in sorted order, as on the hub."""
    with open_zip(archive) as zipped:

        def lines(name: str) -> list[str]:
            return zip_member(zipped, f"{TINY_FOLDER}/{name}", MOST_IMAGE_BYTES).decode().splitlines()

        class_names = tuple(sorted(word for line in lines("wnids.txt") if (word := line.strip())))
        index = {name: place for place, name in enumerate(class_names)}
        pattern = re.compile(rf"{TINY_FOLDER}/train/([^/]+)/images/[^/]+\.JPEG")
        train = sorted((match[1], match[0]) for name in zipped.namelist() if (match := pattern.fullmatch(name)))
        test = []
        for line in lines("val/val_annotations.txt"):
            file, _, rest = line.partition("\t")
            test.append((rest.partition("\t")[0], f"{TINY_FOLDER}/val/images/{file}"))
        for label, name in train + test:
            if label not in index:
                raise CoterieError(f"{name} in {archive} has class '{label}', which wnids.txt does not list")

        def encoded() -> Iterator[tuple[str, bytes]]:
            for _, name in train + test:
                yield f"{name} in {archive}", zip_member(zipped, name, MOST_IMAGE_BYTES)

        with progress_bar("decoding tiny_imagenet", len(train) + len(test), progress) as advance:
            images = decode_all(encoded(), spec, advance)
    labels = np.array([index[label] for label, _ in train + test], dtype=np.int64)
    return Decoded(images, labels, len(train), class_names)
