"""FedBN: batch norm stays at the client."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.mixing import by_size
from coterie.core.training import StatsPolicy
from coterie.methods.base import Method

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class FedBN(Method):
    """Federated learning on non-IID features via local batch normalization (Li et al., 2021).

    FedAvg on everything but the batch-norm layers, whose affine parameters and running statistics are
    personal. Layers are found by type. A model without batch norm makes it FedAvg,
    of which the log warns.

    >>> FedBN().shared
    'all - norm'
    """

    paper: ClassVar[str] = "Li et al., ICLR 2021"
    shared: ClassVar[str] = "all - norm"
    stats: ClassVar[StatsPolicy] = "local"

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mix all but batch norm by data size."""
        federation = uploads.federation
        if federation.round == 1 and not federation.layout.columns("norm"):
            log.warning("fedbn: the model has no batch-norm layers, so nothing is personal and this is FedAvg")
        yield Mix(by_size(uploads), self.shared)
