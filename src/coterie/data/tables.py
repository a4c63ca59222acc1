"""Tables, CSV or Parquet: one row per sample, a label column, perhaps a client column.

Images lie in Parquet as on the Hugging Face hub: a table per split, possibly in shards, with a column (`img` or
`image`) of structs of `bytes` and `path`. Class names are taken from the hub's own description of the columns where
the file carries it.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from coterie.core.task import Task
from coterie.data.archives import progress_bar
from coterie.data.arrays import Array, Classes, TestSplit, from_arrays
from coterie.data.dataset import Dataset, Ints
from coterie.data.images import Decoded, ImageSpec, decode_all, decode_own
from coterie.errors import CoterieError, require, unknown

log = logging.getLogger("coterie")

Source = Path | str
"""Where a table comes from, as errors say it: its file, or what it was given as."""
IMAGE_COLUMNS = ("img", "image")
TEST_SPLITS = ("test", "valid", "validation", "val")
ROWS_AT_A_TIME = 2048


@dataclass(frozen=True)
class TableSplits:
    """The files of the training split and of the test split (which may be empty), the shards of each in order."""

    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file, training first."""
        return self.train + self.test


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Report damage in one line that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise CoterieError(f"cannot read {file} ({str(error).splitlines()[0]})") from error


def find_hub(folder: Path, extra_train: Sequence[str] = ()) -> TableSplits | None:
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
                return TableSplits(train, test)
        raise CoterieError(f"{place} holds {train[0].name} but no test*.parquet; place the test split beside it")
    return None


def shards(folder: Path, split: str) -> tuple[Path, ...]:
    """`split.parquet` or all of `split-00000-of-0000N….parquet`; a missing shard is an error."""
    whole = folder / f"{split}.parquet"
    if whole.is_file():
        return (whole,)
    pattern = re.compile(rf"{re.escape(split)}-(\d{{5}})-of-(\d{{5}})\b.*\.parquet")
    files_by_number = {}
    count = 0
    for file in sorted(folder.glob(f"{split}-*.parquet")):
        if match := pattern.fullmatch(file.name):
            files_by_number[int(match[1])] = file
            count = int(match[2])
    missing = [f"{number:05}" for number in range(count) if number not in files_by_number]
    require(not missing, f"{folder}: shard {', '.join(missing)} of {count} of the split '{split}' is missing")
    return tuple(files_by_number[number] for number in range(count))


