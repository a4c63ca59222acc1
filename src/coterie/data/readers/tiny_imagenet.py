"""Tiny ImageNet, `tiny-imagenet-200.zip`: test labels are not published, so validation serves as test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from coterie.data.archives import MOST_IMAGE_BYTES, open_zip, zip_member
from coterie.data.images import Decoded, ImageSpec, decode_all
from coterie.data.progress import progress_bar
from coterie.errors import CoterieError

ARCHIVE = "tiny-imagenet-200.zip"
BASE = "tiny-imagenet-200"


def read_tiny_imagenet(archive: Path, spec: ImageSpec, progress: bool = True) -> Decoded:
    """Classes are the WordNet ids of `wnids.txt` in sorted order, as on the hub."""
    with open_zip(archive) as zipped:

        def lines(name: str) -> list[str]:
            return zip_member(zipped, f"{BASE}/{name}", MOST_IMAGE_BYTES).decode().splitlines()

        class_names = tuple(sorted(word for line in lines("wnids.txt") if (word := line.strip())))
        index = {name: place for place, name in enumerate(class_names)}
        pattern = re.compile(rf"{BASE}/train/([^/]+)/images/[^/]+\.JPEG")
        train = sorted((match[1], match[0]) for name in zipped.namelist() if (match := pattern.fullmatch(name)))
        test = []
        for line in lines("val/val_annotations.txt"):
            file, _, rest = line.partition("\t")
            test.append((rest.partition("\t")[0], f"{BASE}/val/images/{file}"))
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
