"""The cells of a table: each is one run, a method of a column with a seed, in full or with less than the paper's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coterie.compare.workers import PlannedRun
from coterie.data import DATASETS
from coterie.data.dataset import PUBLISHED
from coterie.errors import CoterieError
from coterie.options import option_fields
from coterie.reproduce.paper import PaperColumn, PaperRow, PaperTable
from coterie.runs.experiment import Experiment, experiment_from
from coterie.runs.protocols import OF_PAPERS, find
from coterie.setup.config import PLUGINS, Config, complete
from coterie.setup.identity import HOW
from coterie.setup.settings import Settings, usual_rule

PARTITIONS = Path(__file__).parent / "partitions"
"""The papers' own partitions, where they are known."""
# How cells run unless a table says otherwise: several at a time, each on one core, and always with the same bits. It is
# the same choice for all methods and seeds, and for every machine and day: cells of one table come together over weeks.
PINNED = {"engine": "serial", "threads": 1, "memory": "contiguous", "record_every": 0}
# What partition rules count in samples of a client, and times the share of the data by which that shrinks. The smallest
# client is far below the mean, so that it shrinks later.
COUNTS = {"samples": 1, "train_samples": 1, "test_samples": 1, "least": 5}
# It does not shrink below this, which still can be split: of a client that holds so many, and of the smallest one.
ENOUGH = {"least": 4}
ENOUGH_OF_ALL = 20


@dataclass(frozen=True)
class Amount:
    """How much of a paper's run is done: its rounds (all, if none are given), the share of the data, or other data.

    >>> str(Amount()), str(Amount(50, 0.2)), str(Amount(data="digits"))
    ('in full', '50 rounds, 20 % of the data', 'in the manner of the paper, on digits')
    """

    rounds: int | None = None
    share: float = 1.0
    data: str = ""

    @property
    def full(self) -> bool:
        """Whether nothing is left out."""
        return self == Amount()

    def __str__(self) -> str:
        parts = [f"in the manner of the paper, on {self.data}"] if self.data else []
        parts += [f"{self.rounds} rounds"] if self.rounds is not None else []
        parts += [f"{100 * self.share:g} % of the data"] if self.share != 1.0 else []
        return ", ".join(parts) or "in full"


