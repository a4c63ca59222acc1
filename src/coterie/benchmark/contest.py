"""A set's contest: every contestant is tuned on validation samples, then runs with each seed; what is done is kept.

`FOLDER/SET.json` holds it, a record for each contestant, sealed like the papers' tables: an interrupted contest is
carried on, and a number edited by hand is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.benchmark.deployed import EPOCHS
from coterie.benchmark.protocol import NAME, TUNING_SEED, BenchmarkSet, Contestant
from coterie.compare.joint_runs import perform_all
from coterie.compare.one_run import Summary
from coterie.compare.sweep import Watch
from coterie.compare.workers import PlannedRun, Watcher
from coterie.core.machine import machine
from coterie.data.loading import load
from coterie.errors import CoterieError, PassingError
from coterie.files import locked
from coterie.options import option_fields
from coterie.reproduce.store import Record, content_of, write_content
from coterie.runs.experiment import Experiment
from coterie.setup.config import complete
from coterie.setup.identity import HOW
from coterie.setup.prepared import Prepared
from coterie.setup.run_options import RunOptions

KEPT = frozenset({"of"})
NONE = "-"
"""Stands for a score that is no number."""
CLIENTS = "(clients)"
"""The record that says who the clients are."""
TUNING, COUNTING = "benchmark-tuning", "benchmark"
"""The listeners of runs that tune and of those that count."""


class SetResults:
    """What is known of a set: records by contestant, in a file of their own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.path = name, folder / f"{name}.json"
        self.records: dict[str, Record] = content_of(self.path, "contest", KEPT) if self.path.is_file() else {}

    def write(self) -> None:
        """Write all of it."""
        write_content(self.path, "contest", self.records, protocol=NAME, set=self.name)

    def of(self, contestant: str, what: Mapping[str, Any]) -> Record:
        """A contestant's record, an empty one if what is kept is of other runs than these."""
        plain = json.loads(json.dumps(what))
        record = self.records.get(contestant, {})
        if record.get("of") != plain:
            record = self.records[contestant] = {"of": plain, "tried": {}, "runs": {}}
        return record


@dataclass(frozen=True)
class SetContest:
    """Contestants on one set. `run` does what is left of it, as many runs at a time as there are jobs."""

    chosen: BenchmarkSet
    contestants: Sequence[Contestant]
    folder: Path
    budget: int
    seeds: Sequence[int]
    jobs: int = 1
    cluster: str = ""

    def run(self, watch: Watch) -> SetResults:
        """Tune whoever is not tuned yet, then do the runs that are missing; data that are not here are an error."""
        load(self.chosen.data, progress=False)  # otherwise nobody could run, and nothing that is kept would count
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / f"{self.chosen.name}.lock", wait=True):
            results = SetResults(self.chosen.name, self.folder)
            taker = _Taker(results)
            tuning = [run for one in self.contestants for run in self._tuning(one, taker)]
            self._perform(tuning, taker, watch)
            counting = [run for one in self.contestants for run in self._counting(one, taker)]
            self._perform(counting, taker, watch)
        return results

    def _perform(self, runs: Sequence[PlannedRun], taker: _Taker, watch: Watch) -> None:
        if runs:
            with watch(runs) as watcher:
                taker.watcher = watcher
                perform_all(runs, {}, self.jobs or 1, taker, self.cluster)

    def _tuning(self, one: Contestant, taker: _Taker) -> list[PlannedRun]:
        """The runs that tune a contestant; none if that is done, or if it cannot run here, which its record says."""
        settings = one.settings(self.budget)
        what: dict[str, Any] = {"method": one.method, "settings": [as_text(own) for own in settings]}
        try:
            experiments = [one.experiment(self.chosen, own, TUNING_SEED, tuning=True) for own in settings]
            prepared = experiments[0].prepare()
        except CoterieError as error:
            record = taker.results.of(one.name, what)
            record["failed"] = str(error)
            taker.results.write()
            return []
        _note_clients(taker.results, prepared)
        what |= {"data": self.chosen.data, "batch": self.chosen.batch}
        what["sha256"] = digest_of(experiments[0], prepared.identity["data"])
        record = taker.results.of(one.name, what)
        if "chosen" in record or "failed" in record:
            return []
        runs = [
            PlannedRun(f"{one.name} #{place}", experiment, listeners=(TUNING,))
            for place, experiment in enumerate(experiments)
        ]
        taker.expect_tuning(one.name, settings, runs)
        return runs

    def _counting(self, one: Contestant, taker: _Taker) -> list[PlannedRun]:
        """The runs that count and are missing."""
        record = taker.results.records[one.name]
        if "failed" in record:
            return []
        return [
            PlannedRun(
                one.name, one.experiment(self.chosen, record["chosen"], seed, tuning=False), listeners=(COUNTING,)
            )
            for seed in self.seeds
            if str(seed) not in record["runs"]
        ]


def as_text(settings: Mapping[str, str]) -> str:
    """Settings in a line, as in an entry of a comparison.

    >>> as_text({"lr": "0.1", "mu": "1"})
    'lr=0.1,mu=1'
    """
    return ",".join(f"{name}={value}" for name, value in settings.items())


