"""PFedCS's equations 4 to 8 by hand: the shrinking threshold and the weights that must sum to one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core.federation import Federation
from coterie.maths.collaborators import WEIGHTS, _literal, teaching_weights, three_at_random, threshold
from coterie.testing.toys import toy_data, toy_partition
from support import tiny


def around(values: Sequence[float]) -> Tensor:
    """Distances in which client 0 has the given ones to the others, and the others are far apart."""
    size = len(values) + 1
    distances = torch.ones(size, size, dtype=torch.float64).fill_diagonal_(0)
    distances[0, 1:] = torch.tensor(values, dtype=torch.float64)
    return distances


def weights(
    values: Sequence[float], sizes: Sequence[int], lam: float, variant: str, chosen: int | None = None
) -> list[float]:
    """Client 0's weights over itself and its collaborators: the first `chosen` of the others, or all."""
    distances = around(values)
    collaborators = torch.zeros_like(distances, dtype=torch.bool)
    collaborators[0, 1 : 1 + (len(values) if chosen is None else chosen)] = True
    found = teaching_weights(distances, collaborators, torch.tensor(sizes), lam, variant)
    torch.testing.assert_close(found.sum(1), torch.ones(len(found), dtype=torch.float64), atol=1e-7, rtol=0)
    row: list[float] = found[0].tolist()
    return row


class TestThreshold:
    DISTANCES = around([0.2, 0.4, 0.9])  # mean 0.5, least 0.2

    @pytest.mark.parametrize(
        ("t", "beta", "expected"),
        [(1, 10, 0.47), (5, 10, 0.35), (10, 10, 0.2), (1, 1, 0.2), (11, 10, 0.2), (99, 10, 0.2)],
    )
    def test_by_hand(self, t: int, beta: int, expected: float) -> None:
        assert float(threshold(self.DISTANCES, t / beta)[0]) == pytest.approx(expected)

    def test_falls_from_mean_to_least(self) -> None:
        limits = torch.stack([threshold(self.DISTANCES, t / 20) for t in range(1, 21)])
        assert bool((limits.diff(dim=0) <= 0).all())
        assert bool((limits.diff(dim=0)[:, 0] < 0).all())

    def test_the_distance_to_oneself_does_not_count(self) -> None:
        torch.testing.assert_close(threshold(around([1.0, 1.0]), 0.5), torch.ones(3, dtype=torch.float64))


