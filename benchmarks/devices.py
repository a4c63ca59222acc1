"""Rounds on a device against rounds on the processor, for whoever has one: COTERIE_TEST_DEVICE names it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import torch

from benchmarks.engines import on_digits, on_noise
from benchmarks.harness import Figure, in_turns, ratio
from coterie.rounds.round import Rounds
from coterie.runs.experiment import Experiment

DEVICE = "COTERIE_TEST_DEVICE"
# A device that is slower than the processor is of no use.
BAR = 1.0


def against_processor(repeats: int = 7, scale: float = 1.0) -> Iterator[Figure]:
    """FedAvg, evaluation included; nothing is measured where no device is named."""
    device = os.environ.get(DEVICE, "")
    if not device:
        return
    cases = {
        "cnn, batch 100": on_noise("cnn", 100, clients=4, trained=600)(scale),
        "mlp on digits": on_digits(20)(scale),
    }
    for name, experiment in cases.items():
        for engine in ("serial", "stacked"):
            yield _figure(f"{name}, {engine}", experiment, engine, device, repeats)


def _figure(name: str, experiment: Experiment, engine: str, device: str, repeats: int) -> Figure:
    with ExitStack() as stack:
        rounds = {}
        for place in (device, "cpu"):
            prepared = replace(experiment, engine=engine, device=place).prepare()
            worked = stack.enter_context(closing(prepared.engine(prepared.problem())))
            rounds[place] = Rounds(prepared.method, prepared.federation(), worked)

        def once(place: str) -> None:
            rounds[place].run_round()
            if place != "cpu":
                torch.get_device_module(place).synchronize()

        seconds = in_turns({place: lambda place=place: once(place) for place in rounds}, repeats)
    return ratio(f"{name}: time of a round", seconds[device], seconds["cpu"], (device, "the processor"), BAR)
