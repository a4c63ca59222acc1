"""The class lists, counts and sizes that the label-skew rules promise."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.dataset import Dataset
from coterie.errors import CoterieError
from coterie.partition import (
    Dirichlet,
    DirichletPerClient,
    Dominant,
    Partition,
    Pathological,
    Split,
    TwoClass,
)
from coterie.partition.dirichlet import log_gamma_draws
from coterie.partition.origin import _apportioned
from coterie.partition.partition import PARTS


def toy(samples: int, classes: int = 10, train_size: int = -1) -> Dataset:
    labels = torch.as_tensor(np.random.default_rng(0).permutation(np.arange(samples) % classes))
    return Dataset("toy", torch.zeros(samples, 1), labels, classes, train_size)


CIFAR_SIZED = toy(60_000, 10, 50_000)


def held(partition: Partition, dataset: Dataset) -> np.ndarray:
    """All samples of each client by class: [K, C]."""
    return np.sum([partition.class_counts(dataset, part) for part in PARTS], axis=0)


def class_lists(partition: Partition, dataset: Dataset) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in held(partition, dataset)]


ORDER_LISTS = {
    2: [[2 * (k // 4), 2 * (k // 4) + 1] for k in range(20)],
    3: [[3 * (k // 6) + i for i in range(3)] for k in range(18)] + [[9]] * 2,
    4: [[4 * (k // 8) + i for i in range(4)] for k in range(16)] + [[8, 9]] * 4,
}


@pytest.mark.parametrize("unbalanced", [True, False])
@pytest.mark.parametrize("per_client", [2, 3, 4])
def test_pathological_order_rule_class_lists_for_twenty_clients(per_client: int, unbalanced: bool) -> None:
    partition = Pathological(20, per_client, unbalanced=unbalanced)(CIFAR_SIZED, 0)
    assert class_lists(partition, CIFAR_SIZED) == ORDER_LISTS[per_client]
    assert held(partition, CIFAR_SIZED).sum() == 60_000
    assert partition.parameters["variant"] == "order"


@pytest.mark.parametrize(("per_client", "group", "rest"), [(10, 2, 10), (15, 3, 10), (20, 4, 20)])
def test_pathological_order_rule_groups_for_a_hundred_classes(per_client: int, group: int, rest: int) -> None:
    data = toy(6000, 100)
    lists = class_lists(Pathological(20, per_client)(data, 0), data)
    for k in range(20):
        assert lists[k] == lists[k - k % group]
    assert [len(classes) for classes in lists[:18]] == [per_client] * 18
    assert [len(classes) for classes in lists[18:]] == [rest] * 2


def test_pathological_slices_are_contiguous_and_within_their_bounds() -> None:
    partition = Pathological(20, 2)(CIFAR_SIZED, 7)
    counts = held(partition, CIFAR_SIZED)
    for c in range(10):
        takers = np.flatnonzero(counts[:, c])
        sizes = counts[takers, c]
        assert (sizes[:-1] >= 150).all()
        assert (sizes[:-1] < 1500).all()
        assert sizes[-1] >= 1500
        assert len(set(sizes.tolist())) > 1
        samples = np.flatnonzero(CIFAR_SIZED.labels.numpy() == c)
        start = 0
        for client, size in zip(takers, sizes, strict=True):
            own = np.concatenate([partition.train[client], partition.test[client]])
            assert set(samples[start : start + size]) <= set(own)
            start += size


def test_pathological_balanced_slices_are_equal() -> None:
    counts = held(Pathological(20, 2, unbalanced=False)(CIFAR_SIZED, 0), CIFAR_SIZED)
    assert set(counts[counts > 0].tolist()) == {1500}


def test_pathological_tells_which_classes_nobody_holds() -> None:
    partition = Pathological(3, 2)(toy(1000), 0)
    assert partition.notes == ("no client holds class 6, 7, 8, 9",)


def test_pathological_small_classes() -> None:
    data = toy(40, 10)
    counts = held(Pathological(20, 2)(data, 0), data)
    assert (counts[counts > 0] == 1).all()
    with pytest.raises(CoterieError, match="class 0 has 2 samples for 4 clients"):
        Pathological(20, 2)(toy(20, 10), 0)


@given(clients=st.integers(1, 25), per_client=st.integers(1, 6), seed=st.integers(0, 9), random=st.booleans())
@settings(max_examples=40, deadline=None)
def test_pathological_never_exceeds_the_classes_per_client(
    clients: int, per_client: int, seed: int, random: bool
) -> None:
    data = toy(1200, 6)
    partition = Pathological(clients, per_client, variant="random" if random else "order")(data, seed)
    lists = class_lists(partition, data)
    if random:
        assert all(len(classes) == per_client for classes in lists)
    else:
        assert all(1 <= len(classes) <= per_client for classes in lists)
    indices = np.concatenate([*partition.train, *partition.test])
    assert len(np.unique(indices)) == len(indices)


def test_dirichlet_deals_out_all_samples_and_respects_the_minimum() -> None:
    partition = Dirichlet(20, 0.1)(CIFAR_SIZED, 0)
    sizes = held(partition, CIFAR_SIZED).sum(1)
    assert sizes.min() >= 40
    assert sizes.sum() == 60_000
    assert partition.parameters["least"] == 40
    assert partition.notes == ()


@pytest.mark.thorough
@given(
    alpha=st.sampled_from([1e-6, 0.01, 0.1, 1.0, 100.0, 1e6]),
    clients=st.integers(1, 30),
    classes=st.integers(2, 12),
    seed=st.integers(0, 99),
    cap=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_dirichlet_is_a_partition_for_any_alpha(alpha: float, clients: int, classes: int, seed: int, cap: bool) -> None:
    data = toy(600, classes)
    partition = Dirichlet(clients, alpha, cap=cap)(data, seed)
    indices = np.concatenate([*partition.train, *partition.test])
    assert sorted(indices.tolist()) == list(range(600))
    sizes = held(partition, data).sum(1)
    assert sizes.min() >= partition.parameters["least"] == min(40, 600 // clients // 2)
    if cap:
        # Closed at N/K: at most one more class than the mean fits.
        assert sizes.max() < 600 / clients + held(partition, data).sum(0).max() + 1


def test_dirichlet_cap_stops_large_clients() -> None:
    """After the mean is reached no further class arrives, so without the last class a client is below it."""
    rule = Dirichlet(20, 0.1, least=1)
    sizes = np.full(10, 6000)
    counts = rule.counts(sizes, 50, np.random.default_rng(0))
    free = Dirichlet(20, 0.1, cap=False, least=1).counts(sizes, 50, np.random.default_rng(0))
    before = np.cumsum(counts, axis=1) - counts
    assert (counts[before >= 3000] == 0).all()
    assert (free[(np.cumsum(free, axis=1) - free) >= 3000] > 0).any()
    assert (counts.sum(2) == 6000).all()
    assert (free.sum(2) == 6000).all()


@pytest.mark.thorough
def test_dirichlet_size_spread_matches_the_published_partition() -> None:
    """pFedSim's Table 4: standard deviation 487 (alpha 0.1) and 170 (alpha 0.5) around 600 samples."""
    for alpha, low, high in [(0.1, 380, 520), (0.5, 165, 215)]:
        spread = [held(Dirichlet(100, alpha)(CIFAR_SIZED, seed), CIFAR_SIZED).sum(1).std() for seed in range(12)]
        assert low < np.mean(spread) < high


