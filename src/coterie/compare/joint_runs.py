"""The runs of several experiments with several seeds: settled and checked before the first begins, then performed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coterie.compare.one_run import Summary
from coterie.compare.workers import PlannedRun, Watcher, obstacle, run_in_parallel, run_one_by_one
from coterie.errors import CoterieError, require
from coterie.files import PARTIAL
from coterie.processes import CannotStartError, cores
from coterie.registry import absolute
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.runs.running import made_listeners
from coterie.runs.store import CONFIG
from coterie.setup.config import Config, complete
from coterie.setup.engine_choice import as_chosen, choose
from coterie.setup.identity import Identity, differences, spoken
from coterie.setup.workload import Way, expected_seconds, ways_beside_others

log = logging.getLogger("coterie")

# Seconds until worker processes have loaded PyTorch and data. What they save must be worth more, by a margin:
# it is a guess, and other programs may want the cores too.
START_UP, MARGIN = 4.0, 2.0
# What decides how much work a round is, but for the method: runs that share it get the same engine.
OF_THE_WORK = (
    "data",
    "share",
    "model",
    "norm",
    "batch",
    "epochs",
    "steps",
    "augment",
    "optimizer",
    "join",
    "clients",
    "privacy",
    "evaluate_every",
    "evaluate_clients",
    "device",
    "workers",
)
SEVERAL = 2
"""Jobs, of runs that take place on several machines: each is to use one core there, however many there are here."""

Heard = dict[tuple[str, int], dict[int, float]]
"""Of each run by name and seed: the mean score of the received models in each round in which they were tested."""


def require_jobs(experiments: Mapping[str, Experiment], jobs: int, cluster: str = "") -> bool:
    """An error if so many jobs cannot be, or not on a cluster; whether every experiment can run beside others."""
    require(jobs >= 0, f"jobs = {jobs}: must not be negative (0: choose)")
    obstacles = {name: why for name, experiment in experiments.items() if (why := obstacle(experiment)) is not None}
    for name, why in obstacles.items():
        require(not cluster, f"cluster = '{cluster}': '{name}' cannot run elsewhere, {why}; use engine = 'serial'")
        require(jobs <= 1, f"jobs = {jobs}: '{name}' cannot run beside others, {why}; use jobs = 1")
    return not obstacles


def require_names(listeners: Sequence[str]) -> tuple[str, ...]:
    """The names of listeners that can be made, such that they hold in any process; an error before the first run."""
    made_listeners(listeners)
    return tuple(absolute(name) for name in listeners)


def refuse_strangers(out: Path, is_ours: Callable[[str], bool], what: str) -> set[str]:
    """The names of what there is in a folder; an error if some are not those that belong there."""
    require(not out.is_file(), f"out = {out}: is a file; name a directory")
    require(not (out / CONFIG).exists(), f"out = {out}: already holds a run; name another directory")
    names = {entry.name for entry in out.iterdir() if not entry.name.startswith(".")} if out.is_dir() else set()
    strangers = sorted(name for name in names if not is_ours(name.removesuffix(PARTIAL)))
    require(
        not strangers,
        f"out = {out}: is not empty (it holds {strangers[0] if strangers else ''}); name a new directory, or that of "
        f"{what}",
    )
    return names


@dataclass
class CommonGround:
    """What runs that are compared have in common: data, Coterie's code, and with each seed the partition.

    The first run that is taken in says what they are; others are an error.
    """

    same: Identity = field(default_factory=dict)
    partitions: dict[int, str] = field(default_factory=dict)

    def take(self, name: str, seed: int, partition: str, identity: Identity) -> None:
        """Take in a run, by the hash of its partition before samples were set aside for validation."""
        same = {part: identity[part] for part in ("data", "coterie")}
        self.same = self.same or same
        differing = differences(self.same, same)
        require(
            not differing,
            f"seed {seed}: '{name}' differs from the others in {spoken(differing)}; compare methods on the same data, "
            "with one version of Coterie",
        )
        expected = self.partitions.setdefault(seed, partition)
        require(
            expected == partition,
            f"seed {seed}: '{name}' has another partition ({partition[:12]}) than the others ({expected[:12]}); "
            "compare methods on the same data, partition rule and split",
        )


class Collector:
    """Keeps the summaries, after a look at what they stand on, and passes all news on to a watcher."""

    def __init__(self, ground: CommonGround, watcher: Watcher | None) -> None:
        self._ground, self._watcher = ground, watcher
        self.summaries: dict[tuple[str, int], Summary] = {}
        self.heard: Heard = {}

    def begun(self, run: PlannedRun) -> None:
        """A run begins."""
        if self._watcher is not None:
            self._watcher.begun(run)

    def round_done(self, run: PlannedRun, round: int, received: float | None) -> None:
        """A round is over."""
        if received is not None:
            self.heard.setdefault((run.name, run.seed), {})[round] = received
        if self._watcher is not None:
            self._watcher.round_done(run, round, received)

    def failed(self, run: PlannedRun, error: Exception) -> None:
        """A run broke off, and with it all of them."""
        raise error  # a table with holes compares nothing

    def ended(self, run: PlannedRun, summary: Summary) -> None:
        """A run is over."""
        self._ground.take(run.name, run.seed, whole_hash(summary), summary["identity"])
        self.summaries[run.name, run.seed] = summary
        if self._watcher is not None:
            self._watcher.ended(run, summary)


def perform_all(
    runs: Sequence[PlannedRun], seconds: Mapping[str, float], jobs: int, watcher: Watcher, cluster: str = ""
) -> None:
    """Perform the runs, so many at a time (0: choose), here or on a cluster; `seconds` says how long each may take."""
    if not cluster:
        jobs = min(jobs or worthwhile_jobs(runs, seconds), len(runs))
    # The longest first: a long run that began last would keep the others waiting.
    longest_first = sorted(runs, key=lambda run: seconds.get(run.name, 0.0), reverse=True)
    if cluster:
        from coterie.compare.cluster import run_on_cluster

        run_on_cluster(longest_first, cluster, jobs, watcher)
        return
    if jobs > 1:
        try:
            run_in_parallel(longest_first, jobs, watcher)
            return
        except CannotStartError as error:
            log.warning("jobs = %d: no worker process can start (%s); one run after the other instead", jobs, error)
    run_one_by_one(runs, watcher)


def worthwhile_jobs(runs: Sequence[PlannedRun], seconds: Mapping[str, float]) -> int:
    """One job per core if that is faster; 1 if it is not, or if nothing is known about the runs' `seconds`."""
    if not seconds:
        return 1
    threads = max(run.experiment.threads or 1 for run in runs)
    jobs = max(min(cores() // threads, len(runs)), 1)
    total = sum(seconds[run.name] for run in runs)
    return jobs if total - total / jobs > MARGIN * START_UP else 1


def checked(
    experiments: Mapping[str, Experiment], seeds: Sequence[int], guess: bool, ground: CommonGround
) -> dict[str, float]:
    """Meet every mistake before the first run starts; what all stand on is taken into the `ground`.

    Gives, for a `guess`, the seconds that a run of each method may take.
    """
    names = list(experiments)
    seconds: dict[str, float] = {}
    for seed in seeds:
        # A seed can only spoil the partition, which is the same for all; a method is checked once.
        for name in names if seed == seeds[0] else names[:1]:
            prepared = replace(experiments[name], seed=seed).prepare()
            ground.take(name, seed, prepared.partition.whole().hash, prepared.identity)
            if guess and name not in seconds:
                seconds[name] = expected_seconds(prepared)
    return seconds


def whole_hash(summary: Summary) -> str:
    """The hash of a run's partition before samples were set aside for validation (older runs tell the plain one)."""
    partition = summary["partition"]
    return str(partition.get("whole_hash", partition["hash"]))


class OneEngine:
    """The choice for experiments that belong together; those that name engine and memory format are left alone.

    Where there are as many runs as cores, or `jobs` says so, several take place at the same time: then each is to use
    one core. What runs in `folder` were begun with holds for the others too.
    """

    def __init__(self, seeds: Sequence[int], jobs: int, folder: Path | None) -> None:
        self._seeds, self._jobs = seeds, jobs
        self._ways = _kept_ways(folder)

    def settle(self, experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
        """The experiments with the choice in place of `auto`."""
        runs = len(experiments) * len(self._seeds)
        beside = self._jobs > 1 or (self._jobs == 0 and runs >= cores())
        beside = beside and all(obstacle(experiment) is None for experiment in experiments.values())
        return {name: self._settled(experiment, beside) for name, experiment in experiments.items()}

    def _settled(self, experiment: Experiment, beside: bool) -> Experiment:
        if "auto" not in (experiment.engine, experiment.memory):
            return experiment
        work = _work_of(complete(experiment))
        if work not in self._ways:
            prepared = replace(experiment, seed=self._seeds[0]).prepare()
            ways = ways_beside_others(prepared) if beside else None
            self._ways[work] = choose(prepared, ways or None).way
        settled = as_chosen(experiment, self._ways[work])
        assert isinstance(settled, Experiment)
        return settled


def _work_of(config: Config) -> str:
    return json.dumps([config.get(key) for key in OF_THE_WORK], default=str)


def _kept_ways(folder: Path | None) -> dict[str, Way]:
    """How runs in a folder were begun, by what they do."""
    ways: dict[str, Way] = {}
    for path in sorted(folder.glob(f"*/{CONFIG}")) if folder is not None else ():
        try:
            config = RunDirectory.open(path.parent).config()
            ways.setdefault(_work_of(config), Way(config["engine"], int(config["threads"]), config["memory"]))
        except (CoterieError, KeyError, ValueError):
            continue  # what is wrong with it is said where it is to be carried on
    return ways
