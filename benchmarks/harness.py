"""Measuring in turns: what is compared runs interleaved, so that the machine's moods hit all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from coterie.data import Dataset
from coterie.rng import torch_stream


@dataclass(frozen=True)
class Figure:
    """One measured ratio: `value` = median over repetitions of (what / against), with its spread and its bar."""

    name: str
    what: str
    against: str
    value: float
    low: float
    high: float
    bar: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """Whether the bar is met by the median."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def as_dict(self) -> dict[str, object]:
        """Plain values for the JSON file."""
        return {**asdict(self), "met": self.met}


def in_turns(cases: dict[str, Callable[[], object]], repeats: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of every case in every repetition; each repetition runs all cases once, in rotating order."""
    names = list(cases)
    for name in names * warmup:
        cases[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repeats):
        shift = repetition % len(names)
        for name in names[shift:] + names[:shift]:
            begin = time.perf_counter()
            cases[name]()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def ratio(name: str, what: list[float], against: list[float], labels: tuple[str, str], bar: float) -> Figure:
    """The figure `what / against`: the ratio of medians, and quartiles of the ratios within a repetition."""
    pairs = sorted(a / b for a, b in zip(what, against, strict=True))
    low, high = (
        (statistics.quantiles(pairs, n=4, method="inclusive")[i] for i in (0, 2))
        if len(pairs) > 1
        else (pairs[0], pairs[0])
    )
    value = statistics.median(what) / statistics.median(against)
    return Figure(name, *labels, value=value, low=low, high=high, bar=bar)


def peak_bytes() -> int:
    """The most memory that this process has held since it began (Linux; a parent's does not count)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def random_images(samples: int, shape: tuple[int, ...], classes: int = 10) -> Dataset:
    """Noise of the size of a real data set, in 256 levels as pixels are: speed does not depend on what they show."""
    stream = torch_stream(0, "benchmark")
    inputs = torch.randint(256, (samples, *shape), generator=stream) / 127.5 - 1
    return Dataset("noise", inputs, torch.arange(samples) % classes, classes)
