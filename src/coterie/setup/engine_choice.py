"""Choosing the engine, its threads and the memory format before the first round, by measurement.

What could change the bits of a result is chosen here, and stands in the run's configuration from then on; what cannot
is left to the engine `adaptive`, which times real rounds and reconsiders while the run goes on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from coterie.core.machine import machine
from coterie.data.archives import user_cache
from coterie.files import write_whole
from coterie.processes import cores
from coterie.rounds.listeners import Listener, Outcome, RoundReport
from coterie.setup.prepared import Prepared
from coterie.setup.settings import Settings
from coterie.setup.workload import Round, Way, expected_seconds, ways_of

log = logging.getLogger("coterie")

# Runs that should take less, going by their sizes, are not worth a trial: seconds.
SHORT = 5.0
# Real rounds that take this many times as long as was foreseen (or as little) disprove the measurements.
WRONG = 1.5
# What trials have measured is kept: measurements, never what was concluded from them.
FORMAT = 1
# Seconds for which a measurement counts: a day.
LIFE = 24 * 3600.0
# So many of the newest measurements of a workload count; with fewer, a run adds one of its own.
ENOUGH = 3
# Workloads that are remembered.
WORKLOADS = 200


@dataclass(frozen=True)
class Choice:
    """A way to run an experiment, why, and what was measured of the workload (`seconds` a round, by way)."""

    way: Way
    why: str
    workload: str = ""
    seconds: tuple[tuple[Way, float], ...] = ()

    @property
    def foreseen(self) -> float | None:
        """The seconds that a round should take, if that was measured."""
        return dict(self.seconds).get(self.way)


def choose(prepared: Prepared, ways: Sequence[Way] | None = None) -> Choice:
    """The fastest way to run a prepared experiment among those it leaves open (or the given ones), and why."""
    ways = ways_of(prepared) if ways is None else ways
    if len(ways) == 1:
        return Choice(ways[0], "nothing else is left open")
    if (guess := expected_seconds(prepared)) < SHORT:
        plain = plain_way(prepared.experiment)
        return Choice(plain, f"the run is short (about {guess:.1g} s, going by its sizes), so nothing was measured")
    from coterie.setup.trials import measure  # which loads engines that the run may not need

    kept = Measurements(workload_of(prepared))
    known = [times for times in kept.recent() if set(times.seconds) <= set(ways)]
    if len(known) < ENOUGH:
        try:
            seconds = measure(prepared, ways)
        except Exception as error:  # what a method says to a few clients alone is no reason not to run with all
            log.debug("engine auto: a trial failed", exc_info=error)
            return Choice(ways[0], f"nothing could be measured ({type(error).__name__}: {error})")
        kept.add(seconds)
        known = [*known, EngineTimes(0.0, seconds)]
    return _fastest(known, kept.workload)


def _fastest(known: Sequence[EngineTimes], workload: str) -> Choice:
    """The way that is the fastest by some measurements, those that all of them have compared."""
    from coterie.setup.trials import typical

    shared = set.intersection(*(set(run.seconds) for run in known))
    together = typical([{way: run.seconds[way] for way in known[-1].seconds if way in shared} for run in known])
    ranked = sorted(together.items(), key=lambda item: item[1])
    best = ranked[0][0]
    words = "; ".join(f"{way}: {seconds:.3g} s a round" for way, seconds in ranked)
    times = "once" if len(known) == 1 else f"{len(known)} times"
    return Choice(best, f"measured {times}: {words}", workload, tuple(ranked))


def plain_way(experiment: Settings) -> Way:
    """What is done where nothing is measured: one client after the other, threads as the model wants them (0)."""
    engine = experiment.engine if experiment.engine != "auto" else "serial"
    return Way(engine, experiment.threads, "contiguous" if experiment.memory == "auto" else experiment.memory)


def with_choice(prepared: Prepared) -> Prepared:
    """A prepared experiment in which `auto` is replaced by the choice: of engine, of memory format, or of both."""
    experiment = prepared.experiment
    if "auto" not in (experiment.engine, experiment.memory):
        return prepared
    return chosen(prepared, choose(prepared))


def chosen(prepared: Prepared, choice: Choice) -> Prepared:
    """The prepared experiment as a choice says; its notes say why."""
    way = choice.way
    note = f"engine auto: {way} ({choice.why})"
    return replace(
        prepared,
        experiment=as_chosen(prepared.experiment, way),
        problem_base=prepared.problem_in_memory(way.memory),
        notes=(*prepared.notes, note),
        forecast=None if choice.foreseen is None else (choice.workload, choice.foreseen),
    )


def as_chosen(experiment: Settings, way: Way) -> Settings:
    """An experiment that is to be run in a way; threads that somebody has set stay as they are."""
    named = experiment.engine != "auto"
    threads = experiment.threads if named else way.threads
    return replace(experiment, engine=way.engine, threads=threads, memory=way.memory)


class Reconsider(Listener):
    """Compares the rounds of a run with what was foreseen; measurements that they disprove are forgotten."""

    def __init__(self, workload: str, foreseen: float) -> None:
        self._workload, self._foreseen = workload, foreseen
        self._rounds: list[float] = []

    def round(self, report: RoundReport) -> None:
        """Take note of how long a round took."""
        self._rounds.append(sum(report.seconds.values()))

    def end(self, outcome: Outcome) -> None:
        """Judge what was measured before the first round."""
        if len(self._rounds) < 3:
            return
        took = statistics.median(self._rounds)
        log.info("engine auto: a round took %.3g s (median), foreseen were %.3g", took, self._foreseen)
        if not 1 / WRONG < took / self._foreseen < WRONG:
            Measurements(self._workload).forget()


@dataclass(frozen=True)
class EngineTimes:
    """The seconds that a round should take each way, measured in turns at some time (seconds since 1970)."""

    when: float
    seconds: Mapping[Way, float]


class Measurements:
    """The measurements of one workload, in a file for all workloads of this machine.

    A file that cannot be read counts as empty, and one that cannot be written is no reason to stop.
    """

    def __init__(self, workload: str) -> None:
        self.workload = workload
        folder = user_cache()
        self._path = None if folder is None else folder / "coterie" / "engines.json"

    def recent(self) -> list[EngineTimes]:
        """Those that still count, the oldest first."""
        recent = []
        for entry in self._all().get(self.workload, ()):
            try:
                seconds = {Way.read(text): float(value) for text, value in entry["seconds"].items()}
                measurement = EngineTimes(float(entry["when"]), seconds)
            except (AttributeError, KeyError, TypeError, ValueError):
                continue
            if 0 <= time.time() - measurement.when < LIFE and all(value > 0 for value in seconds.values()):
                recent.append(measurement)
        return recent[-ENOUGH:]

    def add(self, seconds: Mapping[Way, float]) -> None:
        """Keep a measurement."""
        new = {"when": time.time(), "seconds": {str(way): value for way, value in seconds.items()}}
        known = self._all()
        here = [*known.pop(self.workload, []), new][-ENOUGH:]
        newest = dict(list({**known, self.workload: here}.items())[-WORKLOADS:])
        self._write(newest)

    def forget(self) -> None:
        """Drop them: they turned out to be wrong."""
        known = self._all()
        if known.pop(self.workload, None) is not None:
            self._write(known)

    def _all(self) -> dict[str, list[Any]]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8")) if self._path is not None else {}
        except (OSError, ValueError):
            return {}
        if not isinstance(kept, dict) or kept.get("format") != FORMAT or not isinstance(kept.get("workloads"), dict):
            return {}
        return {key: entries for key, entries in kept["workloads"].items() if isinstance(entries, list)}

    def _write(self, workloads: Mapping[str, Sequence[Any]]) -> None:
        if self._path is None:
            return
        content = json.dumps({"format": FORMAT, "workloads": workloads}, indent=1)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, content.encode())
        except OSError as error:
            log.info("engine auto: what was measured could not be kept (%s)", error)


def workload_of(prepared: Prepared, method: bool = True) -> str:
    """What measurements depend on, in a few letters: machine, model, shape of the work and, unless not, the method.

    Sizes are rough, so that the partitions of several seeds count as the same work.
    """
    experiment, layout, round = prepared.experiment, prepared.problem_base.layout, Round.of(prepared)
    facts = [
        machine(),
        (cores(), os.cpu_count(), torch.get_num_threads(), experiment.workers, experiment.threads),
        [entry.shape for entry in layout.entries],
        [type(module).__name__ for module in prepared.problem_base.module.modules()],
        prepared.data.shape,
        repr(prepared.method) if method else "",
        (
            experiment.batch,
            experiment.epochs,
            experiment.steps,
            experiment.optimizer,
            experiment.momentum,
            experiment.augment,
            experiment.clip,
        ),
        (experiment.privacy, experiment.engine, experiment.device, experiment.memory),
        (len(round.cohort), _rough(sum(round.batches)), _rough(max(round.batches)), _rough(round.tests)),
    ]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:16]


def _rough(number: float) -> str:
    return f"{number:.0e}"
