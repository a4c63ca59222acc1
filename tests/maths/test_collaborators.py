"""Two groups of one client's distances: clear cases by hand, against scikit-learn, and what holds always."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture
from torch import Tensor

from coterie.maths import collaborators

RULES = [collaborators.near_by_mixture, collaborators.near_by_means, collaborators.near_by_linkage]
Rule = Callable[[Tensor], Tensor]


def first_row(values: Sequence[float]) -> Tensor:
    """Distances `[n + 1, n + 1]` in which client 0 has the given ones to the others."""
    distances = torch.zeros(len(values) + 1, len(values) + 1, dtype=torch.float64)
    distances[0, 1:] = torch.tensor(values, dtype=torch.float64)
    return distances + distances.T


def near(rule: Rule, values: Sequence[float]) -> list[float]:
    """Which of client 0's distances the rule calls near."""
    chosen = rule(first_row(values))[0]
    assert not bool(chosen[0])
    return [value for value, is_near in zip(values, chosen[1:].tolist(), strict=True) if is_near]


@pytest.mark.parametrize("rule", RULES)
class TestByHand:
    def test_two_clear_groups(self, rule: Rule) -> None:
        assert near(rule, [0.1, 0.9, 0.12, 1.0, 0.11, 0.95]) == [0.1, 0.12, 0.11]

    def test_a_single_near_client(self, rule: Rule) -> None:
        assert near(rule, [0.05, 0.9, 0.95, 1.0, 0.92]) == [0.05]

    def test_a_single_far_client(self, rule: Rule) -> None:
        assert near(rule, [0.1, 0.11, 0.12, 1.0, 0.1]) == [0.1, 0.11, 0.12, 0.1]

    def test_one_value(self, rule: Rule) -> None:
        assert near(rule, [1.0]) == [1.0]

    @pytest.mark.parametrize("values", [[0.4, 1.0], [1.0, 0.4], [0.999, 1.0], [0.0, 1.0]])
    def test_of_two_values_the_nearer(self, rule: Rule, values: list[float]) -> None:
        assert near(rule, values) == [min(values)]

    def test_three_values(self, rule: Rule) -> None:
        assert near(rule, [0.9, 0.1, 0.15]) == [0.1, 0.15]
        assert near(rule, [0.9, 0.1, 0.85]) == [0.1]

    @pytest.mark.parametrize("values", [[1.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0 - 1e-13, 1.0]])
    def test_equal_values_are_all_near(self, rule: Rule, values: list[float]) -> None:
        assert near(rule, values) == values

    def test_rows_are_grouped_independently(self, rule: Rule) -> None:
        distances = torch.tensor(
            [[0.0, 0.1, 1.0, 0.9], [1.0, 0.0, 0.1, 0.2], [1.0, 1.0, 0.0, 1.0], [0.3, 1.0, 0.9, 0.0]]
        ).double()
        expected = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 1], [1, 0, 0, 0]]).bool()
        assert torch.equal(rule(distances), expected)


def test_log_odds_worked_out_by_hand() -> None:
    """log(0.75 N(v; 0.9, 0.01) / 0.25 N(v; 0.3, 0.04)), and log(0.25 N(v; 0.3, 0.04)) averaged over three values."""

    def log_mass(value: float, share: float, mean: float, variance: float) -> float:
        return math.log(share / math.sqrt(2 * math.pi * variance)) - (value - mean) ** 2 / (2 * variance)

    values = [0.2, 0.6, 1.0]
    lower = [log_mass(value, 0.25, 0.3, 0.04) for value in values]
    upper = [log_mass(value, 0.75, 0.9, 0.01) for value in values]
    mixture = [torch.tensor([pair], dtype=torch.float64) for pair in ([0.25, 0.75], [0.3, 0.9], [0.04, 0.01])]
    odds, averaged = collaborators._log_odds(torch.tensor([values], dtype=torch.float64), *mixture)
    assert odds[0].tolist() == pytest.approx([high - low for high, low in zip(upper, lower, strict=True)])
    assert averaged.tolist() == pytest.approx([sum(lower) / 3])


def test_whoever_is_at_the_limit_is_near() -> None:
    distances = torch.tensor([[0.0, 0.5], [0.75, 0.0]])
    assert collaborators.near_by_distance(distances, 0.5).tolist() == [[False, True], [False, False]]


