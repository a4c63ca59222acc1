"""Federations on a real SuperLink and SuperNodes, with TLS and keys, on digits: their numbers are the simulation's.

Runs that need nothing but time begin together, and their tests look at what became of them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import coterie as ct
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.flower.audit import AUDIT
from coterie.deployment.flower.keys import make_site_key
from coterie.deployment.flower.site_processes import SiteProcesses
from coterie.deployment.messages import FAULTS
from coterie.deployment.store import Store
from coterie.deployment.workplace import own_split
from coterie.errors import UnwelcomeError
from coterie.privacy.account import ACCOUNT, spent
from coterie.rounds.delivery import as_delivered
from coterie.runs.store import CHECKPOINT, LOG
from coterie.runs.tensors import load_tensors
from coterie.testing.together import Together, simulated
from grounds import DOOMED, LIMIT, SITES, Ground, rounds, status, wait_for
from hostile_apps import write_hostile_app

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = pytest.mark.real

SLOW = pytest.mark.slow
TOLERANCE = 1e-5
WITH_THE_DOOMED = ("site-a", "site-b", DOOMED)

PLAIN = ("pfedcs", "fedavg", "fedrema", "fedtc", "pfedsim")
# What is agreed besides, by the names of federations that begin together; without a method, that is the name.
TERMS: dict[str, dict[str, Any]] = {
    **{name: {} for name in PLAIN},
    "bounded": {"method": "fedavg", "share_limit": 0.4},
    "defended": {"method": "fedper", "defence": "median"},
    "private": {"method": "fedper", "privacy": "client", "privacy_noise": 4.0, "privacy_clip": 0.5},
    "tampered": {"method": "fedrema", "least_sites": 2},
    "claims": {"method": "fedavg", "rounds": 1, "least_sites": 1, "gather": 20.0},
    "nonsense": {"method": "fedper"},
    "killed": {"method": "pfedsim", "sites": WITH_THE_DOOMED, "least_sites": 2},
}


class Begun(NamedTuple):
    """A federation that runs, and where its server's files are."""

    agreement: Agreement
    directory: Path


Runs = Callable[[str], Begun]


@pytest.fixture(scope="module")
def begun(ground: Ground, request: pytest.FixtureRequest) -> Runs:
    """The runs that tests of this session look at, all of them begun."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    names = dict.fromkeys(str(call.params["name"]) for call in calls if call is not None and "name" in call.params)
    found = {}
    if "killed" in names:
        ground.nodes[DOOMED] = ground.node(DOOMED)
        ground.nodes[DOOMED].start()
    with ground.link.together():
        for name in names:
            terms = dict(TERMS[name])
            agreement = ground.agreement(f"run-{name}", terms.pop("method", name), **terms)
            if name in ("tampered", "claims", "nonsense"):
                write_hostile_app(name, ground.folder / "apps" / agreement.name, agreement)
            found[name] = Begun(agreement, ground.start(agreement)[1])
            # One after the other: many apps that load PyTorch at the same time keep each other from it.
            wait_for(found[name].directory.exists, found[name].directory)
    if "killed" in names:
        # Flower takes a minute to give it up, which passes while others are looked at.
        node = ground.nodes[DOOMED]
        wait_for(lambda: count(node, "Receiving: train message") == 2, found["killed"].directory)
        node.kill()
    return found.__getitem__


def own(ground: Ground) -> list[Dataset]:
    """The data of the sites, in their order."""
    return [ground.data[name] for name in SITES]


def assert_same_as_serial(ground: Ground, agreement: Agreement, directory: Path) -> None:
    """The sites' final rows are the serial engine's, and so are the bytes of every round."""
    serial = simulated(agreement, own(ground)).run()
    federation, everyone = serial.federation, serial.federation.everyone
    lines = rounds(directory)
    assert [note_of(line).answered for line in lines] == [list(SITES)] * agreement.rounds
    for line, theirs in zip(lines, serial.lines, strict=True):
        assert line.bytes == theirs.bytes
    state = load_tensors(directory / CHECKPOINT)[0]
    for slot, rows in federation.slots.items():
        torch.testing.assert_close(state[f"slot.{slot}.shared"], rows.shared, atol=TOLERANCE, rtol=0)
    with as_delivered(agreement.kind, federation, everyone):
        for client, site in enumerate(SITES):
            found = ground.final(agreement, site)
            for slot, rows in federation.slots.items():
                if rows.held_by == "server":
                    continue  # nothing of it ever reaches a site
                mine = rows.own[client : client + 1]
                torch.testing.assert_close(
                    found[f"slot.{slot}.own"], mine, atol=TOLERANCE, rtol=0, msg=f"{site} {slot}"
                )
    accuracy = json.loads((directory / "summary.json").read_text())["finished"]
    expected = dict(zip(SITES, serial.lines[-1].received.values["accuracy"], strict=True))
    assert accuracy == pytest.approx(expected)


def assert_same_as_in_one_process(ground: Ground, together: Together) -> None:
    """The sites' final rows are those of a federation whose messages went nowhere."""
    for site in together.agreement.sites:
        expected = Store(together.folder, together.agreement.name, site, together.agreement.fingerprint).final()
        found = ground.final(together.agreement, site)
        assert expected is not None
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=TOLERANCE, rtol=0, msg=f"{site} {name}")


