"""Quantity skew: sizes differ, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.task import Regression
from coterie.data.dataset import Dataset
from coterie.errors import CoterieError
from coterie.partition import Partition, Quantity
from coterie.partition.dirichlet import log_gamma_draws, proportional
from coterie.rng import numpy_stream


def toy(samples: int, classes: int = 10) -> Dataset:
    labels = torch.as_tensor(np.random.default_rng(0).permutation(np.arange(samples) % classes))
    return Dataset("toy", torch.zeros(samples, 1), labels, classes)


def sizes_of(partition: Partition) -> np.ndarray:
    return partition.sizes + np.array([len(test) for test in partition.test])


def test_proportions_become_counts_that_add_up() -> None:
    shares = np.array([[0.5, 0.25, 0.25], [0.1, 0.3, 0.6]])
    # Cut at 5, 7.5, 10 and at 1, 4, 10 of ten samples, rounded down.
    assert proportional(np.log(shares), 10).tolist() == [[5, 2, 3], [1, 3, 6]]
    assert proportional(np.array([[-np.inf, 0.0, -np.inf]]), 7).tolist() == [[0, 7, 0]]


def test_sizes_are_the_first_draw_that_leaves_nobody_short() -> None:
    data = toy(3000)
    stream = numpy_stream(4, "partition:quantity")
    drawn = proportional(log_gamma_draws(stream, 0.5, (100, 8)), 3000)
    expected = next(row for row in drawn if row.min() >= 40)
    assert sizes_of(Quantity(8, 0.5)(data, 4)).tolist() == expected.tolist()


@given(alpha=st.sampled_from([1e-6, 0.1, 1.0, 100.0, 1e6]), clients=st.integers(1, 30), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_it_is_a_partition_for_any_alpha(alpha: float, clients: int, seed: int) -> None:
    partition = Quantity(clients, alpha)(toy(600), seed)
    indices = np.concatenate([*partition.train, *partition.test])
    assert sorted(indices.tolist()) == list(range(600))
    assert sizes_of(partition).min() >= partition.parameters["least"] == min(40, 600 // clients // 2)


@pytest.mark.thorough
def test_sizes_differ_the_more_the_smaller_alpha_and_classes_do_not() -> None:
    data = toy(60_000)
    spread = [sizes_of(Quantity(20, alpha, least=1)(data, 0)).std() for alpha in (0.3, 3.0, 300.0)]
    assert spread[0] > 1.5 * spread[1] > 3 * spread[2]
    # The standard deviation of a Dirichlet share: sqrt((1/K)(1 - 1/K) / (K·alpha + 1)), times N.
    many = [sizes_of(Quantity(20, 3.0, least=1)(data, seed)).std() for seed in range(20)]
    assert np.mean(many) == pytest.approx(60_000 * np.sqrt(0.05 * 0.95 / 61), rel=0.1)
    partition = Quantity(20, 0.5)(data, 0)
    counts = partition.class_counts(data) + partition.class_counts(data, "test")
    large = counts.sum(1) > 2000
    assert large.sum() >= 5
    assert np.abs(counts[large] / counts[large].sum(1, keepdims=True) - 0.1).max() < 0.03


def test_a_least_that_no_draw_meets_is_repaired_and_that_is_said() -> None:
    partition = Quantity(20, 0.01, least=40)(toy(60_000), 0)
    assert sizes_of(partition).min() == 40
    assert sizes_of(partition).sum() == 60_000
    (note,) = partition.notes
    assert note.startswith("repaired after 1000 draws: moved ")
    assert Quantity(10, 0.01, least=10)(toy(100), 0).sizes.tolist() == [7] * 10
    with pytest.raises(CoterieError, match="least = 31: must be at most 30: 20 clients share 600 samples"):
        Quantity(20, least=31)(toy(600), 0)
    with pytest.raises(CoterieError, match="least = 0"):
        Quantity(least=0)


def test_relabelled_clients_keep_their_samples() -> None:
    partition = Quantity(4, 0.5)(toy(600), 0)
    turned = partition.permuted([2, 0, 3, 1])
    assert turned.sizes.tolist() == partition.sizes[[2, 0, 3, 1]].tolist()
    assert turned.keys.tolist() == [2, 0, 3, 1]


def test_numbers_for_labels_are_dealt_out_too() -> None:
    data = Dataset("toy", torch.zeros(200, 1), torch.arange(200.0), task=Regression())
    assert sizes_of(Quantity(4)(data, 0)).sum() == 200
