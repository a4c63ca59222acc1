"""The methods, one file each, and their registry."""

from __future__ import annotations

from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbn import FedBN
from coterie.methods.fedcac import FedCAC
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrema import FedReMa
from coterie.methods.fedtc import FedTC
from coterie.methods.local import Local
from coterie.methods.method import Method
from coterie.methods.pfedcs import PFedCS
from coterie.methods.pfedsim import PFedSim

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "fedcac": FedCAC,
    "fedper": FedPer,
    "fedprox": FedProx,
    "fedrema": FedReMa,
    "fedtc": FedTC,
    "local": Local,
    "pfedcs": PFedCS,
    "pfedsim": PFedSim,
}

__all__ = [
    "METHODS",
    "FedAvg",
    "FedBN",
    "FedCAC",
    "FedPer",
    "FedProx",
    "FedReMa",
    "FedTC",
    "Local",
    "Method",
    "PFedCS",
    "PFedSim",
]
