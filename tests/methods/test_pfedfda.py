"""pFedFDA: classifiers that follow from class means and a covariance, moved towards the client's own."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, play
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.errors import CoterieError
from coterie.maths.discriminant import Distribution, answers, moved
from coterie.methods.pfedfda import PFedFDA

RATE = 0.1
EPS = 1e-4


def test_a_classifier_worked_out_by_hand() -> None:
    """Σ = diag(1, 3): of mean 2, so Σ' = diag(1 + ε, 3 − ε). M = (1, 0), (0, 6)."""
    distribution = torch.tensor([[1.0, 0.0], [0.0, 6.0], [1.0, 0.0], [0.0, 3.0]])
    found = answers(torch.tensor([[2.0, 5.0]]), distribution, torch.tensor([log(0.25), log(0.75)]))
    one, other = 1 / (1 + EPS), 6 / (3 - EPS)
    expected = [2 * one + log(0.25) - one / 2, 5 * other + log(0.75) - 6 * other / 2]
    assert_near(found, torch.tensor([expected]))


def test_statistics_worked_out_by_hand() -> None:
    """Class 0 has three samples, more than two folds; class 1 a single one, so that its mean is the given (1, 1)."""
    features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0], [4.0, 0.0]]).double()
    given = torch.tensor([[9.0, 9.0], [1.0, 1.0], [7.0, 7.0], [1.0, 0.0], [0.0, 1.0]]).double()
    found = Distribution(folds=2, betas=2, ridge=0.5).own(features, torch.tensor([0, 0, 1, 0]), given)
    scatter = [[8 / 3 + 0.5, 0.0], [0.0, 4 / 3 + 0.5]]
    assert_near(found, torch.tensor([[2.0, 0.0], [1.0, 1.0], [7.0, 7.0], *scatter]).double())


def test_means_move_by_the_first_share_and_the_covariance_by_the_last() -> None:
    given, own = torch.zeros(3, 2), torch.ones(3, 2)
    assert_near(moved(given, own, torch.tensor([0.25, 0.5])), torch.tensor([[0.25, 0.25], [0.5, 0.5], [0.5, 0.5]]))
    assert_near(moved(given, own, torch.tensor([0.25])), torch.full((3, 2), 0.25))


