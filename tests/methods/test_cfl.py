"""CFL: when clusters split and whom the halves hold, at every level; whole rounds against plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_rounds import (
    CLIENTS,
    DATA,
    WIDTH,
    assert_relabelling_changes_nothing,
    assert_rows,
    cohort_of,
    copies,
    differs_from_both,
    load,
    mean_of,
    run,
    train,
    vector,
)
from torch import Tensor

from coterie.core.exchange import ClientRows, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods.cfl import CFL, displacement
from coterie.partition import Partition
from coterie.testing.toys import toy_partition
from support import final_rows, rows_of, tiny

EAGER = CFL(eps1=1e9, eps2=0.0, warm_up=0)


def federation_of(clients: int, method: CFL) -> Federation:
    return tiny(method, partition=toy_partition(DATA, clients), clients=clients).prepare().federation()


def exchanged(method: CFL, federation: Federation, updates: Tensor) -> tuple[Mix, dict[str, Tensor]]:
    """The server step on hand-made updates of everybody: the mix and the values put."""
    federation.rounds_taken[:] = 1
    federation["update"].own[:, : updates.shape[1]] = updates
    everything = federation.layout.everything
    uploads = Uploads(federation, federation.everyone, {"model": rows_of(federation)}, {"model": everything})
    mix, *puts = method.exchange(uploads)
    assert isinstance(mix, Mix)
    return mix, {put.name: put.value for put in puts if isinstance(put, Put)}


def partition_of(labels: Tensor) -> set[frozenset[int]]:
    return {frozenset((labels == label).nonzero()[:, 0].tolist()) for label in labels.unique()}


def test_a_second_split_concerns_the_right_clients() -> None:
    """The members of a sub-cluster are not its first few clients: indices have to be those of the federation."""
    federation = federation_of(8, EAGER)
    federation.round = 1
    first = torch.tensor([[-5.0, 0], [5, 1], [-5, 0], [5, 1], [-5, 0.5], [5, 0], [-5, 0.5], [5, 0]])
    _, values = exchanged(EAGER, federation, first)
    assert partition_of(values["clusters"]) == {frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7})}
    federation.values.update(values)
    second = torch.tensor([[1.0, 0], [1, 0.1], [-1, 0], [-1, 0.1], [-1, 0], [1, 0], [1, 0], [-1, 0]])
    mix, values = exchanged(EAGER, federation, second)
    expected = {frozenset({0, 6}), frozenset({2, 4}), frozenset({1, 5}), frozenset({3, 7})}
    assert partition_of(values["clusters"]) == expected
    for members in expected:
        for i in members:
            assert mix.weights[i].nonzero()[:, 0].tolist() == sorted(members)
            torch.testing.assert_close(mix.weights[i, sorted(members)], torch.full((2,), 0.5, dtype=torch.float64))


def test_thresholds() -> None:
    method = CFL(eps1=0.4, eps2=1.6, warm_up=20)
    assert method.splits(round=21, members=3, mean=0.39, most=1.61, largest=99.0)
    assert not method.splits(round=20, members=3, mean=0.39, most=1.61, largest=99.0)
    assert not method.splits(round=21, members=2, mean=0.39, most=1.61, largest=99.0)
    assert not method.splits(round=21, members=3, mean=0.4, most=1.61, largest=99.0)
    assert not method.splits(round=21, members=3, mean=0.39, most=1.6, largest=99.0)


@pytest.mark.parametrize(("eps2", "splits"), [(3.0, True), (4.9, True), (5.1, False)])
def test_one_member_that_pulls_away_is_enough(eps2: float, splits: bool) -> None:
    """Four updates of lengths 1, 1, 1 and 5: their mean has length 0.5, and the longest decides, not the usual 2."""
    method = CFL(eps1=1.0, eps2=eps2, warm_up=0)
    federation = federation_of(4, method)
    federation.round = 1
    _, values = exchanged(method, federation, torch.tensor([[1.0, 0], [1, 0], [1, 0], [-5, 0]]))
    apart = {frozenset({0, 1, 2}), frozenset({3})}
    assert partition_of(values["clusters"]) == (apart if splits else {frozenset(range(4))})


def test_numbers_near_the_largest_stay_numbers() -> None:
    """Squares of 1e30 are beyond float32, and so is the way from -3e38 to 3e38: nobody is compared with infinity."""
    federation = federation_of(4, CFL())
    federation.round = 1
    _, values = exchanged(CFL(), federation, torch.full((4, 2), 1e30))
    assert float(values["largest"]) == pytest.approx(2**0.5 * 1e30)
    federation["model"].own.fill_(-3e38)
    around = ClientRows(federation, federation.everyone[:1], {"model": torch.full((1, WIDTH), 3e38)})
    assert displacement(around).unique().tolist() == [torch.finfo(torch.float32).max]


def test_relative_thresholds_scale_with_the_largest_mean_update() -> None:
    method = CFL(eps1=0.1, eps2=1.0, relative=True, warm_up=0)
    assert method.splits(round=1, members=3, mean=0.0009, most=0.02, largest=0.01)
    assert not method.splits(round=1, members=3, mean=0.0011, most=0.02, largest=0.01)
    assert not method.splits(round=1, members=3, mean=0.0009, most=0.009, largest=0.01)


def test_the_largest_mean_update_is_remembered() -> None:
    method = CFL(relative=True)
    federation = federation_of(4, method)
    federation.round = 1
    _, values = exchanged(method, federation, torch.tensor([[3.0, 0], [3, 0], [0, 4], [0, 4]]))
    assert float(values["largest"]) == pytest.approx(2.5)
    federation.values.update(values)
    _, values = exchanged(method, federation, torch.full((4, 2), 0.1))
    assert float(values["largest"]) == pytest.approx(2.5)


def linked(updates: dict[int, Tensor], linkage: str) -> list[list[int]]:
    """Two groups by the definition, on the clients' ids."""
    apart = {"single": min, "complete": max}[linkage]
    groups = [[k] for k in updates]
    far = {
        (i, j): -float(torch.cosine_similarity(updates[i].double(), updates[j].double(), dim=0))
        for i in updates
        for j in updates
    }
    while len(groups) > 2:
        pairs = [(a, b) for a in groups for b in groups if a[0] < b[0]]
        one, other = min(pairs, key=lambda pair: apart(far[i, j] for i in pair[0] for j in pair[1]))
        groups = sorted([group for group in groups if group not in (one, other)] + [sorted(one + other)])
    return groups


