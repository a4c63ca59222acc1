"""FedCP: of each sample's features, a policy gives some to the client's classifier and the rest to everybody's."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from coterie.client.recipe import Keep, Phase, Recipe
from coterie.client.terms import RECEIVED
from coterie.client.views import BatchView
from coterie.core.exchange import Action, ClientRows, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method

COMMON, OWN = "classifier.common", "classifier.own"
SENT = f"all - {OWN} - {COMMON}"
WIDTHS = (10, 15, 20, 50)  # of the kernels by which features are compared


class Shared(nn.Module):
    """A client's classifier and everybody's, and the policy that shares out features between the two."""

    def __init__(self, own: nn.Module, features: int) -> None:
        super().__init__()
        self.own, self.common = own, copy.deepcopy(own)
        self.policy = nn.Sequential(nn.Linear(features, 2 * features), nn.LayerNorm(2 * features), nn.ReLU())
        matrices = [tuple(one.shape) for one in own.parameters() if one.ndim == 2]
        chained = all(later[1] == earlier[0] for earlier, later in pairwise(matrices))
        require(
            bool(matrices) and matrices[0][1] == features and chained,
            "classifier: fedcp needs one of fully connected layers, one after the other; name such a one",
        )

    def client(self) -> Tensor:
        """v: the rows of the client's classifier (of its layers' product) summed up, of length one: `[d]`."""
        layers: list[Tensor] = [one for one in self.own.parameters() if one.ndim == 2]
        return normalize(reduce(lambda before, layer: layer @ before, layers).sum(0), dim=0)

    def forward(self, features: Tensor, client: Tensor | None = None, answer: str = "outputs") -> Tensor:
        """The sum of what both say to their shares, by the v of a `client`, or its own; `answer="client"` is that."""
        if answer == "client":
            return self.client()
        scores = self.policy(features * (self.client() if client is None else client))
        shares = scores.unflatten(-1, (2, -1)).softmax(-2)
        out: Tensor = self.own(shares[..., 0, :] * features) + self.common(shares[..., 1, :] * features)
        return out


def shared_loss(batch: BatchView) -> Tensor:
    """The loss of the task, v being that of the client's classifier as the round began: `[B]`."""
    begun = batch.head(RECEIVED, answer="client")
    return batch.task.loss(batch.head(batch.slot, client=begun), batch.labels)


@dataclass(frozen=True)
class Discrepancy:
    """λ·MMD²(z, z°) between a batch's features and those of the received extractor, the same for every sample."""

    strength: float

    whole_batch: ClassVar[bool] = True

    def __call__(self, batch: BatchView) -> Tensor:
        """Σ_a mean(k_a(z, z) + k_a(z°, z°) − 2·k_a(z, z°)), k_a = exp(−‖·‖²/2a)."""
        now, before = batch.features, batch.under(RECEIVED).features
        pairs = batch.shares[:, None] * batch.shares  # 1/B², but 0 for padding
        found = (pairs * (kernels(now, now) + kernels(before, before) - 2 * kernels(now, before))).sum()
        return self.strength * found.expand(len(batch.labels))


def kernels(one: Tensor, other: Tensor) -> Tensor:
    """The sum of all kernels of vectors `[n, d]` and `[m, d]`: `[n, m]`.

    >>> kernels(torch.zeros(1, 2), torch.zeros(1, 2))
    tensor([[4.]])
    """
    squared = one.square().sum(1)[:, None] + other.square().sum(1) - 2 * one @ other.T
    return torch.stack([(-squared / (2 * width)).exp() for width in WIDTHS]).sum(0)


@dataclass(frozen=True)
class FedCP(Method):
    """FedCP: separating feature information for personalized federated learning via conditional policy (2023).

    Client k has a classifier φ_k of its own beside everybody's φ. A policy P, a linear map [d, 2d] with layer norm and
    ReLU, shares out each feature of each sample between them:

        (r, s) = softmax of the two halves of P(z ⊙ v_k),    output φ_k(r ⊙ z) + φ(s ⊙ z),

    v_k the sum of φ_k's weight rows as the round begins, of length one. θ, φ_k and P minimise CE + λ·MMD²(z, z°), z°
    the features by θ as received, while φ stays. Then the client sends θ, P and ½φ_k + ½φ, and the server takes means
    by data size, of which the last is the new φ.

    The authors' code adds Gumbel noise to the softmax, also in tests; here is none. Batch-norm statistics stay local.
    Tested: what was received, with the client's φ_k; at `trained` v_k is that of the trained φ_k.

    >>> FedCP(lam=1.0)
    FedCP(lam=1.0)
    """

    lam: float = 5.0

    paper: ClassVar[str] = "Zhang et al., KDD 2023"
    extra_cost: ClassVar[str] = (
        "the received extractor's features of each batch; a second classifier and 2d² + 6d numbers"
    )
    shared: ClassVar[str] = f"all - {OWN}"
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam = {self.lam}: must not be negative")

    def classifier(self, own: nn.Module, features: int, outputs: int) -> nn.Module:
        """The model's own beside a copy, behind the policy."""
        return Shared(own, features)

    def init(self, federation: Federation) -> None:
        """What clients send of classifiers."""
        federation.add_slot("half", COMMON)

    def recipe(self, federation: Federation) -> Recipe:
        """All but φ trains; φ_k and φ meet half-way."""
        terms = (shared_loss, Discrepancy(self.lam)) if self.lam else (shared_loss,)
        return (Phase(f"all - {COMMON}", terms=terms), Keep("half", half_way))

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """Extractor, policy, and what the classifiers make together."""
        return {"model": SENT, "half": COMMON}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Means of all three."""
        yield Mix(by_size(uploads), SENT)
        yield Mix(by_size(uploads), COMMON, of="half")


def half_way(rows: ClientRows) -> Tensor:
    """½φ_k + ½φ."""
    return (rows.after(group=OWN) + rows.after(group=COMMON)) / 2
