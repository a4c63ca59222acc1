"""Several methods on the same partitions, over several seeds: the table as data."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from coterie.compare.cell import HOW, Summary
from coterie.compare.cost import expected_seconds
from coterie.compare.pool import (
    CannotStartError,
    Run,
    Watcher,
    leave_if_imported_by_a_worker,
    obstacle,
    run_in_parallel,
    run_one_by_one,
)
from coterie.core.scale import ACCURACY, Scale, judged_scale
from coterie.errors import CoterieError, require
from coterie.experiment.experiment import Experiment
from coterie.experiment.kept import CONFIG
from coterie.files import write_whole
from coterie.processes import cores

log = logging.getLogger("coterie")

# Seconds until worker processes have loaded PyTorch and data. What they save must be worth more, by a margin:
# it is a guess, and other programs may want the cores too.
START_UP, MARGIN = 4.0, 2.0
COMPARISON = "comparison.json"


# What a run's configuration holds besides settings, and settings that do not change results.
NOT_COMPARED = {"method", "set", "seed"} | HOW


@dataclass(frozen=True)
class Column:
    """A column of the table: its title says which moment, which mean and which round."""

    key: str
    title: str
    unit: Literal["share", "number", "bytes", "seconds"]
    read: Callable[[Summary], float]
    scale: Scale | None = None  # of a column that somebody may win


def columns_of(scale: Scale) -> dict[str, Column]:
    """The columns of runs that are judged by a metric, by key. Bytes are those up and down together."""

    def judged(key: str, read: Callable[[Summary], float | None]) -> Column:
        # Most runs are judged by accuracy, which titles do not repeat.
        words = key.replace("_", " ") if scale == ACCURACY else f"{scale.name} {key.replace('_', ' ')}"
        return Column(key, words, "share" if scale.share else "number", lambda summary: _number(read(summary)), scale)

    def over_clients(moment: str, at: str) -> Column:
        return judged(f"{moment}_mean_{at}", lambda summary: summary[scale.name][moment]["mean"][at])

    columns = (
        over_clients("received", "best"),
        over_clients("received", "last"),
        over_clients("trained", "best"),
        over_clients("trained", "last"),
        judged("received_worst_decile_last", lambda summary: summary["worst_decile"]["received"]),
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
    return {column.key: column for column in columns}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


@dataclass(frozen=True)
class Comparison:
    """The summaries of all runs, `[method][seed]`, and what they amount to.

    A *winner* of a metric's column is the method with the best mean over seeds, if that mean is better than
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

    @property
    def scale(self) -> Scale:
        """That of the metric that the runs are judged by, the same for all of them."""
        return judged_scale(next(iter(self.summaries.values()))[0])

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns of the table, by key."""
        return columns_of(self.scale)

    def values(self, method: str, column: str) -> list[float]:
        """A column's value of each seed."""
        return [self.columns[column].read(summary) for summary in self.summaries[method]]

    def mean(self, method: str, column: str) -> float:
        """The mean over seeds."""
        return fmean(self.values(method, column))

    def std(self, method: str, column: str) -> float | None:
        """The sample standard deviation over seeds; none with one seed."""
        return stdev(self.values(method, column)) if len(self.seeds) > 1 else None

    def winner(self, column: str) -> str | None:
        """The method that is better than all others by more than the seeds' spread, if there is one."""
        scale = self.columns[column].scale
        if scale is None or len(self.seeds) < 2 or len(self.summaries) < 2:
            return None
        means = {method: self.mean(method, column) for method in self.methods}
        first, second = sorted(means, key=means.__getitem__, reverse=scale.higher_is_better)[:2]
        spread = max(self.std(method, column) or 0.0 for method in (first, second))
        return first if scale.lead(means[first], means[second]) > spread else None

    def note(self) -> str:
        """What a mark in the table means, or why there is none."""
        if len(self.summaries) < 2:
            return "No winner is marked: there is only one method."
        if len(self.seeds) < 2:
            return "No winner is marked: one seed says nothing about the spread; use several (--seeds 0 1 2)."
        if any(self.winner(column) for column in self.columns):
            return f"* {self._rule()}."
        return f"No winner is marked: {self._rule()}; here none does."

    def _rule(self) -> str:
        beyond = "above" if self.scale.higher_is_better else "below"
        spread = "the larger of their standard deviations over the seeds"
        return f"a winner's mean lies {beyond} the runner-up's by more than {spread}"

    def differing(self) -> dict[str, dict[str, Any]]:
        """The settings that are not the same for all methods: `[setting][method]`; none where one was left out.

        Methods' own options and settings that cannot change results (engine, threads, recording) are no settings here.
        """
        configs = {method: runs[0].get("config", {}) for method, runs in self.summaries.items()}
        settings = sorted({key for config in configs.values() for key in config} - NOT_COMPARED)
        values = {key: {method: config.get(key) for method, config in configs.items()} for key in settings}
        return {key: found for key, found in values.items() if any(v != found[self.methods[0]] for v in found.values())}

    def settings_note(self) -> str:
        """Which methods ran with other settings than the others, in words; empty if none did.

        >>> runs = {name: [{"config": {"momentum": m}}] for name, m in (("fedavg", 0.9), ("scaffold", 0.0))}
        >>> Comparison((0,), runs).settings_note()
        'Not all methods ran with the same settings: momentum = 0.9 (fedavg), 0.0 (scaffold).'
        """
        spoken = [f"{key} = {_by_value(found)}" for key, found in self.differing().items()]
        return f"Not all methods ran with the same settings: {'; '.join(spoken)}." if spoken else ""

    def partitions(self) -> dict[int, str]:
        """The hash of the partition of each seed, which all methods share before they set validation samples aside."""
        runs = next(iter(self.summaries.values()))
        return {seed: _whole_hash(summary) for seed, summary in zip(self.seeds, runs, strict=True)}

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the table, the winners, and every run's summary."""
        return {
            "methods": self.methods,
            "seeds": list(self.seeds),
            "partitions": {str(seed): digest for seed, digest in self.partitions().items()},
            "columns": {column.key: {"title": column.title, "unit": column.unit} for column in self.columns.values()},
            "table": {
                method: {
                    column: {
                        "mean": self.mean(method, column),
                        "std": self.std(method, column),
                        "values": self.values(method, column),
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
    def load(cls, folder: Path) -> Comparison:
        """Read back what `compare` wrote."""
        path = folder / COMPARISON
        require(path.is_file(), f"'{path}': there is no such file")
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(tuple(content["seeds"]), content["runs"])


def _by_value(found: Mapping[str, Any]) -> str:
    """Which methods have which value; the most, if they are two or more and no others are as many, are the others."""
    takers: dict[str, list[str]] = {}
    for method, value in found.items():
        takers.setdefault("unset" if value is None else str(value), []).append(method)
    first, *rest = sorted(takers.values(), key=len, reverse=True)
    most = first if len(first) > max(map(len, rest)) else None
    few_first = sorted(takers.items(), key=lambda item: item[1] is most)
    return ", ".join(f"{value} ({'the others' if who is most else ', '.join(who)})" for value, who in few_first)


def compare(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    out: Path | None = None,
    watcher: Watcher | None = None,
    jobs: int = 0,
) -> Comparison:
    """Run each experiment with each seed; all share the partition of a seed, which is checked.

    Only what they set aside of their training samples for validation may differ.

    With `out`, every run is kept in `out/<name>-s<seed>`, and the comparison in `out/comparison.json`. The same again
    carries on with a comparison that was interrupted: what is finished there is not run again. The
    `watcher` is told of every run and round.

    `jobs` runs take place at the same time, the longest first, each in a worker process with one PyTorch thread
    (unless the experiment says otherwise): the results are those of `threads=1`, bit for bit. 0 chooses: as many as
    the cores hold if all experiments can be described by a configuration, the engine is `serial` or `stacked`, and
    the runs are long enough to pay for the workers' start; otherwise 1, one run after the other in this process.
    A script must guard what it does with `if __name__ == "__main__":`, or there is one job, with a warning.
    """
    leave_if_imported_by_a_worker()
    require(bool(experiments), "methods: name at least one")
    require(bool(seeds), "seeds: name at least one")
    require(len(set(seeds)) == len(seeds), f"seeds = {' '.join(map(str, seeds))}: one is given twice")
    require(jobs >= 0, f"jobs = {jobs}: must not be negative (0: choose)")
    obstacles = {name: why for name, experiment in experiments.items() if (why := obstacle(experiment)) is not None}
    for name, why in obstacles.items():
        require(jobs <= 1, f"jobs = {jobs}: '{name}' cannot run beside others, {why}; use jobs = 1")
    if out is not None:
        _refuse_others(out, {f"{name}-s{seed}" for name in experiments for seed in seeds})
    partitions, seconds = _check(experiments, seeds, guess=jobs != 1 and not obstacles)
    runs = [
        Run(name, replace(experiment, seed=seed), None if out is None else out / f"{name}-s{seed}")
        for seed in seeds
        for name, experiment in experiments.items()
    ]
    collector = _Collector(partitions, watcher)
    jobs = min(jobs or _worthwhile_jobs(runs, seconds), len(runs))
    _perform(runs, seconds, jobs, collector)
    found = collector.summaries
    comparison = Comparison(tuple(seeds), {name: [found[name, seed] for seed in seeds] for name in experiments})
    if out is not None:
        write_whole(out / COMPARISON, (json.dumps(comparison.as_dict(), indent=2) + "\n").encode())
    return comparison


def _refuse_others(out: Path, runs: set[str]) -> None:
    """An error if a folder holds anything but runs of the comparison that is to be kept there."""
    require(not out.is_file(), f"out = {out}: is a file; name a directory")
    require(not (out / CONFIG).exists(), f"out = {out}: already holds a run; name another directory")
    require(
        not (out / COMPARISON).exists(),
        f"out = {out}: already holds a comparison ('coterie show {out}' shows it); name another directory",
    )
    found = {entry.name for entry in out.iterdir() if not entry.name.startswith(".")} if out.is_dir() else set()
    require(found <= runs, f"out = {out}: is not empty; name a new directory, or that of an interrupted comparison")


class _Collector:
    """Keeps the summaries, after a look at their partitions, and passes all news on to a watcher."""

    def __init__(self, partitions: Mapping[int, str], watcher: Watcher | None) -> None:
        self._partitions, self._watcher = partitions, watcher
        self.summaries: dict[tuple[str, int], Summary] = {}

    def begun(self, run: Run) -> None:
        if self._watcher is not None:
            self._watcher.begun(run)

    def round_done(self, run: Run, round: int, received: float | None) -> None:
        if self._watcher is not None:
            self._watcher.round_done(run, round, received)

    def failed(self, run: Run, error: Exception) -> None:
        raise error  # a table with holes compares nothing

    def ended(self, run: Run, summary: Summary) -> None:
        _same_partition(self._partitions[run.seed], _whole_hash(summary), run.name, run.seed)
        self.summaries[run.name, run.seed] = summary
        if self._watcher is not None:
            self._watcher.ended(run, summary)


def _perform(runs: Sequence[Run], seconds: Mapping[str, float], jobs: int, watcher: Watcher) -> None:
    if jobs > 1:
        # The longest first: a long run that began last would keep the others waiting.
        longest_first = sorted(runs, key=lambda run: seconds[run.name], reverse=True)
        try:
            run_in_parallel(longest_first, jobs, watcher)
            return
        except CannotStartError as error:
            log.warning("jobs = %d: no worker process can start (%s); one run after the other instead", jobs, error)
    run_one_by_one(runs, watcher)


def _worthwhile_jobs(runs: Sequence[Run], seconds: Mapping[str, float]) -> int:
    """One job per core if that is faster; 1 if it is not, or if nothing is known about the runs' `seconds`."""
    if not seconds:
        return 1
    threads = max(run.experiment.threads or 1 for run in runs)
    jobs = max(min(cores() // threads, len(runs)), 1)
    total = sum(seconds[run.name] for run in runs)
    return jobs if total - total / jobs > MARGIN * START_UP else 1


def _check(
    experiments: Mapping[str, Experiment], seeds: Sequence[int], guess: bool
) -> tuple[dict[int, str], dict[str, float]]:
    """Meet every mistake before the first run starts.

    Gives the hash of each seed's partition, before samples were set aside for validation, and, for a `guess`, the
    seconds that a run of each method may take.
    """
    names = list(experiments)
    partitions: dict[int, str] = {}
    seconds: dict[str, float] = {}
    for seed in seeds:
        # A seed can only spoil the partition, which is the same for all; a method is checked once.
        for name in names if seed == seeds[0] else names[:1]:
            prepared = replace(experiments[name], seed=seed).prepare()
            digest = prepared.partition.whole().hash
            _same_partition(partitions.setdefault(seed, digest), digest, name, seed)
            if guess and name not in seconds:
                seconds[name] = expected_seconds(prepared)
    return partitions, seconds


def _same_partition(expected: str, found: str, name: str, seed: int) -> None:
    if expected != found:
        raise CoterieError(
            f"seed {seed}: '{name}' has another partition ({found[:12]}) than the others ({expected[:12]}); "
            "compare methods on the same data, partition rule and split"
        )


def _whole_hash(summary: Summary) -> str:
    """The hash of a run's partition before samples were set aside for validation (older runs tell the plain one)."""
    partition = summary["partition"]
    return str(partition.get("whole_hash", partition["hash"]))
