"""Numbers against hand computation and against scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score

from coterie.client.scores import Score, sums_of
from coterie.core.numbers import ACCURACY
from coterie.core.task import Classification, Regression
from coterie.core.task.base import Sums
from coterie.errors import CoterieError
from coterie.partition import Partition
from coterie.rounds.evaluate import Evaluation, Finished, over_rounds
from coterie.rounds.listeners import RoundReport
from coterie.runs.history import History, as_line
from coterie.testing.toys import toy_data, toy_partition
from support import tiny


def evaluation(accuracy: Sequence[float], sizes: Sequence[int]) -> Evaluation:
    values = {"accuracy": np.array(accuracy, float), "loss": np.zeros(len(accuracy))}
    return Evaluation(ACCURACY, values, np.array(sizes))


def test_means_deviation_and_worst_decile() -> None:
    one = evaluation([1.0, 0.5, 0.0], [1, 2, 7])
    assert one.mean == pytest.approx(0.5)
    assert one.weighted == pytest.approx((1 * 1 + 0.5 * 2) / 10)
    assert one.std == pytest.approx(np.sqrt((0.25 + 0 + 0.25) / 3))
    assert one.worst_decile == 0.0


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (20, 2), (39, 3)])
def test_the_worst_decile_has_at_least_one_client(clients: int, worst: int) -> None:
    accuracy = np.arange(clients)[::-1] / clients
    assert evaluation(accuracy, np.ones(clients)).worst_decile == pytest.approx(np.mean(np.arange(worst) / clients))


def test_evaluations_count_samples() -> None:
    scores = [
        Score({"correct": torch.tensor([True, False, True, True]), "loss": torch.tensor([0.0, 2.0, 0.0, 2.0])}),
        Score({"correct": torch.tensor([False]), "loss": torch.tensor([3.0])}),
    ]
    found = Evaluation.of(Classification(2), scores)
    assert found.judged.tolist() == [0.75, 0.0]
    assert found.loss.tolist() == [1.0, 3.0]
    assert found.sizes.tolist() == [4, 1]


def test_sums_of_many_clients_are_those_of_each_alone() -> None:
    draw = torch.Generator().manual_seed(1)
    losses = [torch.rand(size, generator=draw) for size in (3, 0, 128, 1)]
    scores = [Score({"correct": own > 0.5, "loss": own}) for own in losses]
    expected = [
        {"correct": sum(x > 0.5 for x in own.tolist()), "loss": sum(own.tolist()), "samples": len(own)}
        for own in losses
    ]
    found = sums_of(scores)
    assert found == expected == [score.sums() for score in scores]
    assert all(type(own["correct"]) is int and type(own["samples"]) is int for own in found)
    assert sums_of([]) == []


def test_a_loss_that_is_not_finite_is_its_own_clients_alone() -> None:
    right = torch.tensor([True, False])
    scores = [Score({"correct": right, "loss": torch.tensor([1.0, last])}) for last in (np.inf, 3.0, np.nan)]
    found = Evaluation.of(Classification(2), scores)
    assert found.loss[1] == 2.0
    assert found.loss[0] == np.inf
    assert np.isnan(found.loss[2])
    assert found.judged.tolist() == [0.5, 0.5, 0.5]


def test_metrics_with_a_value_of_their_own_are_asked_client_by_client() -> None:
    sums: list[Sums] = [
        {"squared_error": 8.0, "absolute_error": 4.0, "label": 0.0, "squared_label": 2.0, "loss": 8.0, "samples": 2},
        {"squared_error": 0.0, "absolute_error": 0.0, "label": 0.0, "squared_label": 0.0, "loss": 0.0, "samples": 0},
    ]
    found = Evaluation.of_sums(Regression(), sums)
    assert found.values["rmse"][0] == 2.0
    assert found.values["mae"][0] == 2.0
    assert all(np.isnan(own[1]) for own in found.values.values())


def test_updated_replaces_some_clients_and_leaves_the_original() -> None:
    one = evaluation([0.1, 0.2, 0.3], [1, 1, 1])
    other = one.updated(np.array([2, 0]), evaluation([0.9, 0.8], [1, 1]))
    assert other.judged.tolist() == [0.8, 0.2, 0.9]
    assert one.judged.tolist() == [0.1, 0.2, 0.3]


def test_curves() -> None:
    assert over_rounds(ACCURACY, [0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.6]) == {
        "best": 0.9,
        "last": 0.6,
        "last5": pytest.approx((0.2 + 0.3 + 0.4 + 0.5 + 0.6) / 5),
    }
    assert over_rounds(ACCURACY, [0.4]) == {"best": 0.4, "last": 0.4, "last5": 0.4}


def score_of(probabilities: np.ndarray, truth: np.ndarray) -> Score:
    kept = torch.from_numpy(probabilities)
    return Score({"correct": kept.argmax(1) == torch.from_numpy(truth), "loss": torch.zeros(len(truth))}, kept)


def by_sklearn(probabilities: np.ndarray, truth: np.ndarray) -> tuple[float, float | None]:
    f1 = f1_score(truth, probabilities.argmax(1), average="macro", zero_division=0)
    present = np.unique(truth)
    if len(present) < 2:
        return f1, None
    return f1, float(np.mean([roc_auc_score(truth == c, probabilities[:, c]) for c in present]))


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(2, 5), st.booleans())
def test_f1_and_auc_equal_scikit_learn(seed: int, samples: int, classes: int, ties: bool) -> None:
    stream = np.random.default_rng(seed)
    scores, labels, expected = [], [], []
    for _ in range(3):
        truth = stream.integers(classes, size=samples)
        probabilities = stream.random((samples, classes))
        if ties:
            probabilities = np.round(probabilities, 1)
        scores.append(score_of(probabilities, truth))
        labels.append(truth)
        expected.append(by_sklearn(probabilities, truth))
    found = Finished.of(Classification(classes), scores, [torch.from_numpy(truth) for truth in labels]).metrics
    assert found["macro_f1"] == pytest.approx(np.mean([f1 for f1, _ in expected]))
    curves = [auc for _, auc in expected if auc is not None]
    assert found["auc"] == (pytest.approx(np.mean(curves)) if curves else None)


def test_a_hand_case_of_f1_and_auc() -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    truth = np.array([0, 0, 1, 1])
    found = Finished.of(Classification(2), [score_of(probabilities, truth)], [torch.from_numpy(truth)]).metrics
    # Class 0: 2 of 3 guesses right, both found; class 1: its only guess right, 1 of 2 found.
    assert found["macro_f1"] == pytest.approx((0.8 + 2 / 3) / 2)
    # Of the four pairs (positive, negative), three are in order, for either class.
    assert found["auc"] == pytest.approx(0.75)


def test_models_that_overflow_do_not_stop_the_metrics() -> None:
    truth = np.array([0, 1, 1])
    broken = np.full((3, 2), np.nan)
    scores = [score_of(broken, truth), score_of(np.eye(2)[truth], truth)]
    found = Finished.of(Classification(2), scores, [torch.from_numpy(truth)] * 2).metrics
    assert found["auc"] == pytest.approx((0.5 + 1.0) / 2)
    assert np.isfinite(found["macro_f1"] or np.nan)


def test_a_client_that_cannot_be_tested_is_refused() -> None:
    data = toy_data()
    whole = toy_partition(data, 3)
    partition = Partition(train=whole.train, test=(np.empty(0, np.int64), *whole.test[1:]))
    with pytest.raises(CoterieError, match="client '0' has no test samples"):
        tiny("fedavg", data=data, partition=partition).prepare()


def test_history_sums_up_only_what_was_evaluated() -> None:
    def report(round: int, accuracy: float | None) -> RoundReport:
        found = None if accuracy is None else evaluation([accuracy, accuracy], [1, 3])
        return RoundReport(
            round,
            [0],
            received=found,
            trained=found,
            seconds={"train": 1.0, "exchange": 0.5, "evaluate": 0.25},
            bytes={"up": 8, "down": 4},
        )

    history = History(
        Classification(2), [1, 3], [as_line(report(1, 0.9)), as_line(report(2, None)), as_line(report(3, 0.5))]
    )
    assert history.curves("accuracy")["received"]["mean"] == {"best": 0.9, "last": 0.5, "last5": pytest.approx(0.7)}
    assert history.seconds() == {"total": 5.25, "per_round": {"train": 1.0, "exchange": 0.5, "evaluate": 0.25}}
    assert history.bytes() == {"up": 24, "down": 12, "total": 36, "per_client_round": {"up": 8, "down": 4}}
    last = history.last("received")
    assert last is not None
    assert last.judged.tolist() == [0.5, 0.5]
    assert History(Classification(2), [1, 3], history.lines[:2]).last("received") is None


def test_a_result_says_which_moment_which_mean_and_which_round() -> None:
    result = tiny("fedper", rounds=6).run()
    lines = result.lines
    found = result.accuracy()
    for moment, at in (("received", found.received), ("trained", found.trained)):
        for mean, values in (("mean", at.mean), ("weighted", at.weighted)):
            curve = [getattr(line.told(moment), mean) for line in lines]
            assert values == {"best": max(curve), "last": curve[-1], "last5": pytest.approx(np.mean(curve[1:]))}
            assert result.summary["accuracy"][moment][mean] == values
        assert at.by_client.tolist() == lines[-1].values(moment, "accuracy")
        last = lines[-1].told(moment)
        sizes = [len(index) for index in result.prepared.problem().test]
        assert last.mean == pytest.approx(np.mean(last.values["accuracy"]))
        assert last.weighted == pytest.approx(np.average(last.values["accuracy"], weights=sizes))
        assert last.std == pytest.approx(np.std(last.values["accuracy"]))
        assert last.worst_decile == min(last.values["accuracy"])
    assert "received" in str(found)
