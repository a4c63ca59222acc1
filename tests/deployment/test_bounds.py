"""Finite numbers that would have harmed others all the same."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deployment.test_coordinator import Behaviour, Tamper, Trial, rewritten

from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.bounds import Screen, bounded_sizes
from coterie.deployment.messages import Packed, RefusedError
from coterie.errors import CoterieError
from coterie.rounds.stages import Incoming
from coterie.testing.together import SITES, Together, agreed

OTHERS = ["site-a", "site-c"]


def scaled(factor: float) -> Tamper:
    """An answer whose numbers are many times as large."""

    def tamper(packed: Packed) -> Packed:
        numbers = np.frombuffer(packed.buffers["float32"], np.float32) * np.float32(factor)
        return Packed({**packed.buffers, "float32": numbers.tobytes()}, packed.text)

    return tamper


def filled(value: float) -> Tamper:
    def tamper(packed: Packed) -> Packed:
        numbers = np.full(len(packed.buffers["float32"]) // 4, value, np.float32)
        return Packed({**packed.buffers, "float32": numbers.tobytes()}, packed.text)

    return tamper


def scored(**values: Any) -> Tamper:
    def change(contents: dict[str, Any]) -> None:
        for moment in ("received", "trained"):
            contents["note"][moment] |= values

    return rewritten(change)


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (scored(samples=10**19, correct=0), "it was tested on 10,000,000,000,000,000,000 samples, and has 8"),
        (scored(samples=10**400, correct=0), "it was tested on 1"),
        (scored(loss=10**400), "its result holds numbers beyond 1e"),
        (scored(loss=-1e300), "its result holds numbers beyond 1e"),
        (filled(3e38), "holds numbers beyond 1e"),
    ],
)
def test_numbers_beyond_all_measure_cost_their_site_a_round(
    tamper: Tamper, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples of 10^19 once ended the run, and each start after it; a row of 3e38 made everybody's next infinite."""
    trial = Trial(tmp_path, site_b=Behaviour(tamper={2: tamper}))
    with caplog.at_level(logging.WARNING, logger="coterie"):
        trial.run()
    assert [note_of(line).answered for line in trial.lines] == [list(SITES), OTHERS, list(SITES), list(SITES)]
    assert reason in note_of(trial.lines[1]).refused["site-b"]
    assert all(bool(slot.shared.isfinite().all()) for slot in trial.server.federation.slots.values())


def test_an_answer_far_too_large_for_its_round_is_set_aside(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=4, deadline=30.0, gather=10.0, quarantine=0.0)
    trial = Trial(tmp_path, agreement, site_b=Behaviour(tamper={2: scaled(30), 3: scaled(1e6)}))
    trial.run()
    assert [note_of(line).answered for line in trial.lines] == [list(SITES), OTHERS, OTHERS, list(SITES)]
    assert "times as large as is usual in the round" in note_of(trial.lines[1]).set_aside["site-b"]
    other = Together(trial.agreement, tmp_path / "other")
    other.admit()
    for line in trial.lines:
        other.round(silent=tuple({*SITES} - {*note_of(line).answered}))
    for slot, ours in trial.server.federation.slots.items():
        assert torch.equal(ours.shared, other.server.federation[slot].shared), "as if it had not answered"


def test_from_three_sites_on_an_answer_that_jumps_keeps_its_site_out_for_three_rounds(tmp_path: Path) -> None:
    """Though nobody asked for it; where no row has moved there is no usual jump, and the screen is left."""
    trial = Trial(tmp_path, agreed("fedper", rounds=6), site_b=Behaviour(tamper={2: scaled(30)}))
    trial.run()
    out = [[], ["site-b"], ["site-b"], ["site-b"], ["site-b"], []]
    assert [sorted(note_of(line).set_aside) for line in trial.lines] == out
    assert "its change of 'model' is" in note_of(trial.lines[1]).set_aside["site-b"]
    still = Trial(tmp_path / "still", agreed("fedper", rounds=3, lr=1e-30), site_b=Behaviour(tamper={2: scaled(30)}))
    still.run()
    assert "its row of 'model' is 30 times as large as is usual" in note_of(still.lines[1]).set_aside["site-b"]


@pytest.mark.parametrize(
    ("sites", "terms", "usual"),
    [("ab", {}, 0.0), ("abc", {}, 6.0), ("abc", {"quarantine": 0.0}, 0.0), ("abc", {"privacy": "client"}, 0.0)],
)
def test_quarantine_is_usual_where_it_can_be(sites: str, terms: dict[str, Any], usual: float) -> None:
    agreement = Agreement(name="fed", sites=tuple(sites), shape=(4,), classes=2, **terms)
    assert agreement.quarantine == usual
    assert Agreement.parse(agreement.plain()) == agreement


def test_the_screen_can_be_switched_off(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=3, norm_limit=0.0, quarantine=0.0)
    trial = Trial(tmp_path, agreement, site_b=Behaviour(tamper={2: scaled(30)}))
    trial.run()
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 3


