"""The published image sets: what each is, where it is fetched, and in which layouts its files are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from coterie.data.archives import Remote
from coterie.data.catalogue import KnownDataset
from coterie.data.embedded import DIGIT_NAMES
from coterie.data.images import Decoded, ImageFiles, ImageSpec
from coterie.data.layouts import (
    CIFAR10_LAYOUT,
    CIFAR100_LAYOUT,
    CINIC_ARCHIVE,
    DOMAINNET_CLASSES,
    EMNIST_PARTS,
    MNIST_PARTS,
    TINY_ARCHIVE,
    CifarLayout,
    domainnet_files,
    find_idx,
    read_cifar,
    read_cinic,
    read_domainnet,
    read_emnist,
    read_idx,
    read_tiny_imagenet,
)
from coterie.data.tables import find_hub, read_hub

DOMAINNET_SIDE = 64
"""DomainNet's images have many sizes; all are resized to squares with this side."""
CHARACTER_NAMES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
CLOTHING_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
OBJECT_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
"""The classes of CIFAR-10 and CINIC-10."""


def _hub(
    spec: ImageSpec,
    folder: Path,
    progress: bool,
    *,
    label: str = "label",
    owner: str | None = None,
    extra_train: tuple[str, ...] = (),
) -> ImageFiles | None:
    files = find_hub(folder, extra_train)
    return ImageFiles(files.all, partial(read_hub, files, spec, label, owner, progress), spec) if files else None


def _others(files: tuple[Path, ...], spec: ImageSpec, read: Callable[[tuple[Path, ...]], Decoded]) -> ImageFiles | None:
    return ImageFiles(files, partial(read, files), spec) if files else None


def _existing(file: Path) -> tuple[Path, ...]:
    return (file,) if file.is_file() else ()


def find_mnist(folder: Path, progress: bool) -> ImageFiles | None:
    """MNIST and Fashion-MNIST: Parquet or idx files."""
    spec = ImageSpec(1, 28, 28)
    return _hub(spec, folder, progress) or _others(find_idx(folder, MNIST_PARTS), spec, read_idx)


def find_emnist(folder: Path, progress: bool) -> ImageFiles | None:
    """EMNIST by class: Parquet, idx files, or the archive of these."""
    spec = ImageSpec(1, 28, 28)
    # Encoded images are taken as they are; only the idx files are known to be stored sideways.
    files = find_idx(folder, EMNIST_PARTS) or _existing(folder / "gzip.zip")
    return _hub(spec, folder, progress) or _others(files, spec, read_emnist)


def find_cifar(layout: CifarLayout, label: str, folder: Path, progress: bool) -> ImageFiles | None:
    """CIFAR-10 and CIFAR-100: Parquet or the binary archive; `label` is the hub's column."""
    spec, files = ImageSpec(3, 32, 32), _existing(folder / layout.archive)
    hub = _hub(spec, folder, progress, label=label)
    return hub or _others(files, spec, lambda files: read_cifar(files[0], layout))


def find_cinic(folder: Path, progress: bool) -> ImageFiles | None:
    """CINIC-10: Parquet or the archive of PNG files."""
    spec, files = ImageSpec(3, 32, 32), _existing(folder / CINIC_ARCHIVE)
    hub = _hub(spec, folder, progress, extra_train=("valid", "validation"))
    return hub or _others(files, spec, lambda files: read_cinic(files[0], spec, OBJECT_NAMES, progress))


def find_tiny_imagenet(folder: Path, progress: bool) -> ImageFiles | None:
    """Tiny ImageNet: Parquet or the archive of JPEG files."""
    spec, files = ImageSpec(3, 64, 64), _existing(folder / TINY_ARCHIVE)
    hub = _hub(spec, folder, progress)
    return hub or _others(files, spec, lambda files: read_tiny_imagenet(files[0], spec, progress))


def find_domainnet(folder: Path, progress: bool) -> ImageFiles | None:
    """DomainNet: Parquet with a column `domain`, or a zip and two lists per domain."""
    spec = ImageSpec(3, DOMAINNET_SIDE, DOMAINNET_SIDE, resize=True)
    hub = _hub(spec, folder, progress, owner="domain")
    return hub or _others(domainnet_files(folder), spec, lambda files: read_domainnet(files, spec, progress))


