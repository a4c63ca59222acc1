"""Several methods on the same partitions, over several seeds: the table as data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from coterie.errors import CoterieError, require
from coterie.experiment import Experiment
from coterie.record import refuse_existing, write_whole
from coterie.run import OnRound

Summary = dict[str, Any]
OnStart = Callable[[str, int, Path | None], None]
COMPARISON = "comparison.json"
RULE = "a winner's mean lies above the runner-up's by more than the larger of their standard deviations over the seeds"


@dataclass(frozen=True)
class Column:
    """A column of the table: its title says which moment, which mean and which round."""

    key: str
    title: str
    unit: Literal["share", "bytes", "seconds"]
    read: Callable[[Summary], float]


def _accuracy(moment: str, mean: str, at: str) -> Column:
    def read(summary: Summary) -> float:
        return float(summary["accuracy"][moment][mean][at])

    return Column(f"{moment}_{mean}_{at}", f"{moment} {mean} {at}", "share", read)


COLUMNS: dict[str, Column] = {
    column.key: column
    for column in (
        _accuracy("received", "mean", "best"),
        _accuracy("received", "mean", "last"),
        _accuracy("trained", "mean", "best"),
        _accuracy("trained", "mean", "last"),
        Column(
            "received_worst_decile_last",
            "received worst decile last",
            "share",
            lambda summary: float(summary["worst_decile"]["received"]),
        ),
        Column(
            "bytes_per_client_round",
            "bytes per client round",
            "bytes",
            lambda summary: float(sum(summary["bytes"]["per_client_round"].values())),
        ),
        Column(
            "seconds_per_round",
            "seconds per round",
            "seconds",
            lambda summary: float(sum(summary["seconds"]["per_round"].values())),
        ),
    )
}
"""The columns of the table, by key. Bytes are those up and down together."""


@dataclass(frozen=True)
class Comparison:
    """The summaries of all runs, `[method][seed]`, and what they amount to.

    A *winner* of an accuracy column is the method with the highest mean over seeds, if that mean lies above
    the runner-up's by more than the larger of the two methods' standard deviations over the seeds (sample
    standard deviation, n − 1). Otherwise the seeds' spread could explain the difference and nobody wins;
    with one seed there is no spread, and with one method no runner-up, so nobody wins either.
    """

    seeds: tuple[int, ...]
    summaries: Mapping[str, Sequence[Summary]]

    @property
    def methods(self) -> list[str]:
        """The methods, in the order in which they were given."""
        return list(self.summaries)

    def values(self, method: str, column: str) -> list[float]:
        """A column's value of each seed."""
        return [COLUMNS[column].read(summary) for summary in self.summaries[method]]

    def mean(self, method: str, column: str) -> float:
        """The mean over seeds."""
        return fmean(self.values(method, column))

    def std(self, method: str, column: str) -> float | None:
        """The sample standard deviation over seeds; none with one seed."""
        return stdev(self.values(method, column)) if len(self.seeds) > 1 else None

    def winner(self, column: str) -> str | None:
        """The method that is better than all others by more than the seeds' spread, if there is one."""
        if COLUMNS[column].unit != "share" or len(self.seeds) < 2 or len(self.summaries) < 2:
            return None
        first, second = sorted(self.methods, key=lambda method: self.mean(method, column), reverse=True)[:2]
        spread = max(self.std(method, column) or 0.0 for method in (first, second))
        return first if self.mean(first, column) - self.mean(second, column) > spread else None

    def note(self) -> str:
        """What a mark in the table means, or why there is none."""
        if len(self.summaries) < 2:
            return "No winner is marked: there is only one method."
        if len(self.seeds) < 2:
            return "No winner is marked: one seed says nothing about the spread; use several (--seeds 0 1 2)."
        if any(self.winner(column) for column in COLUMNS):
            return f"* {RULE}."
        return f"No winner is marked: {RULE}; here none does."

    def partitions(self) -> dict[int, str]:
        """The hash of the partition of each seed, which all methods share."""
        runs = next(iter(self.summaries.values()))
        return {seed: summary["partition"]["hash"] for seed, summary in zip(self.seeds, runs, strict=True)}

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the table, the winners, and every run's summary."""
        return {
            "methods": self.methods,
            "seeds": list(self.seeds),
            "partitions": {str(seed): digest for seed, digest in self.partitions().items()},
            "columns": {column.key: {"title": column.title, "unit": column.unit} for column in COLUMNS.values()},
            "table": {
                method: {
                    column: {
                        "mean": self.mean(method, column),
                        "std": self.std(method, column),
                        "values": self.values(method, column),
                    }
                    for column in COLUMNS
                }
                for method in self.methods
            },
            "winners": {column: self.winner(column) for column in COLUMNS},
            "note": self.note(),
            "runs": {method: list(runs) for method, runs in self.summaries.items()},
        }

    @classmethod
    def load(cls, folder: Path) -> Comparison:
        """Read back what `compare` wrote."""
        path = folder / COMPARISON
        require(path.is_file(), f"'{path}': there is no such file")
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(tuple(content["seeds"]), content["runs"])


def compare(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    out: Path | None = None,
    on_round: OnRound | None = None,
    on_start: OnStart | None = None,
) -> Comparison:
    """Run each experiment with each seed; all share the partition of a seed, which is checked.

    With `out`, every run is kept in `out/<name>-s<seed>`, and the comparison in `out/comparison.json`.
    `on_start(name, seed, directory)` is called before each run.
    """
    require(bool(experiments), "methods: name at least one")
    require(bool(seeds), "seeds: name at least one")
    require(len(set(seeds)) == len(seeds), f"seeds = {' '.join(map(str, seeds))}: one is given twice")
    if out is not None:
        refuse_existing(out)
    partitions = _check(experiments, seeds)
    summaries: dict[str, list[Summary]] = {name: [] for name in experiments}
    for seed in seeds:
        for name, experiment in experiments.items():
            directory = None if out is None else out / f"{name}-s{seed}"
            if on_start is not None:
                on_start(name, seed, directory)
            summary = replace(experiment, seed=seed).run(directory, on_round).summary
            _same_partition(partitions[seed], summary["partition"]["hash"], name, seed)
            summaries[name].append(summary)
    comparison = Comparison(tuple(seeds), summaries)
    if out is not None:
        write_whole(out / COMPARISON, (json.dumps(comparison.as_dict(), indent=2) + "\n").encode())
    return comparison


def _check(experiments: Mapping[str, Experiment], seeds: Sequence[int]) -> dict[int, str]:
    """Meet every mistake before the first run starts; gives the hash of each seed's partition."""
    names = list(experiments)
    partitions: dict[int, str] = {}
    for seed in seeds:
        # A seed can only spoil the partition, which is the same for all; a method is checked once.
        for name in names if seed == seeds[0] else names[:1]:
            digest = replace(experiments[name], seed=seed).prepare().partition.hash
            _same_partition(partitions.setdefault(seed, digest), digest, name, seed)
    return partitions


def _same_partition(expected: str, found: str, name: str, seed: int) -> None:
    if expected != found:
        raise CoterieError(
            f"seed {seed}: '{name}' has another partition ({found[:12]}) than the others ({expected[:12]}); "
            "compare methods on the same data, partition rule and split"
        )
