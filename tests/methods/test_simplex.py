"""Quadratic programmes on the simplex, against grids and their optimality conditions."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.methods import fedpac
from coterie.methods.fedpac import combinations, simplex_minimiser, simplex_minimisers, without_traces


def random_form(size: int, rank: int, seed: int) -> torch.Tensor:
    stream = torch.Generator().manual_seed(seed)
    root = torch.randn(size, rank, generator=stream, dtype=torch.float64)
    return root @ root.T + torch.diag(torch.rand(size, generator=stream, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [2, 3, 4])
def test_no_point_of_a_grid_is_better(size: int, seed: int) -> None:
    form, ticks = random_form(size, 2, seed), 20
    grid = torch.tensor(
        [point for point in itertools.product(range(ticks + 1), repeat=size) if sum(point) == ticks],
        dtype=torch.float64,
    )
    values = ((grid / ticks) @ form * (grid / ticks)).sum(1)
    found = simplex_minimiser(form)
    value = found @ form @ found
    assert value <= values.min() + 1e-12
    assert torch.allclose(grid[values.argmin()] / ticks, found, atol=0.1)


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 10_000), st.sampled_from([1e-8, 1.0, 1e8]))
@settings(max_examples=40, deadline=None)
def test_it_meets_the_optimality_conditions(size: int, rank: int, seed: int, scale: float) -> None:
    form = random_form(size, rank, seed)
    weights = simplex_minimiser(scale * form)
    assert bool((weights >= 0).all())
    assert float(weights.sum()) == pytest.approx(1)
    slope = form @ weights
    level = weights @ slope
    assert bool((slope >= level - 1e-7 * form.max()).all()), "somewhere off the support it still falls"
    assert torch.allclose(slope[weights > 1e-6], level.expand(int((weights > 1e-6).sum())), rtol=1e-5)


def test_a_diagonal_form_gives_inverse_weights() -> None:
    torch.testing.assert_close(
        simplex_minimiser(torch.diag(torch.tensor([1.0, 2.0, 4.0]))), torch.tensor([4, 2, 1], dtype=torch.float64) / 7
    )


def test_singular_and_zero_forms_have_one_answer() -> None:
    torch.testing.assert_close(simplex_minimiser(torch.zeros(4, 4)), torch.full((4,), 0.25, dtype=torch.float64))
    alike = torch.ones(3, 3)
    torch.testing.assert_close(
        simplex_minimiser(alike), torch.full((3,), 1 / 3, dtype=torch.float64), atol=1e-4, rtol=0
    )
    free = torch.diag(torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(
        simplex_minimiser(free), torch.tensor([1.0, 0.0], dtype=torch.float64), atol=1e-9, rtol=0
    )


def test_traces_are_dropped_and_the_rest_sums_to_one() -> None:
    weights = torch.tensor([[0.9995, 0.0005, 0.0], [0.5, 0.499, 0.001]], dtype=torch.float64)
    torch.testing.assert_close(
        without_traces(weights), torch.tensor([[1, 0, 0], [0.5, 0.499, 0.001]], dtype=torch.float64)
    )


def test_if_all_are_traces_the_largest_stay() -> None:
    weights = torch.full((1, 2000), 1 / 2000, dtype=torch.float64)
    torch.testing.assert_close(without_traces(weights), weights)


@pytest.mark.parametrize(("size", "rank", "seed"), [(1, 1, 0), (7, 3, 1), (40, 5, 2), (60, 80, 3), (110, 4, 4)])
def test_many_with_one_form_are_those_of_each_alone(size: int, rank: int, seed: int) -> None:
    """FedPAC's forms, made one by one as its paper has them; some clients are alike, and some have no variance."""
    stream = torch.Generator().manual_seed(seed)
    means = 3 * torch.randn(size, rank, generator=stream, dtype=torch.float64)
    variances = 5 * torch.rand(size, generator=stream, dtype=torch.float64)
    if size > 7:
        means[5], variances[5], variances[6:9] = means[4], variances[4], 1e-9
    expected = []
    for own in means:
        apart = means - own
        expected.append(simplex_minimiser(torch.diag(variances) + apart @ apart.T))
    gram = means @ means.T
    found = simplex_minimisers(torch.diag(variances) + gram, gram)
    torch.testing.assert_close(found, torch.stack(expected), atol=2e-6, rtol=0)
    torch.testing.assert_close(combinations(variances, means), without_traces(torch.stack(expected)), atol=1e-5, rtol=0)


def test_what_pivoting_does_not_end_is_solved_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    form, slopes = random_form(12, 3, 0), torch.randn(4, 12, generator=torch.Generator().manual_seed(1)).double()
    expected = simplex_minimisers(form, slopes)
    monkeypatch.setattr(fedpac, "range", lambda _: (), raising=False)
    torch.testing.assert_close(simplex_minimisers(form, slopes), expected, atol=1e-6, rtol=0)
