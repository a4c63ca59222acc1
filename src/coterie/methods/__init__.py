"""The methods, one file each, and their registry.

A method is known by its file and its line here: the file's name, with dashes, is the method's, and its class is loaded
when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.methods.base import Method as Method
from coterie.registry import Registry, deferred, on_first_use, subclasses_of

if TYPE_CHECKING:
    from coterie.methods.apfl import APFL as APFL
    from coterie.methods.apple import APPLE as APPLE
    from coterie.methods.cfl import CFL as CFL
    from coterie.methods.ditto import Ditto as Ditto
    from coterie.methods.fedala import FedALA as FedALA
    from coterie.methods.fedamp import FedAMP as FedAMP
    from coterie.methods.fedap import FedAP as FedAP
    from coterie.methods.fedas import FedAS as FedAS
    from coterie.methods.fedavg import FedAvg as FedAvg
    from coterie.methods.fedavg_ft import FedAvgFT as FedAvgFT
    from coterie.methods.fedbabu import FedBABU as FedBABU
    from coterie.methods.fedbn import FedBN as FedBN
    from coterie.methods.fedcac import FedCAC as FedCAC
    from coterie.methods.fedcp import FedCP as FedCP
    from coterie.methods.feddbe import FedDBE as FedDBE
    from coterie.methods.feddistill import FedDistill as FedDistill
    from coterie.methods.feddyn import FedDyn as FedDyn
    from coterie.methods.fedem import FedEM as FedEM
    from coterie.methods.fedfomo import FedFomo as FedFomo
    from coterie.methods.fedgen import FedGen as FedGen
    from coterie.methods.fedgh import FedGH as FedGH
    from coterie.methods.fedpac import FedPAC as FedPAC
    from coterie.methods.fedper import FedPer as FedPer
    from coterie.methods.fedproto import FedProto as FedProto
    from coterie.methods.fedprox import FedProx as FedProx
    from coterie.methods.fedrema import FedReMa as FedReMa
    from coterie.methods.fedrep import FedRep as FedRep
    from coterie.methods.fedrod import FedRod as FedRod
    from coterie.methods.fedselect import FedSelect as FedSelect
    from coterie.methods.fedtc import FedTC as FedTC
    from coterie.methods.fesem import FeSEM as FeSEM
    from coterie.methods.gpfl import GPFL as GPFL
    from coterie.methods.ifca import IFCA as IFCA
    from coterie.methods.knn_per import KNNPer as KNNPer
    from coterie.methods.lg_fedavg import LGFedAvg as LGFedAvg
    from coterie.methods.local import Local as Local
    from coterie.methods.moon import MOON as MOON
    from coterie.methods.mr_mtl import MRMTL as MRMTL
    from coterie.methods.per_fedavg import PerFedAvg as PerFedAvg
    from coterie.methods.pfedcs import PFedCS as PFedCS
    from coterie.methods.pfedfda import PFedFDA as PFedFDA
    from coterie.methods.pfedgraph import PFedGraph as PFedGraph
    from coterie.methods.pfedme import PFedMe as PFedMe
    from coterie.methods.pfedsim import PFedSim as PFedSim
    from coterie.methods.scaffold import SCAFFOLD as SCAFFOLD

__getattr__ = on_first_use(__name__, __file__)

METHODS: Registry[type[Method]] = Registry(
    "method",
    "coterie.methods",
    {text.partition(":")[0].split(".")[2].replace("_", "-"): text for text in deferred(__file__).values()},
    subclasses_of(Method),
)
"""Every method by name: a class that extends `Method`."""
