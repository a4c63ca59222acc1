"""FedBABU: the classifier keeps its random start until everybody tunes a model of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from coterie.client.recipe import Phase, Recipe
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size, uniform
from coterie.errors import require, unknown
from coterie.methods.base import Method

TUNED = ("all", "classifier", "extractor")
AVERAGES = ("size", "clients")


@dataclass(frozen=True)
class FedBABU(Method):
    """FedBABU: toward enhanced representation for federated image classification (Oh et al., 2022).

    Clients minimise CE(θ, φ₀) over θ; φ₀ is the common initial classifier and never trained. θ ← Σ_k n_k/Σn · θ_k
    (`average="clients"`: the plain mean). Batch-norm statistics are averaged with θ.

    Tested: after the last round every client tunes a copy of (θ, φ₀) on its own data, for `tune_epochs` (None: the
    run's; the paper has 5) at the run's rate, and the copy is tested; rounds before show the model that is not
    tuned. `tune_epochs=0` never tunes; `tune_group` names what moves. Clients who never took part get θ and tune it
    like everybody else. Whose tuned copy is not finite is named and tested without tuning.

    >>> FedBABU(tune_epochs=10)
    FedBABU(tune_epochs=10, tune_group='all', average='size')
    """

    tune_epochs: int | None = None
    tune_group: str = "all"
    average: str = "size"

    paper: ClassVar[str] = "Oh et al., ICLR 2022"
    extra_cost: ClassVar[str] = "after the last round: tuning"

    def __post_init__(self) -> None:
        require(
            self.tune_epochs is None or self.tune_epochs >= 0,
            f"tune_epochs = {self.tune_epochs}: must not be negative (0: no tuning)",
        )
        if self.tune_group not in TUNED:
            raise unknown("tune_group", self.tune_group, TUNED)
        if self.average not in AVERAGES:
            raise unknown("average", self.average, AVERAGES)

    def recipe(self, federation: Federation) -> Recipe:
        """The extractor alone."""
        return (Phase(train="extractor"),)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The extractor."""
        return {"model": "extractor"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mean extractor."""
        yield Mix(by_size(uploads) if self.average == "size" else uniform(len(uploads.cohort)), "extractor")

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The round after which clients personalise, which is the last, and for how long."""
        epochs = federation.training.epochs if self.tune_epochs is None else self.tune_epochs
        return {"tuned_round": federation.rounds, "tune_epochs": epochs} if epochs else {}

    def tune(self, federation: Federation) -> Recipe:
        """Personalise once the federation is done."""
        if federation.round < federation.rounds or self.tune_epochs == 0:
            return ()
        return (Phase(train=self.tune_group, epochs=self.tune_epochs, stream=1),)