def read_hub(
    files: TableSplits, spec: ImageSpec, label: str = "label", owner: str | None = None, progress: bool = True
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
    with _readable(file):
        return pq.ParquetFile(file)


def is_image(kind: pa.DataType) -> bool:
    """Whether a column of this type holds encoded images, as the hub writes them.

    >>> is_image(pa.struct([("bytes", pa.binary()), ("path", pa.string())])), is_image(pa.string())
    (True, False)
    """
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def encoded_images(file: Path, table: pq.ParquetFile, column: str) -> Iterator[tuple[str, bytes]]:
    """Name (file and row) and encoded content of each image of a struct column."""
    batches = table.iter_batches(ROWS_AT_A_TIME, columns=[f"{column}.bytes"])
    with _readable(file):
        yield from _contents(file, (batch.column(0).field(0) for batch in batches))


def _contents(file: Source, chunks: Iterable[pa.Array]) -> Iterator[tuple[str, bytes]]:
    for row, content in enumerate((content for chunk in chunks for content in chunk), start=1):
        what = f"in row {row} of {file}"
        require(content.is_valid, f"image {what} is missing")
        yield what, content.as_py()


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


TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
TEXT_SUFFIXES = TABLE_SUFFIXES[:2]
SEPARATORS = (",", ";", "\t")
LONGEST_HEADER = 1 << 20
QUOTED = re.compile('"[^"]*"')
DEFAULT_CLIENT = "client"


def table_splits(path: Path) -> TableSplits | None:
    """The tables at `path`: the file itself, or `train` and `test` files in a folder; None without any."""
    if path.is_file():
        return TableSplits((path,)) if path.suffix.lower() in TABLE_SUFFIXES else None
    for folder in (path, path / "data"):
        if train := _split(folder, "train"):
            return TableSplits(train, next((test for s in TEST_SPLITS if (test := _split(folder, s))), ()))
    return None


def names_of(path: Path) -> set[str]:
    """What columns a table has, or which arrays an `.npz`; nothing if there is none, or it cannot be read."""
    try:
        if path.suffix.lower() == ".npz":
            return {name.removesuffix(".npy") for name in zipfile.ZipFile(path).namelist()}
        splits = table_splits(path)
        if splits is None:
            return set()
        first = splits.train[0]
        if first.suffix.lower() not in TEXT_SUFFIXES:
            return set(pq.read_schema(first).names)
        return set(pa.csv.open_csv(first, parse_options=pa.csv.ParseOptions(delimiter=_separator(first))).schema.names)
    except (CoterieError, OSError, pa.ArrowException, zipfile.BadZipFile, ValueError):
        return set()


def load_table(
    splits: TableSplits,
    label: str = "label",
    client: str | None = None,
    *,
    size: tuple[int, int] | None = None,
    name: str = "own",
    progress: bool = True,
    classes: Classes | None = None,
    task: str | Task = "",
) -> Dataset:
    """Rows as samples. All columns but `label` and `client` are features and must be numeric, without gaps.

    In Parquet a column of encoded images (a struct with `bytes`, as on the hub) may stand for the features;
    other columns are ignored then. Text labels and clients are numbered in sorted order (labels otherwise if
    `classes` says so). Features are taken as they are: scale them beforehand.
    """
    files = [splits.train[0], *splits.test[:1]]
    tables = [read_table(parts) for parts in (splits.train, splits.test) if parts]
    return data_of(tables, files, label, client, size=size, name=name, progress=progress, classes=classes, task=task)


def data_of(
    tables: Sequence[pa.Table],
    sources: Sequence[Source],
    label: str,
    client: str | None,
    *,
    size: tuple[int, int] | None = None,
    name: str,
    progress: bool,
    classes: Classes | None = None,
    task: str | Task = "",
) -> Dataset:
    """The data set that tables are: the training split, and the test split if there is a second one."""
    names = tables[0].column_names
    owner = client or (DEFAULT_CLIENT if DEFAULT_CLIENT in names and label != DEFAULT_CLIENT else None)
    declared = declared_names(tables[0].schema, label)
    if client is not None and client not in names:
        _require_no_value(tables[0], client, sources[0])
    _require_columns(tables, sources, [column for column in (label, owner) if column is not None])
    inputs, features = feature_arrays(tables, sources, (label, owner), size, name, progress)
    labels = [
        label_column(table, label, source, declared if classes else ())
        for source, table in zip(sources, tables, strict=True)
    ]
    owners = [_keys(table, owner, source) for source, table in zip(sources, tables, strict=True) if owner is not None]
    test: TestSplit | None = None
    if len(tables) > 1:
        test = (inputs[1], labels[1], owners[1]) if owners else (inputs[1], labels[1])
    return from_arrays(
        inputs[0],
        labels[0],
        owners=owners[0] if owners else None,
        test=test,
        classes=classes,
        class_names=declared,
        feature_names=features,
        name=name,
        task=task,
    )


def feature_arrays(
    tables: Sequence[pa.Table],
    sources: Sequence[Source],
    left_out: tuple[str | None, ...],
    size: tuple[int, int] | None,
    name: str,
    progress: bool,
) -> tuple[list[Array], tuple[str, ...]]:
    """Each table's features and their names: its images, which have none, else all columns but those left out."""
    image = image_column(tables[0].schema)
    if image is not None:
        _require_columns(tables, sources, [image])
        pixels = decode_own(lambda: _encoded(tables, sources, image), size, name, progress)
        return (list(np.split(pixels, [tables[0].num_rows])) if len(tables) > 1 else [pixels]), ()
    features = [column for column in tables[0].column_names if column not in left_out]
    require(bool(features), f"{sources[0]} has no feature columns besides '{left_out[0]}'")
    _require_columns(tables, sources, features)
    require(size is None, f"size = {size}: {sources[0]} has no images to resize")
    return [numbers_in(table, features, source) for source, table in zip(sources, tables, strict=True)], tuple(features)


def numbers_in(table: pa.Table, columns: Sequence[str], source: Source) -> Array:
    """Columns of a table as numbers `[N, columns]`, in the order in which they are named."""
    return np.stack([_numbers(table, column, source) for column in columns], axis=1)


def image_column(schema: pa.Schema) -> str | None:
    """The first column of encoded images, if there is one."""
    return next((str(field.name) for field in schema if is_image(field.type)), None)


def holds_images(splits: TableSplits) -> bool:
    """Whether tables hold encoded images; only their description is read."""
    first = splits.train[0]
    if first.suffix.lower() in TEXT_SUFFIXES:
        return False
    with _readable(first):
        return image_column(pq.read_schema(first)) is not None


def label_column(table: pa.Table, column: str, source: Source, names: tuple[str, ...]) -> Array:
    """The labels, integers or text; integers as text if the source declares `names` for them."""
    labels = _keys(table, column, source)
    if not names or labels.dtype.kind not in "iu" or int(labels.min()) < 0 or int(labels.max()) >= len(names):
        return labels
    return np.array(names)[labels]


def _require_no_value(table: pa.Table, client: str, source: Source) -> None:
    """An error if what should name a column is what stands in one: a client in place of the column of clients."""
    for name in table.column_names:
        kind = table.schema.field(name).type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            require(
                not pc.any(pc.equal(table.column(name), client)).as_py(),
                f"client = {client}: must be the column that says whose a sample is, and '{client}' stands in column "
                f"'{name}' of {source}; name that one (all clients of it take part)",
            )


def _require_columns(tables: Sequence[pa.Table], sources: Sequence[Source], columns: Sequence[str]) -> None:
    for source, table in zip(sources, tables, strict=True):
        for column in columns:
            if column not in table.column_names:
                raise unknown(f"column of {source}", column, table.column_names)


def _split(folder: Path, split: str) -> tuple[Path, ...]:
    csv = folder / f"{split}.csv"
    return (csv,) if csv.is_file() else shards(folder, split)


def read_table(files: tuple[Path, ...]) -> pa.Table:
    """One table from its shards."""
    tables = []
    for file in files:
        with _readable(file):
            tables.append(_read_csv(file) if file.suffix.lower() in TEXT_SUFFIXES else pq.read_table(file))
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise CoterieError(f"{files[0].parent}: the shards have different columns") from error
    require(table.num_rows > 0, f"{files[0]} has no rows")
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"{files[0]} has several columns '{', '.join(twice)}'; give each a name of its own")
    return without_index(table, files[0])


