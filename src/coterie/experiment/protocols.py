"""The five papers' protocols: data, partition, model, training, and the baselines' options where a paper sets them.

A protocol is a configuration to start from; whatever is given besides overrides it. Papers run several data sets
and partitions: each protocol holds one, and its description says what else the paper varies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.errors import unknown
from coterie.experiment.config import Config
from coterie.experiment.experiment import Experiment, experiment_from


@dataclass(frozen=True)
class Protocol:
    """A paper's experiment: `settings` are keys of a run's configuration, `options` the methods' own, by method.

    `reports` says which of the recorded numbers the paper's tables show: moment, mean, round.
    """

    description: str
    reports: str
    settings: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_FEDREMA = {
    "partition": "dominant",
    "clients": 20,
    "samples": 600,
    "iid": 0.2,
    "test": 0.2,
    "classifier": "all",
    "rounds": 500,
    "epochs": 5,
    "batch": 100,
    "lr": 0.01,
}
_FEDREMA_OPTIONS = {
    "fedrema": {"delta": 0.5, "temperature": 0.5},
    "fedprox": {"mu": 1.0},
    "moon": {"mu": 1.0},
    "fedproto": {"lam": 1.0},
    "fedpac": {"lam": 1.0},
}
_FEDREMA_REPORTS = "received, best round (final: mean of the last five); all clients have one size; 5 seeds"

PROTOCOLS: dict[str, Protocol] = {
    "pfedcs": Protocol(
        "PFedCS on CIFAR-10, 2 classes per client (also 3 and 4; Dirichlet 0.01, 0.05, 0.1; CIFAR-100, Tiny-ImageNet)",
        "received, mean over clients, best round; 3 seeds",
        {
            "data": "cifar10",
            "partition": "pathological",
            "clients": 20,
            "classes_per_client": 2,
            "test": 0.25,
            "model": "cnn",
            "rounds": 200,
            "epochs": 5,
            "batch": 100,
            "lr": 0.005,
        },
        {"pfedcs": {"lam": 0.5, "tune_epochs": 1}},
    ),
    "fedrema": Protocol(
        "FedReMa on MNIST, five overlapping groups (also Fashion-MNIST; see fedrema-cifar10)",
        _FEDREMA_REPORTS,
        {"data": "mnist", "model": "cnn", **_FEDREMA},
        _FEDREMA_OPTIONS,
    ),
    "fedrema-cifar10": Protocol(
        "FedReMa on CIFAR-10 with its small AlexNet (also 100 samples per client with iid 0.2, 0.4, 0.6, 0.8)",
        _FEDREMA_REPORTS,
        {"data": "cifar10", "model": "alexnet_small", **_FEDREMA},
        {**_FEDREMA_OPTIONS, "moon": {"mu": 5.0}},
    ),
    "fedcac": Protocol(
        "FedCAC on CIFAR-10, Dirichlet 0.1 per client (also 0.5, 1.0, two_class; CIFAR-100, Tiny-ImageNet)",
        "received, mean over clients, best round; 5 seeds",
        {
            "data": "cifar10",
            "partition": "dirichlet_per_client",
            "clients": 40,
            "alpha": 0.1,
            "train_samples": 500,
            "test_samples": 100,
            "model": "resnet8",
            "rounds": 500,
            "epochs": 5,
            "batch": 100,
            "lr": 0.1,
            "momentum": 0.9,
        },
        {"fedcac": {"tau": 0.5, "beta": 100}},
    ),
    "pfedsim": Protocol(
        "pFedSim on CIFAR-10, Dirichlet 0.1, a tenth of 100 clients each round (0.5; EMNIST, CINIC-10, Tiny-ImageNet)",
        "trained, mean over test samples, last round; 5 seeds",
        {
            "data": "cifar10",
            "partition": "dirichlet",
            "clients": 100,
            "alpha": 0.1,
            "least": 40,
            "test": 0.5,
            "model": "lenet5",
            "stats": "local",
            "join": 0.1,
            "rounds": 200,
            "epochs": 5,
            "batch": 32,
            "lr": 0.01,
        },
        {
            "pfedsim": {"rho": 0.5},
            "fedprox": {"mu": 1.0},
            "feddyn": {"alpha": 0.01},
            "fedgen": {
                "hidden": 32,
                "noise": 32,
                "steps": 5,
                "alpha": 10.0,
                "beta": 10.0,
                "decay": 0.98,
                "diversity": 0.0,
            },
            "per-fedavg": {"alpha": 0.01, "beta": 0.001},
            "fedrep": {"head_epochs": 4, "body_epochs": 1},
            "fedfomo": {"models": 5},
            "fedap": {"warm_up": 0.5, "m": 0.5},
        },
    ),
    "fedtc": Protocol(
        "FedTC on CIFAR-10, Dirichlet 0.1 over 10 clients (also 0.5 and 5.0; CIFAR-100 with resnet18)",
        "received, mean over test samples, best round; 1 seed",
        {
            "data": "cifar10",
            "partition": "dirichlet",
            "clients": 10,
            "alpha": 0.1,
            "least": 40,
            "test": 0.25,
            "model": "cnn",
            "rounds": 100,
            "epochs": 5,
            "batch": 64,
            "lr": 0.01,
            "momentum": 0.9,
            "weight_decay": 1e-5,
            "schedule": "exponential",
            "decay": 0.9,
        },
        {"fedtc": {"lr_classifier": 1e-4}},
    ),
}


def find(name: str) -> Protocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def protocol(name: str, method: str, **given: Any) -> Experiment:
    """A paper's experiment with a method, in which whatever is given overrides the paper's settings.

    >>> experiment = protocol("pfedsim", "fedprox", data="digits", rounds=10)
    >>> experiment.method, experiment.join, experiment.rounds
    (FedProx(mu=1.0), 0.1, 10)
    """
    found = find(name)
    config: Config = {**found.settings, **given, "method": method}
    config["set"] = {**found.options.get(method, {}), **given.get("set", {})}
    return experiment_from(config)
