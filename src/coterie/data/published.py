"""The data sets that are published as files: in which layouts, where, and how those are read."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from coterie.data.download import Remote
from coterie.data.images import ImageSpec
from coterie.data.readers.cifar import CIFAR10 as CIFAR10_LAYOUT
from coterie.data.readers.cifar import CIFAR100 as CIFAR100_LAYOUT
from coterie.data.readers.cifar import CifarLayout, read_cifar
from coterie.data.readers.cinic import ARCHIVE as CINIC_ARCHIVE
from coterie.data.readers.cinic import read_cinic
from coterie.data.readers.domainnet import CLASSES as DOMAINNET_CLASSES
from coterie.data.readers.domainnet import find_domainnet as find_zips
from coterie.data.readers.domainnet import read_domainnet
from coterie.data.readers.hub import find_hub, read_hub
from coterie.data.readers.idx import EMNIST_PARTS, MNIST_PARTS, find_idx, read_emnist, read_idx
from coterie.data.readers.tiny_imagenet import ARCHIVE as TINY_ARCHIVE
from coterie.data.readers.tiny_imagenet import read_tiny_imagenet
from coterie.data.registry import Found, KnownDataset

DIGIT_NAMES = tuple("0123456789")
CHARACTER_NAMES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
CLOTHING_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DOMAINNET_SIDE = 64
"""DomainNet's images have many sizes; all are resized to squares with this side."""

OBJECT_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
"""The classes of CIFAR-10 and CINIC-10."""

_MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist"
_FASHION_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_PARQUET = "train.parquet and test.parquet (hub layout)"
_IDX = "train- and t10k-images-idx3-ubyte.gz and -labels-idx1-ubyte.gz"

_MNIST_SHA256 = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)


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


MNIST = KnownDataset(
    "mnist",
    "70,000 handwritten digits, 28 × 28",
    10,
    DIGIT_NAMES,
    f"{_IDX}, or {_PARQUET},",
    tuple(
        Remote(f"{_MNIST_URL}/{part}.gz", "sha256", digest)
        for part, digest in zip(MNIST_PARTS, _MNIST_SHA256, strict=True)
    ),
    find_mnist,
)

FASHION_MNIST = KnownDataset(
    "fashion_mnist",
    "70,000 pieces of clothing, 28 × 28",
    10,
    CLOTHING_NAMES,
    f"{_IDX}, or {_PARQUET},",
    tuple(
        Remote(f"{_FASHION_URL}/{part}.gz", "md5", digest)
        for part, digest in zip(MNIST_PARTS, _FASHION_MD5, strict=True)
    ),
    find_mnist,
)

CIFAR10 = KnownDataset(
    "cifar10",
    "60,000 colour photographs of 10 kinds of object, 32 × 32",
    10,
    OBJECT_NAMES,
    f"{CIFAR10_LAYOUT.archive}, or {_PARQUET},",
    (
        Remote(
            f"https://www.cs.toronto.edu/~kriz/{CIFAR10_LAYOUT.archive}",
            "md5",
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    partial(find_cifar, CIFAR10_LAYOUT, "label"),
)

CIFAR100 = KnownDataset(
    "cifar100",
    "60,000 colour photographs of 100 kinds of object (fine labels), 32 × 32",
    100,
    (),
    f"{CIFAR100_LAYOUT.archive}, or {_PARQUET},",
    (
        Remote(
            f"https://www.cs.toronto.edu/~kriz/{CIFAR100_LAYOUT.archive}",
            "md5",
            "03b5dce01913d631647c71ecec9e9cb8",
        ),
    ),
    partial(find_cifar, CIFAR100_LAYOUT, "fine_label"),
)

EMNIST = KnownDataset(
    "emnist",
    "814,255 handwritten characters by class, 28 × 28",
    62,
    CHARACTER_NAMES,
    f"gzip.zip, or the four emnist-byclass-*-ubyte.gz, or {_PARQUET},",
    (
        Remote(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "md5",
            "58c8d27c78d21e728a6bc7b3cc06412e",
        ),
    ),
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
)
