"""Several methods on the same partitions, over several seeds: the table as data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.compare.grid import USUAL, Column, Grid, chosen_columns
from coterie.compare.joint_runs import (
    SEVERAL,
    Collector,
    CommonGround,
    Heard,
    OneEngine,
    checked,
    perform_all,
    refuse_strangers,
    require_jobs,
    require_names,
    whole_hash,
)
from coterie.compare.one_run import Summary, require_same_run
from coterie.compare.remarks import differing, settings_note
from coterie.compare.workers import PlannedRun, Watcher
from coterie.core.numbers import Scale
from coterie.display import Displayed
from coterie.errors import CoterieError, require
from coterie.files import UNFIT, require_format, write_whole
from coterie.processes import leave_if_imported_by_a_worker
from coterie.registry import later
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.runs.history import plain_number
from coterie.runs.store import CONFIG
from coterie.setup.config import Config, complete
from coterie.typed import fitting, typed

if TYPE_CHECKING:
    from pandas import DataFrame

    from coterie.display import Figure

COMPARISON = "comparison.json"
FORMAT = 1
MOST_NAMED = 6
"""Methods that a comparison names when it is printed."""
TUNING = "tuning"
"""The folder of a comparison that holds the runs by which its settings were chosen."""

plot_comparison: Callable[..., Figure] = later("coterie.report.figures:plot_comparison")


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The summaries of all runs, `[method][seed]`, and what they amount to; `chosen` names columns (none: the usual).

    `Grid` says who wins a column. `folder` is where the runs are kept, if they are; `heard` is what was heard of those
    that are not.

    >>> few = {"rounds": 1, "epochs": 1, "threads": 1}
    >>> pair = {"alone": Experiment("local", **few), "together": Experiment("fedavg", **few)}
    >>> comparison = compare(pair, seeds=[0], jobs=1)
    >>> comparison
    Comparison(alone, together; seed 0)
    >>> comparison.to_frame()["method"].tolist()
    ['alone', 'together']
    """

    seeds: tuple[int, ...]
    summaries: Mapping[str, Sequence[Summary]]
    chosen: tuple[str, ...] = ()
    folder: Path | None = field(default=None, compare=False)
    heard: Heard = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        names = self.methods if len(self.methods) <= MOST_NAMED else [*self.methods[:MOST_NAMED], "…"]
        seeds = ", ".join(map(str, self.seeds))
        return f"Comparison({', '.join(names)}; {'seeds' if len(self.seeds) > 1 else 'seed'} {seeds})"

    @property
    def methods(self) -> list[str]:
        """The methods, in the order in which they were given."""
        return list(self.summaries)

    @cached_property
    def grid(self) -> Grid:
        """The table's numbers."""
        rows = {name: dict(zip(self.seeds, runs, strict=True)) for name, runs in self.summaries.items()}
        return Grid(rows, self.chosen)

    @property
    def scale(self) -> Scale:
        """That of the metric that the runs are judged by, the same for all of them."""
        return self.grid.scale

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of the table, by key."""
        return self.grid.columns

    def values(self, method: str, column: str) -> list[float]:
        """A column's value of each seed."""
        return list(self.grid.number(method, column).by_seed.values())

    def mean(self, method: str, column: str) -> float:
        """The mean over seeds."""
        return self.grid.number(method, column).mean

    def std(self, method: str, column: str) -> float | None:
        """The sample standard deviation over seeds; none with one seed."""
        return self.grid.number(method, column).std

    def winner(self, column: str) -> str | None:
        """The method whose lead over all others is clear, if there is one."""
        return self.grid.winner(column)

    def note(self) -> str:
        """What a mark in the table means, or why there is none."""
        return self.grid.note()

    def to_frame(self) -> DataFrame:
        """The table as a pandas frame: a row for each method and seed, a column for each of the table's, by key."""
        from pandas import DataFrame

        return DataFrame(
            {
                "method": method,
                "seed": seed,
                **{key: column.read(summary) for key, column in self.columns.items()},
            }
            for method, runs in self.grid.rows.items()
            for seed, summary in runs.items()
        )

    @typed
    def plot(self, what: str = "methods") -> Figure:
        """A figure as reports have it: the `methods`, by their curves.

        Of runs that are kept there are also `against-bytes`, `against-seconds` and `gains`, which shows each client
        against training alone if `local` is among the methods. It needs the extra `plots`, and no display.
        """
        return plot_comparison(self, what)

    @property
    def _configs(self) -> dict[str, Config]:
        return {method: runs[0].get("config", {}) for method, runs in self.summaries.items()}

    def differing(self) -> dict[str, dict[str, Any]]:
        """The settings that are not the same for all methods: `[setting][method]`; none where one was left out."""
        return differing(self._configs)

    def settings_note(self) -> str:
        """Which methods ran with other settings than the others, in words; empty if none did."""
        return settings_note(self._configs)

    def partitions(self) -> dict[int, str]:
        """The hash of the partition of each seed, which all methods share before they set validation samples aside."""
        runs = next(iter(self.summaries.values()))
        return {seed: whole_hash(summary) for seed, summary in zip(self.seeds, runs, strict=True)}

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the table, the winners, and every run's summary."""
        return {
            "format": FORMAT,
            "methods": self.methods,
            "seeds": list(self.seeds),
            "partitions": {str(seed): digest for seed, digest in self.partitions().items()},
            "columns": {
                column.key: {"name": column.name, "title": column.title, "unit": column.unit}
                for column in self.columns.values()
            },
            "table": {
                method: {
                    column: {
                        "mean": _plain(self.mean(method, column)),
                        "std": _plain(self.std(method, column)),
                        "values": [_plain(value) for value in self.values(method, column)],
                    }
                    for column in self.columns
                }
                for method in self.methods
            },
            "winners": {column: self.winner(column) for column in self.columns},
            "note": self.note(),
            "differing_settings": self.differing(),
            "runs": {method: list(runs) for method, runs in self.summaries.items()},
        }

    @classmethod
    @typed
    def load(cls, folder: str | Path) -> Comparison:
        """Read back what `compare` wrote."""
        folder = Path(folder)
        path = folder / COMPARISON
        require(path.is_file(), f"'{path}': there is no such file")
        way_out = "delete it and compare again: runs that are finished are kept"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            require_format(f"comparison = {path}", content.get("format"), FORMAT, way_out)
        except UNFIT as error:
            if isinstance(error, CoterieError):
                raise
            raise CoterieError(f"comparison = {path}: is damaged; {way_out}") from None
        try:
            names = tuple(about["name"] for about in content["columns"].values())
            usual = list(content["columns"]) == list(chosen_columns({}, USUAL))
            seeds = tuple(fitting("seeds", content["seeds"], Sequence[int]))
            comparison = cls(seeds, dict(content["runs"]), () if usual else names, folder)
            comparison.as_dict()  # what cannot be shown is not whole
        except UNFIT:
            raise CoterieError(f"comparison = {path}: is damaged; {way_out}") from None
        return comparison


