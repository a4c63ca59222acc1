"""What trials have measured on this machine, kept for a while: measurements, never what was concluded from them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coterie.core.machine import machine
from coterie.data.archives import user_cache
from coterie.files import write_whole
from coterie.processes import cores
from coterie.setup.prepared import Prepared
from coterie.setup.trial_pieces import Round
from coterie.setup.ways import Way

log = logging.getLogger("coterie")

FORMAT = 1
# Seconds for which a measurement counts: a day.
LIFE = 24 * 3600.0
# So many of the newest measurements of a workload count; with fewer, a run adds one of its own.
ENOUGH = 3
# Workloads that are remembered.
WORKLOADS = 200


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
        found = []
        for one in self._all().get(self.workload, ()):
            try:
                seconds = {Way.read(text): float(value) for text, value in one["seconds"].items()}
                measurement = EngineTimes(float(one["when"]), seconds)
            except (AttributeError, KeyError, TypeError, ValueError):
                continue
            if 0 <= time.time() - measurement.when < LIFE and all(value > 0 for value in seconds.values()):
                found.append(measurement)
        return found[-ENOUGH:]

    def add(self, seconds: Mapping[Way, float]) -> None:
        """Keep a measurement."""
        new = {"when": time.time(), "seconds": {str(way): value for way, value in seconds.items()}}
        known = self._all()
        own = [*known.pop(self.workload, []), new][-ENOUGH:]
        newest = dict(list({**known, self.workload: own}.items())[-WORKLOADS:])
        self._write(newest)

    def forget(self) -> None:
        """Drop them: they turned out to be wrong."""
        known = self._all()
        if known.pop(self.workload, None) is not None:
            self._write(known)

    def _all(self) -> dict[str, list[Any]]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8")) if self._path is not None else {}
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("workloads"), dict):
            return {}
        return {key: own for key, own in found["workloads"].items() if isinstance(own, list)}

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
        (experiment.batch, experiment.epochs, experiment.optimizer, experiment.momentum, experiment.clip),
        (experiment.privacy, experiment.engine, experiment.device, experiment.memory),
        (len(round.cohort), _rough(sum(round.batches)), _rough(max(round.batches)), _rough(round.tests)),
    ]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:16]


def _rough(number: float) -> str:
    return f"{number:.0e}"