@pytest.mark.parametrize(
    ("norms", "out"), [([1, 1, 20], [2]), ([20, 1], [0]), ([20], [0]), ([9, 9], []), ([1, 2, 8], [])]
)
def test_few_answers_are_judged_by_what_they_began_from(norms: list[float], out: list[int], tmp_path: Path) -> None:
    """The rows before have the norm 1."""
    federation = Together(agreed("fedavg"), tmp_path).server.federation
    columns = federation["model"].columns
    one = torch.ones(columns.size) / columns.size**0.5
    federation["model"].shared.copy_(federation["model"].shared_columns.within(columns).take(one))
    rows = torch.stack([norm * one for norm in norms])
    incoming = Incoming(torch.arange(len(norms)), {"model": rows}, {"model": columns}, {})
    left, found = Screen(10.0).server(federation, incoming)
    assert sorted(found) == out
    assert left.cohort.tolist() == [client for client in range(len(norms)) if client not in out]


def test_a_claimed_size_weighs_no_more_than_its_share(tmp_path: Path) -> None:
    together = Together(agreed("fedavg"), tmp_path)
    for name, samples in zip(SITES, (60, 80, 1_000_000), strict=True):
        note = together.sites[name].hello() | {"samples": samples}
        together.server.admit(note)
    assert together.server.federation.sizes.tolist() == [60, 80, 200]
    assert bounded_sizes(torch.tensor([60, 80, 1_000_000]), 0.0).tolist() == [60, 80, 1_000_000]


@pytest.mark.parametrize("terms", [{"most_weight": 0.5}, {"most_weight": -1.0}, {"norm_limit": 1.0}])
def test_bounds_that_cannot_be_are_refused(terms: dict[str, float]) -> None:
    (name,) = terms
    with pytest.raises(CoterieError, match=f"{name} = "):
        agreed("fedavg", **terms)


def diverging(*rounds: int, until: float = 0.0) -> Behaviour:
    """A site whose training diverges in some rounds, as long as its rates are not below a share of the agreed ones."""

    def diverged(contents: dict[str, Any]) -> None:
        contents["note"] = {"round": contents["note"]["round"], "diverged": True}
        contents["tensors"] = []

    return Behaviour(diverges=rounds, until=until, tampered=lambda packed: rewritten(diverged)(Packed({}, packed.text)))


def test_a_divergence_where_all_are_needed_is_said_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It once took 4,200 silent seconds, and the way out was wrong."""
    agreement = agreed("fedper", rounds=4, deadline=600.0, gather=10.0, patience=3600.0, least_sites=3)
    trial = Trial(tmp_path, agreement, site_b=diverging(2), site_a=Behaviour(takes=50.0))
    with (
        caplog.at_level(logging.INFO, logger="coterie"),
        pytest.raises(CoterieError, match="round 2: training diverged at site-b, so that at most 2 of at least 3"),
    ):
        trial.run()
    assert trial.network.now < 160.0
    assert trial.status["state"] == "failed"
    assert "lower the rate" in trial.status["message"]
    assert caplog.text.count("the round is taken again from the last good rows") == 1
    # The others had answered, and answer from their disks.
    assert [round for name, round in trial.network.asked if name == "site-c"] == [1, 2, 2]


def test_a_round_that_diverged_once_is_taken_again_with_the_same_numbers(tmp_path: Path) -> None:
    agreement = agreed("fedcac", rounds=3, least_sites=3)
    trial, whole = Trial(tmp_path, agreement, site_b=diverging(2, until=1.0)), Trial(tmp_path / "whole", agreement)
    trial.run()
    whole.run()
    assert trial.status["state"] == "finished"
    assert trial.server.halvings == 0
    assert torch.equal(trial.server.federation["model"].own, whole.server.federation["model"].own)
    assert trial.server.federation.rounds_taken.tolist() == [3, 3, 3]


def test_rates_are_halved_as_often_as_was_agreed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agreement = agreed("fedavg", rounds=3, least_sites=3, halvings=2)
    trial = Trial(tmp_path, agreement, site_b=diverging(2, until=0.25))
    with caplog.at_level(logging.INFO, logger="coterie"):
        trial.run()
    assert "the round is taken again with rates that are halved 2 times" in caplog.text
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 3
    # The first round was trained with the agreed rate, the others with a quarter of it.
    other = Together(agreement, tmp_path / "other")
    other.admit()
    other.round()
    other.server.halve_rates(2)
    for _ in range(2):
        other.round()
    assert torch.equal(trial.server.federation["model"].shared, other.server.federation["model"].shared)
    assert trial.server.federation.training.rate(3, 3) == agreement.lr / 4
    # Whoever starts again goes on with it.
    again = Trial(tmp_path, agreement)
    assert again.logbook.restore(again.server)
    assert again.server.halvings == 2
    assert again.server.federation.training == trial.server.federation.training


def test_a_site_trains_with_no_other_rate_than_was_agreed(tmp_path: Path) -> None:
    together = Together(agreed("fedavg", halvings=1), tmp_path)
    together.admit()
    together.server.halve_rates()
    task = together.server.open_round(list(SITES))["site-b"]
    together.answer("site-b", task)
    for halvings in (2, -1):
        with pytest.raises(RefusedError, match=f"halves all rates {halvings} times; agreed are 1"):
            together.answer("site-b", replace(task, note={**task.note, "halvings": halvings}))