def _idx_remotes(url: str, kind: Literal["sha256", "md5"], digests: tuple[str, ...]) -> tuple[Remote, ...]:
    pairs = zip(MNIST_PARTS, digests, strict=True)
    return tuple(Remote(f"{url}/{part}.gz", kind, digest) for part, digest in pairs)


_PARQUET = "train.parquet and test.parquet (hub layout)"
_IDX = "train- and t10k-images-idx3-ubyte.gz and -labels-idx1-ubyte.gz"

MNIST = KnownDataset(
    "mnist",
    "70,000 handwritten digits, 28 × 28",
    10,
    DIGIT_NAMES,
    f"{_IDX}, or {_PARQUET},",
    _idx_remotes(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "sha256",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    find_mnist,
)
FASHION_MNIST = KnownDataset(
    "fashion_mnist",
    "70,000 pieces of clothing, 28 × 28",
    10,
    CLOTHING_NAMES,
    f"{_IDX}, or {_PARQUET},",
    _idx_remotes(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "md5",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    find_mnist,
)
CIFAR10 = KnownDataset(
    "cifar10",
    "60,000 colour photographs of 10 kinds of object, 32 × 32",
    10,
    OBJECT_NAMES,
    f"{CIFAR10_LAYOUT.archive}, or {_PARQUET},",
    (Remote(f"https://www.cs.toronto.edu/~kriz/{CIFAR10_LAYOUT.archive}", "md5", "c32a1d4ab5d03f1284b67883e8d87530"),),
    partial(find_cifar, CIFAR10_LAYOUT, "label"),
)
CIFAR100 = KnownDataset(
    "cifar100",
    "60,000 colour photographs of 100 kinds of object (fine labels), 32 × 32",
    100,
    (),
    f"{CIFAR100_LAYOUT.archive}, or {_PARQUET},",
    (Remote(f"https://www.cs.toronto.edu/~kriz/{CIFAR100_LAYOUT.archive}", "md5", "03b5dce01913d631647c71ecec9e9cb8"),),
    partial(find_cifar, CIFAR100_LAYOUT, "fine_label"),
)
EMNIST = KnownDataset(
    "emnist",
    "814,255 handwritten characters by class, 28 × 28",
    62,
    CHARACTER_NAMES,
    f"gzip.zip, or the four emnist-byclass-*-ubyte.gz, or {_PARQUET},",
    (Remote("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "md5", "58c8d27c78d21e728a6bc7b3cc06412e"),),
    find_emnist,
)
CINIC10 = KnownDataset(
    "cinic10",
    "270,000 colour photographs of CIFAR-10's classes, 32 × 32; its validation split counts as training",
    10,
    OBJECT_NAMES,
    f"{CINIC_ARCHIVE}, or {_PARQUET},",
    (
        Remote(
            f"https://datashare.ed.ac.uk/bitstream/handle/10283/3192/{CINIC_ARCHIVE}",
            "md5",
            "6ee4d0c996905fe93221de577967a372",
        ),
    ),
    find_cinic,
)
TINY_IMAGENET = KnownDataset(
    "tiny_imagenet",
    "110,000 colour photographs of 200 kinds of object, 64 × 64; its validation split is the test",
    200,
    (),
    f"{TINY_ARCHIVE}, or train and valid .parquet (hub layout),",
    (Remote(f"http://cs231n.stanford.edu/{TINY_ARCHIVE}", "md5", "90528d7ca1a48142e341f4ef8d21d0de"),),
    find_tiny_imagenet,
)
DOMAINNET = KnownDataset(
    "domainnet",
    f"345 kinds of object in six domains (the owners), resized to {DOMAINNET_SIDE} × {DOMAINNET_SIDE}",
    DOMAINNET_CLASSES,
    (),
    f"<domain>.zip, <domain>_train.txt and <domain>_test.txt of one or more domains, or {_PARQUET},",
    (),
    find_domainnet,
    has_clients=True,
)
