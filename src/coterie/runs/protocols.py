"""The five papers' protocols: data, partition, model, training, and the baselines' options where a paper sets them.

A protocol is a configuration to start from; whatever is given besides overrides it. Papers run several data sets
and partitions: each protocol holds one, its description says what else the paper varies, and another data set of
the paper brings what the paper changes with it. What a paper does not say is assumed, and each protocol lists that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.errors import unknown
from coterie.options import build
from coterie.rounds.evaluate import MOMENTS
from coterie.runs.experiment import Experiment, experiment_from
from coterie.setup.config import Config, overridden
from coterie.typed import typed

Keys = Mapping[str, Any]
Options = Mapping[str, Keys]
"""Options of methods, by method."""


OVER = {"mean": "clients", "weighted": "test samples"}
ROUNDS = {
    "best": "best round",
    "last": "last round",
    "last5": "mean of the last five",
    "by_validation": "best round by validation",
}


@dataclass(frozen=True)
class Reports:
    """Which of the recorded numbers a paper shows.

    >>> str(Reports("stored", "weighted", "last")), Reports().column
    ('stored, mean over test samples, last round', 'received.mean.best')
    """

    moment: str = "received"
    mean: str = "mean"
    round: str = "best"

    def __post_init__(self) -> None:
        for option, allowed in (("moment", MOMENTS), ("mean", OVER), ("round", ROUNDS)):
            if getattr(self, option) not in allowed:
                raise unknown(option, getattr(self, option), allowed)

    def changed(self, changes: Mapping[str, str]) -> Reports:
        """The same but for some of it."""
        return build("reports", "reports", Reports, {**vars(self), **changes})

    @property
    def column(self) -> str:
        """The name of the column that shows it."""
        return f"{self.moment}.{self.mean}.{self.round}"

    def __str__(self) -> str:
        return f"{self.moment}, mean over {OVER[self.mean]}, {ROUNDS[self.round]}"


@dataclass(frozen=True)
class OnDataSet:
    """What a paper sets otherwise on another of its data sets."""

    settings: Keys = field(default_factory=dict)
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """A paper's experiment: `settings` are keys of a run's configuration, `options` the methods' own, by method.

    `reports` says which of the recorded numbers the paper's tables show, `seeds` with how many, `besides` what else is
    to be known of them. `for_method` are settings of one method alone, `for_data` what another data set changes, and
    `assumed` says, a sentence each, what stands here though the paper does not state it.

    >>> find("pfedcs").settings_of("fedfomo", "tiny_imagenet")["model"]
    'resnet18'
    """

    description: str
    reports: Reports
    seeds: int
    settings: Keys
    options: Options = field(default_factory=dict)
    for_method: Mapping[str, Keys] = field(default_factory=dict)
    for_data: Mapping[str, OnDataSet] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    besides: str = ""

    @property
    def reported(self) -> str:
        """What the paper's tables show, in words.

        >>> find("fedtc").reported
        'received, mean over test samples, best round; 1 seed'
        """
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return "; ".join([str(self.reports), *([self.besides] if self.besides else []), seeds])

    def settings_of(self, method: str, data: str) -> Config:
        """The settings of a method on a data set."""
        changes = self.for_data.get(data, OnDataSet())
        return {**self.settings, **changes.settings, **self.for_method.get(method, {})}

    def options_of(self, method: str, data: str) -> dict[str, Any]:
        """The options of a method on a data set."""
        changes = self.for_data.get(data, OnDataSet())
        return {**OF_PAPERS.get(method, {}), **self.options.get(method, {}), **changes.options.get(method, {})}

    def start(self, method: str, given: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
        """A method's configuration, in which what is given (data among it) wins, and its options to start from."""
        data = str(given.get("data", self.settings["data"]))
        return overridden(self.settings_of(method, data), given), self.options_of(method, data)


VALIDATED: Mapping[str, Keys] = {"fedfomo": {"validation": 0.2}}
PLAIN_SCAFFOLD: Mapping[str, Keys] = {"scaffold": {"momentum": 0.0}}
FEDFOMO_ASSUMED = "FedFomo: a fifth of each client's training samples is for validation, as the method needs some."
SCAFFOLD_ASSUMED = "SCAFFOLD: momentum 0, which is not the paper's: its controls are defined for plain SGD."
BASELINES_ASSUMED = "Options of other methods: Coterie's defaults; lengths and rates of their phases: as published."
OF_PAPERS: Options = {
    "fedbabu": {"tune_epochs": 5},
    "fedgh": {"server_lr": 0.01},
    "fedpac": {"head_epochs": 1, "head_lr": 0.1},
    "fedrep": {"head_epochs": 10, "body_epochs": 1},
    "fedtc": {"lr_classifier": 1e-4},
    "pfedcs": {"tune_epochs": 1},
    "pfedme": {"inner_lr": 0.01},
    "per-fedavg": {"alpha": 0.01, "tune_epochs": 1},
}
"""Lengths and rates of phases that papers or their code name, in every protocol: by default these are the run's."""

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
_FEDREMA_ASSUMED = (
    "Clients: 20, four in each of five groups, as in the authors' code.",
    "Training and test images are pooled before clients draw, as in the authors' code.",
    "No momentum and no clipping: the paper says plain SGD, the authors' code has momentum 0.9 and clips at 10.",
    "Models are tested as received, as in the authors' code.",
    FEDFOMO_ASSUMED,
    BASELINES_ASSUMED,
)
_FEDREMA_BESIDES = "its 'final' is the mean of the last five; all clients have one size, so that both means agree"

