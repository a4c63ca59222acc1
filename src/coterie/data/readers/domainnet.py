"""DomainNet: per domain a zip of images and two lists, `<domain>_train.txt` and `<domain>_test.txt`.

The domains whose zip is in the folder are loaded: at 64 × 64 all six take 29 GB as float32, two of the
small ones a few. A sample's owner is its domain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.data.archives import MOST_IMAGE_BYTES, open_zip, readable, zip_member
from coterie.data.images import Decoded, ImageSpec, decode_all
from coterie.data.progress import progress_bar
from coterie.errors import CoterieError, require

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
SPLITS = ("train", "test")
CLASSES = 345


@dataclass(frozen=True)
class Listed:
    """One line of a list: the image's path in the zip, its class, its domain."""

    path: str
    label: int
    domain: str


def find_domainnet(folder: Path) -> tuple[Path, ...]:
    """For each domain whose zip is there: the zip and its two lists; a missing list is an error."""
    files: list[Path] = []
    for domain in DOMAINS:
        archive = folder / f"{domain}.zip"
        if archive.is_file():
            lists = [folder / f"{domain}_{split}.txt" for split in SPLITS]
            for file in lists:
                require(file.is_file(), f"{archive} needs {file.name} beside it; place it in {folder}")
            files += [archive, *lists]
    return tuple(files)


def read_domainnet(files: tuple[Path, ...], spec: ImageSpec, progress: bool = True) -> Decoded:
    """All training images, domain by domain, then all test images; resized to `spec`."""
    archives = {file.stem: file for file in files if file.suffix == ".zip"}
    listed = {
        split: [
            line for domain, zip_ in archives.items() for line in _list(zip_.with_name(f"{domain}_{split}.txt"), domain)
        ]
        for split in SPLITS
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
    complete = len(names) == CLASSES
    domains = tuple(archives)
    return Decoded(
        images,
        np.array([sample.label for sample in samples], dtype=np.int64),
        len(listed["train"]),
        tuple(names[label] for label in sorted(names)) if complete else (),
        np.array([domains.index(sample.domain) for sample in samples], dtype=np.int64),
        domains,
    )


def _list(file: Path, domain: str) -> list[Listed]:
    """Lines of `domain/class/image.jpg label`."""
    with readable(file):
        lines = file.read_text(encoding="utf-8").splitlines()
    samples = []
    for number, line in enumerate(lines, start=1):
        path, _, label = line.strip().rpartition(" ")
        if path and "/" in path and label.isdecimal():
            samples.append(Listed(path, int(label), domain))
        elif line.strip():
            raise CoterieError(f"line {number} of {file} is not '<domain>/<class>/<image> <label>'")
    return samples
