"""More than one start for a model: rows as likely as the common initial one."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.rng import torch_stream


def other_start(federation: Federation, number: int) -> Tensor:
    """The initial row with the elements of every parameter in another order: `[P]`.

    Where a layer's elements are drawn independently of each other, as all of PyTorch's are, that is as good as another
    draw; constants such as zeros stay what they are. Running statistics keep their places. The order follows from the
    run's seed and `number`, so that everybody knows it without being told.

    >>> from coterie.runs.experiment import Experiment
    >>> federation = Experiment("fedavg").prepare().federation()
    >>> row = other_start(federation, 1)
    >>> bool((row != federation.initial).any()), bool(torch.isclose(row.sum(), federation.initial.sum()))
    (True, True)
    """
    row = federation.initial.clone()
    stream = torch_stream(federation.seed, "other start", number, 0)
    for entry in federation.layout.entries:
        if not entry.is_buffer:
            order = torch.randperm(entry.columns.size, generator=stream).to(row.device)
            entry.columns.put(row, entry.columns.take(row)[order])
    return row
