"""Own data from a pandas table in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.core.task import Task
from coterie.data.dataset import Dataset
from coterie.data.loading import DEFAULT_LABEL
from coterie.errors import CoterieError, require
from coterie.typed import shown, typed

if TYPE_CHECKING:
    import pyarrow as pa

WHAT = "the frame"


@typed
def from_frame(
    frame: Any,
    label: str = DEFAULT_LABEL,
    client: str | None = None,
    *,
    test: Any = None,
    name: str = "own",
    task: str | Task = "",
) -> Dataset:
    """A data set from a pandas table: rows are samples, all columns but `label` and `client` are numeric features.

    `client=None` uses a column `client` if there is one. Labels and clients may be text. `test` is the table of an
    official test split. The index plays no part.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [1.0, 2.0], "site": ["A", "B"], "outcome": ["well", "sick"]})
    >>> data = from_frame(frame, label="outcome", client="site")
    >>> data, data.feature_names
    (Dataset('own', 2 samples of shape (1,), 2 classes, 2 owners), ('age',))
    """
    from coterie.data.tables import data_of  # slow to import

    frames = [frame] if test is None else [frame, test]
    sources = [WHAT, "the test frame"][: len(frames)]
    tables = [table_of(one, source) for one, source in zip(frames, sources, strict=True)]
    return data_of(tables, sources, label, client, name=name, progress=False, task=task)


def table_of(frame: Any, source: str = WHAT) -> pa.Table:
    """A pandas table as it would be read from a file."""
    import pandas as pd
    import pyarrow as pa

    from coterie.data.tables import without_index

    require(
        isinstance(frame, pd.DataFrame),
        f"{source}: {shown(frame)} is no pandas table (polars and Arrow have .to_pandas(); for arrays: ct.from_arrays)",
    )
    require(len(frame) > 0, f"{source} has no rows")
    names = [str(column) for column in frame.columns]
    twice = sorted({column for column in names if names.count(column) > 1})
    require(not twice, f"{source} has several columns '{', '.join(twice)}'; give each a name of its own")
    try:
        table = pa.Table.from_pandas(frame.set_axis(names, axis=1), preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise CoterieError(f"{source} cannot be read ({' '.join(str(error).split())})") from None
    return without_index(table, source)