def assert_audited(ground: Ground, directory: Path) -> None:
    """What the server says it asked and was answered is what the site says it was asked and what left it."""
    server, site = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (directory / AUDIT, ground.nodes["site-a"].audit)
    )
    for here, there in (("asked", "asked"), ("answered", "left")):
        told = {
            line["sha256"] for line in server if line["event"] == here and line["site"] == "site-a" and "sha256" in line
        }
        known = {line["sha256"] for line in site if line["event"] == there and "sha256" in line}
        assert len(told & known) >= 4, "the hello, two rounds and the farewell"


@pytest.mark.parametrize("name", ["pfedcs", *(pytest.param(name, marks=SLOW) for name in PLAIN[1:])])
def test_final_rows_are_those_of_the_serial_engine(ground: Ground, begun: Runs, name: str) -> None:
    agreement, directory = begun(name)
    ground.finish(directory)
    assert_same_as_serial(ground, agreement, directory)
    assert_audited(ground, directory)


@SLOW
@pytest.mark.parametrize("name", ["bounded", "defended"])
def test_what_bounds_one_site_does_the_same_in_a_simulation(ground: Ground, begun: Runs, name: str) -> None:
    agreement, directory = begun(name)
    ground.finish(directory)
    assert_same_as_serial(ground, agreement, directory)
    # It makes a difference here: without it the result is another.
    bounded = simulated(agreement, own(ground)).run().federation["model"].shared
    plain = ground.agreement("plain", agreement.method)
    assert not torch.allclose(bounded, simulated(plain, own(ground)).run().federation["model"].shared, atol=TOLERANCE)
    if name == "bounded":
        (mix,) = ct.open_run(directory).mixes(2)
        assert mix.weights.max().item() == pytest.approx(0.4)


@SLOW
@pytest.mark.parametrize("name", ["private"])
def test_sites_add_the_noise_that_was_agreed_and_keep_an_account(ground: Ground, begun: Runs, name: str) -> None:
    pytest.importorskip("opacus", reason="the extra coterie[privacy] is not installed")
    agreement, directory = begun(name)
    lines, promise = ground.finish(directory), agreement.promise
    expected = [spent(promise, 1, round, agreement.batch) for round in (1, 2)]
    for line, epsilon in zip(lines, expected, strict=True):
        assert note_of(line).answered == list(SITES)
        assert note_of(line).epsilon == pytest.approx(dict.fromkeys(SITES, epsilon))
        assert line.trained.values["accuracy"] == [None] * len(SITES), "scores are not told"
    told = json.loads((directory / "summary.json").read_text())["privacy"]
    assert told["sites"] == pytest.approx(dict.fromkeys(SITES, expected[-1]))
    for site in SITES:
        account = json.loads((ground.kept(agreement, site) / ACCOUNT).read_text())
        assert [steps for noise, _, steps in account["steps"] if noise == promise.multiplier] == [2]
    # The mean of three sites' noise, of two rounds; what was learned is at most the clip, over thousands of numbers.
    serial = simulated(agreement, own(ground)).run().federation
    shared = load_tensors(directory / CHECKPOINT)[0]["slot.model.shared"]
    moved = shared - serial["model"].shared_columns.take(serial.initial)
    deviation = promise.privacy_noise * promise.privacy_clip * (2 / 3) ** 0.5
    assert moved.std().item() == pytest.approx(deviation, rel=0.1)
    assert not torch.allclose(shared, serial["model"].shared, atol=deviation), "noise that nobody can derive"