def _plain(value: float | None) -> float | None:
    return None if value is None else plain_number(value)


@typed
def compare(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    jobs: int = 0,
    columns: Sequence[str] = (),
    listeners: Sequence[str] = (),
    cluster: str = "",
) -> Comparison:
    """Run each experiment with each seed; all share the partition of a seed, which is checked.

    Only what they set aside of their training samples for validation may differ. `columns` are those of the table, such
    as `"stored.weighted.last"` (none: the usual ones).

    With `out`, every run is kept in `out/<name>-s<seed>`, and the comparison in `out/comparison.json`. The same again
    carries on: what is finished there is not run again. So a comparison that was interrupted is completed, and one that
    is finished can be given further experiments and seeds; those that it has must come with the settings they had. What
    is not the same otherwise (data, model, code) is set aside and run anew, and a warning says what differs. The
    `watcher` is told of every run and round. `listeners` are names, such as `"tensorboard"`: every run has its own.

    `jobs` runs take place at the same time, the longest first, each in a worker process with one PyTorch thread
    (unless the experiment says otherwise): the results are those of `threads=1`, bit for bit. 0 chooses: as many as
    the cores hold if all experiments can be described by a configuration, the engine is `serial` or `stacked`, and
    the runs are long enough to pay for the workers' start; otherwise 1, one run after the other in this process.
    Engine `auto` is chosen once, by the first experiment, for all methods and seeds.
    A script must guard what it does with `if __name__ == "__main__":`, or there is one job, with a warning.

    With `cluster`, the address of a Ray cluster, runs take place on its machines, as many as find room unless `jobs`
    says otherwise; their files come back to `out`. A run whose machine is lost is carried on by another.

    >>> from coterie.partition import Iid
    >>> few = {"partition": Iid(clients=3), "rounds": 1, "epochs": 1}
    >>> pair = {"plain": Experiment("fedavg", **few), "slow": Experiment("fedavg", lr=0.001, **few)}
    >>> compare(pair, seeds=[0, 1], jobs=1).to_frame()["method"].tolist()
    ['plain', 'plain', 'slow', 'slow']
    """
    leave_if_imported_by_a_worker()
    require(bool(experiments), "methods: name at least one")
    require(bool(seeds), "seeds: name at least one")
    require(len(set(seeds)) == len(seeds), f"seeds = {' '.join(map(str, seeds))}: one is given twice")
    require_jobs(experiments, jobs, cluster)
    names, folder = require_names(listeners), None if out is None else Path(out)
    if folder is not None:
        experiments, seeds = _with_kept(folder, experiments, seeds)
    experiments = OneEngine(seeds, SEVERAL if cluster else jobs, folder).settle(experiments)
    beside_others = require_jobs(experiments, jobs, cluster)
    runs = [
        PlannedRun(
            name,
            replace(experiment, seed=seed),
            None if folder is None else folder / run_folder(name, seed),
            listeners=names,
        )
        for seed in seeds
        for name, experiment in experiments.items()
    ]
    if folder is not None:
        _refuse_others(folder, runs)
    if columns:
        task = next(iter(experiments.values())).prepare().problem_base.task
        chosen_columns({"task": task.described()}, columns)  # a misspelt one shows before the first run
    ground = CommonGround()
    seconds = checked(experiments, seeds, jobs != 1 and beside_others, ground)
    collector = Collector(ground, watcher)
    perform_all(runs, seconds, jobs, collector, cluster)
    by_run = collector.summaries
    summaries = {name: [by_run[name, seed] for seed in seeds] for name in experiments}
    comparison = Comparison(tuple(seeds), summaries, tuple(columns), folder, collector.heard)
    if folder is not None:
        write_whole(folder / COMPARISON, (json.dumps(comparison.as_dict(), indent=2) + "\n").encode())
    return comparison


