"""FedRoD: a balanced global classifier and a personal one beside it."""

from __future__ import annotations

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
from torch.nn.functional import cross_entropy

from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.fedrod import HEADS, FedRod


@pytest.mark.thorough
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_plain_loops_give_the_same_models(join: float, head: str) -> None:
    ours = play(FedRod(head=head), join=join)
    plain = Plain(ours.prepared)
    models = plain.models()
    personal = [model.classifier for model in plain.models()]
    for round, cohort in plain.rounds():
        for k in cohort:
            counts = [int((plain.data(k)[1] == c).sum()) for c in range(plain.classes)]
            prior = torch.tensor([math.log(n) if n else -math.inf for n in counts])

            def loss(x: Tensor, y: Tensor, k: int = k, prior: Tensor = prior) -> Tensor:
                features = models[k].body(x)
                generic = models[k].classifier(features)
                own = generic.detach() + personal[k](features.detach())
                return cross_entropy(generic + prior, y) + cross_entropy(own, y)

            plain.descend(k, round, [*models[k].parameters(), *personal[k].parameters()], loss)
        mean = plain.mean(models, cohort)
        for model in models:
            copy_into(model, mean)
    assert_near(ours.rows(), rows_of_modules(models))
    assert_near(ours.rows("personal_head"), rows_of_modules(personal))

    def predict(k: int, x: Tensor) -> Tensor:
        features = models[k].body(x)
        generic, own = models[k].classifier(features), personal[k](features)
        answers: dict[str, Tensor] = {"sum": generic + own, "personal": own, "global": generic}
        return answers[head]

    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, plain.test_losses(predict))


def test_each_loss_moves_its_own_part_and_no_other() -> None:
    prepared = prepared_for(FedRod())
    counts = torch.tensor([[5, 0, 2], [4, 3, 1], [1, 1, 1], [2, 2, 2]])

    def arrange(federation: Federation) -> None:
        federation.values["log_counts"] = counts.float().log()
        federation["personal_head"].own.add_(0.5 * torch.randn(4, 27, generator=torch.Generator().manual_seed(1)))

    phase = prepared.method.recipe(prepared.federation())[0]
    gradients, batch, worker = gradient_at(prepared, phase, client=1, arrange=arrange)
    module: Any = prepared.problem_base.module
    features = module.body(batch.inputs)
    adjusted = (module.classifier(features).exp() * counts[1]).log()  # n_c e^{g_c}, up to normalisation
    expected = torch.autograd.grad(cross_entropy(adjusted, batch.labels), list(module.parameters()))
    assert_near(gradients["model"], torch.cat([one.reshape(-1) for one in expected]))

    head = prepared.problem_base.layout.columns("classifier")
    row = worker.federation["personal_head"].rows(torch.tensor([1]))[0].requires_grad_()
    own = module(batch.inputs).detach() + features.detach() @ row[:24].view(3, 8).T + row[24:]
    (wanted,) = torch.autograd.grad(cross_entropy(own, batch.labels), row)
    assert_near(head.take(gradients["personal_head"]), wanted)


def test_classes_that_a_client_does_not_have_give_finite_gradients() -> None:
    ours = play(FedRod())
    counts = ours.federation.class_counts
    assert bool((counts == 0).any())
    assert bool(torch.isfinite(ours.rows()).all())
    assert all(report.diverged == [] for report in ours.reports)


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_unbalanced_its_global_part_is_fedavg(join: float, model: str) -> None:
    assert torch.equal(
        play(FedRod(balanced=False), join=join, model=model).rows(), play(FedAvg(), join=join, model=model).rows()
    )


def test_personal_classifiers_start_as_the_global_one_and_move_when_their_client_takes_part() -> None:
    ours = play(FedRod(), rounds=1, join=0.5)
    initial = ours.federation.layout.columns("classifier").take(ours.federation.initial)
    moved = (ours.rows("personal_head") != initial).any(1)
    assert moved.nonzero()[:, 0].tolist() == ours.reports[0].cohort


@pytest.mark.thorough
def test_it_is_neither_local_nor_fedavg() -> None:
    ours = play(FedRod())
    assert_unlike(ours.rows(), play(Local()).rows(), play(FedAvg()).rows())
    assert len(ours.rows("personal_head").unique(dim=0)) == ours.federation.clients


def test_the_personal_classifier_never_travels() -> None:
    ours = play(FedRod(), join=0.5)
    assert_bytes(ours, up=ours.bytes_of("all"), down=ours.bytes_of("all"))
    for report in ours.reports:
        (mix,) = report.mixes
        sizes = ours.federation.sizes[report.cohort].double()
        assert_near(mix.weights, (sizes / sizes.sum())[None])


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(FedRod(), join=join)


def test_refused_options() -> None:
    with pytest.raises(CoterieError, match="head 'own'"):
        FedRod(head="own")
