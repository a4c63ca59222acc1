"""The methods, one file each, and their registry."""

from __future__ import annotations

from coterie.methods.apple import APPLE
from coterie.methods.base import Method
from coterie.methods.cfl import CFL
from coterie.methods.ditto import Ditto
from coterie.methods.fedala import FedALA
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedap import FedAP
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavg_ft import FedAvgFT
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedbn import FedBN
from coterie.methods.fedcac import FedCAC
from coterie.methods.feddistill import FedDistill
from coterie.methods.feddyn import FedDyn
from coterie.methods.fedfomo import FedFomo
from coterie.methods.fedgen import FedGen
from coterie.methods.fedgh import FedGH
from coterie.methods.fedpac import FedPAC
from coterie.methods.fedper import FedPer
from coterie.methods.fedproto import FedProto
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrema import FedReMa
from coterie.methods.fedrep import FedRep
from coterie.methods.fedrod import FedRod
from coterie.methods.fedtc import FedTC
from coterie.methods.fesem import FeSEM
from coterie.methods.lg_fedavg import LGFedAvg
from coterie.methods.local import Local
from coterie.methods.moon import MOON
from coterie.methods.per_fedavg import PerFedAvg
from coterie.methods.pfedcs import PFedCS
from coterie.methods.pfedme import PFedMe
from coterie.methods.pfedsim import PFedSim
from coterie.methods.scaffold import SCAFFOLD
from coterie.registry import Registry, subclasses_of

_OWN: dict[str, type[Method]] = {
    "apple": APPLE,
    "cfl": CFL,
    "ditto": Ditto,
    "fedala": FedALA,
    "fedamp": FedAMP,
    "fedap": FedAP,
    "fedavg": FedAvg,
    "fedavg-ft": FedAvgFT,
    "fedbabu": FedBABU,
    "fedbn": FedBN,
    "fedcac": FedCAC,
    "feddistill": FedDistill,
    "feddyn": FedDyn,
    "fedfomo": FedFomo,
    "fedgen": FedGen,
    "fedgh": FedGH,
    "fedpac": FedPAC,
    "fedper": FedPer,
    "fedproto": FedProto,
    "fedprox": FedProx,
    "fedrema": FedReMa,
    "fedrep": FedRep,
    "fedrod": FedRod,
    "fedtc": FedTC,
    "fesem": FeSEM,
    "lg-fedavg": LGFedAvg,
    "local": Local,
    "moon": MOON,
    "per-fedavg": PerFedAvg,
    "pfedcs": PFedCS,
    "pfedme": PFedMe,
    "pfedsim": PFedSim,
    "scaffold": SCAFFOLD,
}

METHODS: Registry[type[Method]] = Registry("method", "coterie.methods", _OWN, subclasses_of(Method))
"""Every method by name: a class that extends `Method`."""

__all__ = [
    "APPLE",
    "CFL",
    "METHODS",
    "MOON",
    "SCAFFOLD",
    "Ditto",
    "FeSEM",
    "FedALA",
    "FedAMP",
    "FedAP",
    "FedAvg",
    "FedAvgFT",
    "FedBABU",
    "FedBN",
    "FedCAC",
    "FedDistill",
    "FedDyn",
    "FedFomo",
    "FedGH",
    "FedGen",
    "FedPAC",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedReMa",
    "FedRep",
    "FedRod",
    "FedTC",
    "LGFedAvg",
    "Local",
    "Method",
    "PFedCS",
    "PFedMe",
    "PFedSim",
    "PerFedAvg",
]