INDEX = re.compile(r"|Unnamed: 0(\.\d+)?|__index_level_\d+__")
"""How pandas names the numbers of rows that it writes beside the columns."""


def without_index(table: pa.Table, source: Source) -> pa.Table:
    """The table without a column that pandas wrote of its own accord: the numbers of its rows."""
    names = [name for name in table.column_names if INDEX.fullmatch(name)]
    for name in names:
        log.warning(
            "%s: column '%s' is left out: pandas numbers rows like that (to_csv(..., index=False) does not)",
            source,
            name,
        )
    return table.drop_columns(names)


def _read_csv(file: Path) -> pa.Table:
    """A CSV file, which must be UTF-8: in any other encoding letters, and so classes, would be guesses."""
    with file.open("rb") as opened:
        wide = opened.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    require(not wide, f"{file} is UTF-16; save it as UTF-8")
    table = pa.csv.read_csv(file, parse_options=pa.csv.ParseOptions(delimiter=_separator(file)))
    try:
        kinds = {field.name: field.type for field in table.schema}
    except UnicodeDecodeError:
        raise CoterieError(f"{file}: the names of its columns are not UTF-8; save it as UTF-8") from None
    not_text = [name for name, kind in kinds.items() if pa.types.is_binary(kind)]
    require(not not_text, f"{file}: the column '{not_text[0] if not_text else ''}' is not UTF-8; save it as UTF-8")
    return table


def _separator(file: Path) -> str:
    """What separates the columns of a text table, as its first line tells: a comma, a semicolon or a tab."""
    with file.open(encoding="utf-8", errors="replace", newline="") as opened:
        first = opened.readline(LONGEST_HEADER)
    bare = QUOTED.sub("", first)
    return max(SEPARATORS, key=bare.count)


def _numbers(table: pa.Table, column: str, file: Source) -> npt.NDArray[np.float32]:
    values = table.column(column)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        spoken = "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else str(kind)
        raise CoterieError(f"column '{column}' of {file} is {spoken}, not numeric; encode it as numbers or drop it")
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


def _keys(table: pa.Table, column: str, file: Source) -> Array:
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


def _encoded(tables: Sequence[pa.Table], sources: Sequence[Source], column: str) -> Iterator[tuple[str, bytes]]:
    for source, table in zip(sources, tables, strict=True):
        yield from _contents(source, (chunk.field("bytes") for chunk in table.column(column).chunks))