def test_dirichlet_alpha_one_hundredth_ends_with_a_repair_and_says_so() -> None:
    start = time.perf_counter()
    partition = Dirichlet(20, 0.01, least=40)(CIFAR_SIZED, 0, Split(0.25))
    assert time.perf_counter() - start < 2
    sizes = held(partition, CIFAR_SIZED).sum(1)
    assert sizes.min() == 40
    assert sizes.sum() == 60_000
    (note,) = partition.notes
    assert note.startswith("repaired after 1000 draws: moved ")
    moved = int(note.split()[-2])
    assert 0 < moved < 20 * 40
    assert Dirichlet(20, 0.01, least=40)(CIFAR_SIZED, 0) == partition


def test_dirichlet_repair_can_level_everybody() -> None:
    data = toy(100, 2)
    partition = Dirichlet(10, 0.01, least=10)(data, 0)
    assert held(partition, data).sum(1).tolist() == [10] * 10


def test_dirichlet_default_minimum_is_capped_for_small_data() -> None:
    partition = Dirichlet(20, 0.5)(toy(1797), 0)
    assert partition.parameters["least"] == 44 - 4
    assert Dirichlet(40, 0.5)(toy(1797), 0).parameters["least"] == 22
    assert Dirichlet(40, 0.5)(toy(1797), 0).notes[0].startswith("least = 22: half the mean client size")
    assert Dirichlet(10, 0.5)(toy(20, 2), 0).parameters["least"] == 2
    assert Dirichlet(10, 0.5)(toy(10, 2), 0).parameters["least"] == 1


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_log_gamma_draws_have_the_moments_of_the_dirichlet_distribution(alpha: float) -> None:
    logs = log_gamma_draws(np.random.default_rng(0), alpha, (40_000, 4))
    shares = np.exp(logs) / np.exp(logs).sum(1, keepdims=True)
    assert shares.mean(0) == pytest.approx([0.25] * 4, abs=0.01)
    assert shares.var(0) == pytest.approx([0.25 * 0.75 / (4 * alpha + 1)] * 4, rel=0.05)


