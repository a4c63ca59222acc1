"""LG-FedAvg: everybody's own extractor below one shared classifier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method


@dataclass(frozen=True)
class LGFedAvg(Method):
    """Think locally, act globally: federated learning with local and global representations (Liang et al., 2020).

    Clients minimise CE(θ_k, φ) over both; φ ← Σ_k n_k/Σn · φ_k, θ_k stays, and so do batch-norm statistics. The
    opposite of FedPer.

    The paper starts from a model trained by FedAvg: `warmup` is the number of such rounds, in which whole models
    travel and everybody gets the mean (0: start from the common initial model, as comparisons usually do).

    Tested: (θ_k, φ). A client that sits a round out keeps θ_k and gets the newest φ; before it first takes part θ_k
    is the initial extractor, or the last one of the warm-up.

    >>> LGFedAvg(warmup=5)
    LGFedAvg(warmup=5)
    """

    warmup: int = 0

    paper: ClassVar[str] = "Liang et al., arXiv 2001.01523"
    shared: ClassVar[str] = "classifier"
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.warmup >= 0, f"warmup = {self.warmup}: must not be negative")

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The classifier; whole models in the warm-up."""
        return {"model": "all" if federation.round <= self.warmup else "classifier"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mean classifier; mean extractor for everybody in the warm-up."""
        yield Mix(by_size(uploads), "classifier")
        if uploads.federation.round <= self.warmup:
            yield Mix(by_size(uploads), "extractor", to="everyone")
