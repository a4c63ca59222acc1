"""FedTC: a local classifier that is kept, and a shared one that teaches the extractor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.client.recipe import Phase, Recipe
from coterie.client.views import BatchView
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method

SLOWNESS = 0.01
"""The local classifier's rate in the paper, as a share of the run's: 1e-4 beside 0.01."""


def own_head_loss(batch: BatchView) -> Tensor:
    """Eq. (5): CE(φ_k · stopgrad(z), y), which moves the local classifier alone."""
    return batch.task.loss(batch.classifier_logits, batch.labels)


def shared_head_loss(batch: BatchView) -> Tensor:
    """Eq. (6): CE(φ̄ · z, y) with φ̄ frozen, which moves the extractor alone."""
    return batch.task.loss(batch.head("shared_head"), batch.labels)


@dataclass(frozen=True)
class FedTC(Method):
    """FedTC: a personalized federated learning method with two classifiers (CMC 2023).

    The extractor θ trains against the frozen shared classifier φ̄ at the run's rate, the local classifier φ_k
    on the same features at `lr_classifier` (unless given a hundredth of it, as in the paper): one forward and one
    backward pass serve both. θ and φ̄ are the
    data-weighted means (7)–(8); φ_k is kept.

    Where the paper contradicts itself: Algorithm 1 (line 13) overwrites φ_k with φ̄ each round while text and
    figures keep it; `reset_local_head=True` is the algorithm's reading. A client that has never taken part
    holds φ̄, so that it starts from it when it first does.

    >>> FedTC(lr_classifier=0.01)
    FedTC(lr_classifier=0.01, reset_local_head=False)
    """

    lr_classifier: float | None = None
    reset_local_head: bool = False

    paper: ClassVar[str] = "FedTC, CMC 2023"
    extra_cost: ClassVar[str] = "a second classifier on the same features"
    shared: ClassVar[str] = "extractor"
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(
            self.lr_classifier is None or self.lr_classifier > 0,
            f"lr_classifier = {self.lr_classifier}: must be greater than 0",
        )

    def init(self, federation: Federation) -> None:
        """The shared classifier is a slot of its own."""
        federation.add_slot("shared_head", "classifier", shared="classifier")

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The local classifier's rate."""
        return {"lr_classifier": self.lr_classifier or SLOWNESS * federation.training.lr}

    def recipe(self, federation: Federation) -> Recipe:
        """Both classifiers in one phase, each rate for its own part."""
        rate = self.lr_classifier or SLOWNESS * federation.training.lr
        return (Phase(terms=(own_head_loss, shared_head_loss), rates={"classifier": rate}),)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """Extractor and local classifier."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mean extractor, mean classifier."""
        federation = uploads.federation
        weights = by_size(uploads)
        yield Mix(weights, "extractor")
        yield Mix(weights, "classifier", target="shared_head")
        resets = federation.everyone if self.reset_local_head else federation.everyone[~federation.taken_part]
        if len(resets):
            yield Mix(weights, "classifier", to=resets)
