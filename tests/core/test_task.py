"""Tasks against hand computation: losses and their slopes, metrics and their merging, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score
from torch.nn.functional import cross_entropy

from coterie.client.scores import Score
from coterie.core.numbers import ACCURACY, Scale, judged_scale
from coterie.core.task import (
    R2,
    Classification,
    CrossEntropy,
    LossWithSlope,
    Regression,
    SquaredError,
    Task,
    as_task,
    merged,
)
from coterie.core.task.regression import LARGEST_ERROR, RootMeanSquaredError
from coterie.errors import CoterieError
from coterie.rounds.evaluate import Evaluation, over_rounds


def sums_of(task: Task, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, int | float]:
    return Score(task.scores(outputs, labels)).sums()


def values_of(task: Task, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    sums = sums_of(task, outputs, labels)
    return {metric.scale.name: metric.value(sums) for metric in task.metrics}


def test_classification_by_hand() -> None:
    outputs = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 0.0, 0.0]])
    labels = torch.tensor([0, 2, 0, 1])
    task = Classification(3)
    found = values_of(task, outputs, labels)
    assert found["accuracy"] == 0.5
    assert found["loss"] == pytest.approx(float(cross_entropy(outputs, labels)))
    assert task.predict(outputs).tolist() == [0, 2, 1, 0]
    assert (task.outputs, task.judged_by, list(found)) == (3, "accuracy", ["accuracy", "loss"])


def test_regression_by_hand() -> None:
    outputs, labels = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([1.0, 4.0, 4.0])
    found = values_of(Regression(), outputs, labels)
    assert found["mae"] == pytest.approx((0 + 2 + 1) / 3)
    assert found["rmse"] == pytest.approx(math.sqrt((0 + 4 + 1) / 3))
    assert found["r2"] == pytest.approx(1 - 5 / (4 + 1 + 1))  # the mean label is 3
    assert found["loss"] == pytest.approx(5 / 3)
    assert Regression().predict(outputs).tolist() == [1.0, 2.0, 5.0]


def test_every_metric_has_its_own_sums() -> None:
    """Together they share e²; alone, none may lean on another's."""
    outputs, labels = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([1.0, 4.0, 4.0])
    assert RootMeanSquaredError().quantities(outputs, labels)["squared_error"].tolist() == [0.0, 4.0, 1.0]
    assert R2().quantities(outputs, labels)["squared_error"].tolist() == [0.0, 4.0, 1.0]


def test_r2_of_two_clients_is_that_of_their_samples_together() -> None:
    stream = np.random.default_rng(0)
    # Far apart, so that neither a mean of the clients' R² nor a common offset could pass for the answer.
    labels = [stream.normal(100.0, 1.0, 20), stream.normal(-3.0, 0.1, 7)]
    guesses = [own + stream.normal(0, 0.5, len(own)) for own in labels]
    task = Regression()
    clients = [
        sums_of(task, torch.tensor(guess)[:, None], torch.tensor(own))
        for guess, own in zip(guesses, labels, strict=True)
    ]
    expected = r2_score(np.concatenate(labels), np.concatenate(guesses))
    assert R2().value(merged(clients)) == pytest.approx(expected, abs=1e-9)
    assert task.final_metrics(clients, {}) == {"pooled_r2": pytest.approx(expected, abs=1e-9)}
    for own, guess, sums in zip(labels, guesses, clients, strict=True):
        assert R2().value(sums) == pytest.approx(r2_score(own, guess), abs=1e-9)


def test_a_sum_that_one_part_does_not_have_the_whole_does_not_have() -> None:
    parts = [{"loss": None, "samples": 2}, {"loss": 1.5, "samples": 1}, {"loss": 2.5, "samples": 3}]
    assert merged(parts) == merged(parts[::-1]) == {"loss": None, "samples": 6}


def test_equal_labels_have_no_r2_and_do_not_count_in_means() -> None:
    task = replace(Regression(), judged_by="r2")
    labels = torch.tensor([0.1, 0.1, 0.1])
    assert math.isnan(values_of(task, labels[:, None] + 1, labels)["r2"])
    good = Score(task.scores(torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 1.0])))
    bare = Score(task.scores(labels[:, None], labels))
    evaluation = Evaluation.of(task, [good, bare])
    assert (evaluation.mean, evaluation.weighted, evaluation.worst_decile, evaluation.std) == (1.0, 1.0, 1.0, 0.0)
    assert (evaluation.error, evaluation.weighted_error) == (0.0, 0.0)  # everybody was tested
    nobody = Evaluation.of(task, [bare, bare])
    assert all(math.isnan(value) for value in (nobody.mean, nobody.weighted, nobody.worst_decile, nobody.std))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, 1e38])
def test_a_model_that_overflowed_has_the_largest_error(broken: float) -> None:
    found = values_of(Regression(), torch.tensor([[broken], [0.0]]), torch.tensor([0.0, 1.0]))
    assert found["mae"] == pytest.approx(LARGEST_ERROR / 2)
    assert math.isfinite(found["rmse"])
    assert found["r2"] < -1e59


