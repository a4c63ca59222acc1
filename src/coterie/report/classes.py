"""Which classes the clients of a run hold, as the run wrote down: its data set is not needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError, require
from coterie.report.reading import ReportedRun


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """The training samples of each class at every client that takes part: `counts [K, C]`, and the classes' names."""

    counts: npt.NDArray[np.int64]
    names: tuple[str, ...]


def class_counts(run: ReportedRun) -> ClassCounts:
    """The class counts of a run; an error says why there are none."""
    about = run.record.about()
    data, names = about.data.name, tuple(about.data.class_names)
    told = [client.classes for client in about.participants]
    unknown = any(count is None for own in told for count in own)
    try:
        counts = np.array([] if unknown else told, np.int64)
    except ValueError:  # not as many classes at each
        raise CoterieError("what the run says of its classes does not fit its clients") from None
    require(not unknown, "a federation's server is not told which classes its sites have, unless the method needs that")
    require(bool(names), f"data '{data}' has no classes")
    fits = counts.shape == (len(run.names), len(names)) and not (counts < 0).any()
    require(fits, "what the run says of its classes does not fit its clients")
    return ClassCounts(counts, names)
