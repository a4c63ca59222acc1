"""What is measured: methods on models of the papers' sizes, ready to run round by round."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.harness import random_images
from coterie.core.applying import apply
from coterie.core.exchange import Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.tracks import delivery_mark, exchange_mark
from coterie.data import Dataset, load
from coterie.engines import Trained, Work, make_engine
from coterie.methods import Method
from coterie.partition import Iid
from coterie.rounds.collect import collect
from coterie.rounds.delivery import Delivery
from coterie.runs.experiment import Experiment
from coterie.setup.prepared import Prepared


def noise_for(model: str, samples: int) -> Dataset:
    """Data of the size that the papers use with a model: digits for `mlp`, CIFAR-10's for the others."""
    return load("digits") if model == "mlp" else random_images(samples, (3, 32, 32))


def prepared(method: Method | str, model: str, batch: int, epochs: int, clients: int, samples: int) -> Prepared:
    """An experiment with equal clients, ready to run."""
    return Experiment(
        method=method,
        data=noise_for(model, samples * clients),
        partition=Iid(clients=clients),
        model=model,
        batch=batch,
        epochs=epochs,
        rounds=1000,
    ).prepare()


def rounds_of(case: Prepared, at: int = 1) -> tuple[Callable[[], None], Federation]:
    """A function that runs one round without evaluation, the federation standing at round `at`."""
    federation, method = case.federation(), case.method
    federation.round = at
    engine = make_engine("serial", case.problem(), method, seed=0)

    def run_round() -> None:
        cohort = federation.everyone
        peers = Delivery(method, federation, cohort).peers()
        recipe = method.recipe(federation)
        trained = engine.train(federation, Work(recipe, peers=peers), cohort)
        uploads = collect(federation, recipe, method.uploads(federation), cohort, trained).uploads
        apply(method.exchange(uploads), federation, uploads, exchange_mark(federation.round))

    return run_round, federation


def noisy_uploads(method: Method, federation: Federation, rows: Tensor) -> Uploads:
    """Uploads of everybody as if they had trained `rows [K, P]`; what is measured is noise."""
    recipe, measured = method.recipe(federation), {}
    if "critical" in Work(recipe).measured:
        measured["critical"] = torch.rand(len(rows), federation.layout.columns("all").size) < 0.5
    trained = Trained({"model": rows}, measured)
    return collect(federation, recipe, method.uploads(federation), federation.everyone, trained).uploads


def server_step(method: Method, federation: Federation, uploads: Uploads) -> None:
    """An exchange, and what is made for everybody's next download."""
    apply(method.exchange(uploads), federation, uploads, exchange_mark(federation.round))
    view, everyone = federation.as_seen_by_server(), federation.everyone
    mixes = [made for made in method.deliver(view, everyone) if isinstance(made, Mix)]
    apply(mixes, federation, Uploads(view, everyone, {}, {}), delivery_mark(federation.round + 1))
