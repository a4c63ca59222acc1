"""Whole rounds, tests included, against whole rounds written by hand.

In both, every client of the cohort is tested when it has trained, and everybody with the new common model. The loops
by hand train the models as they were first written, with ReLU before max-pooling, and pool as PyTorch does; `auto`
stands for what it chooses here and now.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import nn

from benchmarks.engines import (
    CNN_10,
    CNN_100,
    LENET5_10_OF_100,
    Case,
    bare_loops,
    begin_run,
    chosen,
    contenders,
    fastest,
    note,
    on_noise,
    training,
)
from benchmarks.harness import Figure, in_turns, ratio
from coterie.setup.prepared import Prepared

WHOLE = (
    Case("cnn, batch 10", CNN_10),
    Case("cnn, batch 100", CNN_100),
    Case("lenet5, batch 32, 10 of 100 clients", LENET5_10_OF_100),
    Case("lenet5, batch 32, 100 of 1,000 small clients", on_noise("lenet5", 32, 1000, trained=21, join=0.1)),
)
BAR = 0.9


def whole_rounds(case: Case, repeats: int | None = None, scale: float = 1.0) -> Iterator[Figure]:
    """A whole round as `auto` runs it, against the best of the loops."""
    prepared, cores = case.experiment(scale).prepare(), torch.get_num_threads()
    auto = chosen(prepared)
    with ExitStack() as stack:
        ours = stack.enter_context(training(prepared, auto, evaluate_every=1))
        begin_run(ours, scale)
        by_hand = bare_loops(_as_first_written(prepared), cores, tested=True)
        loops = {name: stack.enter_context(loop) for name, loop in by_hand}
        runs = contenders({"ours": ours, **loops}, {"ours", *list(loops)[:1]})
        seconds = in_turns(runs, repeats or case.repeats, warmup=0)
    note(case.name, seconds, f"auto: {auto}")
    best = fastest(seconds, loops)
    yield ratio(f"{case.name}: a whole round", seconds["ours"], seconds[best], (f"auto ({auto})", best), BAR)


def _as_first_written(prepared: Prepared) -> Prepared:
    """The same with ReLU before pooling."""
    base = prepared.problem_base
    return replace(prepared, problem_base=replace(base, module=relu_first(copy.deepcopy(base.module))))


def relu_first(module: nn.Module) -> nn.Module:
    """A network in whose sequences every ReLU after a max-pooling stands before it.

    >>> [type(layer).__name__ for layer in relu_first(nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()))]
    ['ReLU', 'MaxPool2d', 'Flatten']
    """
    for child in module.children():
        relu_first(child)
    if isinstance(module, nn.Sequential):
        for place in range(len(module) - 1):
            if isinstance(module[place], nn.MaxPool2d) and isinstance(module[place + 1], nn.ReLU):
                module[place], module[place + 1] = module[place + 1], module[place]
    return module