@pytest.mark.parametrize("options", [{}, {"linkage": "single"}, {"linkage": "complete"}])
def test_rounds_equal_plain_loops(options: dict[str, str]) -> None:
    method = CFL(eps1=1e9, eps2=0.0, warm_up=1, **options)
    clusters = [list(range(CLIENTS))]
    models = copies()
    for t in range(1, 5):
        updates = {}
        for k, model in enumerate(models):
            before = vector(model)
            train(model, k, t)
            updates[k] = vector(model) - before
            load(model, before)
        split: list[list[int]] = []
        for members in clusters:
            splits = t > 1 and len(members) > 2
            split += linked({k: updates[k] for k in members}, method.linkage) if splits else [members]
        clusters = split
        for members in clusters:
            step = mean_of([updates[k] for k in members])
            for k in members:
                load(models[k], vector(models[k]) + step)
    result, _ = run(method, rounds=4)
    assert_rows(result, [vector(model) for model in models])
    assert partition_of(result.federation.values["clusters"]) == {frozenset(members) for members in clusters}
    assert len(clusters) > 1


def equal_sizes() -> Partition:
    cut = [range(36 * k, 36 * k + 36) for k in range(4)]
    return Partition(
        train=tuple(torch.tensor(c[:27]).numpy() for c in cut), test=tuple(torch.tensor(c[27:]).numpy() for c in cut)
    )


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_without_splits_it_is_fedavg_with_equal_weights(model: str) -> None:
    ours = tiny(CFL(eps1=0, warm_up=0), model, partition=equal_sizes()).run()
    fedavg = tiny("fedavg", model, partition=equal_sizes()).run()
    torch.testing.assert_close(final_rows(ours), final_rows(fedavg), rtol=1e-5, atol=1e-6)


def test_nothing_splits_during_warm_up() -> None:
    result, _ = run(CFL(eps1=1e9, eps2=0.0, warm_up=3), rounds=3)
    assert partition_of(result.federation.values["clusters"]) == {frozenset(range(CLIENTS))}


def test_with_splits_it_is_neither_local_training_nor_fedavg() -> None:
    assert differs_from_both(EAGER)


def test_with_half_the_clients_a_cluster_still_has_one_model() -> None:
    data_partition = toy_partition(DATA, 6)
    for rounds in range(1, 6):
        result, reports = run(EAGER, rounds=rounds, join=0.5, partition=data_partition)
        clusters, rows = result.federation.values["clusters"], final_rows(result)
        for members in partition_of(clusters):
            for k in members:
                assert torch.equal(rows[k], rows[min(members)])
        never = ~result.federation.taken_part
        assert bool((clusters[never] == 0).all())
        # Whoever has nobody of its cluster in the round keeps its model.
        cohort = set(reports[-1].cohort)
        for members in partition_of(clusters):
            if not members & cohort:
                assert torch.equal(reports[-1].mixes[0].weights[sorted(members)], torch.eye(6)[sorted(members)])
    assert len(partition_of(clusters)) > 1


def test_unsampled_members_count_with_their_last_update() -> None:
    result, _ = run(EAGER, rounds=2, join=0.5)
    known = set(cohort_of(1, 0.5)) | set(cohort_of(2, 0.5))
    moved = result.federation["update"].own.abs().sum(1) > 0
    assert set(moved.nonzero()[:, 0].tolist()) == known


def test_models_go_up_and_come_down() -> None:
    """Whoever is alone in its cluster has its model already."""
    renewed, alone = set[int](), 0
    for report in run(EAGER, join=0.5, rounds=5)[1]:
        cohort = set(report.cohort)
        assert report.bytes == {"up": 4 * WIDTH * len(cohort), "down": 4 * WIDTH * len(renewed & cohort)}
        (mix,) = report.mixes
        torch.testing.assert_close(mix.weights.sum(1), torch.ones(CLIENTS))
        mixed = {k for k in range(CLIENTS) if not torch.equal(mix.weights[k], torch.eye(CLIENTS)[k])}
        renewed = (renewed - cohort) | mixed
        alone += len(cohort - mixed)
    assert alone > 0


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_changes_nothing(EAGER, join=join, rounds=4, partition=toy_partition(DATA, 7))


@pytest.mark.parametrize("options", [{"eps1": -1.0}, {"eps2": -1.0}, {"warm_up": -1}])
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = "):
        CFL(**options)


def test_an_unknown_linkage_is_named() -> None:
    with pytest.raises(CoterieError, match="unknown linkage 'singel'; did you mean 'single'"):
        CFL(linkage="singel")