def test_the_worst_and_the_best_follow_the_direction() -> None:
    values = {"mae": np.arange(20.0), "loss": np.zeros(20)}
    sizes = np.ones(20, np.int64)
    lower = Evaluation(Scale("mae", higher_is_better=False), values, sizes)
    assert lower.worst_decile == 18.5
    assert Evaluation(Scale("mae"), values, sizes).worst_decile == 0.5
    assert over_rounds(lower.scale, [0.5, 0.2, 0.4])["best"] == 0.2
    assert over_rounds(ACCURACY, [0.5, 0.2, math.nan])["best"] == 0.5
    assert lower.scale.lead(0.2, 0.5) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (CrossEntropy(), torch.tensor([[0, 2, 1], [1, 1, 0]])),
        (SquaredError(), torch.tensor([[0.5, 2.0, -1], [1, 0, 3]])),
    ],
)
def test_slopes_are_the_derivatives_of_the_losses(loss: LossWithSlope, labels: torch.Tensor) -> None:
    width = 3 if labels.dtype == torch.int64 else 1
    outputs = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(0)).requires_grad_()
    losses = loss(outputs.flatten(0, 1), labels.flatten())
    (expected,) = torch.autograd.grad(losses.sum(), outputs)
    torch.testing.assert_close(loss.slope(outputs.detach(), labels), expected)
    torch.testing.assert_close(loss.mean(outputs.flatten(0, 1), labels.flatten()), losses.mean())


def test_a_site_cannot_claim_impossible_sums() -> None:
    task = Classification(3)
    good = sums_of(task, torch.eye(3), torch.tensor([0, 1, 1]))
    assert task.accepts(good)
    assert task.accepts(good | {"loss": None})
    for wrong in (
        {"correct": 4},
        {"correct": -1},
        {"correct": 1.0},
        {"samples": 2.0},
        {"samples": -3},
        {"loss": "0"},
        {"more": 1},
    ):
        assert not task.accepts(good | wrong), wrong
    assert not task.accepts({"correct": 1, "samples": 3})
    assert not task.accepts(None)
    assert not Regression().accepts(good)
    assert Regression().accepts(sums_of(Regression(), torch.zeros(2, 1), torch.ones(2)))


def test_what_cannot_be_is_refused_in_words() -> None:
    with pytest.raises(CoterieError, match="unknown task 'regresion'; did you mean 'regression'"):
        as_task("regresion")
    with pytest.raises(CoterieError, match=r"unknown metric 'mae' .*allowed: accuracy, loss"):
        Classification(2, judged_by="mae")
    with pytest.raises(CoterieError, match="unknown metric of the task 'regression' 'accuracy'"):
        Regression().metric("accuracy")
    with pytest.raises(CoterieError, match="label of sample 1 is NaN or infinite"):
        Regression().check_labels(torch.tensor([0.0, math.nan]), "own")
    with pytest.raises(CoterieError, match="it has 3 outputs; the task 'regression' needs 1"):
        Regression().check_outputs(3)
    with pytest.raises(CoterieError, match="it has 2 outputs; the data has 3 classes"):
        Classification(3).check_outputs(2)
    with pytest.raises(CoterieError, match="data 'own': 1 class; at least 2 are needed"):
        Classification(1).check_labels(torch.tensor([0, 0]), "own")
    for wrong in ([0, 3], [-1, 2]):
        with pytest.raises(CoterieError, match=rf"labels lie in {wrong[0]}..{wrong[1]}; .* must lie in 0..2"):
            Classification(3).check_labels(torch.tensor(wrong), "own")
    Classification(3).check_labels(torch.tensor([0, 2]), "own")


def test_a_summary_says_what_it_is_judged_by() -> None:
    assert judged_scale({"accuracy": {}}) == ACCURACY
    assert judged_scale({"task": Regression().described()}) == Scale("mae", higher_is_better=False)


@pytest.mark.parametrize("classes", [2, 7, 10, 15, 16, 17, 100])
@pytest.mark.parametrize("samples", [1, 3, 63, 64, 75, 500])
def test_cross_entropy_without_gradients_is_what_it_is_with_them(classes: int, samples: int) -> None:
    draw = torch.Generator().manual_seed(classes)
    outputs = 4 * torch.randn(samples, classes, generator=draw)
    labels = torch.randint(classes, (samples,), generator=draw)
    with torch.no_grad():
        found = CrossEntropy()(outputs, labels)
    expected = [
        math.log(sum(math.exp(z - own[y]) for z in own))
        for own, y in zip(outputs.tolist(), labels.tolist(), strict=True)
    ]
    assert found.shape == (samples,)
    assert torch.equal(found, CrossEntropy()(outputs, labels))
    torch.testing.assert_close(found, torch.tensor(expected), atol=2e-6, rtol=1e-6)
