"""Your own data: one entry that chooses by the kind of file."""

from __future__ import annotations

from pathlib import Path

from coterie.core.task import Classification, Task, as_task
from coterie.data.arrays import load_npz
from coterie.data.dataset import DEFAULT_LABEL, Dataset
from coterie.data.folder import load_folder
from coterie.data.labels import Classes
from coterie.data.tables import TABLE_SUFFIXES, load_table, table_splits
from coterie.errors import CoterieError, require
from coterie.files import expanded
from coterie.typed import typed


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
        return load_folder(path, size=size, name=name, progress=progress, classes=classes, task=task)
    allowed = ", ".join((*TABLE_SUFFIXES, ".npz"))
    raise CoterieError(f"data '{path}': unknown kind of file '{path.suffix}' (allowed: {allowed}, or a folder)")
