"""One entry for all data: a known name, or a path to your own."""

from __future__ import annotations

from pathlib import Path

from coterie.core.task import Task
from coterie.data.dataset import DEFAULT_LABEL, Dataset
from coterie.data.registry import DATASETS
from coterie.errors import require
from coterie.files import expanded
from coterie.registry import is_reference
from coterie.typed import typed


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
    from coterie.data.own import load_own

    return load_own(name, label, client, progress=progress, task=task)


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
    return "/" in name or "\\" in name or bool(Path(name).suffix) or Path(name).exists()


def _usual(name: str) -> str:
    """A name as the registry spells it."""
    return name if name in DATASETS or is_reference(name) else name.lower().replace("-", "_")
