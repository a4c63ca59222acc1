"""Critical parameters: the elements of a row to which training is most sensitive (FedCAC, equations 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.views import ClientView
from coterie.rng import torch_stream


def critical(scores: Tensor, share: float) -> Tensor:
    """The `share` of highest scores `[n]` as a mask, ties included.

    Where the cut falls on zero, as with dead units, it moves up to the smallest score that is not zero; otherwise
    elements that never moved would be critical. If none did, nothing is. With `share` 1 everything is.

    >>> critical(torch.tensor([0.1, 0.4, 0.3, 0.2]), 0.5)
    tensor([False,  True,  True, False])
    >>> critical(torch.tensor([0.0, 0.0, 0.0, 0.2]), 0.5)
    tensor([False, False, False,  True])
    """
    count = int(share * scores.numel())
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    cut = scores.kthvalue(scores.numel() - count + 1).values
    if count == scores.numel():
        return scores >= cut
    return torch.where(cut == 0, scores > 0, scores >= cut)


def uncritical(scores: Tensor, share: float) -> Tensor:
    """The `share` of lowest scores `[n]` as a mask, ties included.

    >>> uncritical(torch.tensor([0.1, 0.4, 0.3, 0.2]), 0.5)
    tensor([ True, False, False,  True])
    """
    count = int(share * scores.numel())
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    return scores <= scores.kthvalue(count).values


@dataclass(frozen=True)
class CriticalMask:
    """The measurement: which elements of the trained model are critical, tensor by tensor; it travels as bits.

    Sensitivity is |Δw · w|, Δw the displacement over the round. `reverse` takes the least sensitive
    elements instead, `random` any. Batch-norm statistics that travel are critical, whatever the share: the paper
    has clients share them as cautiously.
    """

    share: float
    kind: str = "sensitivity"

    name: ClassVar[str] = "critical"

    def __call__(self, worker: ClientView) -> Tensor:
        """The mask over the columns of `all`: `[|all|]` bool."""
        layout, row = worker.problem.layout, worker.model("model").row
        stream = torch_stream(worker.seed, "mask", worker.federation.round, worker.key)
        sensitivity = ((row - worker.received()) * row).abs()
        mask = torch.zeros(layout.width, dtype=torch.bool, device=row.device)
        for entry in layout.entries:
            part = slice(entry.start, entry.stop)
            if entry.is_buffer:
                mask[part] = True
                continue
            scores = sensitivity[part]
            if self.kind == "random":
                scores = torch.rand(len(scores), generator=stream).to(row.device)
            mask[part] = (uncritical if self.kind == "reverse" else critical)(scores, self.share)
        return layout.columns("all").take(mask)
