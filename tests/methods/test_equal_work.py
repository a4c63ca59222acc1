"""By default every method works as long, and at the rate, that the run says."""

from __future__ import annotations

import pytest

from coterie.client.recipe import phases
from coterie.methods import METHODS
from coterie.methods.apfl import APFL
from coterie.methods.fedas import FedAS
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedgh import FedGH
from coterie.methods.fedpac import FedPAC
from coterie.methods.fedrep import FedRep
from coterie.methods.fedtc import FedTC
from coterie.methods.per_fedavg import PerFedAvg
from coterie.methods.pfedcs import PFedCS
from coterie.methods.pfedme import PFedMe
from coterie.partition import Iid
from support import tiny

ROUNDS, EPOCHS, LR = 4, 3, 0.07


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_phase_has_a_length_or_a_rate_of_its_own_unless_told(name: str) -> None:
    method = METHODS[name]()
    run = tiny(method, rounds=ROUNDS, epochs=EPOCHS, lr=LR, partition=Iid(clients=3), validation=0.2)
    federation = run.prepare().federation()
    for federation.round in range(1, ROUNDS + 1):
        every = [*phases(method.recipe(federation)), *phases(method.tune(federation))]
        assert [phase for phase in every if phase.epochs not in (None, EPOCHS) or phase.lr not in (None, LR)] == []


def test_what_is_left_to_the_run_is_told() -> None:
    federation = tiny(FedRep(), rounds=ROUNDS, epochs=EPOCHS, lr=LR).prepare().federation()
    told = {
        FedRep(): {"head_epochs": EPOCHS, "body_epochs": EPOCHS},
        FedPAC(): {"head_epochs": EPOCHS, "head_lr": LR},
        FedBABU(): {"tuned_round": ROUNDS, "tune_epochs": EPOCHS},
        PFedCS(): {"beta": ROUNDS, "tune_epochs": EPOCHS},
        PerFedAvg(): {"alpha": LR, "beta": LR, "tune_epochs": EPOCHS},
        PFedMe(): {"inner_lr": LR},
        FedGH(): {"server_lr": LR, "server_batch": federation.training.batch},
        APFL(): {"lr_alpha": LR},
        FedAS(): {"align_epochs": EPOCHS, "align_lr": LR},
        FedAS(align_epochs=0, align_lr=0.5): {"align_epochs": 0, "align_lr": 0.5},
        FedTC(): {"lr_classifier": pytest.approx(LR / 100)},
    }
    for method, wanted in told.items():
        assert method.resolved(federation) == wanted


def test_what_is_given_stays() -> None:
    federation = tiny(FedRep(), rounds=1, epochs=EPOCHS, lr=LR).prepare().federation()
    head, body = phases(FedRep(head_epochs=10, body_epochs=1).recipe(federation))
    assert (head.train, head.epochs, body.train, body.epochs) == ("classifier", 10, "extractor", 1)
    head, _ = phases(FedPAC(head_epochs=1, head_lr=0.1).recipe(federation))
    assert (head.train, head.epochs, head.lr) == ("classifier", 1, 0.1)
    (only,) = phases(FedRep(head_epochs=0).recipe(federation))
    assert only.train == "extractor"
    assert PerFedAvg(tune_epochs=0).tune(federation) == ()
    federation.round = federation.rounds
    assert FedBABU(tune_epochs=0).tune(federation) == ()
