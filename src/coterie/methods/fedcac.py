"""FedCAC: critical parameters are shared cautiously, all others boldly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.views import ClientView
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size, normalised, uniform
from coterie.core.training import StatsPolicy
from coterie.errors import require, unknown
from coterie.maths.similarity import overlaps
from coterie.methods.base import Method
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


MASKS = ("sensitivity", "random", "reverse")
COLLABORATIONS = ("threshold", "none", "top1", "top5", "as_critical")
WEIGHTS = ("uniform", "size")


@dataclass(frozen=True)
class FedCAC(Method):
    """Bold but cautious: unlocking the potential of PFL through cautiously aggressive collaboration (ICCV 2023).

    After training, the τ most sensitive elements of each tensor are critical (5)–(6). Every client receives
    the mean of all models where it is not critical, and where it is, the mean over itself and the clients
    whose critical elements overlap with its own at least by a threshold that rises from the mean overlap to
    the largest by round β (7)–(8); later nobody does (9)–(11). Batch-norm statistics stay local; with
    `stats="mean"` they are critical, as the paper words it.

    Where the paper contradicts itself: its O is a difference but is used as a similarity; we take the
    authors' code, 1 − ‖M_i − M_j‖₁ / (2‖M_i‖₁). The mean of all models (9) is uniform as in the paper;
    `weights="size"` takes it by data size as the code does. With partial participation all of it is about the cohort.

    >>> FedCAC(beta=50)
    FedCAC(tau=0.5, beta=50, mask='sensitivity', collaboration='threshold', weights='uniform')
    """

    tau: float = 0.5
    beta: int = 100
    mask: str = "sensitivity"
    collaboration: str = "threshold"
    weights: str = "uniform"

    paper: ClassVar[str] = "FedCAC, ICCV 2023"
    extra_cost: ClassVar[str] = "sorting each tensor once; masks as bits (+3 % upload)"
    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(0 <= self.tau <= 1, f"tau = {self.tau}: must lie in [0, 1]")
        require(self.beta >= 1, f"beta = {self.beta}: must be at least 1")
        for option, allowed in (("mask", MASKS), ("collaboration", COLLABORATIONS), ("weights", WEIGHTS)):
            if getattr(self, option) not in allowed:
                raise unknown(option, getattr(self, option), allowed)

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training, then: which elements are critical."""
        return (Phase(), Measure(CriticalMask(self.tau, self.mask)))

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The whole model (and the mask)."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The mean of everybody, then under the mask the mean of the overlapping."""
        masks = uploads.measured["critical"]
        partners = self.collaborators(overlaps(masks), uploads.federation.round)
        cautious = normalised(partners | torch.eye(len(masks), dtype=torch.bool))
        if self.collaboration == "as_critical":
            yield Mix(cautious)
        else:
            yield Mix(by_size(uploads) if self.weights == "size" else uniform(len(masks)))
            yield Mix(cautious, gate=masks)

    def collaborators(self, overlap: Tensor, round: int) -> Tensor:
        """C_i of every client (7)–(8): `[m, m]` bool, without the client itself."""
        apart = ~torch.eye(len(overlap), dtype=torch.bool)
        if len(overlap) == 1 or self.collaboration == "none":
            return ~apart & apart
        if self.collaboration in ("top1", "top5"):
            count = min(int(self.collaboration[3:]), len(overlap) - 1)
            ranked = overlap.masked_fill(~apart, -torch.inf).sort(descending=True, stable=True).indices
            return torch.zeros_like(apart).scatter_(1, ranked[:, :count], True)
        if round > self.beta:
            return ~apart & apart
        mean, largest = overlap[apart].mean(), overlap[apart].max()
        return apart & (overlap >= mean + round / self.beta * (largest - mean) - 1e-7)
