"""Whether a run fits on its device: about how much memory it needs there, and what would need less."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from coterie.core.federation import Federation
from coterie.devices import PROCESSOR, free_bytes
from coterie.errors import CoterieError
from coterie.setup.prepared import Prepared


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes on the device: the samples, rows that are kept there, and what clients need while they train."""

    samples: int
    rows: int
    training: int
    at_a_time: int  # clients

    @property
    def total(self) -> int:
        """All of it."""
        return self.samples + self.rows + self.training

    def __str__(self) -> str:
        who = f"{self.at_a_time} clients" if self.at_a_time > 1 else "a client"
        parts = {"samples": self.samples, "rows": self.rows, f"{who} in training": self.training}
        listed = ", ".join(f"{what} {size_text(size)}" for what, size in parts.items() if size)
        return f"about {size_text(self.total)} ({listed})"


def memory_needs(prepared: Prepared, federation: Federation, engine: str, batch: int) -> MemoryNeeds:
    """What a run would need with an engine and a batch: an estimate, since PyTorch's kernels take what they like.

    A client in training has two rows a slot (itself, and its gradient or what it received), the optimiser's state, and
    what the model remembers of a batch for the way back.
    """
    problem, training = prepared.problem_base, prepared.experiment.training
    row = federation.layout.width * federation.initial.element_size()
    state = 2 if training.optimizer != "sgd" else int(training.momentum > 0)
    together = prepared.sampler.count(federation.clients) if engine == "stacked" else 1
    a_client = row * (2 * len(federation.slots) + state) + batch * remembered_bytes(prepared)
    return MemoryNeeds(
        samples=problem.inputs.nbytes + problem.labels.nbytes,
        rows=federation.row_bytes if federation.initial.device.type != PROCESSOR else 0,
        training=together * a_client,
        at_a_time=together,
    )


def remembered_bytes(prepared: Prepared) -> int:
    """What the model remembers of a sample for the way back: measured on two of them, on the processor."""
    module = copy.deepcopy(prepared.problem_base.module).train()
    known = {tensor.data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    seen: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in known:
            seen[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            outputs = module(prepared.problem_base.inputs[:2])
        del outputs
    return sum(seen.values()) // 2


def require_room(prepared: Prepared, federation: Federation) -> None:
    """An error in a line if the device has too little memory for the run, as far as both are known."""
    experiment = prepared.experiment
    free = free_bytes(experiment.device)
    if free is None:
        return
    here = memory_needs(prepared, federation, experiment.engine, experiment.batch)
    # Rows that are on the device already are no part of what is free.
    if here.total - here.rows > free:
        raise _too_little(prepared, federation, f"{size_text(free)} are free", free)


def ran_out(prepared: Prepared, federation: Federation) -> CoterieError:
    """What to say when the device had no more to give in the middle of a run."""
    free = free_bytes(prepared.experiment.device)
    return _too_little(prepared, federation, "its memory ran out", None if free is None else free)


def _too_little(prepared: Prepared, federation: Federation, what: str, free: int | None) -> CoterieError:
    experiment = prepared.experiment
    here = memory_needs(prepared, federation, experiment.engine, experiment.batch)
    return CoterieError(
        f"device = {experiment.device}: {what}, but the run needs {here}; {_way_out(prepared, federation, free)}"
    )


def _way_out(prepared: Prepared, federation: Federation, free: int | None) -> str:
    """What would need less: another engine, or a smaller batch, where that fits."""
    experiment = prepared.experiment
    batches = [experiment.batch // 2**power for power in range(20) if experiment.batch // 2**power]
    ways = [(engine, batch) for batch in batches for engine in dict.fromkeys((experiment.engine, "serial"))][1:]
    for engine, batch in ways:
        needed = memory_needs(prepared, federation, engine, batch)
        if free is None or needed.total - needed.rows <= free:
            changed = [f"engine = {engine}"] if engine != experiment.engine else []
            changed += [f"batch = {batch}"] if batch != experiment.batch else []
            return f"{' with '.join(changed)} would need about {size_text(needed.total)}"
    return f"use device = {PROCESSOR}"


def size_text(count: int) -> str:
    """Bytes in words.

    >>> size_text(1_500_000_000), size_text(2_000_000), size_text(1_000)
    ('1.5 GB', '2 MB', '0.001 MB')
    """
    return f"{count / 1e9:.2g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
