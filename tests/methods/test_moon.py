"""MOON: FedAvg with a contrast between the received and the last own model."""

from __future__ import annotations

import copy
import math
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
from torch.nn.functional import cosine_similarity, cross_entropy

from coterie.client.recipe import Phase
from coterie.client.terms import task_loss
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.moon import MOON, ModelContrast


def contrast(own: Tensor, received: Tensor, last: Tensor, temperature: float) -> Tensor:
    """The formula of the paper, literally."""
    near = torch.exp(cosine_similarity(own, received) / temperature)
    far = torch.exp(cosine_similarity(own, last) / temperature)
    return -torch.log(near / (near + far))


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_plain_loops_give_the_same_models(join: float) -> None:
    ours = play(MOON(mu=2.0, temperature=0.3), join=join)
    plain = Plain(ours.prepared)
    shared, last = copy.deepcopy(plain.initial), {}
    for round, cohort in plain.rounds():
        models = plain.models()
        for k in cohort:
            copy_into(models[k], shared)
            before = last.get(k, shared)

            def loss(x: Tensor, y: Tensor, model: Any = models[k], before: Any = before) -> Tensor:
                with torch.no_grad():
                    received, previous = shared.body(x), before.body(x)
                features = model.body(x)
                apart = contrast(features, received, previous, 0.3).mean()
                return cross_entropy(model.classifier(features), y) + 2.0 * apart

            plain.descend(k, round, models[k].parameters(), loss)
            last[k] = copy.deepcopy(models[k])
        copy_into(shared, plain.mean(models, cohort))
    assert_near(ours.rows(), rows_of_modules([shared]).expand(plain.clients, -1))
    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, plain.test_losses(lambda _, x: shared(x)))


def gradients(known: float, same: bool = False) -> tuple[Tensor, Tensor]:
    """The gradient of the phase for a client with (or without) a last model, and the formula's."""
    prepared = prepared_for(MOON())

    def arrange(federation: Federation) -> None:
        if not same:
            noise = torch.randn(federation["previous"].own.shape, generator=torch.manual_seed(1))
            federation["previous"].own.add_(0.3 * noise)
        federation.rounds_taken[:] = int(known)

    phase = Phase(terms=(task_loss, ModelContrast(3.0, 0.5)))
    found, batch, worker = gradient_at(prepared, phase, client=1, arrange=arrange)
    module, layout = copy.deepcopy(prepared.problem_base.module), prepared.problem_base.layout
    last = copy.deepcopy(module)
    row = layout.row(last)
    worker.federation["previous"].copy_row(1, row)
    layout.load(last, row)
    features = module.body(batch.inputs)
    term = contrast(features, features.detach(), last.body(batch.inputs).detach(), 0.5).mean()
    loss = cross_entropy(module.classifier(features), batch.labels) + known * 3.0 * term
    loss.backward()
    return found["model"], torch.cat([p.grad.reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("known", [0.0, 1.0])
def test_the_term_has_the_gradient_of_the_formula(known: float) -> None:
    found, expected = gradients(known)
    assert_near(found, expected)
    assert torch.equal(found, gradients(0.0)[0]) == (known == 0.0)


def test_two_equal_frozen_models_give_no_gradient() -> None:
    assert_near(gradients(1.0, same=True)[0], gradients(0.0)[0])


def test_the_term_cannot_overflow() -> None:
    assert float(contrast(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), 0.5)) == pytest.approx(math.log(2))
    prepared = prepared_for(MOON())
    prepared.method.recipe(prepared.federation())
    phase = Phase(terms=(ModelContrast(1.0, 1e-6),))

    def arrange(federation: Federation) -> None:
        federation["previous"].own.mul_(-1)
        federation.rounds_taken[:] = 1

    found, _, _ = gradient_at(prepared, phase, arrange=arrange)
    assert bool(torch.isfinite(found["model"]).all())


@pytest.mark.parametrize(("mu", "round", "terms"), [(0.0, 2, 1), (1.0, 1, 1), (1.0, 2, 2)])
def test_nothing_is_computed_for_a_contrast_that_is_zero(mu: float, round: int, terms: int) -> None:
    federation = prepared_for(MOON(mu=mu)).federation()
    federation.round = round
    phase = MOON(mu=mu).recipe(federation)[0]
    assert isinstance(phase, Phase)
    assert len(phase.terms) == terms


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_without_contrast_it_is_fedavg(join: float, model: str) -> None:
    assert torch.equal(play(MOON(mu=0), join=join, model=model).rows(), play(FedAvg(), join=join, model=model).rows())


@pytest.mark.thorough
def test_the_first_round_is_fedavg_s_and_the_third_is_not() -> None:
    assert torch.equal(play(MOON(), rounds=1).rows(), play(FedAvg(), rounds=1).rows())
    assert_unlike(play(MOON(mu=5.0)).rows(), play(FedAvg()).rows(), play(Local()).rows())


@pytest.mark.parametrize("stats", ["mean", "local"])
def test_the_last_model_is_what_training_left_statistics_included(stats: str) -> None:
    ours = play(MOON(), model="norm", rounds=1, join=0.5, stats=stats)
    trained = play(Local(), model="norm", rounds=1, join=0.5).group("extractor + stats")
    cohort = ours.reports[0].cohort
    assert torch.equal(ours.rows("previous")[cohort], trained[cohort])
    others = [k for k in range(ours.federation.clients) if k not in cohort]
    assert bool((ours.federation.rounds_taken[others] == 0).all())


def test_bytes_and_weights() -> None:
    ours = play(MOON(), join=0.5)
    assert_bytes(ours, up=ours.bytes_of("all"), down=ours.bytes_of("all"))
    for report in ours.reports:
        (mix,) = report.mixes
        sizes = ours.federation.sizes[report.cohort]
        assert_near(mix.weights, (sizes / sizes.sum())[None])


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(MOON(), join=join)


@pytest.mark.parametrize("options", [{"mu": -1.0}, {"temperature": 0.0}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        MOON(**options)