PROTOCOLS: dict[str, Protocol] = {
    "pfedcs": Protocol(
        "PFedCS on CIFAR-10, 2 classes per client (also 3 and 4; Dirichlet 0.01, 0.05, 0.1; CIFAR-100, Tiny-ImageNet)",
        Reports("received", "mean", "best"),
        3,
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
        {"pfedcs": {"lam": 0.5}},
        VALIDATED,
        {
            "cifar100": OnDataSet({"classes_per_client": 10}),
            "tiny_imagenet": OnDataSet({"classes_per_client": 20, "model": "resnet18", "lr": 0.1}),
        },
        (
            "beta and lam of PFedCS: the paper names no values; beta is Coterie's default.",
            "Classes go to clients in order and in unequal amounts, as PFLlib does it; the paper's figure looks alike.",
            "No momentum and no weight decay: the paper mentions none.",
            "Models are tested as received and the best round counts, as in PFLlib.",
            "resnet18: batch-norm statistics are each method's default.",
            FEDFOMO_ASSUMED,
            "Options of other methods: Coterie's defaults, where the paper takes those of the original papers.",
        ),
    ),
    "fedrema": Protocol(
        "FedReMa on MNIST, five overlapping groups (also Fashion-MNIST; see fedrema-cifar10)",
        Reports("received", "mean", "best"),
        5,
        {"data": "mnist", "model": "cnn", **_FEDREMA},
        _FEDREMA_OPTIONS,
        VALIDATED,
        assumed=_FEDREMA_ASSUMED,
        besides=_FEDREMA_BESIDES,
    ),
    "fedrema-cifar10": Protocol(
        "FedReMa on CIFAR-10 with its small AlexNet (also 100 samples per client with iid 0.2, 0.4, 0.6, 0.8)",
        Reports("received", "mean", "best"),
        5,
        {"data": "cifar10", "model": "alexnet_small", **_FEDREMA},
        {**_FEDREMA_OPTIONS, "moon": {"mu": 5.0}},
        VALIDATED,
        assumed=_FEDREMA_ASSUMED,
        besides=_FEDREMA_BESIDES,
    ),
    "fedcac": Protocol(
        "FedCAC on CIFAR-10, Dirichlet 0.1 per client (also 0.5, 1.0, two_class; CIFAR-100, Tiny-ImageNet)",
        Reports("received", "mean", "best"),
        5,
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
        {**VALIDATED, **PLAIN_SCAFFOLD},
        {
            "cifar100": OnDataSet({"model": "resnet10"}, {"fedcac": {"beta": 170}}),
            "tiny_imagenet": OnDataSet({"model": "resnet10"}, {"fedcac": {"beta": 170}}),
        },
        (
            "Momentum 0.9, begun anew every round, as in the authors' configurations; the paper gives the rate alone.",
            "alpha is that of each class, as in the authors' code.",
            "Models are tested as received.",
            FEDFOMO_ASSUMED,
            SCAFFOLD_ASSUMED,
            BASELINES_ASSUMED,
        ),
    ),
    "pfedsim": Protocol(
        "pFedSim on CIFAR-10, Dirichlet 0.1, a tenth of 100 clients each round (0.5; EMNIST, CINIC-10, Tiny-ImageNet)",
        Reports("stored", "weighted", "last"),
        5,
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
            "per-fedavg": {"beta": 0.001},
            "fedrep": {"head_epochs": 4, "body_epochs": 1},
            "fedfomo": {"models": 5},
            "fedap": {"warm_up": 0.5, "m": 0.5},
        },
        {**VALIDATED, "feddyn": {"clip": 10.0}},
        {"tiny_imagenet": OnDataSet({"model": "mobilenet_v2"})},
        (
            "At least 40 samples a client, as in the authors' code.",
            "Who holds an even share of all samples gets no further class: sizes are then those of the paper.",
            "Batch-norm statistics stay at the client, as in the authors' code at the time.",
            "No momentum and no weight decay, as in the authors' code.",
            "Stored models are tested, samples count alike, and the last round counts, as in the authors' code.",
            "FedDyn: gradients are clipped at 10, as in published code.",
            "Training samples are shuffled; the authors' loader at the time did not.",
            "Five seeds: the paper states them for one data set only.",
            "mobilenet_v2 starts from random weights; the paper's starts from pretrained ones.",
            BASELINES_ASSUMED,
        ),
    ),
    "fedtc": Protocol(
        "FedTC on CIFAR-10, Dirichlet 0.1 over 10 clients (also 0.5 and 5.0; CIFAR-100 with resnet18)",
        Reports("received", "weighted", "best"),
        1,
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
        {},
        {**VALIDATED, **PLAIN_SCAFFOLD},
        {"cifar100": OnDataSet({"model": "resnet18"})},
        (
            "Rounds: 100; the paper gives no number.",
            "The rates decay by 0.9 every round, for all methods; the paper does not say per what.",
            "At least 40 samples a client, and no further class for who holds an even share of all, as in PFLlib.",
            "Momentum and weight decay are for both of FedTC's rates, and momentum begins anew every round.",
            "The best round counts.",
            "resnet18: batch-norm statistics are each method's default.",
            "The other methods train all layers at rate 0.01.",
            FEDFOMO_ASSUMED,
            SCAFFOLD_ASSUMED,
            BASELINES_ASSUMED,
        ),
    ),
}


def find(name: str) -> Protocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


@typed
def protocol(name: str, method: str, **given: Any) -> Experiment:
    """A paper's experiment with a method, in which whatever is given overrides the paper's settings.

    >>> experiment = protocol("pfedsim", "fedprox", data="digits", rounds=10)
    >>> experiment.method, experiment.join, experiment.rounds
    (FedProx(mu=1.0), 0.1, 10)
    """
    config, options = find(name).start(method, given)
    chosen = {"method": method, "set": {**options, **given.get("set", {})}, "protocol": name}
    return experiment_from({**config, **chosen})