@dataclass(frozen=True)
class TableCell:
    """A run of a table."""

    table: PaperTable
    row: PaperRow
    column: PaperColumn
    seed: int
    amount: Amount = Amount()

    @cached_property
    def experiment(self) -> Experiment:
        """The run."""
        protocol = self.column.protocol or self.table.protocol
        config, options = find(protocol).start(self.row.method_name, {**PINNED, **self._given()})
        config |= {"seed": self.seed, "protocol": protocol}
        if self.amount.rounds is not None:
            config["rounds"] = self.amount.rounds
        if self.amount.share != 1.0:
            config |= {"share": self.amount.share, **_fewer(config, self.amount.share)}
        try:
            return experiment_from({**config, "method": self.row.method_name, "set": {**options, **self.row.set}})
        except CoterieError as error:
            raise CoterieError(f"{self}: {error}") from None

    def _given(self) -> Config:
        given = {**self.table.settings, **self.column.settings, **self.row.settings}
        if str(given.get("partition", "")).endswith(".npz"):
            path = given.pop("partition")
            # A file counts through all samples of its data set.
            whole = self.amount.share == 1.0 and not self.amount.data
            given |= {"partition": str(PARTITIONS / path)} if whole else self.column.drawn
        return {**given, "data": self.amount.data} if self.amount.data else given

    @cached_property
    def config(self) -> Config:
        """All that decides the result, as plain values: a machine's paths are not among it."""
        config = complete(self.experiment)
        left_out = HOW - {"engine", "threads", "memory"} | {PLUGINS}
        kept = {key: value for key, value in config.items() if key not in left_out}
        partition = str(kept["partition"])
        return {**kept, "partition": Path(partition).name if partition.endswith(".npz") else partition}

    @cached_property
    def digest(self) -> str:
        """The same for two cells if they are the same run, whatever tables they stand in.

        Settings that have their defaults do not enter: otherwise every new one would make all results look stale.
        """
        method, rule = type(self.experiment.method), type(self.experiment.partition)
        # Cells are pinned to an engine, which is always told, and to a memory format, which is usual for them: whatever
        # the defaults become, a cell that ran before is still known. So are lengths and rates that protocols set.
        usual = {**_defaults(Settings), **_defaults(rule), "memory": PINNED["memory"]}
        usual["partition"] = usual_rule(self.config["data"])
        kept = {"method", "engine"}
        settled = {key: value for key, value in self.config.items() if key in kept or value != usual.get(key)}
        options = {**_defaults(method), **OF_PAPERS.get(str(self.config["method"]), {})}
        settled["set"] = {key: value for key, value in self.config["set"].items() if value != options.get(key)}
        return hashlib.sha256(json.dumps(settled, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """Its directory's name."""
        data = str(self.config["data"])
        return f"{self.row.method_name}-{data}-s{self.seed}-{self.digest}"

    def run_in(self, folder: Path) -> PlannedRun:
        """The run, kept in a folder."""
        label = f"{self.table.key} {self.column.key} {self.row.key}"
        return PlannedRun(label, self.experiment, folder / self.name)

    def __str__(self) -> str:
        return f"{self.table.key}, {self.column.key}, {self.row.key}, seed {self.seed}"


def _fewer(config: Config, share: float) -> Config:
    """The samples that a partition counts by client, shrunk along with the data.

    >>> _fewer({"samples": 600, "least": 40, "lr": 0.1}, 0.1), _fewer({"samples": 600, "least": 40}, 0.02)
    ({'samples': 60, 'least': 20}, {'samples': 20, 'least': 4})
    """
    return {
        option: min(config[option], max(round(times * share * config[option]), ENOUGH.get(option, ENOUGH_OF_ALL)))
        for option, times in COUNTS.items()
        if option in config
    }


def _defaults(cls: type) -> dict[str, object]:
    return {name: item.default for name, item in option_fields(cls).items()}


def cells_of(
    table: PaperTable, columns: Sequence[str], rows: Sequence[str], seeds: Sequence[int], amount: Amount
) -> list[TableCell]:
    """The cells of some (none named: all) columns and rows, the most informative first, each run once.

    That is: the first seed of everything before the second of anything, and in it the proposed method and what the
    claims are about before the others.
    """
    chosen_columns = [table.column(key) for key in columns] or list(table.columns)
    chosen_rows = [table.row(key) for key in rows] or list(table.rows)
    about = {key: place for place, key in enumerate(_by_importance(table))}
    chosen_rows.sort(key=lambda row: about[row.key])
    cells: dict[str, TableCell] = {}
    for seed in seeds:
        for column in chosen_columns:
            for row in chosen_rows:
                if row.method_name and _can_run(table, row, column, amount.data or data_of(table, row, column)):
                    cell = TableCell(table, row, column, seed, amount)
                    cells.setdefault(cell.digest, cell)
    return list(cells.values())


def _can_run(table: PaperTable, row: PaperRow, column: PaperColumn, data: str) -> bool:
    """Whether a cell's data set is here, on the scale that it asks for: not every one has been published on another."""
    scale = {**table.settings, **column.settings, **row.settings}.get("scale")
    return (not scale or data in PUBLISHED) and missing(data) is None


def _by_importance(table: PaperTable) -> list[str]:
    first = [table.proposed] if table.proposed else []
    first += [key for claim in table.claims for key in (claim.better, claim.worse)]
    return list(dict.fromkeys([*first, *(row.key for row in table.rows)]))


def data_of(table: PaperTable, row: PaperRow, column: PaperColumn) -> str:
    """The data set of a cell."""
    given = {**table.settings, **column.settings, **row.settings}
    return str(given.get("data", find(column.protocol or table.protocol).settings["data"]))


def missing(data: str) -> str | None:
    """How to get a data set that is not on this machine."""
    return DATASETS.find(data).missing()


def missing_data(table: PaperTable, columns: Sequence[str] = ()) -> dict[str, str]:
    """The data sets of a table's columns that are not on this machine, and how to get them."""
    chosen = [table.column(key) for key in columns] or list(table.columns)
    names = {data_of(table, row, column) for column in chosen for row in table.rows if row.method_name}
    return {name: why for name in sorted(names) if (why := missing(name)) is not None}
