"""IFCA: several centres; each client trains the one that fits its data best."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_near, assert_relabelling_permutes, play, prepared_for

from coterie.errors import CoterieError
from coterie.maths.clusters import other_start
from coterie.methods import FedAvg
from coterie.methods.ifca import IFCA


@pytest.mark.parametrize("average", ["clients", "samples"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_steps_by_hand_give_the_same_centres(join: float, average: str) -> None:
    ours = play(IFCA(centres=3, average=average), join=join, rounds=4, lr=0.3)
    hand = Hand(ours.prepared)
    federation = ours.prepared.federation()
    centres = [federation[f"centre{number}"].shared[0] for number in (1, 2, 3)]

    def best(k: int) -> int:
        return int(torch.stack([hand.loss(row, hand.problem.train[k]) for row in centres]).argmin())

    everywhere = set()
    for round, cohort in hand.rounds():
        chosen = {k: best(k) for k in cohort}
        everywhere |= set(chosen.values())
        trained = {}
        for k in cohort:
            trained[k] = centres[chosen[k]]
            for index in hand.batches(k, round):
                trained[k] = trained[k] - 0.3 * hand.gradient(trained[k], index)
        for number in range(3):
            members = {k: row for k, row in trained.items() if chosen[k] == number}
            if members:
                centres[number] = hand.mean(members, uniform=average == "clients")
    assert len(everywhere) > 1, "the case shows something"
    for number, centre in enumerate(centres, 1):
        assert_near(ours.federation[f"centre{number}"].shared[0], centre)
    found = torch.stack([centres[best(k)] for k in range(hand.clients)])
    assert_near(losses_received(ours), hand.test_losses(found))


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_with_one_centre_it_is_fedavg(join: float, model: str) -> None:
    ours = play(IFCA(centres=1, average="samples"), join=join, model=model)
    fedavg = play(FedAvg(), join=join, model=model)
    assert torch.equal(ours.federation["centre1"].shared, fedavg.federation["model"].shared)
    assert_near(losses_received(ours), losses_received(fedavg))


def test_a_centre_that_nobody_chooses_stays_and_weighs_nothing() -> None:
    prepared = prepared_for(IFCA(centres=2))
    ours = play(IFCA(centres=2), rounds=1)
    chosen = {mix.target for mix in ours.reports[0].mixes}
    for target in {"centre1", "centre2"} - chosen:
        assert torch.equal(ours.federation[target].shared, prepared.federation()[target].shared)
    for mix in ours.reports[0].mixes:
        members = (mix.weights[0] > 0).nonzero()[:, 0]
        assert_near(mix.weights[0, members], torch.full((len(members),), 1 / len(members)))


def test_starts_differ_and_are_made_of_the_same_elements() -> None:
    prepared = prepared_for(IFCA(centres=3), model="norm")
    federation = prepared.federation()
    rows = [federation[slot].shared[0] for slot in prepared.method.slots]
    assert torch.equal(rows[0], federation.initial)
    for entry in federation.layout.entries:
        parts = [entry.columns.take(row) for row in rows]
        assert all(torch.equal(part.sort().values, parts[0].sort().values) for part in parts[1:])
        if entry.is_buffer:
            assert all(torch.equal(part, parts[0]) for part in parts)
        elif len(parts[0].unique()) > 8:
            assert not torch.equal(parts[0], parts[1])
            assert not torch.equal(parts[1], parts[2])
    assert torch.equal(rows[1], other_start(federation, 1))


def test_all_centres_come_down_and_one_goes_up() -> None:
    ours = play(IFCA(centres=2), rounds=2)
    whole = ours.bytes_of("all")
    for report in ours.reports:
        assert report.bytes["up"] == len(report.cohort) * (whole + 8)  # a number of eight bytes says which
    written = {mix.target for mix in ours.reports[0].mixes}
    assert ours.reports[1].bytes["down"] == len(ours.reports[1].cohort) * whole * len(written)


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(IFCA(), join=0.5)


@pytest.mark.parametrize(
    ("options", "words"), [({"centres": 0}, "centres = 0: must"), ({"average": "mode"}, "unknown average 'mode'")]
)
def test_refused_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError, match=f"^{words}"):
        IFCA(**options)
