"""Which of its published layouts a data set's files are in, and how those are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coterie.data.images import Decoded, ImageSpec
from coterie.data.readers.cifar import CifarLayout, read_cifar
from coterie.data.readers.cinic import ARCHIVE as CINIC_ARCHIVE
from coterie.data.readers.cinic import read_cinic
from coterie.data.readers.domainnet import find_domainnet as find_zips
from coterie.data.readers.domainnet import read_domainnet
from coterie.data.readers.hub import find_hub, read_hub
from coterie.data.readers.idx import EMNIST_PARTS, MNIST_PARTS, find_idx, read_emnist, read_idx
from coterie.data.readers.tiny_imagenet import ARCHIVE as TINY_ARCHIVE
from coterie.data.readers.tiny_imagenet import read_tiny_imagenet

DOMAINNET_SIDE = 64
"""DomainNet's images have many sizes; all are resized to squares with this side."""

OBJECT_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
"""The classes of CIFAR-10 and CINIC-10."""


@dataclass(frozen=True)
class Found:
    """Files of a data set in one of its layouts, how to read them, and the size they are read at."""

    files: tuple[Path, ...]
    read: Callable[[], Decoded]
    spec: ImageSpec


Find = Callable[[Path, bool], Found | None]
"""Looks into a folder (the flag: show progress when reading); None where no layout is complete."""


def _hub(
    spec: ImageSpec,
    folder: Path,
    progress: bool,
    *,
    label: str = "label",
    owner: str | None = None,
    extra_train: tuple[str, ...] = (),
) -> Found | None:
    files = find_hub(folder, extra_train)
    return Found(files.all, partial(read_hub, files, spec, label, owner, progress), spec) if files else None


def find_mnist(folder: Path, progress: bool) -> Found | None:
    """MNIST and Fashion-MNIST: Parquet or idx files."""
    spec = ImageSpec(1, 28, 28)
    if hub := _hub(spec, folder, progress):
        return hub
    files = find_idx(folder, MNIST_PARTS)
    return Found(files, partial(read_idx, files), spec) if files else None


def find_emnist(folder: Path, progress: bool) -> Found | None:
    """EMNIST by class: Parquet, idx files, or the archive of these."""
    spec = ImageSpec(1, 28, 28)
    # Encoded images are taken as they are; only the idx files are known to be stored sideways.
    if hub := _hub(spec, folder, progress):
        return hub
    files = find_idx(folder, EMNIST_PARTS) or _existing(folder / "gzip.zip")
    return Found(files, partial(read_emnist, files), spec) if files else None


def find_cifar(layout: CifarLayout, label: str, folder: Path, progress: bool) -> Found | None:
    """CIFAR-10 and CIFAR-100: Parquet or the binary archive; `label` is the hub's column."""
    spec = ImageSpec(3, 32, 32)
    if hub := _hub(spec, folder, progress, label=label):
        return hub
    files = _existing(folder / layout.archive)
    return Found(files, partial(read_cifar, files[0], layout), spec) if files else None


def find_cinic(folder: Path, progress: bool) -> Found | None:
    """CINIC-10: Parquet or the archive of PNG files."""
    spec = ImageSpec(3, 32, 32)
    if hub := _hub(spec, folder, progress, extra_train=("valid", "validation")):
        return hub
    files = _existing(folder / CINIC_ARCHIVE)
    return Found(files, partial(read_cinic, files[0], spec, OBJECT_NAMES, progress), spec) if files else None


def find_tiny_imagenet(folder: Path, progress: bool) -> Found | None:
    """Tiny ImageNet: Parquet or the archive of JPEG files."""
    spec = ImageSpec(3, 64, 64)
    if hub := _hub(spec, folder, progress):
        return hub
    files = _existing(folder / TINY_ARCHIVE)
    return Found(files, partial(read_tiny_imagenet, files[0], spec, progress), spec) if files else None


def find_domainnet(folder: Path, progress: bool) -> Found | None:
    """DomainNet: Parquet with a column `domain`, or a zip and two lists per domain."""
    spec = ImageSpec(3, DOMAINNET_SIDE, DOMAINNET_SIDE, resize=True)
    if hub := _hub(spec, folder, progress, owner="domain"):
        return hub
    files = find_zips(folder)
    return Found(files, partial(read_domainnet, files, spec, progress), spec) if files else None


def _existing(file: Path) -> tuple[Path, ...]:
    return (file,) if file.is_file() else ()
