"""Ditto: FedAvg, and beside it a model of one's own near it."""

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
    gradient_at,
    play,
    prepared_for,
    rows_of_modules,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.ditto import Ditto


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_plain_loops_give_the_same_models(join: float) -> None:
    ours = play(Ditto(lam=0.8, personal_epochs=3), join=join)
    plain = Plain(ours.prepared)
    shared, personal = copy.deepcopy(plain.initial), plain.models()
    for round, cohort in plain.rounds():
        models = plain.models()
        for k in cohort:
            copy_into(models[k], shared)

            def loss(x: Tensor, y: Tensor, model: Any = models[k]) -> Tensor:
                return cross_entropy(model(x), y)

            def own_loss(x: Tensor, y: Tensor, k: int = k) -> Tensor:
                pairs = zip(personal[k].parameters(), shared.parameters(), strict=True)
                apart = torch.stack([(mine - theirs.detach()).square().sum() for mine, theirs in pairs]).sum()
                return cross_entropy(personal[k](x), y) + 0.4 * apart

            # The other order than ours: the anchor is what was received, so it must not matter.
            plain.descend(k, round, personal[k].parameters(), own_loss, epochs=3)
            plain.descend(k, round, models[k].parameters(), loss)
        copy_into(shared, plain.mean(models, cohort))
    assert_near(ours.rows(), rows_of_modules([shared]).expand(plain.clients, -1))
    assert_near(ours.rows("personal"), rows_of_modules(personal))
    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, plain.test_losses(lambda k, x: personal[k](x)))


def test_the_pull_has_the_gradient_of_the_squared_distance() -> None:
    prepared = prepared_for(Ditto(lam=3.0))

    def arrange(federation: Federation) -> None:
        federation["personal"].own.add_(
            torch.randn(federation["personal"].own.shape, generator=torch.Generator().manual_seed(1))
        )

    phase = prepared.method.recipe(prepared.federation())[1]
    gradients, batch, worker = gradient_at(prepared, phase, client=2, arrange=arrange)
    module, layout = prepared.problem_base.module, prepared.problem_base.layout
    row = worker.federation["personal"].rows(torch.tensor([2]))[0].requires_grad_()
    logits = torch.func.functional_call(module, layout.views(row), (batch.inputs,))
    loss = cross_entropy(logits, batch.labels) + 1.5 * (row - layout.row(module)).square().sum()
    (expected,) = torch.autograd.grad(loss, row)
    assert_near(gradients["personal"], expected)


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_without_pull_the_own_models_are_local_ones(join: float, model: str) -> None:
    ours, local = (
        play(Ditto(lam=0, personal_epochs=None), join=join, model=model),
        play(Local(), join=join, model=model),
    )
    assert torch.equal(ours.rows("personal"), local.rows())
    for one, other in zip(ours.reports, local.reports, strict=True):
        for moment in ("received", "trained"):
            assert (getattr(one, moment).loss == getattr(other, moment).loss).all()


@pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_the_global_model_is_fedavg_s(join: float, model: str) -> None:
    assert torch.equal(play(Ditto(), join=join, model=model).rows(), play(FedAvg(), join=join, model=model).rows())


@pytest.mark.thorough
def test_a_strong_pull_keeps_the_own_model_near_what_was_received() -> None:
    apart = []
    for lam in (0.0, 1.0, 5.0):
        ours = play(Ditto(lam=lam, personal_epochs=20), rounds=1)
        apart.append(float((ours.rows("personal") - ours.federation.initial).norm()))
    assert apart[0] > 1.5 * apart[1] > 2 * apart[2] > 0


def test_the_own_models_are_neither_local_nor_fedavg() -> None:
    ours = play(Ditto(personal_epochs=None))
    assert_unlike(ours.rows("personal"), play(Local()).rows(), play(FedAvg()).rows())


def test_own_statistics_of_batch_norm_stay() -> None:
    ours = play(Ditto(), model="norm")
    assert len(ours.group("stats", "personal").unique(dim=0)) == ours.federation.clients
    assert len(ours.group("stats").unique(dim=0)) == 1


def test_the_own_model_never_travels_and_moves_only_when_its_client_takes_part() -> None:
    ours = play(Ditto(), rounds=1, join=0.5)
    assert_bytes(ours, up=ours.bytes_of("all"), down=ours.bytes_of("all"))
    moved = (ours.rows("personal") != ours.federation.initial).any(1)
    assert moved.nonzero()[:, 0].tolist() == ours.reports[0].cohort
    (mix,) = ours.reports[0].mixes
    assert (mix.target, mix.group) == ("model", "all")
    assert float(mix.weights.double().sum()) == pytest.approx(1)


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(Ditto(), join=join)


@pytest.mark.parametrize("options", [{"lam": -1.0}, {"personal_epochs": 0}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        Ditto(**options)
