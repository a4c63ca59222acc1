"""A few classes for each client, in Dirichlet proportions over the holders of each class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coterie.data.dataset import Dataset
from coterie.errors import CoterieError
from coterie.partition import ExtendedDirichlet, Partition
from coterie.partition.dirichlet import log_gamma_draws
from coterie.rng import numpy_stream


def toy(samples: int, classes: int = 10) -> Dataset:
    labels = torch.as_tensor(np.random.default_rng(0).permutation(np.arange(samples) % classes))
    return Dataset("toy", torch.zeros(samples, 1), labels, classes)


CIFAR_SIZED = toy(60_000)


def held(partition: Partition, data: Dataset) -> np.ndarray:
    """All samples of each client by class: [K, C]."""
    return partition.class_counts(data) + partition.class_counts(data, "test")


@pytest.mark.thorough
@given(
    clients=st.integers(1, 25),
    per_client=st.integers(1, 6),
    alpha=st.sampled_from([0.01, 0.5, 100.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_everybody_holds_at_most_its_classes_and_every_class_is_held(
    clients: int, per_client: int, alpha: float, seed: int
) -> None:
    assume(clients * per_client >= 6)
    data = toy(1200, 6)
    partition = ExtendedDirichlet(clients, per_client, alpha, least=5)(data, seed)
    counts = held(partition, data)
    assert ((counts > 0).sum(1) <= per_client).all()
    assert counts.sum(0).tolist() == [200] * 6
    assert counts.sum(1).min() >= 5
    indices = np.concatenate([*partition.train, *partition.test])
    assert sorted(indices.tolist()) == list(range(1200))


def test_a_large_alpha_gives_everybody_exactly_its_classes_in_equal_shares() -> None:
    counts = held(ExtendedDirichlet(20, 2, alpha=1e6)(CIFAR_SIZED, 0), CIFAR_SIZED)
    assert ((counts > 0).sum(1) == 2).all()
    for of_class in counts.T:
        holders = of_class[of_class > 0]
        assert np.abs(holders - 6000 / len(holders)).max() < 0.01 * 6000


def test_the_proportions_are_those_of_the_holders_draws() -> None:
    """Recomputed from the streams: gamma draws of the holders alone, normalised, times the class's size."""
    rule = ExtendedDirichlet(8, 3, alpha=0.7, least=1)
    counts = held(rule(CIFAR_SIZED, 3), CIFAR_SIZED)
    holders = rule._holders(10, numpy_stream(3, "partition:extended_dirichlet:classes"))
    assert (holders.sum(0) == 3).all()
    logs = log_gamma_draws(numpy_stream(3, "partition:extended_dirichlet"), 0.7, (100, 10, 8))[0]
    for c in range(10):
        shares = np.where(holders[c], np.exp(logs[c]), 0)
        assert np.abs(counts[:, c] - 6000 * shares / shares.sum()).max() <= 1
        assert (counts[~holders[c], c] == 0).all()


def test_classes_that_nobody_drew_get_a_holder() -> None:
    """With as many places as classes a random draw fits once in 1,600 times: clients change their classes then."""
    data = toy(1000)
    for seed in range(6):
        counts = held(ExtendedDirichlet(5, 2, alpha=1.0)(data, seed), data)
        assert (counts.sum(0) == 100).all()
        assert ((counts > 0).sum(0) == 1).all()
        assert ((counts > 0).sum(1) == 2).all()


def test_a_least_that_no_draw_meets_is_repaired_within_the_classes() -> None:
    rule = ExtendedDirichlet(20, 2, alpha=0.01, least=100)
    partition = rule(CIFAR_SIZED, 0)
    counts = held(partition, CIFAR_SIZED)
    assert counts.sum(1).min() == 100
    assert counts.sum() == 60_000
    holders = rule._holders(10, numpy_stream(0, "partition:extended_dirichlet:classes"))
    assert (counts.T[~holders] == 0).all()
    (note,) = partition.notes
    assert note.startswith("repaired after 1000 draws: moved ")
    assert rule(CIFAR_SIZED, 0) == partition


def test_samples_move_from_the_largest_holder_of_a_shared_class() -> None:
    rule = ExtendedDirichlet(3, 2)
    holders = np.array([[True, True, False], [True, False, True]])
    counts = np.array([[10, 0, 0], [10, 0, 7]])
    assert rule._level(counts, holders, least=4) == 4
    assert counts.tolist() == [[6, 4, 0], [10, 0, 7]]
    with pytest.raises(CoterieError, match="least = 12: the classes of client 1 are too small for so many holders"):
        rule._level(counts, holders, least=12)


def test_gaps_between_labels_do_no_harm() -> None:
    data = Dataset("gaps", torch.zeros(200, 1), torch.arange(200) % 2 * 3, classes=5)
    assert held(ExtendedDirichlet(4, 1)(data, 0), data)[:, [1, 2, 4]].sum() == 0


def test_relabelled_clients_keep_their_samples() -> None:
    data = toy(1000)
    partition = ExtendedDirichlet(6, 2)(data, 0)
    order = [5, 3, 1, 0, 2, 4]
    assert held(partition.permuted(order), data).tolist() == held(partition, data)[order].tolist()


def test_mistakes_name_the_way_out() -> None:
    with pytest.raises(CoterieError, match="classes_per_client = 11: must be from 1 to 10"):
        ExtendedDirichlet(classes_per_client=11)(toy(3000), 0)
    with pytest.raises(CoterieError, match=r"4 clients hold at most 8 of the 10 classes .* use more clients"):
        ExtendedDirichlet(4, 2)(toy(3000), 0)
    with pytest.raises(CoterieError, match="classes_per_client = 0"):
        ExtendedDirichlet(classes_per_client=0)
    with pytest.raises(CoterieError, match="least = 0"):
        ExtendedDirichlet(least=0)
    with pytest.raises(CoterieError, match="least = 151: must be at most 150"):
        ExtendedDirichlet(20, least=151)(toy(3000), 0)


@pytest.mark.parametrize("seed", range(8))
def test_the_defaults_suit_the_embedded_digits(seed: int) -> None:
    counts = held(ExtendedDirichlet()(toy(1797), seed), toy(1797))
    assert counts.sum(1).min() >= 40
