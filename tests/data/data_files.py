"""Small files in the published layouts, for the tests of their readers."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Bytes = npt.NDArray[np.uint8]


def pixels(count: int, channels: int, side: int, seed: int = 0) -> Bytes:
    """Random images [count, channels, side, side]."""
    return np.random.default_rng(seed).integers(0, 256, (count, channels, side, side), dtype=np.uint8)


def encode(image: Bytes, kind: str = "PNG") -> bytes:
    """One image [C, H, W] as an encoded file."""
    file = io.BytesIO()
    array = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    Image.fromarray(array).save(file, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


def decoded_jpeg(image: Bytes) -> Bytes:
    """What a JPEG encoding makes of an image [C, H, W], read independently of the library."""
    array = np.asarray(Image.open(io.BytesIO(encode(image, "JPEG"))).convert("RGB"))
    return array.transpose(2, 0, 1)


def scaled(images: Bytes) -> npt.NDArray[np.float64]:
    """The normalisation in double precision."""
    return (images.astype(np.float64) / 255 - 0.5) / 0.5


def hub_table(
    path: Path,
    images: Bytes,
    columns: dict[str, list[int] | list[str]],
    image_column: str = "image",
    names: dict[str, list[str]] | None = None,
) -> None:
    """A Parquet file as on the hub; `names` declares class names of columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    structs = [{"bytes": encode(image), "path": None} for image in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({image_column: pa.array(structs, kind), **columns})
    if names:
        features = {column: {"names": list_, "_type": "ClassLabel"} for column, list_ in names.items()}
        described = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": described})
    pq.write_table(table, path)


def idx_bytes(array: Bytes) -> bytes:
    """An idx file of unsigned bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def gzipped(content: bytes) -> bytes:
    """Content as a gzip file."""
    return gzip.compress(content)


def tar_of(path: Path, members: dict[str, bytes]) -> None:
    """A compressed tar archive with these members in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
