"""No other client's weight in a mix is above the limit; a way to reduce that is not a mean fits into the same place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core import applying
from coterie.core.applying import apply
from coterie.core.exchange import Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.partition import Dirichlet
from coterie.robust.defended import Defended
from coterie.robust.options import Defence
from coterie.robust.reducing import Contributions, Reduced, Reducer, limited
from coterie.rounds.stages import Stage, require_enough
from coterie.runs.experiment import Experiment
from support import tiny

MARK = 2


def by_hand(row: list[float], limit: float, own: int | None) -> list[float] | None:
    """The definition step by step: who is above the limit gives the excess to the others in proportion."""
    weights, capped = list(row), set()
    while True:
        over = [j for j, weight in enumerate(weights) if j != own and j not in capped and weight > limit + 1e-12]
        if not over:
            return weights
        excess = sum(weights[j] - limit for j in over)
        capped |= set(over)
        for j in over:
            weights[j] = limit
        takers = [j for j, weight in enumerate(weights) if weight > 0 and j not in capped]
        if takers:
            total = sum(weights[j] for j in takers)
            weights = [w + excess * w / total if j in takers else w for j, w in enumerate(weights)]
        elif own is not None:
            weights[own] += excess
            return weights
        else:
            return weights if excess < 1e-9 else None


HAND = [
    # One above the limit: 0.3 too much, shared out 2 : 1.
    ([0.7, 0.2, 0.1], 0.4, None, [0.4, 0.4, 0.2]),
    # The second is lifted above the limit, too: 0.5 -> 0.4, then 0.36 + 0.06 … all to the last.
    ([0.55, 0.35, 0.10], 0.4, None, [0.4, 0.4, 0.2]),
    # Just enough contributors: all alike.
    ([0.97, 0.01, 0.01, 0.01], 0.25, None, [0.25, 0.25, 0.25, 0.25]),
    # The learner itself is not bounded, and takes its part of the excess.
    ([0.2, 0.7, 0.1], 0.4, 0, [0.4, 0.4, 0.2]),
    ([0.8, 0.1, 0.1], 0.4, 0, [0.8, 0.1, 0.1]),
    # Nobody but one other: the rest is the learner's own.
    ([0.0, 1.0, 0.0], 0.3, 0, [0.7, 0.3, 0.0]),
    ([0.0, 0.5, 0.5], 0.3, 2, [0.0, 0.3, 0.7]),
]


@pytest.mark.parametrize(("row", "limit", "own", "expected"), HAND)
def test_limited_weights_worked_out_by_hand(
    row: list[float], limit: float, own: int | None, expected: list[float]
) -> None:
    mask = None if own is None else torch.arange(len(row))[None] == own
    found = limited(torch.tensor([row], dtype=torch.float64), limit, mask)
    assert found is not None
    assert found[0].tolist() == pytest.approx(expected)
    assert by_hand(row, limit, own) == pytest.approx(expected)


@pytest.mark.parametrize("row", [[1.0], [0.5, 0.5], [0.9, 0.1, 0.0]])
def test_too_few_contributors_cannot_keep_it(row: list[float]) -> None:
    assert limited(torch.tensor([row]), 0.4) is None
    assert by_hand(row, 0.4, None) is None


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.just(0.0) | st.floats(1e-6, 1e3), min_size=1, max_size=8).filter(any),
    limit=st.floats(0.05, 0.99),
    own=st.integers(-1, 7),
)
def test_limited_weights_are_those_of_the_plain_steps(scores: list[float], limit: float, own: int) -> None:
    row = [score / sum(scores) for score in scores]
    learner = own if 0 <= own < len(row) else None
    mask = None if learner is None else torch.arange(len(row))[None] == learner
    found, plain = limited(torch.tensor([row], dtype=torch.float64), limit, mask), by_hand(row, limit, learner)
    assert (found is None) == (plain is None)
    if found is not None and plain is not None:
        assert found[0].tolist() == pytest.approx(plain, abs=1e-7)
        assert float(found.sum()) == pytest.approx(1)
        others = found[0] if learner is None else found[0][torch.arange(len(row)) != learner]
        assert bool((others <= limit + 1e-9).all())


def test_bounded_weights_sum_to_one_though_their_numbers_are_rounded() -> None:
    """0.7 + 0.2 + 0.1 in single precision is 0.99999999."""
    weights = torch.tensor([[0.7, 0.2, 0.1]])
    found = limited(weights, 0.4)
    assert found is not None
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-12) != float(weights.double().sum())


@pytest.mark.parametrize("away", [0.0, 2.0**23])  # so far away that the next number is off by one
def test_everybody_is_where_they_are(away: float) -> None:
    """Distances of 0, 3 and 4 and 5 between corners, and none from a corner to itself."""
    corners = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]]) + away
    weights = torch.full((1, 3), 1 / 3)
    mix = Contributions(weights, None, torch.arange(3), lambda: iter([(corners, corners[:1])]))
    assert mix.apart().tolist() == [[0.0, 9.0, 16.0], [9.0, 0.0, 25.0], [16.0, 25.0, 0.0]]


def test_rows_that_keep_it_stay_as_they_are() -> None:
    weights = torch.tensor([[0.3, 0.3, 0.4], [0.9, 0.05, 0.05]], dtype=torch.float64) / 1.0000001
    found = limited(weights, 0.5)
    assert found is not None
    assert torch.equal(found[0], weights[0])
    assert limited(found, 0.96) is found


def sent(method: str, defence: Defence, cohort: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[Federation, Uploads, Tensor]:
    federation = tiny(method, clients=4).prepare().federation()
    federation.reduction, federation.round = Defended.of(defence), 1
    ids, everything = torch.tensor(cohort), federation.layout.everything
    rows = torch.randn(len(ids), everything.size, generator=torch.Generator().manual_seed(1))
    return federation, Uploads(federation, ids, {"model": rows}, {"model": everything}), rows


def test_a_shared_mix_is_bounded_and_recorded_so() -> None:
    federation, uploads, rows = sent("fedavg", Defence(share_limit=0.4))
    (mix,) = apply([Mix(torch.tensor([[0.7, 0.2, 0.05, 0.05]]))], federation, uploads, MARK)
    expected = torch.tensor([[0.4, 0.4, 0.1, 0.1]])
    torch.testing.assert_close(mix.weights, expected)
    torch.testing.assert_close(federation["model"].shared, expected @ rows)


def test_personal_mixes_leave_everybody_their_own_weight() -> None:
    federation, uploads, _ = sent("local", Defence(share_limit=0.3))
    weights = torch.tensor([[0.9, 0.1, 0, 0], [0.9, 0.1, 0, 0], [0, 0, 0, 1.0], [0.25] * 4])
    for mix in (Mix(weights), Mix(weights, source="model", to="everyone")):
        (applied,) = apply([mix], federation, uploads, MARK)
        expected = torch.tensor([[0.9, 0.1, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 0.7, 0.3], [0.25] * 4])
        torch.testing.assert_close(applied.weights, expected)


def test_a_mix_that_cannot_keep_it_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    federation, uploads, _ = sent("fedavg", Defence(share_limit=0.4), cohort=(0, 1))
    before = federation["model"].shared.clone()
    assert apply([Mix(torch.tensor([[0.5, 0.5]]))], federation, uploads, MARK) == []
    assert torch.equal(federation["model"].shared, before)
    assert "round 1: a mix of all is left out" in caplog.text
    assert "share_limit = 0.4" in caplog.text


def test_what_the_server_computes_itself_has_no_shares() -> None:
    federation, uploads, rows = sent("fedavg", Defence(share_limit=0.4))
    with pytest.raises(CoterieError, match=r"share_limit = 0.4: FedX gives clients more than mixes .*'model'"):
        apply([Put("model", rows[:1], group="all")], federation, uploads, MARK, "FedX")
    federation.add_value("told", torch.zeros(2))
    with pytest.raises(CoterieError, match="'told'"):
        apply([Put("told", torch.ones(2))], federation, uploads, MARK, "FedX")
    federation.add_value("mine", torch.zeros(2), held_by="server")
    apply([Put("mine", torch.ones(2))], federation, uploads, MARK, "FedX")
    assert federation.values["mine"].tolist() == [1, 1]


REFUSED = ["apple", "feddistill", "feddyn", "fedfomo", "fedgen", "fedgh", "fedpac", "fedproto"]


@pytest.mark.parametrize("method", REFUSED)
def test_methods_whose_shares_are_not_defined_are_refused_before_anybody_trains(method: str) -> None:
    with pytest.raises(CoterieError, match=r"share_limit = 0.5: .* no share can be bounded"):
        Experiment(
            method, partition=Dirichlet(clients=4, alpha=5.0), validation=0.2, rounds=1, share=0.1, share_limit=0.5
        ).run()


def test_too_few_clients_are_refused() -> None:
    with pytest.raises(CoterieError, match=r"share_limit = 0.2: a mix of 4 cannot keep it \(at least 0.25\)"):
        tiny("fedavg", share_limit=0.2).prepare()


def test_what_another_defence_leaves_is_bounded_too() -> None:
    """Multi-Krum shares out what it takes from the others: 0.25 each of four become a third each of three."""
    federation = tiny("fedavg", clients=7).prepare().federation()
    federation.reduction, federation.round = Defended.of(Defence(defence="multi-krum:1", share_limit=0.3)), 1
    ids, everything = torch.arange(7), federation.layout.everything
    rows = torch.arange(7.0)[:, None].square().expand(7, everything.size)
    uploads = Uploads(federation, ids, {"model": rows}, {"model": everything})
    given = torch.tensor([[0.28, 0.12, 0.12, 0.12, 0.12, 0.12, 0.12]])
    (mix,) = apply([Mix(given)], federation, uploads, MARK)
    # Chosen are the four nearest to the others, 0 to 3: 0.28 / 0.64 = 0.4375 is above the limit, the rest is alike.
    torch.testing.assert_close(mix.weights, torch.tensor([[0.3, 0.7 / 3, 0.7 / 3, 0.7 / 3, 0, 0, 0]]))


def test_a_part_that_stays_what_it_was_counts_for_nobody() -> None:
    found = limited(torch.tensor([[0.4, 0.1, 0.1]], dtype=torch.float64), 0.3)
    assert found is not None
    torch.testing.assert_close(found, torch.tensor([[0.3, 0.15, 0.15]], dtype=torch.float64))


def asked(defence: Defence) -> Stage:
    stage = Defended.of(defence)
    assert stage is not None
    return stage


def test_too_few_contributors_are_refused_with_the_way_out() -> None:
    problem = r"share_limit = 0.4: a mix of 2 cannot keep it \(at least 0.5\); name more sites"
    with pytest.raises(CoterieError, match=problem):
        require_enough([asked(Defence(share_limit=0.4))], 2, "name more sites")


@pytest.mark.parametrize(("defence", "left"), [("krum", 1), ("multi-krum", 4)])
def test_a_limit_that_a_defence_cannot_leave_room_for_is_refused(defence: str, left: int) -> None:
    """Of seven contributors Krum leaves one, and Multi-Krum four: neither can keep a fifth."""
    with pytest.raises(
        CoterieError, match=rf"share_limit = 0.2, defence = '{defence}': a mix of {left} cannot keep it"
    ):
        require_enough([asked(Defence(defence=defence, share_limit=0.2))], 7, "name more sites")


class WithoutExtremes(Reducer):
    """Without the largest and the smallest number of each column, whatever the weights."""

    def reduce(self, weights: Tensor, rows: Tensor) -> Reduced:
        kept = rows.sort(0).values[1:-1]
        return Reduced(kept.mean(0, keepdim=True).expand(len(weights), -1))


def test_another_way_to_reduce_fits_into_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "BLOCK", 64)  # several blocks of columns
    federation, uploads, rows = sent("fedavg", Defence())
    federation.reduction = Defended(WithoutExtremes(), "without extremes")
    apply([Mix(torch.full((1, 4), 0.25))], federation, uploads, MARK)
    torch.testing.assert_close(federation["model"].shared[0], rows.sort(0).values[1:3].mean(0))