def test_a_wide_far_component_does_not_take_the_very_nearest() -> None:
    """Its tail reaches below the narrow near component; whoever is nearer than an accepted client is accepted."""
    tight = np.linspace(0.395, 0.405, 30).tolist()
    wide = [0.37, *np.linspace(0.5, 1.0, 20).tolist()]
    values = torch.tensor([tight + wide], dtype=torch.float64)
    mixture = collaborators._em(values, collaborators._two_means(values))
    raw = collaborators._assigned_low(values, *mixture)[0]
    assert bool(raw[: len(tight)].all())
    assert not bool(raw[len(tight)])  # 0.37 belongs to the far component without the repair
    assert set(near(collaborators.near_by_mixture, tight + wide)) == {*tight, 0.37}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_clear_mixtures_are_assigned_as_by_scikit_learn(seed: int) -> None:
    stream = np.random.default_rng(seed)
    low, high = int(stream.integers(3, 15)), int(stream.integers(3, 15))
    clients = low + high + 1
    distances = torch.zeros(clients, clients, dtype=torch.float64)
    for k in range(clients):
        centre = stream.uniform(0.1, 0.4)
        values = np.concatenate([stream.normal(centre, 0.02, low), stream.normal(centre + 0.5, 0.03, high)])
        distances[k, torch.arange(clients) != k] = torch.from_numpy(stream.permutation(values).clip(0))
    chosen = collaborators.others(collaborators.near_by_mixture(distances)).numpy()
    for row, values in zip(chosen, collaborators.others(distances).numpy(), strict=True):
        assigned = GaussianMixture(2, n_init=3, random_state=0).fit_predict(values[:, None])
        nearer = min((0, 1), key=lambda c: values[assigned == c].mean())
        assert (row == (assigned == nearer)).all()


def test_parameters_are_those_of_scikit_learn() -> None:
    stream = np.random.default_rng(3)
    values = np.concatenate([stream.normal(0.2, 0.05, 40), stream.normal(0.7, 0.1, 25)])
    fitted = GaussianMixture(2, tol=1e-4, n_init=3, random_state=0).fit(values[:, None])
    order = fitted.means_[:, 0].argsort()
    rows = torch.from_numpy(values)[None]
    mass, mean, variance = collaborators._em(rows, collaborators._two_means(rows))
    np.testing.assert_allclose(mass[0].numpy(), fitted.weights_[order], atol=0.01)
    np.testing.assert_allclose(mean[0].numpy(), fitted.means_[order, 0], atol=0.01)
    np.testing.assert_allclose(variance[0].sqrt().numpy(), fitted.covariances_[order, 0, 0] ** 0.5, atol=0.01)


matrices = st.integers(2, 9).flatmap(
    lambda m: st.lists(st.floats(0, 1), min_size=m * m, max_size=m * m).map(
        lambda flat: torch.tensor(flat, dtype=torch.float64).view(m, m).fill_diagonal_(0)
    )
)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULES)
@given(distances=matrices)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_somebody_is_near_and_nobody_nearer_is_left_out(rule: Rule, distances: Tensor) -> None:
    chosen = rule(distances)
    assert not bool(chosen.diagonal().any())
    for k in range(len(distances)):
        accepted = [j for j in range(len(distances)) if bool(chosen[k, j])]
        assert accepted
        reach = max(float(distances[k, j]) for j in accepted)
        assert accepted == [j for j in range(len(distances)) if j != k and float(distances[k, j]) <= reach]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_relabelling_permutes(rule: Rule, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    distances = torch.rand(12, 12, generator=stream, dtype=torch.float64).fill_diagonal_(0)
    order = torch.randperm(12, generator=stream)
    assert torch.equal(rule(distances[order][:, order]), rule(distances)[order][:, order])


def test_a_row_does_not_depend_on_the_others() -> None:
    """Rows converge at different steps; a batch of them gives what each gives alone."""
    stream = torch.Generator().manual_seed(1)
    distances = torch.rand(40, 40, generator=stream, dtype=torch.float64).fill_diagonal_(0)
    together = collaborators.near_by_mixture(distances)
    for k in range(0, 40, 7):
        alone = distances.clone()
        alone[torch.arange(40) != k] = 0
        assert torch.equal(collaborators.near_by_mixture(alone)[k], together[k])
