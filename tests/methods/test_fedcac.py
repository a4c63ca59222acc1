"""FedCAC against its equations: masks, overlaps, the rising threshold, and what is mixed under the mask."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from five import (
    assert_relabelling_permutes,
    assert_valid_mixes,
    break_client,
    part,
    random_rows,
    refused,
    send,
    server,
    sized_partition,
    watch,
)
from torch import Tensor

from coterie.engines import make_engine
from coterie.maths.similarity import overlaps
from coterie.methods import FedAvg, FedCAC, Local
from coterie.rounds.round import Rounds
from coterie.runs.experiment import Experiment
from coterie.testing.toys import toy_data
from support import final_rows, rows_of, tiny


def random_masks(count: int, width: int, share: float = 0.5, seed: int = 0) -> Tensor:
    """Masks of the same size: `[m, P]` bool."""
    scores = torch.rand(count, width, generator=torch.Generator().manual_seed(seed))
    return scores >= scores.kthvalue(width - int(share * width) + 1, dim=1, keepdim=True).values


def rows_from_round(experiment: Experiment, first: int, rounds: int) -> Tensor:
    """The clients' rows after some rounds of which the first is not round 1."""
    prepared = experiment.prepare()
    federation = prepared.federation()
    federation.round = first - 1
    loop = Rounds(prepared.method, federation, make_engine("serial", prepared.problem(), prepared.method, 0))
    for _ in range(rounds):
        loop.run_round()
    return rows_of(federation)


class TestDegenerateCases:
    @pytest.mark.thorough
    @pytest.mark.parametrize("sizes", [[20, 20, 20, 20], [5, 40, 12, 23]], ids=["equal sizes", "unequal sizes"])
    @pytest.mark.parametrize("collaboration", ["threshold", "none", "top1"])
    def test_with_nothing_critical_it_is_fedavg(self, sizes: list[int], collaboration: str) -> None:
        settings: dict[str, Any] = {"data": toy_data(100), "partition": sized_partition(sizes), "rounds": 4}
        method = FedCAC(tau=0.0, collaboration=collaboration, weights="size")
        ours = final_rows(tiny(method, **settings).run())
        theirs = final_rows(tiny(FedAvg(), **settings).run())
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
        assert not torch.allclose(final_rows(tiny(FedCAC(), **settings).run()), theirs, atol=1e-3)

    @pytest.mark.parametrize("model", ["plain", "norm"])
    def test_with_all_critical_it_is_local_after_beta(self, model: str) -> None:
        ours, theirs = (
            rows_from_round(tiny(method, model, rounds=9, lr=0.5), first=2, rounds=4)
            for method in (FedCAC(tau=1.0, beta=1), Local())
        )
        assert torch.equal(ours, theirs)

    def test_up_to_beta_it_is_not(self) -> None:
        ours, theirs = (
            rows_from_round(tiny(method, rounds=9), first=2, rounds=1) for method in (FedCAC(tau=1.0, beta=2), Local())
        )
        assert not torch.allclose(ours, theirs, atol=1e-4)

    @pytest.mark.parametrize("mask", ["sensitivity", "random", "reverse"])
    def test_with_all_critical_and_no_collaboration_it_is_local(self, mask: str) -> None:
        ours = final_rows(tiny(FedCAC(tau=1.0, mask=mask, collaboration="none"), rounds=4).run())
        assert torch.equal(ours, final_rows(tiny(Local(), rounds=4).run()))

    @pytest.mark.parametrize("tau", [0.3, 1.0])
    def test_one_client_trains_alone(self, tau: float) -> None:
        ours, theirs = (final_rows(tiny(method, clients=1).run()) for method in (FedCAC(tau=tau), Local()))
        assert torch.equal(ours, theirs)


def literal_difference(masks: Tensor) -> Tensor:
    """O as the paper prints it: ‖M_i − M_j‖₁ / (2n), which is a difference."""
    return (masks[:, None] ^ masks[None]).double().sum(-1) / (2 * masks.shape[1])


class TestOverlap:
    SAME = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0]]).bool()
    OPPOSITE = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]).bool()
    THREE = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]).bool()

    def test_equal_masks_overlap_wholly_and_opposite_ones_not_at_all(self) -> None:
        assert float(overlaps(self.SAME)[0, 1]) == 1.0
        assert float(overlaps(self.OPPOSITE)[0, 1]) == 0.0

    def test_the_overlap_picks_the_client_that_agrees(self) -> None:
        found = FedCAC(beta=10).collaborators(overlaps(self.THREE), 10)
        assert found.int().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]

    def test_the_literal_formula_fails_all_of_that(self) -> None:
        """Why the paper's formula is not used: it would have clients collaborate with their opposites."""
        assert float(literal_difference(self.SAME)[0, 1]) == 0.0
        assert float(literal_difference(self.OPPOSITE)[0, 1]) == 0.5
        found = FedCAC(beta=10).collaborators(literal_difference(self.THREE), 10)
        assert found.int().tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]