def test_skipped_classes_do_no_harm() -> None:
    data = Dataset("gaps", torch.zeros(200, 1), torch.arange(200) % 2 * 3, classes=5)
    for rule in (Pathological(4, 1), Dirichlet(4, 0.1), Dominant(4, samples=20)):
        assert held(rule(data, 0), data)[:, [1, 2, 4]].sum() == 0
    for sampler in (TwoClass(4, 20, 10), DirichletPerClient(4, 20, 10)):
        partition = sampler(data, 0)
        assert held(partition, data)[:, [1, 2, 4]].sum() == 0
        assert "3 classes without training or test samples are left out" in partition.notes


def test_two_class_takes_halves_from_the_official_sets() -> None:
    partition = TwoClass()(CIFAR_SIZED, 0)
    assert partition.clients == 40
    for client in range(40):
        train = partition.class_counts(CIFAR_SIZED)[client]
        test = partition.class_counts(CIFAR_SIZED, "test")[client]
        assert sorted(train.tolist()) == [0] * 8 + [250, 250]
        assert (test * 5 == train).all()
        assert (partition.train[client] < 50_000).all()
        assert (partition.test[client] >= 50_000).all()
        assert len(np.unique(partition.train[client])) == 500
        assert len(np.unique(partition.test[client])) == 100
    assert len({tuple(row) for row in partition.class_counts(CIFAR_SIZED) > 0}) > 15
    assert partition.parameters["test"] == "by origin"


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_dirichlet_per_client_draws_train_and_test_by_the_same_proportions(alpha: float) -> None:
    partition = DirichletPerClient(alpha=alpha)(CIFAR_SIZED, 0, Split(0.5))
    train, test = partition.class_counts(CIFAR_SIZED), partition.class_counts(CIFAR_SIZED, "test")
    assert train.sum(1).tolist() == [500] * 40
    assert test.sum(1).tolist() == [100] * 40
    # int(n·q + 0.5) is within half a sample of n·q; only classes that meet the end of the budget, and the
    # last, collect the rounding of those before them.
    half_samples = 0.5 / 500 + 0.5 / 100
    difference = np.abs(train / 500 - test / 100)
    within_budget = (np.cumsum(train, 1) < 500) & (np.cumsum(test, 1) < 100)
    assert within_budget.sum() > 100
    assert difference[within_budget].max() <= half_samples + 1e-12
    assert difference.max() <= 9 * half_samples
    assert all((indices < 50_000).all() for indices in partition.train)
    assert all((indices >= 50_000).all() for indices in partition.test)
    assert all(len(np.unique(indices)) == 500 for indices in partition.train)


@pytest.mark.parametrize(
    ("total", "shares", "counts"),
    [
        (10, [0.25, 0.25, 0.25, 0.25], [3, 3, 3, 1]),
        (10, [0.55, 0.45, 0.0], [6, 4, 0]),
        (5, [0.7, 0.3, 0.0], [4, 1, 0]),
        (500, [0.1, 0.2, 0.7], [50, 100, 350]),
    ],
)
def test_proportions_are_rounded_within_the_budget_in_class_order(
    total: int, shares: list[float], counts: list[int]
) -> None:
    assert _apportioned(total, np.array(shares)).tolist() == counts


@pytest.mark.parametrize("rule", [TwoClass, DirichletPerClient])
def test_a_client_of_a_sampler_does_not_depend_on_the_number_of_clients(rule: type[TwoClass]) -> None:
    few, many = rule(clients=3)(CIFAR_SIZED, 1), rule(clients=9)(CIFAR_SIZED, 1)
    assert [a.tolist() for a in few.train] == [a.tolist() for a in many.train[:3]]