@SLOW
@pytest.mark.parametrize("name", ["tampered"])
def test_a_tampered_payload_is_refused_and_named(ground: Ground, begun: Runs, name: str, tmp_path: Path) -> None:
    agreement, directory = begun(name)
    lines = ground.finish(directory)
    assert [note_of(line).answered for line in lines] == [["site-a", "site-c"], list(SITES)]
    assert "bytes long" in note_of(lines[0]).refused["site-b"]
    assert "round 1: site site-b is refused" in (directory / LOG).read_text()
    together = Together(agreement, tmp_path, ground.data)
    together.admit()
    together.round(silent=("site-b",))
    together.round()
    together.finish()
    assert_same_as_in_one_process(ground, together)


@SLOW
@pytest.mark.parametrize("name", ["claims"])
def test_who_claims_another_name_or_a_size_beyond_the_agreed_changes_nothing(
    ground: Ground, begun: Runs, name: str
) -> None:
    agreement, directory = begun(name)
    (line,) = ground.finish(directory)
    assert note_of(line).asked == note_of(line).answered == ["site-a"]
    trained_on, _, _ = own_split(agreement, ground.data["site-a"], 0)
    standing = json.loads(load_tensors(directory / CHECKPOINT)[1]["standing"])
    assert {site: known["samples"] for site, known in standing.items()} == {"site-a": len(trained_on)}
    log = (directory / LOG).read_text()
    assert "the node with the key of site-c says it is site-a" in log
    assert "site site-b says it has 1,000,000,000,000 training samples; most_samples is 1,000,000" in log


@SLOW
@pytest.mark.parametrize("name", ["nonsense"])
def test_a_server_that_asks_for_nonsense_hears_numbers_and_nothing_else(ground: Ground, begun: Runs, name: str) -> None:
    _, directory = begun(name)
    wait_for(lambda: status(directory).get("state") == "finished", directory)
    answers = json.loads((directory / "answers.json").read_text())
    assert answers.keys() == set(SITES)
    for site, told in answers.items():
        assert len(told) > 10
        assert {code for code, _ in told} <= set(FAULTS), site
        assert {reason for _, reason in told} <= {None, ""}, site
        assert ground.nodes[site].resident.code is None


def count(node: SiteProcesses, words: str) -> int:
    """How often a SuperNode has said something."""
    return node.process.said().count(words)


@SLOW
def test_a_resident_that_is_killed_with_a_task_in_hand_is_asked_again(ground: Ground) -> None:
    """It is started again, goes on from the site's disk, and nobody else notices: the numbers are the same."""
    agreement = ground.agreement("resident", "fedper", rounds=3)
    node = ground.nodes["site-a"]
    _, directory = ground.start(agreement)
    wait_for(lambda: len(rounds(directory)) >= 1, directory)
    os.kill(node.resident.pid, signal.SIGSTOP)  # so that it cannot be done with a task before it is killed
    wait_for(lambda: count(node, "Receiving: train") > count(node, "Sending: train"), directory)
    os.kill(node.resident.pid, signal.SIGKILL)
    wait_for(lambda: node.resident.code is not None, directory)
    node.revive()
    ground.finish(directory)
    assert_same_as_serial(ground, agreement, directory)


