"""What the contests of some sets amount to: each contestant's numbers on a set, and who is ahead across sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from coterie.benchmark.contest import CLIENTS, NONE, SetResults
from coterie.benchmark.protocol import CONTESTANTS, SETS
from coterie.benchmark.statistics import (
    FEWEST_SETS,
    Belief,
    Interval,
    against,
    bayesian_signed_rank,
    hierarchical,
    mean_gain,
    mean_ranks,
    rank_intervals,
    share_harmed,
    worst_tenth,
)
from coterie.reproduce.store import Record
from coterie.rounds.evaluate import Floats

ALONE, BAR = "local", "fedavg-ft"
"""Training alone, and the baseline to beat."""
BETTER = "better of local and fedavg"
"""Whichever of the two was ahead by validation: no method of its own, so that its numbers are those of one."""
WORST = -1.0
"""No client counts less, however far its model is off: regressions have no worst score."""


def scores_in(record: Record) -> Floats:
    """The clients' scores with each seed, `[S, K]`, seeds in order."""
    rows = [record["runs"][seed]["scores"].split() for seed in sorted(record["runs"], key=int)]
    scores = np.array([[math.nan if score == NONE else float(score) for score in row] for row in rows])
    found: Floats = np.maximum(np.nan_to_num(scores, nan=WORST), WORST)
    return found


@dataclass(frozen=True)
class SetEntry:
    """A contestant's numbers on a set. Gains are over training alone, where that has run."""

    name: str
    scores: Floats  # [S, K]
    record: Record
    gains: Floats | None  # [S, K]

    @property
    def mean(self) -> float:
        """The mean over clients and seeds."""
        return float(self.scores.mean())

    @property
    def worst(self) -> float:
        """The mean over seeds of the worst tenth of the clients."""
        return fmean(map(worst_tenth, self.scores))

    @cached_property
    def gain(self) -> tuple[float, Interval] | None:
        """The mean gain, and its interval over clients and seeds."""
        return None if self.gains is None else hierarchical(self.gains, mean_gain)

    @cached_property
    def harmed(self) -> tuple[float, Interval] | None:
        """The share of clients that are worse off than alone by half a point or more, and its interval."""
        return None if self.gains is None else hierarchical(self.gains, share_harmed)

    @property
    def median_gain(self) -> float | None:
        """The median client's gain."""
        return None if self.gains is None else float(np.median(self.gains.mean(0)))

    def over_runs(self, *path: str) -> float:
        """The mean over runs of what stands at a place of their records; NaN if no run has it."""
        values = [_at(run, path) for run in self.record["runs"].values()]
        known = [float(value) for value in values if value is not None]
        return fmean(known) if known else math.nan

    @property
    def steps(self) -> float:
        """Gradient steps of a client and round."""
        return fmean(sum(run["steps"].values()) for run in self.record["runs"].values())

    @property
    def bytes(self) -> float:
        """Bytes of a client and round, up and down."""
        return self.over_runs("bytes", "up") + self.over_runs("bytes", "down")


def _at(record: Any, path: Sequence[str]) -> Any:
    for step in path:
        record = record.get(step) if isinstance(record, dict) else None
    return record


class SetStandings:
    """Everybody's numbers on one set, the best mean first, and why others have none."""

    def __init__(self, results: SetResults) -> None:
        self.name = results.name
        records = {name: record for name, record in results.records.items() if name != CLIENTS}
        self.clients: Record = results.records.get(CLIENTS, {})
        self.failed = {name: str(record["failed"]) for name, record in records.items() if "failed" in record}
        ran = {name: record for name, record in records.items() if name not in self.failed and record["runs"]}
        scores = {name: scores_in(record) for name, record in ran.items()}
        seeds = {name: sorted(record["runs"], key=int) for name, record in ran.items()}
        alone = scores.get(ALONE)
        entries = [
            SetEntry(name, own, ran[name], own - alone if alone is not None and seeds[name] == seeds[ALONE] else None)
            for name, own in scores.items()
        ]
        self.entries = {entry.name: entry for entry in sorted(entries, key=lambda entry: -entry.mean)}
        self.unfinished = sorted(records.keys() - ran.keys() - self.failed.keys())

    @property
    def better(self) -> SetEntry | None:
        """Local or FedAvg, whichever validation prefers."""
        both = [self.entries[name] for name in (ALONE, "fedavg") if name in self.entries]
        return max(both, key=lambda entry: validation_of(entry.record)) if len(both) == 2 else None


