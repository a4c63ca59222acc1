"""One entry for all data: a known name, or a path to your own."""

from __future__ import annotations

from pathlib import Path

from coterie.core.task import Classification, Task, as_task
from coterie.data.arrays import Classes, load_npz
from coterie.data.catalogue import DATASETS
from coterie.data.dataset import Dataset
from coterie.errors import CoterieError, require
from coterie.files import expanded
from coterie.registry import is_reference
from coterie.typed import typed

DEFAULT_LABEL = "label"


@typed
def load(
    name: str | Path,
    root: str | Path | None = None,
    progress: bool = True,
    *,
    label: str = DEFAULT_LABEL,
    client: str | None = None,
    task: str | Task = "",
) -> Dataset:
    """Load a data set by name (see `DATASETS`) or by path (see `load_own`; only it has `label`, `client`).

    `task` is what the labels of your own data are of, `classification` unless told otherwise. A known data set has
    one of its own, to which a `Task` may bring another loss and further metrics.

    A known name always means the known data set; `./file.py:name` is a function that returns one. Anything else that
    holds a path separator, has a suffix or exists is a path; `./mnist` means a folder of that name.

    >>> load("digits").train_size
    1797
    """
    name, root = str(name), None if root is None else Path(root)
    if not _is_path(name):
        known = DATASETS.find(_usual(name) if _usual(name) in DATASETS else name)
        require(label == DEFAULT_LABEL, f"label = {label}: is for your own tables, not for '{known.name}'")
        require(client is None, f"client = {client}: is for your own data, not for '{known.name}'")
        return known.load(root, progress).with_task(task)
    return load_own(name, label, client, progress=progress, task=task)


def names_clients(data: str | Dataset, client: str | None = None) -> bool:
    """Whether data, by name, by path or as they are, say which client each sample is of; `client` as for `load`.

    Of files only what describes them is read. Of those that cannot be read nothing is said: whoever loads them says it.

    >>> names_clients("natural/exam"), names_clients("mnist"), names_clients("digits"), names_clients("nowhere.csv")
    (True, False, False, False)
    """
    if isinstance(data, Dataset):
        return data.names_clients
    if not _is_path(data):
        return DATASETS.find(_usual(data) if _usual(data) in DATASETS else data).names_clients
    from coterie.data.tables import DEFAULT_CLIENT, names_of  # slow to import

    if client is not None:
        return True
    found = names_of(expanded(data))
    return DEFAULT_CLIENT in found or {f"{DEFAULT_CLIENT}_train", f"{DEFAULT_CLIENT}_test"} <= found


def placed(name: str) -> str:
    """A name of data that holds wherever one is: the path of what is a file or a folder here is made absolute.

    >>> placed("digits"), placed("nowhere.csv"), placed(".") == str(Path.cwd())
    ('digits', 'nowhere.csv', True)
    """
    path = expanded(name)
    return str(path.resolve()) if _is_path(name) and path.exists() else name


def _is_path(name: str) -> bool:
    if _usual(name) in DATASETS or is_reference(name):
        return False
    if name.startswith("natural/") and not Path(name).exists():
        return False
    return "/" in name or "\\" in name or bool(Path(name).suffix) or Path(name).exists()


def _usual(name: str) -> str:
    """A name as the registry spells it."""
    return name if name in DATASETS or is_reference(name) else name.lower().replace("-", "_")


@typed
def load_own(
    path: str | Path,
    label: str = DEFAULT_LABEL,
    client: str | None = None,
    *,
    size: tuple[int, int] | None = None,
    progress: bool = True,
    classes: Classes | None = None,
    task: str | Task = "",
) -> Dataset:
    """Load a table (`.csv`, `.parquet`), arrays (`.npz`) or a folder.

    - a table: `label` and `client` name its columns; `client=None` uses a column `client` if there is one;
    - `.npz`: keys `x`, `y` or `x_train`, `y_train`, `x_test`, `y_test`, and optionally the clients;
    - a folder: one folder of images per class, or `train/` and `test/` with such folders, or the tables
      `train.csv` and `test.csv` (or `.parquet`, in shards as on the hub too).

    `size` (height, width) is what images are resized to; without it they keep their size, and images of
    differing sizes are brought to the size of the first. `classes` say how labels are numbered where that is settled
    already; the data may lack some of them then. With `task="regression"` labels are numbers.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> table = Path(folder.name, "visits.csv")
    >>> _ = table.write_text("age,pressure,label,client\\n1,2,well,A\\n2,1,sick,B\\n", encoding="utf-8")
    >>> load_own(table)
    Dataset('visits', 2 samples of shape (2,), 2 classes, 2 owners)
    >>> folder.cleanup()
    """
    from coterie.data.tables import TABLE_SUFFIXES, load_table, table_splits  # slow to import

    path = expanded(path)
    name = path.stem or path.resolve().stem
    require(path.exists(), f"data '{path}': there is no such file or folder")
    splits = table_splits(path)
    if splits is not None:
        return load_table(splits, label, client, size=size, name=name, progress=progress, classes=classes, task=task)
    require(label == DEFAULT_LABEL, f"label = {label}: names a column of a table, but {path} is none")
    if path.suffix.lower() == ".npz":
        require(size is None, f"size = {size}: arrays in {path} are not resized")
        return load_npz(path, client, name=name, classes=classes, task=task)
    if path.is_dir():
        learned = as_task(task)
        require(
            isinstance(learned, Classification),
            f"task = {learned.name}: {path} is a folder of images, whose labels are classes",
        )
        require(client is None, f"client = {client}: names a column or key, but {path} is a folder of images")
        from coterie.data.images import load_folder  # slow to import

        return load_folder(path, size=size, name=name, progress=progress, classes=classes, task=task)
    allowed = ", ".join((*TABLE_SUFFIXES, ".npz"))
    raise CoterieError(f"data '{path}': unknown kind of file '{path.suffix}' (allowed: {allowed}, or a folder)")
