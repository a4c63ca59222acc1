"""Encoded images to uint8 arrays `[N, channels, height, width]`, and those to normalised tensors."""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from coterie.data.progress import Advance, progress_bar
from coterie.errors import CoterieError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

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


def normalise(pixels: Bytes) -> Tensor:
    """Pixels 0..255 as float32 in [−1, 1]: (x / 255 − 0.5) / 0.5, the same shape.

    >>> normalise(np.array([0, 51, 255], dtype=np.uint8)).tolist()
    [-1.0, -0.6000000238418579, 1.0]
    """
    result = torch.empty(pixels.shape, dtype=torch.float32)
    values = result.numpy()
    # Piece by piece and in place: each piece stays in the processor's cache, and there is no large temporary.
    for begin in range(0, len(pixels), BATCH):
        piece = values[begin : begin + BATCH]
        np.divide(pixels[begin : begin + BATCH], np.float32(255), out=piece)
        piece -= np.float32(0.5)
        piece /= np.float32(0.5)
    return result