def digest_of(experiment: Experiment, data: Mapping[str, Any]) -> str:
    """What tells a contestant's runs on a set from others: all that they have in common, files of one's own, the data.

    What cannot change results is left out, what is tuned stands beside it, and what has its default counts as not set:
    so results outlive options that are new.
    """
    left_out = HOW | {"seed", "lr", "set", "data"}
    usual = {name: item.default for name, item in option_fields(RunOptions).items()}
    same = {
        name: value
        for name, value in complete(experiment).items()
        if name not in left_out and (name not in usual or value != usual[name])
    }
    return hashlib.sha256(json.dumps([same, data], sort_keys=True, default=str).encode()).hexdigest()


def _note_clients(results: SetResults, prepared: Prepared) -> None:
    part = prepared.partition
    about: dict[str, Sequence[object]] = {
        "clients": [part.names[client] for client in prepared.participants],
        "train": [int(part.sizes[client]) for client in prepared.participants],
        "test": [len(part.test[client]) for client in prepared.participants],
        "newcomers": [part.names[client] for client in part.held_out],
    }
    texts = {name: " | ".join(f"{value}" for value in values) for name, values in about.items()}
    results.records[CLIENTS] = {"of": {"partition": part.hash, "task": prepared.problem_base.task.name}, **texts}


class _Taker:
    """Takes what runs have found into the records, and passes all news on."""

    watcher: Watcher

    def __init__(self, results: SetResults) -> None:
        self.results = results
        self._tuning: dict[str, tuple[str, int]] = {}  # a run's name -> whose setting it tries, and which
        self._tried: dict[str, list[Record | None]] = {}
        self._settings: dict[str, Sequence[Mapping[str, str]]] = {}

    def expect_tuning(self, name: str, settings: Sequence[Mapping[str, str]], runs: Sequence[PlannedRun]) -> None:
        """These runs try these settings of a contestant."""
        self._tried[name], self._settings[name] = [None] * len(settings), settings
        self._tuning |= {run.name: (name, place) for place, run in enumerate(runs)}

    def begun(self, run: PlannedRun) -> None:
        self.watcher.begun(run)

    def round_done(self, run: PlannedRun, round: int, received: float | None) -> None:
        self.watcher.round_done(run, round, received)

    def failed(self, run: PlannedRun, error: Exception) -> None:
        """A setting with which it cannot run is tried and has no score; who cannot run what counts has failed.

        What may be over at the next attempt is nobody's result.
        """
        if isinstance(error, PassingError | OSError):
            raise error
        if run.name in self._tuning:
            self._take_tried(run, {"failed": str(error)})
        else:
            self.results.records[run.name]["failed"] = str(error)
            self.results.write()
        self.watcher.failed(run, error)

    def ended(self, run: PlannedRun, summary: Summary) -> None:
        if run.name in self._tuning:
            self._take_tried(run, {"validation": summary["benchmark"]["validation"]})
        else:
            record = self.results.records[run.name]
            record["runs"][str(run.seed)] = _kept_of(summary, record["epochs"])
            record["machine"] = machine()
            self.results.write()
        self.watcher.ended(run, summary)

    def _take_tried(self, run: PlannedRun, found: Record) -> None:
        name, place = self._tuning[run.name]
        tried = self._tried[name]
        tried[place] = found
        record = self.results.records[name]
        if None in tried:
            return
        known = [one for one in tried if one is not None]
        scores: list[dict[str, float | None]] = [one.get("validation", {}) for one in known]
        texts = [" ".join(map(_plain, own.values())) for own in scores]
        record["tried"] = dict(zip(record["of"]["settings"], texts, strict=True))
        best = best_of(scores)
        if best is None:
            reasons = [one["failed"] for one in known if "failed" in one]
            record["failed"] = reasons[0] if reasons else "no setting gave finite models"
        else:
            record["chosen"], record["epochs"] = self._settings[name][best[0]], best[1]
        self.results.write()


def best_of(scores: Sequence[Mapping[str, float | None]]) -> tuple[int, int] | None:
    """Which setting, and which epochs of own training, are best by validation; of equals the first, the fewest.

    >>> best_of([{"0": 0.5, "1": 0.7}, {"0": 0.7, "1": None}, {}])
    (0, 1)
    """
    known = [
        (-score, place, int(epochs))
        for place, by_epochs in enumerate(scores)
        for epochs, score in by_epochs.items()
        if score is not None and math.isfinite(score)
    ]
    return min(known)[1:] if known else None


def _plain(score: float | None) -> str:
    """A score as it is written down; six digits decide."""
    return NONE if score is None else f"{score:.6g}"


def _kept_of(summary: Summary, epochs: int) -> Record:
    """What is kept of a run that counts."""
    found, effort = summary["benchmark"], summary["effort"]
    own = found["deployed"][str(epochs)]
    received = [score for score in found["deployed"][str(EPOCHS[0])]["scores"] if score is not None]
    return {
        "scores": " ".join(map(_plain, own["scores"])),
        "received": sum(received) / len(received) if received else None,
        "loss": own["loss"],
        "calibration": own["calibration"],
        "newcomers": found.get("newcomers", {}),
        "near_best": found.get("near_best", {}),
        "steps": effort["steps"],
        "forward": effort["forward"],
        "tuning": effort.get("tuning", 0.0),
        "bytes": summary["bytes"]["per_client_round"],
        "seconds": summary["seconds"]["total"],
        "diverged": len(summary["diverged"]),
    }
