"""Splitting a group in two, and centres that follow their members."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from coterie.maths.clusters import lloyd, two_halves, within_groups
from coterie.maths.similarity import cosines


def complete_linkage(distances: list[list[float]]) -> set[frozenset[int]]:
    """By the definition: join the two groups whose farthest members are nearest, until two are left."""
    groups = [frozenset([i]) for i in range(len(distances))]
    while len(groups) > 2:
        pairs = [(a, b) for a in groups for b in groups if min(a) < min(b)]
        nearest = min(pairs, key=lambda pair: max(distances[i][j] for i in pair[0] for j in pair[1]))
        groups = [group for group in groups if group not in nearest] + [nearest[0] | nearest[1]]
    return set(groups)


@pytest.mark.parametrize("seed", range(10))
def test_halves_are_those_of_complete_linkage(seed: int) -> None:
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
    similarity = cosines(rows)
    second = two_halves(similarity, "complete")
    halves = {frozenset(second.nonzero()[:, 0].tolist()), frozenset((~second).nonzero()[:, 0].tolist())}
    assert halves == complete_linkage((1 - similarity).tolist())
    assert 0 < int(second.sum()) <= 4


@pytest.mark.parametrize("seed", range(10))
def test_by_default_the_largest_similarity_across_is_least(seed: int) -> None:
    """Against all ways to cut eight clients in two."""
    similarity = cosines(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)))

    def across(half: tuple[int, ...]) -> float:
        rest = [j for j in range(8) if j not in half]
        return float(similarity[list(half)][:, rest].max())

    best = min(across(half) for size in range(1, 5) for half in combinations(range(8), size))
    found = tuple(two_halves(similarity).nonzero()[:, 0].tolist())
    assert across(found) == pytest.approx(best, abs=1e-12)


def test_a_chain_holds_together_under_single_linkage_alone() -> None:
    # A fan of directions, each 30 degrees from the next, and one that is 50 degrees from its end.
    angles = torch.deg2rad(torch.tensor([0.0, 30.0, 60.0, 90.0, 120.0, 170.0]))
    similarity = cosines(torch.stack([angles.cos(), angles.sin()], 1))
    assert two_halves(similarity).tolist() == [False] * 5 + [True]
    assert int(two_halves(similarity, "complete").sum()) > 1


@pytest.mark.parametrize("method", ["single", "complete"])
def test_of_equal_halves_the_second_is_the_one_without_the_first_row(method: str) -> None:
    angles = torch.deg2rad(torch.tensor([0.0, 180.0, 10.0, 190.0]))
    similarity = cosines(torch.stack([angles.cos(), angles.sin()], 1))
    assert two_halves(similarity, method).tolist() == [False, True, False, True]


def test_equal_similarities_still_split() -> None:
    second = two_halves(torch.ones(5, 5))
    assert 0 < int(second.sum()) < 5


def inertia(points: Tensor, groups: Tensor) -> float:
    return sum(float((points[groups == g] - points[groups == g].mean(0)).square().sum()) for g in groups.unique())


def test_lloyd_finds_separate_clouds_from_equal_centres() -> None:
    stream = torch.Generator().manual_seed(0)
    truth = torch.arange(30) % 3
    points = 10 * torch.eye(3)[truth] + torch.randn(30, 3, generator=stream)
    groups, centres = lloyd(points, torch.zeros(3, 3), steps=10)
    assert all(len(groups[truth == c].unique()) == 1 for c in range(3))
    assert len(groups.unique()) == 3
    for group in range(3):
        torch.testing.assert_close(centres[group], points[groups == group].double().mean(0))


def test_more_steps_never_make_it_worse() -> None:
    points = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    losses = [inertia(points, lloyd(points, points[:4], steps=steps)[0]) for steps in range(1, 8)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_an_empty_centre_moves_to_the_farthest_point() -> None:
    points = torch.tensor([[0.0], [1.0], [2.0], [10.0], [16.0]])
    groups, centres = lloyd(points, torch.tensor([[1.0], [11.0], [500.0]]), steps=1)
    assert groups.tolist() == [0, 0, 0, 1, 2]
    torch.testing.assert_close(centres[:, 0], torch.tensor([1.0, 10.0, 16.0], dtype=torch.float64))


def test_fewer_distinct_points_than_centres_leave_centres_empty() -> None:
    groups, centres = lloyd(torch.tensor([[1.0], [1.0], [3.0]]), torch.zeros(5, 1), steps=5)
    assert groups[0] == groups[1] != groups[2]
    assert bool(centres.isfinite().all())


def test_groups_learn_from_their_sources_or_from_themselves() -> None:
    groups = torch.tensor([2, 0, 2, 0, 1])
    weights = within_groups(groups, torch.tensor([True, True, True, False, False]))
    expected = torch.tensor(
        [[0.5, 0, 0.5, 0, 0], [0, 1, 0, 0, 0], [0.5, 0, 0.5, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    )
    torch.testing.assert_close(weights, expected.double())
