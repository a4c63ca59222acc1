"""The Parquet layout of the Hugging Face hub: one table per split, possibly in shards, with encoded images.

The image column is a struct of `bytes` and `path`; it is called `img` or `image`. Class names are taken from
the hub's own description of the columns where the file carries it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.data.images import Decoded, ImageSpec, Ints, decode_all
from coterie.data.progress import progress_bar
from coterie.errors import CoterieError, require, unknown

IMAGE_COLUMNS = ("img", "image")
TEST_SPLITS = ("test", "valid", "validation", "val")
ROWS_AT_A_TIME = 2048


@dataclass(frozen=True)
class HubFiles:
    """The shards of the training split and of the test split, each in order."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file, training first."""
        return self.train + self.test


def find_hub(folder: Path, extra_train: Sequence[str] = ()) -> HubFiles | None:
    """The Parquet files in `folder` or its `data` sub-folder; None where there is no training split.

    `extra_train` names splits that are counted as training data too (CINIC-10's validation split).
    """
    for place in (folder, folder / "data"):
        train = shards(place, "train")
        if not train:
            continue
        for split in extra_train:
            train += shards(place, split)
        for split in TEST_SPLITS:
            test = shards(place, split)
            if test and split not in extra_train:
                return HubFiles(train, test)
        raise CoterieError(f"{place} holds {train[0].name} but no test*.parquet; place the test split beside it")
    return None


def shards(folder: Path, split: str) -> tuple[Path, ...]:
    """`split.parquet` or all of `split-00000-of-0000N….parquet`; a missing shard is an error."""
    whole = folder / f"{split}.parquet"
    if whole.is_file():
        return (whole,)
    pattern = re.compile(rf"{re.escape(split)}-(\d{{5}})-of-(\d{{5}})\b.*\.parquet")
    found = {}
    count = 0
    for file in sorted(folder.glob(f"{split}-*.parquet")):
        if match := pattern.fullmatch(file.name):
            found[int(match[1])] = file
            count = int(match[2])
    missing = [f"{number:05}" for number in range(count) if number not in found]
    require(not missing, f"{folder}: shard {', '.join(missing)} of {count} of the split '{split}' is missing")
    return tuple(found[number] for number in range(count))


def read_hub(
    files: HubFiles, spec: ImageSpec, label: str = "label", owner: str | None = None, progress: bool = True
) -> Decoded:
    """All images and labels, the training split first; `owner` names the column of domains or clients."""
    tables = [open_table(file) for file in files.all]
    columns = list(dict.fromkeys(name for table in tables for name in table.schema_arrow.names))
    image = next((name for name in IMAGE_COLUMNS if name in columns), None)
    require(image is not None, f"{files.train[0]} has no image column (one of: {', '.join(IMAGE_COLUMNS)})")
    for file, table in zip(files.all, tables, strict=True):
        sound = image in table.schema_arrow.names and is_image(table.schema_arrow.field(image).type)
        require(sound, f"{file} has no column '{image}' of encoded images (a struct with a field 'bytes')")
    rows = [table.metadata.num_rows for table in tables]

    def encoded() -> Iterator[tuple[str, bytes]]:
        for file, table in zip(files.all, tables, strict=True):
            yield from encoded_images(file, table, str(image))

    with progress_bar(f"decoding {files.train[0].parent.name}", sum(rows), progress) as advance:
        images = decode_all(encoded(), spec, advance)
    owners: Ints | None = None
    owner_names: tuple[str, ...] = ()
    if owner is not None:
        owners, owner_names = index_column(files.all, tables, owner)
    labels, class_names = index_column(files.all, tables, label)
    return Decoded(images, labels, sum(rows[: len(files.train)]), class_names, owners, owner_names)


def open_table(file: Path) -> pq.ParquetFile:
    """A Parquet file; damage is reported in one line."""
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise CoterieError(f"cannot read {file} ({str(error).splitlines()[0]})") from error


def is_image(kind: pa.DataType) -> bool:
    """Whether a column of this type holds encoded images, as the hub writes them.

    >>> is_image(pa.struct([("bytes", pa.binary()), ("path", pa.string())])), is_image(pa.string())
    (True, False)
    """
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def encoded_images(file: Path, table: pq.ParquetFile, column: str) -> Iterator[tuple[str, bytes]]:
    """Name (file and row) and encoded content of each image of a struct column."""
    row = 0
    try:
        for batch in table.iter_batches(ROWS_AT_A_TIME, columns=[f"{column}.bytes"]):
            for content in batch.column(0).field(0):
                row += 1
                what = f"in row {row} of {file}"
                require(content.is_valid, f"image {what} is missing")
                yield what, content.as_py()
    except (pa.ArrowInvalid, OSError) as error:
        raise CoterieError(f"cannot read {file} ({str(error).splitlines()[0]})") from error


def index_column(files: Sequence[Path], tables: Sequence[pq.ParquetFile], column: str) -> tuple[Ints, tuple[str, ...]]:
    """A column of class indices (kept) or of names (mapped to indices in sorted order), with the names."""
    for file, table in zip(files, tables, strict=True):
        if column not in table.schema_arrow.names:
            raise unknown(f"column in {file}", column, table.schema_arrow.names)
    kind = tables[0].schema_arrow.field(column).type
    values = pa.chunked_array([chunk for t in tables for chunk in t.read([column]).column(0).cast(kind).chunks])
    require(values.null_count == 0, f"column '{column}' of {files[0]} has missing values")
    if pa.types.is_integer(values.type):
        return values.to_numpy().astype(np.int64), declared_names(tables[0].schema_arrow, column)
    names, places = np.unique(np.array(values.to_pylist(), dtype=str), return_inverse=True)
    return places.astype(np.int64), tuple(names.tolist())


def declared_names(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """The class names that the hub's description of `column` declares, or none."""
    described = (schema.metadata or {}).get(b"huggingface")
    try:
        names = json.loads(described)["info"]["features"][column]["names"] if described else ()
        return tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError):
        return ()