def clouds(distance: float, samples: int = 40, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features of two classes around (±distance, 0), everybody's means being at (0, ±2); even priors."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 2
    features = torch.randn(samples, 2, generator=stream).double()
    features[:, 0] += distance * (1 - 2 * labels)
    given = torch.tensor([[0.0, 2.0], [0.0, -2.0], [1.0, 0.0], [0.0, 1.0]]).double()
    return features, labels, given, torch.tensor([0.5, 0.5]).log()


@pytest.mark.parametrize(("distance", "betas"), [(1.0, 2), (1.0, 1), (0.1, 2)])
def test_shares_are_those_that_tell_samples_left_out_best(distance: float, betas: int) -> None:
    """A plain search over a grid: folds are every other sample of each class."""
    features, labels, given, log_priors = clouds(distance)
    measure = Distribution(folds=2, betas=betas, ridge=EPS)
    fold = torch.arange(len(labels)) // 2 % 2

    def loss(means: float, covariance: float) -> float:
        total = 0.0
        for one in (0, 1):
            own = measure.own(features[fold != one], labels[fold != one], given)
            mixed = torch.cat([given[:2].lerp(own[:2], means), given[2:].lerp(own[2:], covariance)])
            total += float(cross_entropy(answers(features[fold == one], mixed, log_priors), labels[fold == one]))
        return total

    found = measure.shares(features, labels, given, log_priors)
    grid = [k / 20 for k in range(21)]
    best = min(loss(a, b) for a in grid for b in (grid if betas == 2 else [a]))
    assert loss(float(found[0]), float(found[-1])) <= best + 1e-3
    assert len(found) == betas


def test_with_too_little_data_everything_is_everybodys() -> None:
    features, _, given, log_priors = clouds(1.0, samples=2)
    measure = Distribution(folds=2, betas=2, ridge=EPS)
    assert measure.shares(features, torch.tensor([0, 1]), given, log_priors).tolist() == [0.0, 0.0]
    alone = measure.own(features[:1], torch.tensor([0]), given)
    centred = features[0] - given[0]
    assert_near(alone, torch.cat([given[:2], torch.outer(centred, centred) + EPS * torch.eye(2)]))
    found = measure.shares(torch.cat([features] * 2), torch.tensor([0, 1, 0, 0]), given, log_priors)
    assert float(found.sum()) > 0, "class 0 has enough, class 1 has not"


class ByHand(Hand):
    """pFedFDA's steps on flat rows; discriminants by NumPy."""

    def features(self, row: Tensor, index: Tensor) -> Tensor:
        named = self.layout.views(row)
        x = torch.tanh(self.problem.inputs[index] @ named["body.0.weight"].T + named["body.0.bias"])
        return (x @ named["body.2.weight"].T + named["body.2.bias"]).relu()

    def priors(self, k: int) -> np.ndarray[Any, Any]:
        labels = self.problem.labels[self.problem.train[k]].numpy()
        shares = np.bincount(labels, minlength=self.prepared.data.classes) / len(labels) + EPS
        return shares / shares.sum()

    def classifier(self, means: Tensor, covariance: Tensor, k: int) -> tuple[Tensor, Tensor]:
        m, s = means.double().numpy(), covariance.double().numpy()
        s = (1 - EPS) * s + EPS * np.trace(s) / len(s) * np.eye(len(s))
        weights = m @ np.linalg.inv(s)
        biases = np.log(self.priors(k)) - np.array([m[c] @ weights[c] for c in range(len(m))]) / 2
        return torch.tensor(weights).float(), torch.tensor(biases).float()

    def adapted(self, row: Tensor, means: Tensor, covariance: Tensor, k: int, method: PFedFDA) -> Tensor:
        """By the library's search for β, which is tested above."""
        own = self.problem.train[k]
        features, labels = self.features(row, own).detach().double(), self.problem.labels[own]
        given = torch.cat([means, covariance]).double()
        log_priors = torch.tensor(np.log(self.priors(k))).float()
        beta = method.measurement.shares(features, labels, given, log_priors)
        ours = means.clone().double()
        for c in range(len(means)):
            if int((labels == c).sum()) > method.folds:
                ours[c] = features[labels == c].mean(0)
        apart = features - ours[labels]
        spread = sum(torch.outer(one, one) for one in apart) / (len(apart) - 1) + method.ridge * torch.eye(
            means.shape[1]
        )
        return torch.cat(
            [beta[0] * ours + (1 - beta[0]) * means, beta[-1] * spread + (1 - beta[-1]) * covariance]
        ).float()


@pytest.mark.parametrize(
    ("options", "join"), [({}, 1.0), ({"betas": 1, "ridge": 1.0}, 0.5), ({"folds": 3, "ridge": 0.1}, 0.5)]
)
def test_steps_by_hand_give_the_same_models(options: dict[str, Any], join: float) -> None:
    method = PFedFDA(**options)
    ours = play(method, join=join)
    hand = ByHand(ours.prepared)
    extractor, classes = hand.layout.columns("extractor"), hand.prepared.data.classes
    rows = [hand.initial.clone() for _ in range(hand.clients)]
    start = ours.prepared.federation().values[Distribution.name]
    means, covariance = start[:classes], start[classes:]
    assert bool(((means >= 0) & (means < 1)).all())
    assert torch.equal(covariance, torch.eye(len(covariance)))
    for round, cohort in hand.rounds():
        trained, told = {}, {}
        for k in cohort:
            row = rows[k]
            weights, biases = hand.classifier(means, covariance, k)
            for index in hand.batches(k, round):
                free = row.detach().clone().requires_grad_()
                loss = cross_entropy(hand.features(free, index) @ weights.T + biases, hand.problem.labels[index])
                (slope,) = torch.autograd.grad(loss, free)
                row = row - RATE * slope
            trained[k], told[k] = row, hand.adapted(row, means, covariance, k, method)
        mean, statistics = hand.mean(trained), hand.mean(told)
        means, covariance = statistics[:classes], statistics[classes:]
        for row in rows:
            extractor.put(row, extractor.take(mean))
    assert_near(ours.rows(), torch.stack(rows), 1e-4)
    assert_near(ours.federation.values[Distribution.name], torch.cat([means, covariance]), 1e-4)
    losses = []
    for k, index in enumerate(hand.problem.test):
        own = hand.adapted(rows[k], means, covariance, k, method)
        weights, biases = hand.classifier(own[:classes], own[classes:], k)
        losses.append(cross_entropy(hand.features(rows[k], index) @ weights.T + biases, hand.problem.labels[index]))
    assert_near(losses_received(ours), torch.stack(losses), 1e-3)


def test_extractors_and_statistics_travel() -> None:
    ours = play(PFedFDA())
    width, classes = ours.federation.feature_width, ours.federation.classes
    sent = ours.bytes_of("extractor") + 4 * (classes + width) * width
    assert_bytes(ours, up=sent, down=sent)
    heads = ours.group("classifier")
    assert torch.equal(
        heads,
        ours.prepared.federation()["model"].rows(
            torch.arange(len(heads)), ours.federation.layout.columns("classifier")
        ),
    ), "nobody trains the model's own classifier"


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(PFedFDA(), join=0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"folds": 1}, "folds = 1: must"), ({"betas": 3}, "betas = 3: must"), ({"ridge": 0.0}, r"ridge = 0\.0: must")],
)
def test_refused_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError, match=rf"^{words}"):
        PFedFDA(**options)
