"""MR-MTL: models of one's own, each held near the mean of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.recipe import Phase, Recipe
from coterie.client.terms import Proximal
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.training import StatsPolicy
from coterie.errors import require, unknown
from coterie.methods.base import Method

AVERAGES = ("samples", "clients")


@dataclass(frozen=True)
class MRMTL(Method):
    """On privacy and personalization in cross-silo federated learning (Liu et al., 2022): mean-regularised.

    Client k minimises CE(v_k) + (λ/2)‖v_k − v̄‖² from its own v_k, which nothing ever replaces; v̄ is the mean of
    everybody's last upload, held constant in the round. There is no global model besides. λ = 0 is Local; a strong λ
    (ηλ must stay below 1) holds all models together.

    `average="samples"` weights v̄ by data size, the default of the authors' code; `"clients"` counts everybody once, for
    which the pulls are the exact gradient of (λ/2)Σ_k‖v_k − v̄‖² over all models. The paper has all clients take part;
    here clients that sit out count with their last upload, those that never took part not at all. v̄ starts as the
    common initial model, where everybody's v_k starts (the authors draw each v_k by itself). Batch-norm statistics are
    no matter of the pull and stay local. Tested: v_k, the same at both moments.

    >>> MRMTL(lam=0.1)
    MRMTL(lam=0.1, average='samples')
    """

    lam: float = 1.0
    average: str = "samples"

    paper: ClassVar[str] = "Liu et al., NeurIPS 2022"
    extra_cost: ClassVar[str] = "server stores every client's last upload"
    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam = {self.lam}: must not be negative")
        if self.average not in AVERAGES:
            raise unknown("average", self.average, AVERAGES)

    def init(self, federation: Federation) -> None:
        """v̄, one row for everybody."""
        federation.add_slot("mean", "parameters", shared="parameters")

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training with a pull towards the mean."""
        return (Phase(row_terms=(Proximal(self.lam, anchor="mean"),) if self.lam else ()),)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The client's model."""
        return {"model": "parameters"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The mean of all models known."""
        federation = uploads.federation
        known = federation.everyone[federation.taken_part]
        counts = federation.sizes[known].double() if self.average == "samples" else torch.ones(len(known)).double()
        weights = (counts / counts.sum())[None]
        yield Mix(weights, "parameters", source="model", sources=known, target="mean")
