"""Own data from tables, CSV or Parquet: one row per sample, a label column, perhaps a client column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from coterie.data.arrays import Array, TestSplit, from_arrays
from coterie.data.dataset import Dataset
from coterie.data.images import decode_own
from coterie.data.readers.hub import TEST_SPLITS, declared_names, is_image, shards
from coterie.errors import CoterieError, require, unknown

TABLE_SUFFIXES = (".csv", ".parquet")
DEFAULT_CLIENT = "client"


@dataclass(frozen=True)
class TableSplits:
    """The files of the training split and of the test split (which may be empty)."""

    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()


def table_splits(path: Path) -> TableSplits | None:
    """The tables at `path`: the file itself, or `train` and `test` files in a folder; None without any."""
    if path.is_file():
        return TableSplits((path,)) if path.suffix.lower() in TABLE_SUFFIXES else None
    for folder in (path, path / "data"):
        if train := _split(folder, "train"):
            return TableSplits(train, next((found for s in TEST_SPLITS if (found := _split(folder, s))), ()))
    return None


def load_table(
    splits: TableSplits,
    label: str = "label",
    client: str | None = None,
    *,
    size: tuple[int, int] | None = None,
    name: str = "own",
    progress: bool = True,
) -> Dataset:
    """Rows as samples. All columns but `label` and `client` are features and must be numeric, without gaps.

    In Parquet a column of encoded images (a struct with `bytes`, as on the hub) may stand for the features;
    other columns are ignored then. Text labels and clients are numbered in sorted order. Features are taken
    as they are: scale them beforehand.
    """
    files = [splits.train[0], *splits.test[:1]]
    tables = [_read(parts) for parts in (splits.train, splits.test) if parts]
    names = tables[0].column_names
    owner = client or (DEFAULT_CLIENT if DEFAULT_CLIENT in names and label != DEFAULT_CLIENT else None)
    image = next((field.name for field in tables[0].schema if is_image(field.type)), None)
    features = [image] if image is not None else [column for column in names if column not in (label, owner)]
    require(bool(features), f"{files[0]} has no feature columns besides '{label}'")
    for file, table in zip(files, tables, strict=True):
        for column in (label, owner, *features):
            if column is not None and column not in table.column_names:
                raise unknown(f"column of {file}", column, table.column_names)
    inputs: list[Array]
    if image is not None:
        pixels = decode_own(lambda: _encoded(tables, files, image), size, name, progress)
        inputs = np.split(pixels, [tables[0].num_rows])
    else:
        require(size is None, f"size = {size}: {files[0]} has no images to resize")
        inputs = [
            np.stack([_numbers(table, column, file) for column in features], axis=1)
            for file, table in zip(files, tables, strict=True)
        ]
    labels = [_keys(table, label, file) for file, table in zip(files, tables, strict=True)]
    owners = [_keys(table, owner, file) for file, table in zip(files, tables, strict=True) if owner is not None]
    test: TestSplit | None = None
    if splits.test:
        test = (inputs[1], labels[1], owners[1]) if owners else (inputs[1], labels[1])
    return from_arrays(
        inputs[0],
        labels[0],
        owners=owners[0] if owners else None,
        test=test,
        class_names=declared_names(tables[0].schema, label),
        name=name,
    )


def _split(folder: Path, split: str) -> tuple[Path, ...]:
    csv = folder / f"{split}.csv"
    return (csv,) if csv.is_file() else shards(folder, split)


def _read(files: tuple[Path, ...]) -> pa.Table:
    tables = []
    for file in files:
        try:
            tables.append(pa.csv.read_csv(file) if file.suffix.lower() == ".csv" else pq.read_table(file))
        except (pa.ArrowException, OSError) as error:
            raise CoterieError(f"cannot read {file} ({str(error).splitlines()[0]})") from error
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise CoterieError(f"{files[0].parent}: the shards have different columns") from error
    require(table.num_rows > 0, f"{files[0]} has no rows")
    return table


def _numbers(table: pa.Table, column: str, file: Path) -> npt.NDArray[np.float32]:
    values = table.column(column)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise CoterieError(f"column '{column}' of {file} is {kind}, not numeric; encode it as numbers or drop it")
    numbers = values.cast(pa.float64(), safe=False) if not pa.types.is_boolean(kind) else values.cast(pa.int8())
    with np.errstate(over="ignore"):
        array = np.asarray(numbers.to_numpy(), dtype=np.float32)
    wrong = np.flatnonzero(~np.isfinite(array))
    require(
        len(wrong) == 0,
        f"column '{column}' of {file} is empty, NaN or infinite in row {wrong[0] + 1 if len(wrong) else 0}; "
        "fill or drop it",
    )
    return array


def _keys(table: pa.Table, column: str, file: Path) -> Array:
    """A column of labels or clients: integers or text, without gaps."""
    values = table.column(column)
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy())[0]) + 1
        raise CoterieError(f"column '{column}' of {file} is empty in row {row}; fill it or drop the row")
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.array(values.to_pylist(), dtype=str)
    array: npt.NDArray[Any] = np.asarray(values.to_numpy())
    return array


def _encoded(tables: list[pa.Table], files: list[Path], column: str) -> Iterator[tuple[str, bytes]]:
    for file, table in zip(files, tables, strict=True):
        row = 0
        for chunk in table.column(column).chunks:
            for content in chunk.field("bytes"):
                row += 1
                require(content.is_valid, f"image in row {row} of {file} is missing")
                yield f"in row {row} of {file}", content.as_py()