class TestCollaborators:
    OVERLAP = torch.tensor([[1.0, 0.9, 0.5, 0.1], [0.9, 1.0, 0.5, 0.2], [0.5, 0.5, 1.0, 0.6], [0.1, 0.2, 0.6, 1.0]])

    def at(self, round: int, beta: int = 10, collaboration: str = "threshold") -> list[tuple[int, int]]:
        chosen = FedCAC(beta=beta, collaboration=collaboration).collaborators(self.OVERLAP, round)
        return [(i, j) for i, j in chosen.nonzero().tolist()]

    def test_one_threshold_for_all(self) -> None:
        # Mean over pairs 2.8 / 6 = .4667, largest .9: .51 in round 1, .6833 in round 5.
        assert self.at(1) == [(0, 1), (1, 0), (2, 3), (3, 2)]
        assert self.at(5) == [(0, 1), (1, 0)]

    def test_it_rises_with_the_rounds(self) -> None:
        overlap = torch.rand(12, 12, generator=torch.Generator().manual_seed(0))
        chosen = [FedCAC(beta=20).collaborators(overlap, round) for round in range(1, 23)]
        for earlier, later in pairwise(chosen):
            assert bool((later <= earlier).all())
        counts = [int(one.sum()) for one in chosen]
        assert counts[0] > counts[10] > counts[19] == 1
        assert counts[20] == counts[21] == 0

    def test_at_beta_only_the_pair_that_overlaps_most(self) -> None:
        assert self.at(10) == [(0, 1), (1, 0)]
        assert self.at(1, beta=1) == [(0, 1), (1, 0)]

    def test_after_beta_nobody(self) -> None:
        assert self.at(11) == []

    def test_equal_overlaps_let_everybody_collaborate_until_beta(self) -> None:
        same = torch.full((3, 3), 1 / 3, dtype=torch.float64)
        for round in (1, 7, 10):
            assert int(FedCAC(beta=10).collaborators(same, round).sum()) == 6
        assert int(FedCAC(beta=10).collaborators(same, 11).sum()) == 0

    def test_fixed_numbers(self) -> None:
        assert self.at(99, collaboration="top1") == [(0, 1), (1, 0), (2, 3), (3, 2)]
        assert len(self.at(99, collaboration="top5")) == 12  # three others are all there are
        assert self.at(1, collaboration="none") == []


class TestMixes:
    @pytest.mark.parametrize("weights", ["uniform", "size"])
    def test_the_mean_of_all_and_under_the_mask_that_of_the_overlapping(self, weights: str) -> None:
        method = FedCAC(beta=10, weights=weights)
        federation = server(method, clients=5, round=4)
        rows, masks = random_rows(federation), random_masks(5, federation.layout.width)
        masks[3] = masks[1]
        send(method, federation, rows, critical=masks)
        mean = (federation.sizes / federation.sizes.sum()).float() @ rows if weights == "size" else rows.mean(0)
        found = rows_of(federation)
        for i in range(5):
            special = rows[[1, 3]].mean(0) if i in (1, 3) else rows[i]
            torch.testing.assert_close(found[i], torch.where(masks[i], special, mean))

    def test_as_critical_mixes_everything_with_the_overlapping(self) -> None:
        method = FedCAC(beta=10, collaboration="as_critical")
        federation = server(method, clients=4, round=10)
        rows, masks = random_rows(federation), random_masks(4, federation.layout.width)
        masks[2] = masks[0]
        send(method, federation, rows, critical=masks)
        expected = rows.clone()
        expected[[0, 2]] = rows[[0, 2]].mean(0)
        torch.testing.assert_close(rows_of(federation), expected)

    def test_critical_elements_never_fall_back_to_the_initial_ones(self) -> None:
        """After the first round they come from trained models."""
        method = FedCAC(collaboration="none")
        federation = server(method, clients=3)
        rows, masks = random_rows(federation), random_masks(3, federation.layout.width)
        send(method, federation, rows, critical=masks)
        assert torch.equal(rows_of(federation)[masks], rows[masks])

    @pytest.mark.thorough
    def test_two_hundred_clients_against_a_plain_loop(self) -> None:
        method = FedCAC(beta=10)
        federation = server(method, clients=200, round=5)
        rows, masks = random_rows(federation), random_masks(200, federation.layout.width)
        _, cautious = send(method, federation, rows, critical=masks)
        shared = [[int((a & b).sum()) / int(a.sum()) for b in masks] for a in masks[[3, 150]]]
        whole = overlaps(masks)
        torch.testing.assert_close(whole[[3, 150]], torch.tensor(shared, dtype=torch.float64))
        off = whole[~torch.eye(200, dtype=torch.bool)]
        limit = float(off.mean() + 0.5 * (off.max() - off.mean()))
        for i, overlap in zip((3, 150), shared, strict=True):
            group = [j for j in range(200) if j == i or overlap[j] >= limit - 1e-7]
            expected = torch.tensor([1 / len(group) if j in group else 0.0 for j in range(200)])
            torch.testing.assert_close(cautious.weights[i], expected)

    def test_statistics_stay_with_their_client(self) -> None:
        watched = watch(tiny(FedCAC(tau=0.0), "norm"))
        rows, layout = final_rows(watched.result), watched.result.federation.layout
        stats, parameters = (layout.columns(group).take(rows) for group in ("stats", "parameters"))
        assert not torch.allclose(stats[0], stats[1], atol=1e-3)
        torch.testing.assert_close(parameters[0], parameters[1])

    def test_statistics_that_travel_are_shared_among_collaborators_alone(self) -> None:
        together, alone = (
            watch(tiny(FedCAC(tau=0.5, collaboration=how), "norm", stats="mean")) for how in ("top5", "none")
        )
        layout = alone.result.federation.layout
        stats = layout.columns("stats")
        for watched, equal in ((together, True), (alone, False)):
            mine, others = stats.take(final_rows(watched.result))[:2]
            assert torch.allclose(mine, others, atol=1e-3) is equal


