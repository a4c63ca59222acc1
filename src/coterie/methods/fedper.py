"""FedPer: the classifier never leaves the client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.mixing import by_size
from coterie.core.training import StatsPolicy
from coterie.methods.base import Method


@dataclass(frozen=True)
class FedPer(Method):
    """Federated learning with personalization layers (Arivazhagan et al., 2019).

    Clients train (θ, φ_k) jointly; θ ← Σ_k n_k/Σn · θ_k, φ_k stays. Batch-norm statistics stay local.

    >>> FedPer().shared
    'extractor'
    """

    paper: ClassVar[str] = "Arivazhagan et al., arXiv 1912.00818"
    shared: ClassVar[str] = "extractor"
    stats: ClassVar[StatsPolicy] = "local"

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mix extractors by data size."""
        yield Mix(by_size(uploads), "extractor")
