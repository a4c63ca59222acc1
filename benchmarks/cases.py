"""What is measured: methods on models of the papers' sizes, ready to run round by round."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness import random_images
from coterie.core.exchange import apply
from coterie.core.federation import Federation
from coterie.data import Dataset, load
from coterie.engines import Work, make_engine
from coterie.experiment.experiment import Experiment
from coterie.experiment.prepared import Prepared
from coterie.methods import Method
from coterie.partition import Iid
from coterie.rounds.collect import collect
from coterie.rounds.delivery import no_uploads


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
        apply(method.deliver(federation, cohort), federation, no_uploads(federation, cohort))
        trained = engine.train(federation, Work(method.recipe(federation), method.probes(federation)), cohort)
        uploads, _ = collect(method, federation, cohort, trained)
        apply(method.exchange(uploads), federation, uploads)

    return run_round, federation
