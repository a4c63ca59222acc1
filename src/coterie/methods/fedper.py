"""FedPer: the classifier never leaves the client."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method

CLASSIFIER = "classifier"


@dataclass(frozen=True)
class FedPer(Method):
    """Federated learning with personalization layers (Arivazhagan et al., 2019).

    Clients train (θ, φ_k) jointly; θ ← Σ_k n_k/Σn · θ_k, φ_k stays. Batch-norm statistics stay local.

    φ is the classifier, or what `personal` names instead: groups, modules or single parameters, such as
    `"classifier.bias"`, `"norm"` or `"body.0 + classifier"`. That is FedSim of Pillutla et al. (2022).

    >>> FedPer().shared, FedPer(personal="classifier.bias").shared
    ('extractor', 'all - classifier.bias')
    """

    personal: str = field(default=CLASSIFIER, kw_only=True)

    paper: ClassVar[str] = "Arivazhagan et al., arXiv 1912.00818"
    stats: ClassVar[StatsPolicy] = "local"

    @property
    def shared(self) -> str:
        """The groups that are averaged: all but the personal ones."""
        return "extractor" if self.personal == CLASSIFIER else without(self.personal)

    def check(self, federation: Federation) -> None:
        """Something is personal, and something shared."""
        layout = federation.layout
        parameters = layout.columns("parameters")
        personal = bool(layout.columns(self.personal) & parameters)
        require(personal, f"personal = '{self.personal}': holds no parameters; name others, or use fedavg")
        shared = bool(layout.columns(self.shared) & parameters)
        require(shared, f"personal = '{self.personal}': leaves nothing to share; name fewer, or use local")

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mix what is shared by data size."""
        yield Mix(by_size(uploads), self.shared)


def without(groups: str) -> str:
    """The expression for all columns but those of an expression.

    >>> without("norm"), without("body + classifier - classifier.bias")
    ('all - norm', 'all - body - classifier + classifier.bias')
    """
    return "all - " + re.sub(r"\s+([+-])\s+", lambda sign: " - " if sign[1] == "+" else " + ", groups.strip())
