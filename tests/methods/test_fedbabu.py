"""FedBABU: the extractor alone is trained; everybody tunes a copy at the end."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from plain_training import (
    Plain,
    assert_bytes,
    assert_near,
    assert_relabelling_permutes,
    assert_unlike,
    copy_into,
    play,
    rows_of_modules,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.fedbabu import FedBABU
from support import tiny


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize("tuned", ["all", "classifier", "extractor"])
def test_plain_loops_give_the_same_models_and_the_same_tuned_losses(join: float, tuned: str) -> None:
    ours = play(FedBABU(tune_epochs=4, tune_group=tuned), join=join)
    plain = Plain(ours.prepared)
    shared = copy.deepcopy(plain.initial)
    curve = []
    for round, cohort in plain.rounds():
        models = plain.models()
        for k in cohort:
            copy_into(models[k], shared)

            def loss(x: Tensor, y: Tensor, model: Any = models[k]) -> Tensor:
                return cross_entropy(model(x), y)

            plain.descend(k, round, models[k].body.parameters(), loss)
        copy_into(shared.body, plain.mean([model.body for model in models], cohort))
        curve.append(plain.test_losses(lambda k, x: shared(x)))
    assert_near(ours.rows(), rows_of_modules([shared]).expand(plain.clients, -1))
    for report, untuned in zip(ours.reports[:-1], curve, strict=False):
        assert report.received is not None
        assert_near(report.received.loss, untuned)

    models = [copy.deepcopy(shared) for _ in range(plain.clients)]
    for k, model in enumerate(models):

        def tuning_loss(x: Tensor, y: Tensor, model: Any = model) -> Tensor:
            return cross_entropy(model(x), y)

        moving = {"all": model, "classifier": model.classifier, "extractor": model.body}[tuned].parameters()
        plain.descend(k, plain.experiment.rounds, moving, tuning_loss, epochs=4, number=1)
    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, plain.test_losses(lambda k, x: models[k](x)))


def test_the_classifier_never_moves_under_momentum_and_decay_either() -> None:
    ours = play(FedBABU(), momentum=0.9, weight_decay=0.1)
    initial = ours.federation.layout.columns("classifier").take(ours.federation.initial)
    assert torch.equal(ours.group("classifier"), initial.expand(ours.federation.clients, -1))
    assert not torch.equal(ours.rows()[0], ours.federation.initial)


@pytest.mark.thorough
def test_tuning_changes_what_is_tested_and_nothing_else() -> None:
    tuned, plain = play(FedBABU()), play(FedBABU(tune_epochs=0))
    assert torch.equal(tuned.rows(), plain.rows())
    pairs = list(zip(tuned.reports, plain.reports, strict=True))
    for moment in ("received", "trained"):
        same = [(getattr(one, moment).loss == getattr(other, moment).loss).all() for one, other in pairs]
        assert same == [True, True, False]


def test_without_tuning_the_last_round_has_no_recipe_for_it() -> None:
    federation = play(FedBABU(tune_epochs=0), rounds=1).federation
    assert federation.round == federation.rounds
    assert FedBABU(tune_epochs=0).tune(federation) == ()
    assert len(FedBABU(tune_epochs=2).tune(federation)) == 1


def test_the_mean_may_count_every_client_once() -> None:
    (mix,) = play(FedBABU(average="clients"), rounds=1).reports[0].mixes
    assert mix.weights.tolist() == [[0.25] * 4]
    (mix,) = play(FedBABU(), rounds=1).reports[0].mixes
    assert len(set(mix.weights[0].tolist())) == 4
    assert float(mix.weights.double().sum()) == pytest.approx(1)


def test_it_is_neither_local_nor_fedavg() -> None:
    assert_unlike(play(FedBABU()).rows(), play(Local()).rows(), play(FedAvg()).rows())


def test_only_extractors_travel() -> None:
    ours = play(FedBABU(), join=0.5)
    assert_bytes(ours, up=ours.bytes_of("extractor"), down=ours.bytes_of("extractor"))


def test_everybody_holds_one_model_statistics_included() -> None:
    ours = play(FedBABU(), model="norm", join=0.5)
    assert ours.federation.is_uniform
    assert not torch.equal(
        ours.group("stats")[0], ours.federation.layout.columns("stats").take(ours.federation.initial)
    )


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(FedBABU(), join=0.5)


@pytest.mark.parametrize("options", [{"tune_epochs": -1}, {"tune_group": "head"}, {"average": "mean"}])
def test_refused_options(options: dict[str, Any]) -> None:
    with pytest.raises(CoterieError, match=next(iter(options))):
        FedBABU(**options)


def test_in_the_last_round_clients_that_sat_out_are_tuned_too() -> None:
    ours = play(FedBABU(), join=0.5)
    plain = play(FedBABU(tune_epochs=0), join=0.5)
    last, untuned = ours.reports[-1].trained, plain.reports[-1].trained
    assert last is not None
    assert untuned is not None
    assert (last.loss != untuned.loss).all()


def test_when_and_how_long_clients_personalise_is_told() -> None:
    told = [
        FedBABU(tune_epochs=tuned).resolved(tiny(rounds=7, epochs=3).prepare().federation()) for tuned in (None, 2, 0)
    ]
    assert told == [{"tuned_round": 7, "tune_epochs": 3}, {"tuned_round": 7, "tune_epochs": 2}, {}]
