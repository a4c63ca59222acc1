"""One engine for runs that are compared: chosen once, for all methods and seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.compare.pool import obstacle
from coterie.errors import CoterieError
from coterie.processes import cores
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.runs.kept import CONFIG
from coterie.setup.choose_engine import as_chosen, choose
from coterie.setup.config import Config, complete
from coterie.setup.ways import Way, ways_beside_others

# What decides how much work a round is, but for the method: runs that share it get the same engine.
OF_THE_WORK = (
    "data",
    "share",
    "model",
    "norm",
    "batch",
    "epochs",
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
    found: dict[str, Way] = {}
    for path in sorted(folder.glob(f"*/{CONFIG}")) if folder is not None else ():
        try:
            config = RunDirectory.open(path.parent).config()
            found.setdefault(_work_of(config), Way(config["engine"], int(config["threads"]), config["memory"]))
        except (CoterieError, KeyError, ValueError):
            continue  # what is wrong with it is said where it is to be carried on
    return found
