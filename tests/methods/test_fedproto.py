"""FedProto: prototypes travel, models do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_training import (
    Plain,
    assert_bytes,
    assert_near,
    assert_relabelling_permutes,
    assert_unlike,
    gradient_at,
    play,
    prepared_for,
    rows_of_modules,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.client.batch import Batch
from coterie.core.exchange import Put, Uploads
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.fedproto import FedProto

NAN = torch.nan


def plain_scores(features: Tensor, prototypes: dict[int, Tensor], classes: int) -> Tensor:
    """Minus the mean squared difference; one more than the largest for classes without prototype."""
    known = {c: (features - p).square().mean(1) for c, p in prototypes.items()}
    beyond = torch.stack(list(known.values())).amax(0) + 1
    return -torch.stack([known.get(c, beyond) for c in range(classes)], 1)


@pytest.mark.thorough
@pytest.mark.parametrize("average", ["clients", "samples"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_plain_loops_give_the_same_models_and_prototypes(join: float, average: str) -> None:
    ours = play(FedProto(lam=0.7, average=average), join=join)
    plain = Plain(ours.prepared)
    models, prototypes = plain.models(), dict[int, Tensor]()
    for round, cohort in plain.rounds():
        sent: dict[int, list[tuple[int, Tensor]]] = {}
        for k in cohort:

            def loss(x: Tensor, y: Tensor, k: int = k) -> Tensor:
                features = models[k].body(x)
                pulls = [
                    (z - prototypes[int(c)]).square().mean()
                    for z, c in zip(features, y, strict=True)
                    if int(c) in prototypes
                ]
                pull = torch.stack(pulls).sum() / len(y) if pulls else 0.0
                return cross_entropy(models[k].classifier(features), y) + 0.7 * pull

            plain.descend(k, round, models[k].parameters(), loss)
            x, y = plain.data(k)
            for c, mean in plain.class_means(models[k].body(x), y).items():
                weight = int((y == c).sum()) if average == "samples" else 1
                sent.setdefault(c, []).append((weight, mean))
        for c, means in sent.items():
            total = torch.stack([weight * mean for weight, mean in means]).sum(0)
            prototypes[c] = total / sum(weight for weight, _ in means)
    assert_near(ours.rows(), rows_of_modules(models))
    for c in range(plain.classes):
        assert_near(ours.federation.values["prototypes"][c], prototypes[c])
    losses = plain.test_losses(lambda k, x: plain_scores(models[k].body(x), prototypes, plain.classes))
    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, losses)


def exchanged(method: FedProto, means: Tensor, before: Tensor, cohort: list[int]) -> Tensor:
    federation = prepared_for(method).federation()
    federation.values["prototypes"] = before
    federation.class_counts = torch.tensor([[1, 0, 0], [3, 0, 0], [9, 9, 9], [0, 4, 0]])
    uploads = Uploads(federation, torch.tensor(cohort), {}, {}, {"class_means": means})
    (put,) = method.exchange(uploads)
    assert isinstance(put, Put)
    assert put.name == "prototypes"
    return put.value


def test_prototypes_by_hand() -> None:
    # Clients 0, 1 and 3: the first two share class 0, the last has class 1, nobody class 2.
    means = torch.tensor([[[2.0], [NAN], [NAN]], [[6.0], [NAN], [NAN]], [[NAN], [5.0], [NAN]]])
    before = torch.tensor([[9.0], [9.0], [7.0]])
    assert exchanged(FedProto(), means, before, [0, 1, 3])[:, 0].tolist() == [4.0, 5.0, 7.0]
    assert exchanged(FedProto(average="samples"), means, before, [0, 1, 3])[:, 0].tolist() == [5.0, 5.0, 7.0]


def test_the_gradient_is_that_of_the_formula() -> None:
    prepared = prepared_for(FedProto(lam=2.0))
    prototypes = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    prototypes[1] = NAN

    def arrange(federation: Federation) -> None:
        federation.values["prototypes"] = prototypes

    phase = prepared.method.recipe(prepared.federation())[0]
    gradients, batch, _ = gradient_at(prepared, phase, client=1, arrange=arrange)
    module: Any = prepared.problem_base.module
    features = module.body(batch.inputs)
    loss = cross_entropy(module.classifier(features), batch.labels)
    assert {0, 1} & set(batch.labels.tolist()) == {0, 1}
    for z, c in zip(features, batch.labels.tolist(), strict=True):
        if c != 1:
            loss = loss + 2.0 * (z - prototypes[c]).square().sum() / 8 / len(features)
    expected = torch.autograd.grad(loss, list(module.parameters()))
    assert_near(gradients["model"], torch.cat([one.reshape(-1) for one in expected]))


def test_the_nearest_prototype_is_predicted() -> None:
    prepared = prepared_for(FedProto())
    prototypes = torch.full((3, 8), NAN)
    prototypes[2], prototypes[0] = 0.0, 1.0

    def arrange(federation: Federation) -> None:
        federation.values["prototypes"] = prototypes

    _, _, worker = gradient_at(prepared, prepared.method.recipe(prepared.federation())[0], arrange=arrange)
    with torch.no_grad():
        features = torch.tensor([[0.9] * 8, [0.1] * 8, [50.0] * 8])
        scores = prepared.method.predict(Batch(worker, "model", torch.arange(3), features))
    assert scores.argmax(1).tolist() == [0, 2, 0]
    assert_near(scores[0], [-0.01, -1.81, -0.81])
    assert bool(torch.isfinite(scores).all())


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_without_strength_models_train_like_local_ones(join: float) -> None:
    assert torch.equal(play(FedProto(lam=0), join=join).rows(), play(Local(), join=join).rows())


def test_nobody_is_pulled_in_the_first_round_and_the_classifier_is_tested() -> None:
    ours, local = play(FedProto(), rounds=1), play(Local(), rounds=1)
    assert_near(ours.rows(), local.rows(), 1e-7)
    assert ours.reports[0].trained is not None
    assert local.reports[0].trained is not None
    assert_near(ours.reports[0].trained.loss, local.reports[0].trained.loss)


def test_it_is_neither_local_nor_fedavg() -> None:
    assert_unlike(play(FedProto()).rows(), play(Local()).rows(), play(FedAvg()).rows())


def test_the_classifier_may_be_tested() -> None:
    ours = play(FedProto(test_by="classifier"))
    plain, layout = Plain(ours.prepared), ours.federation.layout
    models = [layout.load(model, row) for model, row in zip(plain.models(), ours.rows(), strict=True)]
    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, plain.test_losses(lambda k, x: models[k](x)))
    assert torch.equal(ours.rows(), play(FedProto()).rows())


def test_only_prototypes_travel_and_nothing_is_mixed() -> None:
    ours = play(FedProto(), join=0.5)
    assert_bytes(ours, up=4 * 3 * 8, down=4 * 3 * 8)
    assert not any(report.mixes for report in ours.reports)


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(FedProto(), join=join)


@pytest.mark.parametrize("options", [{"lam": -1.0}, {"average": "mean"}, {"test_by": "nearest"}])
def test_refused_options(options: dict[str, Any]) -> None:
    with pytest.raises(CoterieError, match=next(iter(options))):
        FedProto(**options)


@pytest.mark.parametrize("average", ["clients", "samples"])
def test_means_so_large_that_their_sum_overflows_have_a_mean(average: str) -> None:
    means = torch.tensor([[3e38, -3e38], [NAN, NAN], [NAN, NAN]])[None].expand(2, 3, 2)
    found = exchanged(FedProto(average=average), means, torch.full((3, 2), 9.0), [0, 1])
    assert_near(found[0] / 3e38, [1.0, -1.0])
    assert found[1:].tolist() == [[9.0, 9.0]] * 2
