"""The methods, one file each, and their registry."""

from __future__ import annotations

from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbn import FedBN
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.local import Local
from coterie.methods.method import Method

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "fedper": FedPer,
    "fedprox": FedProx,
    "local": Local,
}

__all__ = ["METHODS", "FedAvg", "FedBN", "FedPer", "FedProx", "Local", "Method"]