def run_folder(name: str, seed: int) -> str:
    """What the directory of a run is called: file systems do not take every character of a name.

    >>> run_folder("fedper", 3), run_folder("pfedcs:beta=10,lr=0.01", 0)
    ('fedper-s3', 'pfedcs-beta=10,lr=0.01-s0')
    """
    plain = re.sub(r"[^\w.,=+ -]", "-", name)
    return f"{plain}-s{seed}"


def _with_kept(
    folder: Path, experiments: Mapping[str, Experiment], seeds: Sequence[int]
) -> tuple[dict[str, Experiment], tuple[int, ...]]:
    """The experiments and seeds of a finished comparison that is kept in a folder, then those that are new."""
    if not (folder / COMPARISON).is_file():
        return dict(experiments), tuple(seeds)
    kept = Comparison.load(folder)
    others = [name for name in kept.methods if name not in experiments]
    require(
        not others,
        f"out = {folder}: holds a comparison that has {', '.join(others)} too; name them as well, or another directory",
    )
    names = dict.fromkeys([*kept.methods, *experiments])
    return {name: experiments[name] for name in names}, tuple(dict.fromkeys([*kept.seeds, *seeds]))


def _refuse_others(out: Path, runs: Sequence[PlannedRun]) -> None:
    """An error if a folder holds anything but runs of the comparison that is to be kept there."""
    expected = {run.directory.name: run for run in runs if run.directory is not None}
    require(len(expected) == len(runs), f"out = {out}: two names are the same as names of directories; rename one")
    ours = {*expected, COMPARISON, TUNING}
    present = refuse_strangers(out, lambda name: name in ours, "a comparison of these methods")
    for name in sorted(present & expected.keys()):
        if (out / name / CONFIG).is_file():
            require_same_run(out / name, RunDirectory.open(out / name).config(), complete(expected[name].experiment))
