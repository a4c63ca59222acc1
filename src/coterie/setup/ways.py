"""Ways to carry out the rounds of an experiment: an engine with its threads and memory format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from coterie.core.training import MemoryFormat
from coterie.processes import cores
from coterie.setup.prepared import Prepared

SMALL_MODEL = 100_000  # parameters

Timer = Literal["alone", "stacked"]
"""What a trial times: clients one by one, or all as one batch."""


@dataclass(frozen=True)
class Way:
    """An engine with its threads in the main process (0: as the model wants them) and its memory format.

    >>> str(Way("serial", 2, "channels_last"))
    'serial, 2 threads, channels-last'
    >>> Way.read("adaptive, 1 thread, contiguous")
    Way(engine='adaptive', threads=1, memory='contiguous')
    """

    engine: str
    threads: int
    memory: MemoryFormat

    def __str__(self) -> str:
        threads = f"{self.threads or 'usual'} thread{'s' if self.threads != 1 else ''}"
        return f"{self.engine}, {threads}, {self.memory.replace('_', '-')}"

    @classmethod
    def read(cls, text: str) -> Way:
        """The way that a text names as `str` would; a `ValueError` if it names none."""
        engine, threads, memory = text.rsplit(", ", 2)
        formats: dict[str, MemoryFormat] = {"contiguous": "contiguous", "channels-last": "channels_last"}
        if memory not in formats:
            raise ValueError(f"memory format '{memory}'")
        return cls(engine, int(threads.split()[0]), formats[memory])

    @property
    def timer(self) -> Timer:
        """What has to be timed to foresee its rounds."""
        return "stacked" if self.engine == "stacked" else "alone"

    @property
    def spreads(self) -> bool:
        """Whether clients may train at several places at the same time, with one thread each."""
        return self.engine in ("adaptive", "processes", "ray")


def ways_of(prepared: Prepared) -> list[Way]:
    """The ways that an experiment leaves open, the one that suits most first; a single one if it says everything."""
    experiment = prepared.experiment
    formats = _formats(prepared)
    if experiment.engine != "auto":
        memories = formats[:1] if experiment.engine == "stacked" else formats
        usual = torch.get_num_threads() if experiment.engine == "serial" else 1
        return [Way(experiment.engine, experiment.threads or usual, memory) for memory in memories]
    if experiment.device != "cpu":
        return [Way("stacked", experiment.threads, formats[0])]
    apart = [way for memory in formats for way in _with_clients_apart(prepared, memory)]
    stacked = [Way("stacked", experiment.threads or 1, "contiguous")] if "contiguous" in formats else []
    return [*apart, *stacked]


def ways_beside_others(prepared: Prepared) -> list[Way]:
    """The ways of `ways_of` that leave the other cores to other runs."""
    found = {Way("serial", 1, way.memory) if way.engine == "adaptive" else way: None for way in ways_of(prepared)}
    return [way for way in found if way.threads == 1 and way.engine in ("serial", "stacked")]


def fitting_threads(prepared: Prepared) -> int:
    """One thread for small models without convolutions, which lose more by sharing a step than they gain; else 0."""
    layout = prepared.problem_base.layout
    convolutions = any(len(entry.shape) > 2 for entry in layout.entries)
    return 0 if convolutions or layout.width > SMALL_MODEL else 1


def _formats(prepared: Prepared) -> list[MemoryFormat]:
    """Channels-last is worth a trial where there are convolutions on images."""
    wanted = prepared.experiment.memory
    if wanted != "auto":
        return [wanted]
    convolutions = any(len(entry.shape) == 4 for entry in prepared.problem_base.layout.entries)
    images = prepared.problem_base.inputs.ndim == 4
    tried = convolutions and images and prepared.experiment.device == "cpu"
    return ["contiguous", "channels_last"] if tried else ["contiguous"]


def _with_clients_apart(prepared: Prepared, memory: MemoryFormat) -> list[Way]:
    """One client after the other with some threads, or several at a time with one each."""
    wanted, most = prepared.experiment.threads, fitting_threads(prepared) or torch.get_num_threads()
    apart = Way("adaptive" if cores() > 1 else "serial", 1, memory)
    several = [Way("serial", count, memory) for count in dict.fromkeys((wanted or most,)) if count > 1]
    return [apart, *several] if wanted < 2 else several
