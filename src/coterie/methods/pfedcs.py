"""PFedCS: clients with similar classifiers teach each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from coterie.client.recipe import Phase, Recipe
from coterie.client.terms import RECEIVED, task_loss
from coterie.client.views import BatchView
from coterie.core.columns import Columns
from coterie.core.exchange import Action, Drop, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import require_pairs
from coterie.core.mixing import by_size
from coterie.core.training import StatsPolicy
from coterie.errors import require, unknown
from coterie.maths import collaborators
from coterie.maths.collaborators import EPS, WEIGHTS, teaching_weights, three_at_random, threshold
from coterie.maths.similarity import require_weight_matrix, row_normalised, squared_distances
from coterie.methods.base import Method, require_classes

NEAR = {
    "gmm": collaborators.near_by_mixture,
    "kmeans": collaborators.near_by_means,
    "hierarchical": collaborators.near_by_linkage,
    "fixed": collaborators.near_by_distance,
}
CHOICES = {
    "selection": (*NEAR, "none", "all", "random"),
    "weights": WEIGHTS,
    "teacher_trunk": ("current", "frozen"),
}


@dataclass(frozen=True)
class TeacherKL:
    """KL(p_v ‖ p_w): the tuned classifier of similar clients teaches, on the current (or the received) features."""

    weight: float
    trunk: str

    def __call__(self, batch: BatchView) -> Tensor:
        """The term for every sample, `[B]`; zero for a client that has no teacher yet."""
        features = batch.features if self.trunk == "current" else batch.under(RECEIVED).features
        teacher = log_softmax(batch.head("teacher", features.detach()), 1).detach()
        divergence = (teacher.exp() * (teacher - log_softmax(batch.logits, 1))).sum(1)
        return self.weight * (batch.rounds_taken > 0) * divergence


@dataclass(frozen=True)
class PFedCS(Method):
    """PFedCS: a personalized FL method for enhancing collaboration among similar classifiers (2025).

    Rounds 1..β: a client's customised classifier is v_k = Σ_i p_i φ_i over its collaborators and itself (6);
    it tunes v_k for `tune_epochs` (None: the run's; the paper has 1) on its frozen extractor (9)–(10), then trains
    on CE + KL(p_v ‖ p_w) (12).
    The extractor is FedAvg's. After round β it is FedPer. Collaborators are the near component of a mixture on
    the row-normalised classifier distances, within τ = avg + (t/β)(min − avg) (4)–(5).

    Where the paper contradicts itself: literal (7) gives the client itself an extra weight and the sum exceeds
    one. `weights="self_inclusive"` reads its sums over C̄ ∪ {k}; `"renormalised"` divides by the total;
    `"peers_only"` leaves the client out. β and λ are not in the paper: all rounds and 0.5. There is no teacher in a
    client's first round. `selection` names the variants of Tables 3 and 4; `"none"` is FedPer.

    >>> PFedCS(beta=10).beta
    10
    """

    beta: int | None = None
    lam: float = 0.5
    tune_epochs: int | None = None
    kl: float = 1.0
    selection: str = "gmm"
    weights: str = "self_inclusive"
    dist_power: int = 2
    teacher_trunk: str = "current"

    paper: ClassVar[str] = "PFedCS, AAAI 2025"
    extra_cost: ClassVar[str] = (
        "stage 1: one pass for features, tuning a classifier on them; a second classifier in the loss"
    )
    shared: ClassVar[str] = "extractor"
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.beta is None or self.beta >= 1, f"beta = {self.beta}: must be at least 1")
        require(0 <= self.lam <= 1, f"lam = {self.lam}: must lie in [0, 1]")
        require(
            self.tune_epochs is None or self.tune_epochs >= 0,
            f"tune_epochs = {self.tune_epochs}: must not be negative",
        )
        require(self.kl >= 0, f"kl = {self.kl}: must not be negative")
        require(self.dist_power in (1, 2), f"dist_power = {self.dist_power}: must be 1 or 2")
        for option, allowed in CHOICES.items():
            if getattr(self, option) not in allowed:
                raise unknown(option, getattr(self, option), allowed)

    def last_stage_one_round(self, federation: Federation) -> int:
        """β: all rounds unless given. Without collaborators nobody teaches: round 1, which has no teachers, is all."""
        if self.selection == "none":
            return 1
        return federation.rounds if self.beta is None else self.beta

    def makes_teachers(self, federation: Federation) -> bool:
        """Whether this round's uploads make teachers for the next one."""
        return federation.round + 1 <= self.last_stage_one_round(federation)

    def has_teachers(self, federation: Federation) -> bool:
        """Whether teachers were sent for the round under way."""
        return 1 < federation.round <= self.last_stage_one_round(federation)

    def check(self, federation: Federation) -> None:
        """Teachers speak of classes; clients are compared by their classifiers' weights."""
        require_pairs("pfedcs", federation.clients, "distances", each=32)
        require_classes(federation, "pfedcs")
        require_weight_matrix(federation, "pfedcs")

    def init(self, federation: Federation) -> None:
        """A teacher for everybody, unused until there is something to teach."""
        federation.add_slot("teacher", "classifier")

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """β, which is all rounds unless given, and how long teachers are tuned."""
        epochs = federation.training.epochs if self.tune_epochs is None else self.tune_epochs
        return {"beta": self.last_stage_one_round(federation), "tune_epochs": epochs}

    def recipe(self, federation: Federation) -> Recipe:
        """Tune the teacher, then learn from it and from the data."""
        if not self.has_teachers(federation):
            return (Phase(),)
        tune = Phase(train="classifier", slot="teacher", epochs=self.tune_epochs, stream=1)
        train = Phase(terms=(task_loss, TeacherKL(self.kl, self.teacher_trunk)), stream=0)
        return (train,) if self.tune_epochs == 0 else (tune, train)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The extractor, and the classifier too while teachers are still made of it."""
        return {"model": "all" if self.makes_teachers(federation) else "extractor"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mean extractor; for the next round of stage 1, everybody's teacher."""
        federation = uploads.federation
        yield Mix(by_size(uploads), "extractor")
        if self.makes_teachers(federation):
            pool = federation.everyone[federation.taken_part]
            teaching = self.teaching(federation, pool)
            yield Mix(teaching, "classifier", source="model", sources=pool, target="teacher", to=pool)
        else:
            yield Drop("teacher")

    def teaching(self, federation: Federation, pool: Tensor) -> Tensor:
        """Who teaches whom among the clients whose classifiers are known: `[p, p]`."""
        matrices = Columns.of(*(entry.columns.spans[0] for entry in federation.layout.classifier_weights))
        distances = squared_distances(federation["model"].rows(pool, matrices))
        distances = row_normalised(distances if self.dist_power == 2 else distances.sqrt())
        chosen = self.collaborators(federation, pool, distances)
        return teaching_weights(distances, chosen, federation.sizes[pool], self.lam, self.weights)

    def collaborators(self, federation: Federation, pool: Tensor, distances: Tensor) -> Tensor:
        """C̄ of every client (5): `[p, p]` bool, the client itself not included."""
        apart = ~torch.eye(len(pool), dtype=torch.bool)
        if len(pool) == 1:
            return ~apart & apart
        if self.selection in NEAR:
            limit = threshold(distances, (federation.round + 1) / self.last_stage_one_round(federation))
            return NEAR[self.selection](distances) & (distances <= limit[:, None] + EPS)
        if self.selection == "random":
            return three_at_random(federation, pool)
        return apart
