"""The picture of who learned from whom in one round of a run. It needs the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.exchange import Applied
from coterie.display import Figure, required_format
from coterie.errors import CoterieError, require
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.partition import PARTITIONS
from coterie.partition.partition import is_partition_file
from coterie.registry import short_name
from coterie.report.charts import drawn, require_plots
from coterie.report.learning import (
    Floats,
    label_order,
    learn_differently,
    learning_matrix,
    most_personal,
)
from coterie.report.onerun import ABSENT, PARTS
from coterie.rounds.listeners import RoundReport
from coterie.runs.about import described_clients, described_data
from coterie.runs.reader import Record, record_of
from coterie.runs.record import ClientAbout, DataAbout
from coterie.setup.config import Config, complete
from coterie.setup.prepared import Prepared


@dataclass(frozen=True, eq=False)
class Learning:
    """Who learned from whom in one round, with what is needed to read it.

    `matrix [K, K]` as `learning_matrix` gives it, `counts [K, C]` the samples of each class at every client.
    """

    matrix: Floats
    counts: npt.NDArray[Any]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    round: int
    title: str
    about: str

    @classmethod
    def of_run(cls, run: str | Path | Record, round: int | None = None) -> Learning:
        """From a run that is kept: a recorded round; by default the last in which clients chose whom to learn from."""
        directory = run if isinstance(run, Record) else record_of(Path(run))
        config = directory.config()
        chosen = _recorded_round(directory, config, round)
        about = directory.about()
        return cls._of(directory.mixes(chosen), chosen, config, about.participants, about.data)

    @classmethod
    def of_round(cls, report: RoundReport, prepared: Prepared) -> Learning:
        """From what a listener gets: a report, and `start.prepared`; nothing need be on disk."""
        config = complete(prepared.experiment)
        clients = [client for client in described_clients(prepared) if client.takes_part]
        return cls._of(report.mixes, report.round, config, clients, described_data(prepared))

    @classmethod
    def _of(
        cls, mixes: Sequence[Applied], round: int, config: Config, clients: Sequence[ClientAbout], data: DataAbout
    ) -> Learning:
        mix = most_personal(mixes)
        method = METHODS[config["method"]].__name__ if config["method"] in METHODS else short_name(config["method"])
        what = f"mix of {mix.group}, into {mix.target}" + (", some elements only" if mix.gated else "")
        return cls(
            matrix=learning_matrix(mixes, len(clients)),
            counts=np.array([client.classes for client in clients]),
            names=tuple(client.name for client in clients),
            classes=tuple(data.class_names),
            round=round,
            title=f"{method}: who learns from whom in round {round} of {config['rounds']}",
            about=f"{what}\n{data.name}, {len(clients)} clients, {_spoken_partition(config)}",
        )


def picture(source: str | Path | Learning, path: str | Path, round: int | None = None) -> Path:
    """Draw who learned from whom in a round of a run directory (or a `Learning`) into a .png, .pdf or .svg file.

    Rows learn, columns are learned from. Clients with the same classes stand next to each other, so a method
    that finds them draws dark blocks along the diagonal. `round` is as for `Learning.of_run`.
    """
    target = required_format(Path(path))
    require_plots()
    return draw(source if isinstance(source, Learning) else Learning.of_run(source, round)).save(target)


def plot_mixing(kept: Record, round: int | None) -> Figure:
    """Who learned from whom in a round."""
    require_plots()
    return draw(Learning.of_run(kept, round))


def draw(learning: Learning) -> Figure:
    """The picture: the matrix beside the classes that clients hold, in an order that shows groups."""
    parts = np.where(np.isnan(learning.matrix), ABSENT, np.nan_to_num(learning.matrix) * PARTS)
    content = {
        "clients": learning.names,
        "classes": learning.classes,
        "counts": learning.counts.tolist(),
        "order": label_order(learning.counts),
        "learning": [{"rounds": [learning.round], "weights": [parts.reshape(-1).tolist()]}],
    }
    return drawn(content, ["mixing"], [learning.title, *learning.about.splitlines()])["mixing"]


def _recorded_round(directory: Record, config: Config, round: int | None) -> int:
    recorded = directory.recorded_rounds()
    if not recorded:
        reason = "record_every = 0" if config["record_every"] == 0 else "nobody has learned from others"
        raise CoterieError(f"run = {directory.path}: there is nothing to draw ({reason})")
    if round is None:
        chose = (one for one in reversed(recorded) if learn_differently(directory.mixes(one)))
        return next(chose, recorded[-1])
    require(
        round in recorded,
        f"round = {round}: is not among the rounds in which '{directory.path}' recorded who learned from whom "
        f"({_spoken_rounds(recorded)})",
    )
    return round


def _spoken_rounds(rounds: Sequence[int]) -> str:
    """The rounds in short.

    >>> _spoken_rounds([1, 2, 3, 4, 5, 7, 9, 11]), _spoken_rounds([2, 4])
    ('1, 2, 3 … 11', '2, 4')
    """
    if len(rounds) <= 4:
        return ", ".join(map(str, rounds))
    return f"{', '.join(map(str, rounds[:3]))} … {rounds[-1]}"


def _spoken_partition(config: Config) -> str:
    rule = str(config["partition"])
    known = option_fields(PARTITIONS[rule]) if rule in PARTITIONS else {}
    options = ", ".join(f"{name}={config[name]}" for name in known if name != "clients" and name in config)
    if is_partition_file(rule):
        return Path(rule).name
    seed = config.get("partition_seed", config["seed"])
    return rule + (f" ({options})" if options else "") + f", seed {seed}"
