"""Choosing the engine, its threads and the memory format before the first round, by measurement.

What could change the bits of a result is chosen here, and stands in the run's configuration from then on; what cannot
is left to the engine `adaptive`, which times real rounds and reconsiders while the run goes on.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.rounds.listeners import Listener, Outcome
from coterie.rounds.report import RoundReport
from coterie.setup.cost import expected_seconds
from coterie.setup.engine_measurements import ENOUGH, EngineTimes, Measurements, workload_of
from coterie.setup.prepared import Prepared
from coterie.setup.settings import Settings
from coterie.setup.trials import measure, typical
from coterie.setup.ways import Way, ways_of

log = logging.getLogger("coterie")

# Runs that should take less, going by their sizes, are not worth a trial: seconds.
SHORT = 5.0
# Real rounds that take this many times as long as was foreseen (or as little) disprove the measurements.
WRONG = 1.5


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
    kept = Measurements(workload_of(prepared))
    known = [one for one in kept.recent() if set(one.seconds) <= set(ways)]
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
    shared = set.intersection(*(set(one.seconds) for one in known))
    together = typical([{way: one.seconds[way] for way in known[-1].seconds if way in shared} for one in known])
    found = sorted(together.items(), key=lambda item: item[1])
    best = found[0][0]
    told = "; ".join(f"{way}: {seconds:.3g} s a round" for way, seconds in found)
    times = "once" if len(known) == 1 else f"{len(known)} times"
    return Choice(best, f"measured {times}: {told}", workload, tuple(found))


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
    cast = prepared.in_memory(way.memory)
    return replace(
        cast,
        experiment=as_chosen(cast.experiment, way),
        notes=(*cast.notes, note),
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
