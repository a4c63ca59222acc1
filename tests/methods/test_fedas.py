"""FedAS: aligned extractors, weights by Fisher information."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_near, assert_relabelling_permutes, assert_unlike, gradient_at, play, prepared_for
from torch import Tensor

from coterie.core.exchange import Mix, Uploads
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedPer
from coterie.methods.fedas import FedAS

RATE, ALIGN = 0.1, 0.3


class ByHand(Hand):
    """FedAS's steps on flat rows."""

    def prototypes(self, row: Tensor, k: int) -> dict[int, Tensor]:
        own = self.problem.train[k]
        with torch.no_grad():
            features, labels = self.features_and_logits(row, own)[0], self.problem.labels[own]
        return {int(c): features[labels == c].mean(0) for c in labels.unique()}

    def pull(self, row: Tensor, index: Tensor, prototypes: dict[int, Tensor]) -> Tensor:
        row = row.detach().clone().requires_grad_()
        features, labels = self.features_and_logits(row, index)[0], self.problem.labels[index]
        apart = torch.stack([features[i] - prototypes[int(c)] for i, c in enumerate(labels)])
        (gradient,) = torch.autograd.grad((apart**2).mean(), row, allow_unused=True)
        return gradient

    def trace(self, row: Tensor, k: int) -> float:
        parts = self.problem.train[k].split(self.experiment.batch)
        return float(sum((self.gradient(row, part).double() ** 2).sum() for part in parts))


@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_steps_by_hand_give_the_same_models(join: float, epochs: int) -> None:
    ours = play(FedAS(align_epochs=epochs, align_lr=ALIGN), join=join, rounds=4)
    hand = ByHand(ours.prepared)
    body = hand.layout.columns("extractor")
    inside = torch.zeros(hand.layout.width)
    body.put(inside, torch.ones(body.size))
    rows, known = [hand.initial.clone() for _ in range(hand.clients)], dict[int, dict[int, Tensor]]()
    for round, cohort in hand.rounds():
        weights = {}
        for k in cohort:
            row = rows[k]
            if k in known:
                for index in hand.batches(k, round, number=1, epochs=epochs):
                    row = row - ALIGN * inside * hand.pull(row, index, known[k])
            for index in hand.batches(k, round):
                row = row - RATE * hand.gradient(row, index)
            rows[k], known[k], weights[k] = row, hand.prototypes(row, k), hand.trace(row, k)
        total = sum(weights.values())
        mean = sum((weights[k] / total * body.take(rows[k]) for k in cohort), torch.tensor(0.0))
        for row in rows:
            body.put(row, mean)
        assert_near(ours.reports[round - 1].mixes[0].weights[0], torch.tensor([weights[k] / total for k in cohort]))
    assert_near(ours.rows(), torch.stack(rows))
    assert_near(losses_received(ours), hand.test_losses(torch.stack(rows)))


def test_the_alignment_moves_the_extractor_alone_towards_the_prototypes() -> None:
    prepared = prepared_for(FedAS())

    def arrange(federation: Federation) -> None:
        federation.round = 2
        federation.values["class_means"] = torch.ones_like(federation.values["class_means"])

    federation = prepared.federation()
    federation.round = 2
    phase = prepared.method.recipe(federation)[0]
    gradients, batch, worker = gradient_at(prepared, phase, arrange=arrange)
    expected = ByHand(prepared).pull(
        worker.received(), batch._index, {c: torch.ones(batch.features.shape[1]) for c in range(federation.classes)}
    )
    body = federation.layout.columns("extractor")
    assert_near(body.take(gradients["model"]), body.take(expected))
    assert float(body.take(expected).abs().max()) > 0
    assert float((federation.layout.everything - body).take(gradients["model"]).abs().max()) == 0


@pytest.mark.parametrize(
    ("traces", "weights"),
    [([1.0, 3.0], [0.25, 0.75]), ([0.0, 0.0], [0.5, 0.5]), ([-4.0, 2.0], [0.0, 1.0])],
)
def test_weights_worked_out_by_hand(traces: list[float], weights: list[float]) -> None:
    method = FedAS()
    federation = prepared_for(method).federation()
    cohort = torch.tensor([0, 2])
    uploads = Uploads(federation, cohort, {}, {}, {"fisher_trace": torch.tensor(traces, dtype=torch.float64)})
    (mix,) = method.exchange(uploads)
    assert isinstance(mix, Mix)
    assert (mix.group, mix.target) == ("extractor", "model")
    assert_near(mix.weights, torch.tensor([weights]))


def test_a_number_goes_up_with_the_extractor_and_prototypes_do_not() -> None:
    ours = play(FedAS(), rounds=2)
    for report in ours.reports:
        assert report.bytes["up"] == len(report.cohort) * (ours.bytes_of("extractor") + 8)
    assert ours.reports[1].bytes["down"] == len(ours.reports[1].cohort) * ours.bytes_of("extractor")


def test_it_is_not_fedper() -> None:
    assert_unlike(play(FedAS()).rows(), play(FedPer()).rows())
    assert_unlike(play(FedAS()).rows(), play(FedAS(align_epochs=0)).rows())


def test_it_aligns_as_long_and_as_fast_as_the_run_says_unless_told() -> None:
    told = FedAS(align_epochs=2, align_lr=0.05)
    assert torch.equal(play(FedAS(), lr=0.05).rows(), play(told, lr=0.05).rows())


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(FedAS(), join=join)


@pytest.mark.parametrize("options", [{"align_epochs": -1}, {"align_lr": 0.0}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        FedAS(**options)
