"""FedAvg: one model for everybody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.mixing import by_size
from coterie.methods.base import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Communication-efficient learning of deep networks from decentralized data (McMahan et al., 2017).

    w ← Σ_k n_k/Σn · w_k over this round's cohort. Running statistics of batch norm are averaged too.

    >>> FedAvg().shared
    'all'
    """

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mix whole models by data size."""
        yield Mix(by_size(uploads))
