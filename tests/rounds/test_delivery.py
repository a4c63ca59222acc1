"""What is made at download: a defence that weighs learners against each other sees everybody, whoever is served."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.mixing import normalised
from coterie.methods import METHODS
from coterie.methods.base import Method
from coterie.robust.defended import Defended
from coterie.robust.options import Defence
from coterie.rounds import judge
from coterie.rounds.delivery import OpenRound, as_delivered
from support import rows_of, tiny

CLIENTS, FAVOURITE, LIMIT = 6, 4, 0.1


def everybody_likes_one(defence: str = f"influence:{LIMIT}") -> tuple[Method, Federation, Tensor]:
    """pFedSim after its warm-up, when three clients learn most of all from one; and W as the method asks for it."""
    method = METHODS["pfedsim"](rho=0.0)
    federation = tiny(method, clients=CLIENTS).prepare().federation()
    federation.reduction, federation.round = Defended.of(Defence(defence=defence)), 1
    similarity = torch.eye(CLIENTS, dtype=torch.float64)
    similarity[:3, FAVOURITE] = 3.0
    similarity[3, 5] = 1.0
    federation.values["similarity"] = similarity
    rows = torch.randn(CLIENTS, federation.layout.everything.size, generator=torch.Generator().manual_seed(1))
    federation["model"].write_own(federation.everyone, federation.layout.everything, rows)
    return method, federation, normalised(similarity)


def delivered(method: Method, federation: Federation, groups: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Everybody's W and row, each group of clients served on its own."""
    weights, rows = torch.full((CLIENTS, CLIENTS), torch.nan), torch.full_like(rows_of(federation), torch.nan)
    for group in groups:
        clients = torch.tensor(group)
        with as_delivered(method, federation, clients) as delivery:
            (mix,) = delivery.applied
            weights[mix.rows] = mix.weights
            rows[clients] = federation["model"].rows(clients)
    return weights, rows


GROUPS = ([[0, 1, 2, 3, 4, 5]], [[0, 3], [1, 4], [5, 2]], [[0], [1], [2], [3], [4], [5]])


@pytest.mark.parametrize("groups", GROUPS)
def test_influence_is_bounded_over_everybody_however_they_are_served(groups: list[list[int]]) -> None:
    """The favourite has 3/4 of three rows of six, 2.25 in all; 0.6 may be its own, so a factor of 4/15 is left."""
    method, federation, asked = everybody_likes_one()
    expected = asked.clone()
    expected[:3, FAVOURITE] = 0.75 * 4 / 15
    expected[:3, :3] = torch.eye(3, dtype=torch.float64) * (1 - 0.75 * 4 / 15)
    # Client 5 has half of one row, 0.5 in all: that is allowed.
    weights, rows = delivered(method, federation, groups)
    torch.testing.assert_close(weights, expected.float())
    total = weights.masked_fill(torch.eye(CLIENTS, dtype=torch.bool), 0).sum(0)
    assert float(total.max()) <= LIMIT * CLIENTS + 1e-6
    together = delivered(*everybody_likes_one()[:2], GROUPS[0])[1]
    torch.testing.assert_close(rows, together)


def test_what_was_delivered_is_taken_back() -> None:
    method, federation, _ = everybody_likes_one()
    before = rows_of(federation).clone()
    delivered(method, federation, [[1, 2]])
    assert rows_of(federation).equal(before)


@pytest.mark.parametrize("groups", GROUPS)
def test_defences_before_it_are_seen_by_it(groups: list[list[int]]) -> None:
    """Clipped first, then bounded: the same for whoever is served with whom."""
    method, federation, _ = everybody_likes_one(f"clip:0.5+influence:{LIMIT}")
    weights, rows = delivered(method, federation, groups)
    total = weights.masked_fill(torch.eye(CLIENTS, dtype=torch.bool), 0).sum(0)
    assert float(total.max()) <= LIMIT * CLIENTS + 1e-6
    again = everybody_likes_one(f"clip:0.5+influence:{LIMIT}")
    for found, expected in zip((weights, rows), delivered(*again[:2], GROUPS[0]), strict=True):
        torch.testing.assert_close(found, expected)


def test_scores_do_not_depend_on_how_many_are_served_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> list[float]:
        options = {"rho": 0.0, "self_weight": 0.1}
        found = tiny(METHODS["pfedsim"](**options), clients=CLIENTS, defence="influence:0.17", rounds=2).run()
        last = found.numbers.last("received")
        assert last is not None
        return [float(loss) for loss in last.loss]

    together = losses()
    monkeypatch.setattr(judge, "DELIVERY_CHUNK", 1)
    assert losses() == pytest.approx(together, rel=1e-6)


def test_whoever_is_asked_again_is_owed_what_it_was_before_and_no_more() -> None:
    """A mix at download is made of what clients held before the round, however often the round begins."""
    rows = []
    for first in ([0, 1, 3], [0, 1]):
        method, federation, _ = everybody_likes_one()
        opened = OpenRound(method, federation, (), torch.tensor(first))
        opened.ask_more(torch.tensor([0, 1, 3]))
        rows.append(rows_of(federation))
    method, federation, _ = everybody_likes_one()
    held = rows_of(federation).clone()
    OpenRound(method, federation, (), torch.tensor([0, 1, 3]))
    assert torch.equal(rows[0], rows_of(federation))
    assert torch.equal(rows[1], rows_of(federation))
    assert not torch.equal(held, rows_of(federation))


def test_rows_are_kept_on_the_device() -> None:
    federation = tiny("scaffold").prepare().federation()
    federation.put_rows_on("meta")
    rows = [federation.initial, *(part for slot in federation.slots.values() for part in (slot.shared, slot.own))]
    assert {row.device.type for row in rows} == {"meta"}