class TestWeights:
    WORKED = (0.30, 0.35, 0.40)

    def test_the_worked_example(self) -> None:
        found = weights(self.WORKED, [1, 1, 1, 1], 1.0, "self_inclusive")
        assert found == pytest.approx([0.727, 0.182, 0.091, 0.0], abs=5e-4)
        assert found == pytest.approx([8 / 11, 2 / 11, 1 / 11, 0.0])

    def test_peers_only(self) -> None:
        assert weights(self.WORKED, [1, 1, 1, 1], 1.0, "peers_only") == pytest.approx([0, 2 / 3, 1 / 3, 0])

    def test_the_similarity_part_of_renormalised_is_that_of_self_inclusive(self) -> None:
        both = [weights(self.WORKED, [5, 1, 2, 2], 1.0, variant) for variant in ("self_inclusive", "renormalised")]
        assert both[0] == pytest.approx(both[1])

    def test_renormalised_by_hand(self) -> None:
        # Literal over the peers: (.4 - d) / (3 · .4 - 1.05) = (8/3, 2/3, 1/3, 0) and n / 5 = (5, 1, 2, 2) / 5.
        literal = [0.5 * 8 / 3 + 0.5, 0.5 * 2 / 3 + 0.1, 0.5 / 3 + 0.2, 0.2]
        expected = [p / sum(literal) for p in literal]
        assert weights(self.WORKED, [5, 1, 2, 2], 0.5, "renormalised") == pytest.approx(expected)

    def test_self_inclusive_by_hand(self) -> None:
        expected = [0.5 * 8 / 11 + 0.25, 0.5 * 2 / 11 + 0.05, 0.5 / 11 + 0.1, 0.1]
        assert weights(self.WORKED, [5, 1, 2, 2], 0.5, "self_inclusive") == pytest.approx(expected)

    def test_the_literal_equation_sums_to_one_over_the_peers_and_to_more_with_the_client(self) -> None:
        distances, me = around(self.WORKED), torch.eye(4, dtype=torch.bool)
        peers = torch.zeros(4, 4, dtype=torch.bool)
        peers[0, 1:] = True
        peers[1:, 0] = True
        literal = _literal(distances, peers, peers | me, torch.tensor([5, 1, 2, 2]), 0.3)[0]
        assert float(literal[1:].sum()) == pytest.approx(1.0)
        # p_k = λ · D_max / (|C̄| (D_max − D_avg)) + (1 − λ) N_k / Σ N
        assert float(literal[0]) == pytest.approx(0.3 * 0.4 / (3 * (0.4 - 0.35)) + 0.7 * 5 / 5)
        assert float(literal.sum()) > 1.5

    @pytest.mark.parametrize(
        ("variant", "expected"), [("self_inclusive", [0.3, 0.1, 0.6]), ("peers_only", [0, 1 / 7, 6 / 7])]
    )
    def test_without_similarity_only_sizes_count(self, variant: str, expected: list[float]) -> None:
        assert weights([0.2, 0.7], [3, 1, 6], 0.0, variant) == pytest.approx(expected)

    def test_others_than_collaborators_get_nothing(self) -> None:
        found = weights([0.1, 0.2, 0.9], [1, 1, 1, 7], 0.5, "self_inclusive", chosen=2)
        # Over S = {0, .1, .2}: farthest .2, room 3 · .2 − .3 = .3.
        assert found == pytest.approx([0.5 * 2 / 3 + 1 / 6, 0.5 / 3 + 1 / 6, 1 / 6, 0.0])

    @pytest.mark.parametrize("variant", WEIGHTS)
    def test_one_client_learns_from_itself(self, variant: str) -> None:
        found = teaching_weights(torch.zeros(1, 1).double(), torch.zeros(1, 1).bool(), torch.tensor([9]), 0.5, variant)
        assert found.tolist() == [[1.0]]

    @pytest.mark.parametrize("variant", WEIGHTS)
    def test_without_collaborators_a_client_learns_from_itself(self, variant: str) -> None:
        assert weights([0.3, 0.6], [2, 3, 4], 0.5, variant, chosen=0) == pytest.approx([1, 0, 0])

    @pytest.mark.parametrize(
        ("variant", "expected"),
        [
            ("self_inclusive", [0.5 + 0.5 * 0.25, 0.5 * 0.75]),
            ("peers_only", [0.0, 1.0]),
            # Literal (7) is 0/0 here, so the similarity is even: (1 + 1/3) / 2 against (1 + 1) / 2.
            ("renormalised", [(1 + 1 / 3) / (2 + 4 / 3), 2 / (2 + 4 / 3)]),
        ],
    )
    def test_one_collaborator(self, variant: str, expected: list[float]) -> None:
        assert weights([1.0], [1, 3], 0.5, variant) == pytest.approx(expected)

    @pytest.mark.parametrize("variant", WEIGHTS)
    @pytest.mark.parametrize("distance", [0.0, 1e-14])
    def test_identical_classifiers_weigh_the_same(self, variant: str, distance: float) -> None:
        found = weights([distance] * 3, [2, 2, 2, 2], 0.7, variant)
        expected = [0, 1 / 3, 1 / 3, 1 / 3] if variant == "peers_only" else [0.25] * 4
        assert found == pytest.approx(expected)

    def test_equidistant_collaborators_are_finite(self) -> None:
        assert weights([0.5] * 3, [1] * 4, 1.0, "self_inclusive") == pytest.approx([1, 0, 0, 0])
        assert weights([0.5] * 3, [1] * 4, 1.0, "peers_only") == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
        # The room of literal (7) is 0: all similarities are taken as equal, then everything is scaled to sum to 1.
        assert weights([0.5] * 3, [1] * 4, 1.0, "renormalised") == pytest.approx([0.25] * 4)

    @pytest.mark.thorough
    @pytest.mark.parametrize("variant", WEIGHTS)
    @given(seed=st.integers(0, 10**6), clients=st.integers(1, 9), lam=st.floats(0, 1))
    @settings(max_examples=40, deadline=None, derandomize=True)
    def test_rows_are_weights_whoever_collaborates(self, variant: str, seed: int, clients: int, lam: float) -> None:
        stream = torch.Generator().manual_seed(seed)
        distances = torch.rand(clients, clients, generator=stream).double().fill_diagonal_(0)
        me = torch.eye(clients, dtype=torch.bool)
        chosen = (torch.rand(clients, clients, generator=stream) < 0.5) & ~me
        sizes = torch.randint(1, 500, (clients,), generator=stream)
        found = teaching_weights(distances, chosen, sizes, lam, variant)
        assert bool((found >= 0).all())
        torch.testing.assert_close(found.sum(1), torch.ones(clients, dtype=torch.float64), atol=1e-6, rtol=0)
        assert not bool((found[~(chosen | me)] != 0).any())


class TestRandom:
    @staticmethod
    def federation(clients: int, round: int = 1, keys: Tensor | None = None) -> Federation:
        data = toy_data(200)
        found = tiny("pfedcs", data=data, partition=toy_partition(data, clients)).prepare().federation()
        found.round = round
        if keys is not None:
            found.keys = keys
        return found

    @pytest.mark.parametrize(("clients", "others"), [(2, 1), (3, 2), (4, 3), (8, 3)])
    def test_three_others(self, clients: int, others: int) -> None:
        found = self.federation(clients)
        chosen = three_at_random(found, found.everyone)
        assert not bool(chosen.diagonal().any())
        assert chosen.sum(1).tolist() == [others] * clients

    def test_drawn_anew_every_round_and_again_alike(self) -> None:
        first, again, second = (
            three_at_random(whole, whole.everyone) for whole in (self.federation(9, r) for r in (1, 1, 2))
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, second)

    def test_relabelling_permutes(self) -> None:
        order = torch.tensor([4, 0, 6, 2, 5, 1, 3])
        plain, shuffled = self.federation(7), self.federation(7, keys=order)
        chosen = three_at_random(plain, plain.everyone)
        assert torch.equal(three_at_random(shuffled, shuffled.everyone), chosen[order][:, order])