def validation_of(record: Record) -> float:
    """The validation score by which a contestant's settings were chosen."""
    scores = [float(score) for tried in record["tried"].values() for score in tried.split() if score != NONE]
    return max(scores, default=-math.inf)


@dataclass(frozen=True)
class Overall:
    """A contestant across sets: `sets` of them, its mean gains in score over the two baselines, and evidence."""

    name: str
    sets: int
    over_alone: float
    over_bar: float
    p_alone: float | None  # after Holm
    p_bar: float | None
    belief: Belief | None  # against the bar
    rank: float | None
    rank_interval: Interval | None
    harmed: float


class Standings:
    """All sets in a folder."""

    def __init__(self, folder: Path) -> None:
        found = [SetStandings(SetResults(path.stem, folder)) for path in sorted(folder.glob("*.json"))]
        order = list(SETS)
        found.sort(key=lambda one: (order.index(one.name) if one.name in order else len(order), one.name))
        self.sets = {one.name: one for one in found if one.entries}

    @cached_property
    def means(self) -> dict[str, dict[str, float]]:
        """Mean scores, by contestant and set."""
        means: dict[str, dict[str, float]] = {}
        for name, standings in self.sets.items():
            rows = {entry.name: entry for entry in standings.entries.values()}
            rows |= {BETTER: standings.better} if standings.better is not None else {}
            for row, entry in rows.items():
                means.setdefault(row, {})[name] = entry.mean
        return means

    @cached_property
    def everywhere(self) -> list[str]:
        """The contestants that have a number on every set, in the protocol's order."""
        whole = [name for name, scores in self.means.items() if len(scores) == len(self.sets) and name != BETTER]
        order = list(CONTESTANTS)
        return sorted(whole, key=lambda name: order.index(name) if name in order else -1)

    @cached_property
    def overall(self) -> list[Overall]:
        """Everybody across sets: by mean rank where that is known, then by gain over training alone."""
        means = self.means
        p_alone, p_bar = (self._against(rival) for rival in (ALONE, BAR))
        ranked = self.everywhere if self.sets and len(self.everywhere) > 1 else []
        table = np.array([[means[name][one] for name in ranked] for one in self.sets])
        ranks = dict(zip(ranked, mean_ranks(table).tolist(), strict=True)) if ranked else {}
        intervals = dict(zip(ranked, rank_intervals(table), strict=True)) if ranked else {}
        rows = [
            Overall(
                name,
                len(scores),
                self._gain(name, ALONE),
                self._gain(name, BAR),
                p_alone.get(name),
                p_bar.get(name),
                self._belief(name),
                ranks.get(name),
                intervals.get(name),
                self._harmed(name),
            )
            for name, scores in means.items()
        ]
        return sorted(rows, key=lambda row: (row.rank is None, row.rank or 0.0, -row.over_alone))

    def _differences(self, name: str, rival: str) -> list[float]:
        ours, theirs = self.means.get(name, {}), self.means.get(rival, {})
        return [ours[one] - theirs[one] for one in sorted(ours.keys() & theirs.keys())]

    def _gain(self, name: str, rival: str) -> float:
        differences = self._differences(name, rival)
        return fmean(differences) if differences else math.nan

    def _against(self, rival: str) -> Mapping[str, float]:
        others = {name: scores for name, scores in self.means.items() if name != rival}
        return against(self.means.get(rival, {}), others)

    def _belief(self, name: str) -> Belief | None:
        differences = self._differences(name, BAR)
        return bayesian_signed_rank(differences) if name != BAR and len(differences) >= FEWEST_SETS else None

    def _harmed(self, name: str) -> float:
        """The mean over sets of the share of clients that are worse off than alone."""
        entries = [one.entries[name] for one in self.sets.values() if name in one.entries]
        shares = [float(share_harmed(entry.gains.mean(0))) for entry in entries if entry.gains is not None]
        return fmean(shares) if shares else math.nan
