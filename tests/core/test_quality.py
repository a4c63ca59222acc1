"""Recall, AUC and calibration of finished models, against numbers worked out by hand and scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import recall_score, roc_auc_score
from torch import Tensor

from coterie.core.task import Classification, Regression
from coterie.core.task.quality import BINS, calibration_errors, quality_of, recalls, reliability

# Four samples of two of three classes: sure and right, sure and wrong, and two that are unsure and right.
PROBABILITIES = torch.tensor([[0.95, 0.03, 0.02], [0.91, 0.05, 0.04], [0.3, 0.44, 0.26], [0.46, 0.3, 0.24]])
LABELS = torch.tensor([0, 1, 1, 0])


def numbers(probabilities: list[Tensor], labels: list[Tensor], classes: int) -> dict[str, np.ndarray]:
    return {name: values.numpy() for name, values in quality_of(probabilities, labels, classes).items()}


def test_a_hand_case() -> None:
    found = numbers([PROBABILITIES], [LABELS], 3)
    assert_array_equal(found["support"], [[2, 2, 0]])
    assert_array_equal(found["hits"], [[2, 1, 0]])
    assert_allclose(recalls(found), [[1.0, 0.5, np.nan]])
    assert found["bin_samples"][0].tolist() == [0, 0, 0, 0, 2, 0, 0, 0, 0, 2]
    assert found["bin_hits"][0].tolist() == [0, 0, 0, 0, 2, 0, 0, 0, 0, 1]
    confidence, right = reliability(found)
    assert_allclose(confidence[0, [4, 9]], [0.45, 0.93], rtol=1e-6)
    assert_allclose(right[0, [4, 9]], [1.0, 0.5])
    assert np.isnan(right[0, 0])
    # Half of the samples lie 0.55 off, the other half 0.43.
    assert_allclose(calibration_errors(found), [0.5 * 0.55 + 0.5 * 0.43], rtol=1e-6)
    # Class 0: 0.95 and 0.46 against 0.91 and 0.3, three of four pairs; class 1: 0.05 and 0.44 against 0.03 and 0.3.
    assert_allclose(found["auc"], [0.75])


def test_against_scikit_learn_two_classes_and_more() -> None:
    stream = np.random.default_rng(0)
    for classes in (2, 4):
        truth = stream.integers(classes, size=60)
        scores = torch.from_numpy(stream.normal(size=(60, classes)) + 1.5 * np.eye(classes)[truth]).softmax(1)
        found = numbers([scores], [torch.from_numpy(truth)], classes)
        guess = scores.argmax(1).numpy()
        assert_allclose(recalls(found)[0], recall_score(truth, guess, average=None))
        given = scores[:, 1] if classes == 2 else scores
        assert found["auc"][0] == pytest.approx(roc_auc_score(truth, given.numpy(), multi_class="ovr"))


def test_one_class_alone_has_no_auc_and_broken_models_are_no_error() -> None:
    broken, single = torch.full((2, 2), torch.nan), torch.tensor([[0.2, 0.8], [1.0, 0.0]])
    found = numbers([broken, single], [torch.tensor([0, 1]), torch.tensor([1, 1])], 2)
    assert_allclose(found["auc"], [0.5, np.nan])
    assert found["bin_samples"].sum(1).tolist() == [2, 2]
    assert found["bin_samples"][1, BINS - 1] == 1  # a confidence of 1 belongs to the last bin


def test_a_model_may_know_more_classes_than_the_data_has() -> None:
    found = numbers([torch.tensor([[0.1, 0.2, 0.7]])], [torch.tensor([1])], 2)
    assert found["hits"].tolist() == [[0, 0]]


def test_other_tasks_keep_nothing() -> None:
    assert Regression().quality([None], [torch.zeros(2)]) == {}
    kept = Classification(3).quality([PROBABILITIES], [LABELS])
    assert Classification(3).final_metrics([], kept)["auc"] == 0.75


def test_many_clients_at_once_are_what_each_would_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.core.task.quality.AT_ONCE", 40)  # several pieces
    stream = np.random.default_rng(0)
    classes, labels, scores = 12, [], []
    for client in range(60):
        held = stream.choice(classes, stream.integers(1, classes + 1), replace=False)
        own = stream.choice(held, stream.integers(1, 30 if client % 7 else 90))
        given = stream.dirichlet(np.full(classes, 0.3), len(own)).astype(np.float32)
        labels.append(torch.from_numpy(own))
        # Some scores are equal, and some are no numbers.
        scores.append(torch.from_numpy(np.where(stream.random(given.shape) < 0.02, np.nan, np.round(given, 1))))
    together = quality_of(scores, labels, classes)
    alone = [quality_of([given], [own], classes) for given, own in zip(scores, labels, strict=True)]
    for name, found in together.items():
        assert found.numpy().tobytes() == torch.cat([one[name] for one in alone]).numpy().tobytes(), name
    arrays = [(own.numpy(), np.nan_to_num(given.double().numpy())) for given, own in zip(scores, labels, strict=True)]
    plain = [_ranked_right(own, given) for own, given in arrays]
    assert together["auc"].numpy().tobytes() == np.array(plain).tobytes()
    f1 = [_mean_f1(own, given.argmax(1)) for own, given in arrays]
    assert together["macro_f1"].numpy().tobytes() == np.array(f1).tobytes()


def _ranked_right(truth: np.ndarray, scores: np.ndarray) -> float:
    """Pairs counted one by one; NaN where there is one class alone."""
    shares = []
    for present in np.unique(truth):
        ours, theirs = scores[truth == present, present], scores[truth != present, present]
        if len(theirs):
            twice = sum(2 * int(a > b) + int(a == b) for a in ours for b in theirs)
            shares.append(twice / 2 / (len(ours) * len(theirs)))
    return float(np.mean(shares)) if shares else np.nan


def _mean_f1(truth: np.ndarray, guess: np.ndarray) -> float:
    kinds = np.union1d(truth, guess)
    counts = [(int(((truth == k) & (guess == k)).sum()), int((truth == k).sum() + (guess == k).sum())) for k in kinds]
    return float(np.mean(np.array([2 * hits / both for hits, both in counts])))
