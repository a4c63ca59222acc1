"""Engine `ray` with two local actors against `serial` with one thread and `processes`: whole rounds of FedAvg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import torch

from benchmarks.engines import Setting, note, on_noise, speedup, training
from benchmarks.harness import Figure, in_turns, ratio

ACTORS = 2
BAR, OVERHEAD = 1.6, 1.15


def against_others(repeats: int = 7, scale: float = 1.0, trained: int = 240) -> Iterator[Figure]:
    """The `cnn` on images of CIFAR-10's size in batches of 10, 240 images at each of eight clients, all tested.

    The start of Ray and of worker processes does not count.
    """
    prepared = on_noise("cnn", 10, clients=8, trained=trained)(scale).prepare()
    before = torch.get_num_threads()
    torch.set_num_threads(ACTORS)  # as many workers as `training` gives the engine
    try:
        with ExitStack() as stack:
            settings = {name: Setting(name, 1) for name in ("serial", "processes", "ray")}
            rounds = {name: stack.enter_context(training(prepared, own, 1)) for name, own in settings.items()}
            seconds = in_turns(rounds, repeats, warmup=2)
    finally:
        torch.set_num_threads(before)
    name = f"cnn, batch 10, {ACTORS} Ray actors"
    note(name, seconds)
    yield speedup(f"{name}: time of serial", seconds["serial"], seconds["ray"], ("serial, 1 thread", "ray"), BAR)
    labels = "ray", f"processes, {ACTORS} workers"
    yield ratio(f"{name}: against processes", seconds["ray"], seconds["processes"], labels, OVERHEAD)
