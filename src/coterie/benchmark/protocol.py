"""The protocol `natural-1`: which sets, which contestants with which options to tune, and how everybody runs.

Owners are clients. Of each client's rows three fifths are for training, a fifth chooses and a fifth tests; a tenth of
the clients are held out as newcomers. Who is held out, and which rows test, is drawn once: so no row that tests has a
say in any choice, whatever the seed of a run. All clients take as many steps in a round, with every method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.compare.space import Space, grid_of, read_space
from coterie.data.catalogue import NATURAL
from coterie.errors import CoterieError, require, unknown
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.registry import OWN_FILE, is_reference, short_name
from coterie.runs.experiment import Experiment, experiment_from

NAME = "natural-1"
BUDGET, SEEDS, TUNING_SEED = 12, (0, 1, 2, 3, 4), 1000
RATES = "lr=0.02..2"
USUAL_BATCH = 32
SAME: Mapping[str, Any] = {
    "partition": "by_client",
    "partition_seed": 0,
    "test": 0.2,
    "validation": 0.25,  # of what does not test
    "held_out": 0.1,
    "model": "mlp",
    "rounds": 20,
    "steps": 10,
    "engine": "stacked",
    "threads": 1,
    "record_every": 0,
}
"""What holds for every run."""


@dataclass(frozen=True)
class BenchmarkSet:
    """A set by its name here, the data behind it, and the batch with which clients train on it."""

    name: str
    data: str
    batch: int = USUAL_BATCH


LARGE = {"randhie": 64, "covid": 64, "tv16": 64, "portal": 128, "insteval": 256}
"""Batches of sets whose clients hold many rows: own training of ten epochs is to be affordable there too."""
SETS = {
    name: BenchmarkSet(name, f"natural/{name}", LARGE.get(name, USUAL_BATCH))
    for names in NATURAL.values()
    for name in names
}


@dataclass(frozen=True)
class Contestant:
    """A method that takes part: what it is called, fixed options, and what is tuned besides the rate.

    >>> [settings["lr"] for settings in Contestant("fedavg", "fedavg").settings(budget=2)]
    ['0.47', '0.1618']
    """

    name: str
    method: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    tuned: tuple[str, ...] = ()

    @property
    def space(self) -> Space:
        """What is tried."""
        known = option_fields(METHODS.find(self.method))
        fractions = {name for name, item in known.items() if isinstance(item.default, float)}
        space = read_space("grid", [RATES, *self.tuned], fractions)
        for name in space:
            if name != "lr" and name not in known:
                raise unknown(f"option of {self.name}", name, known)
        return space

    def settings(self, budget: int) -> list[dict[str, str]]:
        """So many settings, drawn alike for everybody."""
        require(budget >= 1, f"budget = {budget}: must be at least 1")
        return grid_of(self.space, budget)

    def experiment(self, chosen: BenchmarkSet, settings: Mapping[str, str], seed: int, tuning: bool) -> Experiment:
        """Its run on a set with some settings; while it is tuned, it is tested at the end alone."""
        options = {**self.fixed, **{name: value for name, value in settings.items() if name != "lr"}}
        config = {**SAME, "data": chosen.data, "batch": chosen.batch, "lr": settings["lr"], "seed": seed}
        config["evaluate_every"] = SAME["rounds"] if tuning else 1
        return experiment_from({**config, "method": self.method, "set": options})


TUNE = ("tune_lr=0.02..2", "tune_epochs=1,5,10")
TUNED: Mapping[str, tuple[str, ...]] = {
    "local": (),
    "fedavg": (),
    "fedper": (),
    "fedrep": (),
    "ditto": ("lam=0.01..10",),
    "pfedcs": ("lam=0.1..0.9", "kl=0.1..10"),
    "fedrema": ("delta=0.1..0.9", "temperature=0.1..1"),
    "fedcac": ("beta=1..15", "tau=0.1..0.9"),
    "pfedsim": ("rho=0.1..0.9",),
    "fedtc": ("lr_classifier=0.001..1",),
    "mr-mtl": ("lam=0.01..10",),
    "apfl": ("alpha=0.1..0.9",),
    "fedprox": ("mu=0.001..1",),
    "lg-fedavg": (),
    "feddyn": ("alpha=0.001..1",),
    "scaffold": ("server_lr=0.3..1",),
    "fedrod": (),
    "fedala": ("eta=0.1..2",),
    "pfedgraph": ("alpha=0.1..1", "lam=0.001..1"),
    "fedamp": ("sigma=0.1..10", "lam=0.01..1"),
    "fedap": ("m=0.1..0.9", "warm_up=0.1..0.7"),
    "fesem": ("centres=2..6",),
    "ifca": ("centres=2..5",),
    "cfl": ("warm_up=5..15",),
    "knn-per": ("lam=0.1..0.9", "neighbours=5,10,20"),
    "fedbabu": ("tune_epochs=1,5,10",),
    "fedas": (),
    "feddbe": ("kappa=1..100", "momentum=0.1..1"),
    "feddistill": ("lam=0.1..10",),
    "fedgh": ("server_lr=0.02..2",),
    "fedproto": ("lam=0.1..10",),
    "fedpac": ("lam=0.1..10",),
    "moon": ("mu=0.1..5", "temperature=0.1..1"),
    "fedfomo": ("models=3..10",),
    "apple": ("mu=0.01..1", "lr_relations=0.0001..0.1"),
    "fedem": ("models=2..4",),
    "fedcp": ("lam=0.5..50",),
    "fedselect": ("share=0.05..0.5", "limit=0.3..0.9"),
    "gpfl": ("lam=0.001..0.1", "mu=0.01..1"),
    "pfedfda": (),
    "per-fedavg": ("alpha=0.02..2",),
    "pfedme": ("lam=1..30", "inner_lr=0.02..2"),
    "fedgen": ("alpha=1..30", "beta=1..30"),
}
"""What is tuned of each method besides the rate, as they run. FedBN is FedAvg without batch norm."""
OWN = (
    Contestant("fedavg-ft", "fedavg-ft", {"step": 1.0}, TUNE),
    Contestant("fedavg-ft:step", "fedavg-ft", {}, (*TUNE, "step=0.25,0.5,0.75,1")),
    Contestant("fedavg:bias", "fedper", {"personal": "classifier.bias"}),
)
"""FedAvg with each client's own training, all of the way and a part of it, and with a bias of each client's own."""
CONTESTANTS = {
    one.name: one
    for one in (
        *(Contestant(name, name, {}, TUNED[name]) for name in ("local", "fedavg")),
        *OWN,
        *(Contestant(name, name, {}, tuned) for name, tuned in TUNED.items() if name not in ("local", "fedavg")),
    )
}
BASELINES = ("local", "fedavg", "fedavg-ft")


def sets_named(names: list[str] | None) -> list[BenchmarkSet]:
    """Sets by name, or references to data of one's own that name their clients (`./my.py:data`); all unless named.

    >>> [found.data for found in sets_named(["vowel"])]
    ['natural/vowel']
    """
    chosen = []
    for name in names or SETS:
        if name not in SETS and not is_reference(name):
            raise unknown(f"set of {NAME}", name, SETS, also=OWN_FILE)
        chosen.append(SETS[name] if name in SETS else BenchmarkSet(short_name(name), name))
    return chosen


def contestants_named(names: list[str] | None, own: list[str], tuned: list[str]) -> list[Contestant]:
    """Contestants by name, all unless named; beside `own` methods, whose options `tuned` says, the baselines."""
    for name in names or ():
        if name not in CONTESTANTS:
            raise unknown(f"contestant of {NAME}", name, CONTESTANTS)
    usual = BASELINES if own else CONTESTANTS
    found = [CONTESTANTS[name] for name in (names or usual)]
    mine = [Contestant(short_name(METHODS.spelt(name)), METHODS.spelt(name), {}, tuple(tuned)) for name in own]
    for one in mine:
        if one.name in CONTESTANTS:
            raise CoterieError(f"method = {one.name}: takes part already; name it in methods")
        list(one.space)  # a misspelt option shows before the first run
    return [*mine, *found]
