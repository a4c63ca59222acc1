"""A site whose disk is gone, at its start or in the middle: it is sent everything, and the run goes on."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from test_coordinator import Trial
from torch import Tensor

from coterie.core.downloads import owed
from coterie.deployment.as_run import note_of
from coterie.deployment.coordinator import Coordinator
from coterie.deployment.logbook import Logbook
from coterie.deployment.messages import RefusedError
from coterie.deployment.store import Store
from coterie.testing.together import SITES, Together, agreed

pytestmark = pytest.mark.thorough

LOSER, CLIENT = "site-b", torch.tensor([1])
# The server has all that the sites of these methods keep: what they upload, and what it makes of that.
HELD_BY_THE_SERVER = ("fedavg", "fedamp", "fedcac", "fedfomo", "pfedsim", "scaffold", "cfl")
ROUNDS = 4


def together(method: str, folder: Path, rounds: int = ROUNDS) -> Together:
    found = Together(agreed(method, rounds=rounds, validation=0.2), folder)
    found.admit()
    return found


def lose_disk(one: Together) -> None:
    kept = list((one.folder / one.agreement.name / LOSER).glob("round-*"))
    assert kept, "there was something to lose"
    for path in kept:
        path.unlink()


def restart(one: Together) -> None:
    one.sites[LOSER] = one.site(LOSER)
    one.admit(LOSER)


def rows(one: Together) -> dict[str, Tensor]:
    everyone = one.server.federation.everyone
    return {name: slot.rows(everyone) for name, slot in one.server.federation.slots.items() if slot.held_by == "both"}


@pytest.mark.parametrize("method", HELD_BY_THE_SERVER)
def test_a_restarted_site_without_its_disk_goes_on_with_what_the_server_has(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed, unlucky = together(method, tmp_path / "one"), together(method, tmp_path / "other")
    for _ in range(2):
        undisturbed.round()
        unlucky.round()
    lose_disk(unlucky)
    restart(unlucky)
    assert "site site-b has lost what it kept: it begins anew" in caplog.text
    for _ in range(2):
        undisturbed.round()
        assert unlucky.round().answered == list(SITES)
    assert unlucky.reports[2].bytes["down"] >= undisturbed.reports[2].bytes["down"]
    assert unlucky.reports[3].bytes == undisturbed.reports[3].bytes
    for slot, expected in rows(undisturbed).items():
        assert torch.equal(rows(unlucky)[slot], expected), slot
    assert unlucky.finish() == undisturbed.finish()


@pytest.mark.parametrize("method", ["fedper", "ditto", "pfedcs", "moon", "fedala", "apple", "feddyn", "fedrod"])
@pytest.mark.parametrize("restarted", [True, False])
def test_what_never_left_a_site_begins_anew(method: str, restarted: bool, tmp_path: Path) -> None:
    one = together(method, tmp_path)
    one.round()
    one.round()
    lose_disk(one)
    if restarted:
        restart(one)
    third = one.round()
    assert third.lost == ([] if restarted else [LOSER])
    assert third.missing == []
    assert one.round().answered == list(SITES)
    assert one.server.federation.rounds_taken.tolist() == [4, 4 if restarted else 3, 4]
    assert all(result["received"]["samples"] for result in one.finish().values())
    assert all(bool(torch.isfinite(found).all()) for found in rows(one).values())


def test_in_the_middle_of_a_run_the_site_says_so_and_sits_the_round_out(tmp_path: Path) -> None:
    one = together("fedamp", tmp_path)
    one.round()
    one.round()
    lose_disk(one)
    before = one.server.federation["model"].rows(CLIENT)
    report = one.round()
    assert (report.lost, report.answered) == ([LOSER], ["site-a", "site-c"])
    task = one.server.open_round(list(SITES))[LOSER]
    assert (task.note["since"], task.note["rounds_taken"]) == (0, 0)
    assert torch.equal(task.tensors["slot.model"], before[0]), "its own last upload"
    assert torch.equal(task.tensors["slot.anchor"], one.server.federation["anchor"].rows(CLIENT)[0])
    answer = one.answer(LOSER, task)
    one.server.receive(LOSER, answer)
    assert one.server.close_round().answered == [LOSER]
    assert not torch.equal(one.server.federation["model"].rows(CLIENT), before)
    assert one.server.federation.last_round.tolist() == [3, 4, 3]


def test_a_delivery_that_is_undone_does_not_undo_what_a_site_without_disk_is_owed(tmp_path: Path) -> None:
    one = together("pfedsim", tmp_path, rounds=6)
    for _ in range(4):
        one.round()
    lose_disk(one)
    assert one.round().lost == [LOSER]
    assert owed(one.server.federation, 1).slots == {"model": one.server.federation["model"].columns}


def test_a_round_that_everybody_loses_is_done_again(tmp_path: Path) -> None:
    one = together("fedper", tmp_path)
    one.round()
    for name in SITES:
        for path in (tmp_path / "trial" / name).glob("round-*"):
            path.unlink()
    for name, task in one.server.open_round(list(SITES)).items():
        one.server.receive(name, one.answer(name, task))
    assert one.server.answered == []
    assert one.server.abandon_round().lost == list(SITES)
    assert one.round().answered == list(SITES)
    assert one.server.federation.round == 2


def test_the_coordinator_records_who_lost_its_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path)
    found = Store.snapshot
    gone = tmp_path / "sites" / "trial" / LOSER / "round-00002.safetensors"

    def losing(self: Store, round: int) -> dict[str, Tensor] | None:
        if self.path.name == LOSER and round == 2:
            gone.unlink()
        return found(self, round)

    monkeypatch.setattr(Store, "snapshot", losing)
    network = trial.network
    with caplog.at_level(logging.WARNING, logger="coterie"):
        Coordinator(
            trial.server, network, Logbook(tmp_path / "server", trial.agreement), network.clock, network.sleep
        ).run()
    assert [note_of(line).lost for line in trial.lines] == [[], [], [LOSER], []]
    assert [note_of(line).answered for line in trial.lines][2:] == [["site-a", "site-c"], list(SITES)]
    assert caplog.text.count("site site-b has lost what it kept") == 1
    assert trial.status["state"] == "finished"
    assert set(json.loads((tmp_path / "server" / "summary.json").read_text())["finished"]) == set(SITES)


@pytest.mark.parametrize("told", [None, "1, 2", [1.0], ["1"]])
def test_a_site_that_does_not_say_what_it_has_is_refused_and_changes_nothing(told: object, tmp_path: Path) -> None:
    one = together("fedper", tmp_path)
    one.round()
    federation = one.server.federation
    assert federation.validation_sizes is not None
    before = federation.validation_sizes.tolist()
    hello = one.sites[LOSER].hello() | {"snapshots": told, "validation": 7}
    with pytest.raises(RefusedError, match="site site-b does not say which rounds are on its disk"):
        one.server.admit(hello)
    assert federation.validation_sizes.tolist() == before
    assert federation.last_round.tolist() == [1, 1, 1]


def test_a_site_with_more_on_its_disk_than_counts_has_lost_nothing(tmp_path: Path) -> None:
    """Its work of round 2 never reached the server; that of round 1 is still there."""
    one = together("fedper", tmp_path)
    one.round()
    task = one.server.open_round(list(SITES))[LOSER]
    one.answer(LOSER, task)
    one.server.abandon_round()
    restart(one)
    assert one.sites[LOSER].hello()["snapshots"] == [1, 2]
    assert one.server.federation.last_round.tolist() == [1, 1, 1]


def test_a_slot_that_served_its_purpose_is_not_sent_again(tmp_path: Path) -> None:
    one = together("pfedcs", tmp_path)
    for _ in range(ROUNDS):
        one.round()
    assert one.server.federation["teacher"].dropped
    one.sites["site-b"].store = Store(tmp_path, "elsewhere", "site-b", one.agreement.fingerprint)
    one.admit("site-b")
    task = one.server.farewells(["site-b"])["site-b"]
    assert "slot.model" in task.tensors
    assert "slot.teacher" not in task.tensors
