"""Methods whose server does more give the same rows as their plain, line-by-line versions in `examples/`."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.methods import FedCAC, FedReMa, FedSelect, FedTC, Method, PFedCS, PFedGraph, PFedSim
from coterie.partition import Pathological
from coterie.runs.experiment import Experiment

pytestmark = pytest.mark.thorough

ROUNDS, CLIENTS = 3, 8
SETTINGS: dict[str, Any] = {"epochs": 2, "batch": 48, "lr": 0.05, "momentum": 0.5, "weight_decay": 1e-3, "decay": 0.9}

CASES: list[tuple[str, Method, dict[str, Any]]] = [
    ("pfedcs", PFedCS(beta=10), {"beta": 10}),
    ("pfedcs", PFedCS(beta=2), {"beta": 2}),
    ("pfedcs", PFedCS(beta=5, lam=0.9, tune_epochs=2, kl=0.5), {"beta": 5, "lam": 0.9, "rho": 2, "kl": 0.5}),
    ("pfedcs", PFedCS(beta=5, weights="renormalised"), {"beta": 5, "weights": "renormalised"}),
    ("pfedcs", PFedCS(beta=5, weights="peers_only"), {"beta": 5, "weights": "peers_only"}),
    ("pfedcs", PFedCS(beta=5, dist_power=1), {"beta": 5, "dist_power": 1}),
    *[
        ("pfedcs", PFedCS(beta=5, selection=how), {"beta": 5, "selection": how})
        for how in ("none", "all", "random", "kmeans", "hierarchical", "fixed")
    ],
    ("fedrema", FedReMa(), {}),
    ("fedrema", FedReMa(delta=0.99), {"delta": 0.99}),
    ("fedrema", FedReMa(variant="F"), {"variant": "F"}),
    ("fedrema", FedReMa(variant="A&F", delta=0.0), {"variant": "A&F", "delta": 0.0}),
    ("fedrema", FedReMa(probe="per_row", probe_high=0.5), {"probe": "per_row", "probe_high": 0.5}),
    ("fedrema", FedReMa(num_probes=4), {"num_probes": 4}),
    ("fedrema", FedReMa(include_lower=True), {"include_lower": True}),
    ("fedcac", FedCAC(beta=10), {"beta": 10}),
    ("fedcac", FedCAC(beta=2, tau=0.2), {"beta": 2, "tau": 0.2}),
    ("fedcac", FedCAC(weights="size"), {"weights": "size"}),
    *[("fedcac", FedCAC(mask=kind), {"mask": kind}) for kind in ("random", "reverse")],
    *[("fedcac", FedCAC(collaboration=how), {"collaboration": how}) for how in ("none", "top1", "top5", "as_critical")],
    ("pfedsim", PFedSim(rho=0.34), {"rho": 0.34}),
    ("pfedsim", PFedSim(rho=0.0, similarity="paper"), {"rho": 0.0, "similarity": "paper"}),
    ("pfedsim", PFedSim(rho=1.0), {"rho": 1.0}),
    ("fedtc", FedTC(lr_classifier=0.01), {"lr_classifier": 0.01}),
    ("fedtc", FedTC(reset_local_head=True), {"reset_local_head": True}),
    ("pfedgraph", PFedGraph(), {}),
    ("pfedgraph", PFedGraph(alpha=0.2, lam=0.5), {"alpha": 0.2, "lam": 0.5}),
    ("fedselect", FedSelect(every=1), {"every": 1}),
    ("fedselect", FedSelect(every=1, share=0.5, alternations=2), {"every": 1, "share": 0.5, "alternations": 2}),
]


# Models without kinks: where ReLU or max-pool tie in float32, two correct versions may part by 1e-4 within three
# rounds; here they stay within rounding.


def dense_net() -> nn.Module:
    """Two layers, and a classifier of two more."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh())
    return nn.Sequential(
        OrderedDict(body=body, classifier=nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 10)))
    )


def conv_net() -> nn.Module:
    """Convolutions and batch norm."""
    return nn.Sequential(
        OrderedDict(
            body=nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.Tanh(),
                nn.AvgPool2d(2),
                nn.Conv2d(4, 8, 3, padding=1),
                nn.BatchNorm2d(8),
                nn.Tanh(),
                nn.AvgPool2d(2),
                nn.Flatten(),
            ),
            classifier=nn.Linear(32, 10),
        )
    )


def framework_rows(
    method: Method, model: nn.Module, join: float, seed: int
) -> tuple[Experiment, list[dict[str, Tensor]]]:
    settings = {**SETTINGS, "schedule": "exponential"}
    partition = Pathological(clients=CLIENTS, classes_per_client=3)
    experiment = Experiment(
        method=method,
        data="digits",
        share=0.3,
        partition=partition,
        model=model,
        classifier="classifier",
        join=join,
        seed=seed,
        rounds=ROUNDS,
        **settings,
    )
    result = experiment.run()
    models = [result.model(client) for client in range(CLIENTS)]
    return experiment, [dict(one.state_dict()) for one in models]


@pytest.mark.parametrize("model", [dense_net, conv_net])
@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize(("name", "method", "options"), CASES, ids=lambda value: str(value)[:60])
def test_rows_equal_the_oracles_after_three_rounds(
    name: str, method: Method, options: dict[str, Any], join: float, model: Callable[[], nn.Module]
) -> None:
    seed = 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = model()
    experiment, ours = framework_rows(method, built, join, seed)
    oracle = importlib.import_module(f"examples.{name}_plain")
    prepared = experiment.prepare()
    module: nn.Module = prepared.problem_base.module
    outcome = oracle.run(
        prepared.data.inputs,
        prepared.data.labels,
        list(prepared.problem().train),
        module,
        "classifier",
        rounds=ROUNDS,
        seed=seed,
        join=join,
        **SETTINGS,
        **options,
    )
    for client in range(CLIENTS):
        for tensor, expected in outcome.models[client].items():
            torch.testing.assert_close(ours[client][tensor], expected, atol=1e-5, rtol=0, msg=f"{client} {tensor}")


def test_the_oracles_cover_their_methods() -> None:
    assert {name for name, _, _ in CASES} == {
        "pfedcs",
        "fedrema",
        "fedcac",
        "pfedsim",
        "fedtc",
        "pfedgraph",
        "fedselect",
    }
