"""How clients did on the samples that they trained on, as the lines of a run's rounds tell it.

Only the cohort trains, so a line has a number for each of its clients. Lines of older runs have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from coterie.runs.history import TRAINING, Line, numbers
from coterie.rounds.evaluate import Floats, mean_over_clients

if TYPE_CHECKING:
    from pandas import DataFrame


def training_mean(line: Line, metric: str) -> float:
    """A metric's mean over the cohort of a round; NaN where it was not recorded.

    >>> training_mean({"cohort": [3, 1], "training": {"loss": [0.5, None]}}, "loss")
    0.5
    """
    return mean_over_clients(numbers(line.get(TRAINING, {}).get(metric, [])))


def last_training(lines: Sequence[Line], metric: str, clients: int) -> Floats:
    """A metric of every client in the last round in which it trained: `[K]`; NaN for one that never did."""
    found = np.full(clients, np.nan)
    for line in lines:
        if TRAINING in line:
            found[line["cohort"]] = numbers(line[TRAINING][metric])
    return found


def training_frame(lines: Sequence[Line], names: Sequence[str], metrics: Sequence[str]) -> DataFrame:
    """Every metric of every round and client that trained in it, as a pandas frame."""
    from pandas import DataFrame

    rows = (
        (line["round"], names[client], *(line[TRAINING][metric][place] for metric in metrics))
        for line in lines
        if TRAINING in line
        for place, client in enumerate(line["cohort"])
    )
    return DataFrame(rows, columns=("round", "client", *metrics))
