"""The data sets that Coterie knows by name, and how each is found, fetched, decoded and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from coterie.core.pixels import Pixels
from coterie.data.cache import cache_key, read_entry, write_entry
from coterie.data.dataset import Dataset
from coterie.data.download import Remote, download
from coterie.data.finders import (
    DOMAINNET_SIDE,
    OBJECT_NAMES,
    Find,
    Found,
    find_cifar,
    find_cinic,
    find_domainnet,
    find_emnist,
    find_mnist,
    find_tiny_imagenet,
)
from coterie.data.images import Decoded
from coterie.data.locate import data_folder, decoded_folder
from coterie.data.readers.cifar import CIFAR10, CIFAR100
from coterie.data.readers.cinic import ARCHIVE as CINIC_ARCHIVE
from coterie.data.readers.diabetes import load_diabetes
from coterie.data.readers.digits import load_digits
from coterie.data.readers.domainnet import CLASSES as DOMAINNET_CLASSES
from coterie.data.readers.idx import MNIST_PARTS
from coterie.data.readers.tiny_imagenet import ARCHIVE as TINY_ARCHIVE
from coterie.errors import CoterieError, require
from coterie.registry import Registry

DIGIT_NAMES = tuple("0123456789")
CHARACTER_NAMES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
CLOTHING_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclass(frozen=True)
class KnownDataset:
    """A data set by name: what it is, which files it is read from, and where those are published.

    `find` looks for one of the set's layouts in a folder; `remotes` are fetched where it finds nothing
    (no checksum known: no `remotes`); `files` says what to place there by hand. A set that is made, not found, has
    `make` instead; how many classes it has may be left open then (0), and it may be for regression.
    """

    name: str
    description: str
    classes: int = 0
    class_names: tuple[str, ...] = ()
    files: str = ""
    remotes: tuple[Remote, ...] = ()
    find: Find | None = None
    make: Callable[[], Dataset] | None = None

    def load(self, root: Path | None = None, progress: bool = True) -> Dataset:
        """The whole data set, normalised; official training samples first."""
        if self.make is not None:
            try:
                made = self.make()
            except CoterieError:
                raise
            except (Exception, SystemExit) as error:  # whatever somebody's function may raise
                told = " ".join(f"{type(error).__name__}: {error}".split())
                raise CoterieError(f"data '{self.name}': cannot be made ({told})") from error
            require(isinstance(made, Dataset), f"data '{self.name}': made {type(made).__name__}, no coterie.Dataset")
            return made
        assert self.find is not None
        decoded = _decode_once(self.name, self._found(self.find, data_folder(self.name, root), progress))
        names = decoded.class_names or self.class_names
        return Dataset(
            self.name,
            Pixels.mapped(decoded.images),
            torch.from_numpy(decoded.labels),
            self.classes,
            decoded.train_size,
            None if decoded.owners is None else torch.from_numpy(decoded.owners),
            decoded.owner_names,
            names if len(names) == self.classes else (),
        )

    def missing(self, root: Path | None = None) -> str | None:
        """How to get the data set, if it is not on this machine; nothing is fetched or decoded."""
        if self.make is not None or self.find is None:
            return None
        folder = data_folder(self.name, root)
        if folder.is_dir() and self.find(folder, False) is not None:
            return None
        fetch = f"; 'coterie run --data {self.name} --rounds 1' fetches them" if self.remotes else ""
        return f"place {self.files} in {folder}{fetch}"

    def _found(self, find: Find, folder: Path, progress: bool) -> Found:
        found = find(folder, progress)
        if found is None:
            place = f"place {self.files} in {folder}"
            if not self.remotes:
                raise CoterieError(f"data '{self.name}': no files found; {place}")
            for remote in self.remotes:
                if not (folder / remote.file).is_file():
                    try:
                        download(remote, folder, progress)
                    except CoterieError as error:
                        raise CoterieError(f"data '{self.name}': {error}; {place}") from error
            found = find(folder, progress)
            if found is None:
                raise CoterieError(f"data '{self.name}': the files in {folder} are incomplete; {place}")
        return found


def _decode_once(name: str, found: Found) -> Decoded:
    """The decoded images from the cache, or from the files and then into the cache."""
    cache = decoded_folder()
    if cache is None:
        return found.read()
    entry = cache / cache_key(name, found.files, str(found.spec.shape))
    decoded = read_entry(entry)
    if decoded is None:
        decoded = found.read()
        write_entry(entry, decoded)
    return decoded


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

_KNOWN = (
    KnownDataset(
        "digits",
        "1,797 handwritten digits, 8 × 8, on 14 forms (the owners), embedded: no files needed",
        10,
        DIGIT_NAMES,
        make=load_digits,
    ),
    KnownDataset(
        "diabetes",
        "442 patients, 10 measurements, embedded; regression: progression after a year, standardised",
        0,
        make=load_diabetes,
    ),
    KnownDataset(
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
    ),
    KnownDataset(
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
    ),
    KnownDataset(
        "cifar10",
        "60,000 colour photographs of 10 kinds of object, 32 × 32",
        10,
        OBJECT_NAMES,
        f"{CIFAR10.archive}, or {_PARQUET},",
        (
            Remote(
                f"https://www.cs.toronto.edu/~kriz/{CIFAR10.archive}",
                "md5",
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        partial(find_cifar, CIFAR10, "label"),
    ),
    KnownDataset(
        "cifar100",
        "60,000 colour photographs of 100 kinds of object (fine labels), 32 × 32",
        100,
        (),
        f"{CIFAR100.archive}, or {_PARQUET},",
        (
            Remote(
                f"https://www.cs.toronto.edu/~kriz/{CIFAR100.archive}",
                "md5",
                "03b5dce01913d631647c71ecec9e9cb8",
            ),
        ),
        partial(find_cifar, CIFAR100, "fine_label"),
    ),
    KnownDataset(
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
    ),
    KnownDataset(
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
    ),
    KnownDataset(
        "tiny_imagenet",
        "110,000 colour photographs of 200 kinds of object, 64 × 64; its validation split is the test",
        200,
        (),
        f"{TINY_ARCHIVE}, or train and valid .parquet (hub layout),",
        (Remote(f"http://cs231n.stanford.edu/{TINY_ARCHIVE}", "md5", "90528d7ca1a48142e341f4ef8d21d0de"),),
        find_tiny_imagenet,
    ),
    KnownDataset(
        "domainnet",
        f"345 kinds of object in six domains (the owners), resized to {DOMAINNET_SIDE} × {DOMAINNET_SIDE}",
        DOMAINNET_CLASSES,
        (),
        f"<domain>.zip, <domain>_train.txt and <domain>_test.txt of one or more domains, or {_PARQUET},",
        (),
        find_domainnet,
    ),
)


def _own_data(name: str, found: object) -> KnownDataset:
    if isinstance(found, KnownDataset):
        return replace(found, name=name)
    if not callable(found):
        raise CoterieError(f"data '{name}': must be a function that returns a coterie.Dataset, or a KnownDataset")
    return KnownDataset(name, (found.__doc__ or "").strip().partition("\n")[0], make=found)


DATASETS: Registry[KnownDataset] = Registry(
    "data set", "coterie.datasets", {known.name: known for known in _KNOWN}, _own_data
)
"""Every data set by name: a `KnownDataset`, which a function that returns a `Dataset` is made into."""