@pytest.mark.parametrize("rule", [TwoClass(5, 100, 20), DirichletPerClient(5, 100, 20)])
def test_samplers_split_data_without_a_test_set_and_say_so(rule: TwoClass) -> None:
    data = toy(1797)
    partition = rule(data, 0, Split(validation=0.25))
    assert partition.notes[0] == "there is no official test set: each class was split 80/20 by the seed"
    assert partition.sizes.tolist() == [75] * 5
    assert [len(v) for v in partition.validation] == [25] * 5
    train = np.concatenate([*partition.train, *partition.validation])
    assert len(np.intersect1d(train, np.concatenate(partition.test))) == 0


def test_samplers_repeat_samples_only_in_classes_that_are_too_small() -> None:
    data = toy(100, 2)
    partition = TwoClass(2, 120, 20)(data, 0)
    for indices in partition.train:
        samples, copies = np.unique(indices, return_counts=True)
        assert len(samples) == 80
        assert set(copies.tolist()) == {1, 2}
    assert all(len(np.unique(indices)) == 20 for indices in partition.test)
    assert partition.notes[-1].startswith("2 clients hold samples more than once")
    with_validation = TwoClass(2, 120, 20)(data, 0, Split(validation=0.3))
    for train, validation in zip(with_validation.train, with_validation.validation, strict=True):
        assert len(train) + len(validation) == 120
        assert len(np.intersect1d(train, validation)) == 0


DOMINANT_GROUPS = [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]


@pytest.mark.parametrize(("samples", "mixed", "dominant"), [(600, 12, (160, 160, 160)), (100, 2, (26, 26, 28))])
def test_dominant_counts(samples: int, mixed: int, dominant: tuple[int, int, int]) -> None:
    partition = Dominant(20, samples=samples)(CIFAR_SIZED, 0)
    counts = held(partition, CIFAR_SIZED)
    for client in range(20):
        expected = np.full(10, mixed)
        expected[DOMINANT_GROUPS[client // 4]] += dominant
        assert counts[client].tolist() == expected.tolist()
    assert partition.notes == ()


@pytest.mark.parametrize(("iid", "mixed"), [(0.4, 4), (0.6, 6), (0.8, 8)])
def test_dominant_mixed_share(iid: float, mixed: int) -> None:
    counts = held(Dominant(20, samples=100, iid=iid)(CIFAR_SIZED, 0), CIFAR_SIZED)
    assert counts.min(1).tolist() == [mixed] * 20
    assert counts.sum(1).tolist() == [100] * 20


def test_dominant_reads_classes_in_order_from_position_2000() -> None:
    partition = Dominant(5, samples=600)(CIFAR_SIZED, 0)
    class_3 = np.flatnonzero(CIFAR_SIZED.labels.numpy() == 3)
    first, second = (np.concatenate([partition.train[k], partition.test[k]]) for k in (0, 1))
    assert sorted(np.intersect1d(first, class_3)) == class_3[2000:2012].tolist()
    assert sorted(np.intersect1d(second, class_3)) == class_3[2012 : 2012 + 172].tolist()


def test_dominant_starts_modulo_small_classes_and_tells_of_reuse() -> None:
    data = toy(3000)
    partition = Dominant(5, samples=100)(data, 0)
    class_9 = np.flatnonzero(data.labels.numpy() == 9)
    first = np.concatenate([partition.train[0], partition.test[0]])
    assert sorted(np.intersect1d(first, class_9)) == class_9[2000 % 300 : 2000 % 300 + 2].tolist()
    assert partition.notes == ()
    crowded = Dominant(20, samples=600)(data, 0)
    assert crowded.notes == ("classes were used up: 9000 of 12000 samples are used again",)
    with pytest.raises(CoterieError, match="samples = 2000: client 0 would need 573 samples of class 0"):
        Dominant(20, samples=2000)(data, 0)


@pytest.mark.parametrize("clients", [1, 3, 7, 20, 33])
def test_dominant_groups_are_consecutive_blocks_for_any_number_of_clients(clients: int) -> None:
    counts = held(Dominant(clients, samples=200, iid=0.1)(CIFAR_SIZED, 0), CIFAR_SIZED)
    for client in range(clients):
        assert set(np.flatnonzero(counts[client] > 2).tolist()) == set(DOMINANT_GROUPS[client * 5 // clients])


@pytest.mark.parametrize("classes", [2, 3, 4, 7, 62, 100])
def test_dominant_works_for_any_number_of_classes(classes: int) -> None:
    data = toy(classes * 300, classes)
    partition = Dominant(10, samples=150, iid=0.0)(data, 0)
    counts = held(partition, data)
    assert counts.sum(1).tolist() == [150] * 10
    assert (counts.sum(0) > 0).all()