@SLOW
def test_a_machine_that_is_far_too_busy_still_finishes(ground: Ground) -> None:
    """No round is over by its deadline. Nobody is asked twice, nothing is done again, and the numbers are the same."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        agreement = ground.agreement("busy", "fedper", deadline=0.2, patience=LIMIT)
        _, directory = ground.start(agreement)
        ground.finish(directory)
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
    log = (directory / LOG).read_text()
    assert "round 1 waits for answers" in log or "round 2 waits for answers" in log
    assert "done again" not in log
    state = load_tensors(directory / CHECKPOINT)[0]
    serial = simulated(agreement, own(ground)).run()
    assert [note_of(line).answered for line in rounds(directory)] == [list(SITES)] * 2
    shared = serial.federation["model"].shared
    torch.testing.assert_close(state["slot.model.shared"], shared, atol=TOLERANCE, rtol=0)


def test_a_node_with_a_wrong_key_is_refused(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_site_key(tmp_path / "key")
    stranger = SiteProcesses(
        tmp_path / "state",
        ground.link.address,
        {"name": "site-a", "data": str(ground.folder / "site-a.npz"), "state": str(tmp_path / "state")},
        key=tmp_path / "key",
        authority=ground.keys.authority,
    )
    monkeypatch.setattr("coterie.deployment.flower.site_processes.FORGOTTEN", 1.0)
    try:
        stranger.start()
        with pytest.raises(UnwelcomeError, match="refuses this site for good"):
            stranger.wait_accepted(LIMIT)
    finally:
        stranger.terminate()
    assert "signed by a key that the federation does not know" in ground.link.audit.read_text()


@SLOW
@pytest.mark.parametrize("name", ["killed"])
def test_a_site_that_is_killed_in_mid_round_does_not_stop_the_others_and_comes_back(
    ground: Ground, begun: Runs, name: str, tmp_path: Path
) -> None:
    (agreement, directory), node = begun(name), ground.nodes[DOOMED]
    # The round goes on once Flower has given the node up. The end waits for whoever has taken part, so there is no
    # need to hurry back; before, the server would take the node for the one that it has lost.
    # The round's line is written before its checkpoint.
    wait_for(lambda: load_tensors(directory / CHECKPOINT)[0]["last_round"].tolist() == [2, 2, 1], directory)
    assert set(json.loads(load_tensors(directory / CHECKPOINT)[1]["standing"])) == set(WITH_THE_DOOMED)
    node.start()
    node.wait_accepted(LIMIT)
    lines = ground.finish(directory)
    assert [note_of(line).answered for line in lines] == [list(WITH_THE_DOOMED), ["site-a", "site-b"]]
    assert note_of(lines[1]).unanswered == [DOOMED]
    assert set(json.loads((directory / "summary.json").read_text())["finished"]) == set(WITH_THE_DOOMED)
    together = Together(agreement, tmp_path, ground.data)
    together.admit()
    together.round()
    together.round(silent=(DOOMED,))
    together.finish()
    assert_same_as_in_one_process(ground, together)


@SLOW
def test_a_killed_server_resumes_and_a_restarted_site_goes_on(ground: Ground, tmp_path: Path) -> None:
    """Of its runs one is under way, and one is submitted that the SuperExec would take up as soon as it is back."""
    # A busy machine may take as long as several rounds to submit something.
    agreement = ground.agreement("run-fedcac", "fedcac", rounds=6)
    run, directory = ground.start(agreement)
    wait_for(lambda: len(rounds(directory)) >= 1, directory)
    os.kill(ground.link.process("superexec").pid, signal.SIGSTOP)
    submitted = ground.link.run(ground.strange_app(tmp_path / "taken-up"), {"sent": str(tmp_path / "sent")})
    ground.link.kill()
    ground.nodes["site-c"].terminate()
    ground.link.start()
    assert sorted(ground.link.stopped) == sorted([run, submitted])
    ground.link.open()
    ground.nodes["site-c"].start()
    ground.nodes["site-c"].wait_accepted(LIMIT)
    ground.start(agreement)
    lines = ground.finish(directory)
    assert [line.round for line in lines] == list(range(1, agreement.rounds + 1))
    assert re.search(r"resumed after round [1-5]\n", (directory / LOG).read_text())
    assert_same_as_serial(ground, agreement, directory)
    assert not (tmp_path / "taken-up.server").exists()