class TestFederationsAtTheEdges:
    def test_resting_clients_are_left_alone(self) -> None:
        method = FedCAC(beta=10)
        federation = server(method, clients=5, round=1)
        first = random_rows(federation)
        send(method, federation, first, critical=random_masks(5, federation.layout.width))
        before = rows_of(federation).clone()
        federation.round = 2
        rows = random_rows(federation, 3, seed=4)
        masks = random_masks(3, federation.layout.width, seed=4)
        mixes = send(method, federation, rows, [0, 2, 3], critical=masks)
        assert all(mix.columns.tolist() == [0, 2, 3] for mix in mixes)
        after = rows_of(federation)
        assert torch.equal(after[[1, 4]], before[[1, 4]])
        torch.testing.assert_close(after[2][~masks[1]], rows.mean(0)[~masks[1]])

    @pytest.mark.thorough
    @pytest.mark.parametrize("collaboration", ["threshold", "none", "top1", "top5", "as_critical"])
    @pytest.mark.parametrize("clients", [1, 2, 3])
    def test_few_clients(self, clients: int, collaboration: str) -> None:
        watched = watch(tiny(FedCAC(collaboration=collaboration, beta=2), clients=clients))
        assert_valid_mixes(watched)
        assert bool(torch.isfinite(final_rows(watched.result)).all())

    def test_two_clients_collaborate_until_beta(self) -> None:
        watched = watch(tiny(FedCAC(beta=2), clients=2))
        assert [mixes[1].weights.tolist() for mixes in watched.mixes] == [
            [[0.5, 0.5], [0.5, 0.5]],
            [[0.5, 0.5], [0.5, 0.5]],
            [[1.0, 0.0], [0.0, 1.0]],
        ]

    @pytest.mark.thorough
    @pytest.mark.parametrize("options", [{}, {"join": 0.5}])
    @pytest.mark.parametrize("mask", ["sensitivity", "random"])
    def test_relabelling_permutes(self, mask: str, options: dict[str, float]) -> None:
        assert_relabelling_permutes(FedCAC(beta=2, mask=mask), rounds=4, **options)

    def test_a_diverged_client_is_left_out_and_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = final_rows(tiny(FedCAC(), rounds=1).run())
        break_client(monkeypatch, client=2, round=2)
        watched = watch(tiny(FedCAC(), rounds=2))
        rows = final_rows(watched.result)
        assert bool(torch.isfinite(rows).all())
        assert torch.equal(rows[2], before[2])
        assert watched.result.summary["diverged"] == {"2": [2]}
        assert all(mix.columns.tolist() == [0, 1, 3] for mix in watched.mixes[1])


def test_ledger() -> None:
    watched = watch(tiny(FedCAC()))
    size = watched.result.federation.layout.columns("all").size
    assert watched.sent("down") == [0, 4 * size, 4 * size]
    assert watched.sent("up") == [4 * size + -(-size // 8)] * 3
    assert watched.sent("up")[1] / watched.sent("down")[1] == pytest.approx(1 + 1 / 32, abs=2e-3)


def test_a_first_round_starts_from_the_common_model() -> None:
    federation = server(FedCAC())
    assert torch.equal(rows_of(federation), federation.initial.expand(5, -1))
    assert torch.equal(
        part(federation, rows_of(federation), "classifier")[0], part(federation, rows_of(federation), "classifier")[4]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0}, "beta = 0: must be at least 1"),
        ({"beta": -1}, "beta = -1"),
        ({"tau": -0.1}, "tau = -0.1"),
        ({"tau": 1.5}, "tau = 1.5"),
        ({"tau": float("nan")}, "tau = nan"),
        ({"mask": "reversed"}, "did you mean 'reverse'"),
        ({"collaboration": "top3"}, "unknown collaboration 'top3'"),
        ({"weights": "sizes"}, "did you mean 'size'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with refused(message):
        FedCAC(**options)
