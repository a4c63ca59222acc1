"""Coterie: personalised federated learning. A client's model is a row; a round trains rows, then mixes them.

>>> import coterie as ct
>>> ct.FedProx(mu=0.1)
FedProx(mu=0.1)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from coterie.version import VERSION

if TYPE_CHECKING:
    from coterie.client.recipe import Keep, Measure, Phase
    from coterie.compare.table import Comparison, compare
    from coterie.core.exchange import Drop, Mix, Peers, Put, Uploads
    from coterie.core.federation import Federation
    from coterie.core.scale import Scale
    from coterie.core.task import Classification, Loss, Metric, Regression
    from coterie.data import Dataset, from_arrays, load, load_own
    from coterie.errors import CoterieError
    from coterie.methods import (
        APPLE,
        CFL,
        MOON,
        SCAFFOLD,
        Ditto,
        FedALA,
        FedAMP,
        FedAP,
        FedAvg,
        FedAvgFT,
        FedBABU,
        FedBN,
        FedCAC,
        FedDistill,
        FedDyn,
        FedFomo,
        FedGen,
        FedGH,
        FedPAC,
        FedPer,
        FedProto,
        FedProx,
        FedReMa,
        FedRep,
        FedRod,
        FedTC,
        FeSEM,
        LGFedAvg,
        Local,
        Method,
        PerFedAvg,
        PFedCS,
        PFedMe,
        PFedSim,
    )
    from coterie.partition import (
        ByClient,
        ByDomain,
        Dirichlet,
        DirichletPerClient,
        Dominant,
        ExtendedDirichlet,
        FromFile,
        Iid,
        Partition,
        Pathological,
        Quantile,
        Quantity,
        TwoClass,
    )
    from coterie.rounds.listeners import Listener
    from coterie.runs.experiment import Experiment
    from coterie.runs.opened import OpenedRun, open_run
    from coterie.runs.protocols import protocol
    from coterie.runs.result import Result
    from coterie.runs.resume import resume
    from coterie.serve.model import load_model

# Where each public name lives. They are imported when first used, so that `import coterie` costs nothing.
_HOMES = {
    "coterie.data": ("Dataset", "from_arrays", "load", "load_own"),
    "coterie.serve.model": ("load_model",),
    "coterie.compare.table": ("Comparison", "compare"),
    "coterie.errors": ("CoterieError",),
    "coterie.core.exchange": ("Drop", "Mix", "Peers", "Put", "Uploads"),
    "coterie.runs.experiment": ("Experiment",),
    "coterie.core.federation": ("Federation",),
    "coterie.core.scale": ("Scale",),
    "coterie.core.task": ("Classification", "Loss", "Metric", "Regression"),
    "coterie.methods": (
        "APPLE",
        "CFL",
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
        "MOON",
        "Method",
        "PFedCS",
        "PFedMe",
        "PFedSim",
        "PerFedAvg",
        "SCAFFOLD",
    ),
    "coterie.partition": (
        "ByClient",
        "ByDomain",
        "Dirichlet",
        "DirichletPerClient",
        "Dominant",
        "ExtendedDirichlet",
        "FromFile",
        "Iid",
        "Partition",
        "Pathological",
        "Quantile",
        "Quantity",
        "TwoClass",
    ),
    "coterie.runs.opened": ("OpenedRun", "open_run"),
    "coterie.runs.protocols": ("protocol",),
    "coterie.client.recipe": ("Keep", "Measure", "Phase"),
    "coterie.runs.result": ("Result",),
    "coterie.runs.resume": ("resume",),
    "coterie.rounds.listeners": ("Listener",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = VERSION
__all__ = [
    "APPLE",
    "CFL",
    "MOON",
    "SCAFFOLD",
    "ByClient",
    "ByDomain",
    "Classification",
    "Comparison",
    "CoterieError",
    "Dataset",
    "Dirichlet",
    "DirichletPerClient",
    "Ditto",
    "Dominant",
    "Drop",
    "Experiment",
    "ExtendedDirichlet",
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
    "Federation",
    "FromFile",
    "Iid",
    "Keep",
    "LGFedAvg",
    "Listener",
    "Local",
    "Loss",
    "Measure",
    "Method",
    "Metric",
    "Mix",
    "OpenedRun",
    "PFedCS",
    "PFedMe",
    "PFedSim",
    "Partition",
    "Pathological",
    "Peers",
    "PerFedAvg",
    "Phase",
    "Put",
    "Quantile",
    "Quantity",
    "Regression",
    "Result",
    "Scale",
    "TwoClass",
    "Uploads",
    "compare",
    "from_arrays",
    "load",
    "load_model",
    "load_own",
    "open_run",
    "protocol",
    "resume",
]


def __dir__() -> list[str]:
    """The public names, those that are not imported yet among them."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))})


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
