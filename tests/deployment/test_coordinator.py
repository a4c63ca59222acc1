"""Sites that are late, die, come back, join in the middle or send nonsense: the federation goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.coordinator import Answer, Coordinator
from coterie.deployment.logbook import Logbook
from coterie.deployment.messages import Packed, Purpose, read_text
from coterie.deployment.server import Server
from coterie.deployment.versions import LiveTerms
from coterie.deployment.wire import Parcel, pack, unpack
from coterie.errors import CoterieError
from coterie.runs.record import Line, lines_in_order
from coterie.runs.tensors import load_tensors
from coterie.testing.together import SITES, Together, agreed, simulated

Tamper = Callable[[Packed], Packed]


@dataclass
class Behaviour:
    """When a site is connected (seconds), how long its work takes in a round, and what it makes of its answer.

    `hellos` are the seconds until it says who it is, the first time, the second time and so on. A node that owes an
    answer counts as free again once that is `forgotten`.
    """

    comes: float = 0.0
    goes: float = float("inf")
    takes: float = 2.0
    noticed: float = 60.0  # seconds until it is known that it has gone
    hellos: tuple[float, ...] = (1.0,)
    slow: dict[int, float] = field(default_factory=dict)
    tamper: dict[int, Tamper] = field(default_factory=dict)
    registered: str | None = None
    diverges: tuple[int, ...] = ()
    until: float = 0.0  # the share of the agreed rates at which it does not; 1: the second time it does not
    tampered: Tamper = lambda packed: packed
    instead: dict[int, Answer] = field(default_factory=dict)  # what the transport makes of its answers
    forgotten: float = float("inf")  # seconds


class Pretence:
    """A network in one process, with a clock of its own: a node answers after as long as its behaviour says."""

    def __init__(self, together: Together, behaviours: dict[str, Behaviour]) -> None:
        self.together, self.now = together, 0.0
        self.behaviours = {name: behaviours.get(name, Behaviour()) for name in SITES}
        self._coming: list[tuple[float, Answer]] = []
        self._asked_at: dict[int, float] = {}
        self.asked: list[tuple[str, int]] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def nodes(self) -> dict[int, str]:
        since = {node: now for node, now in self._asked_at.items() if any(one.node == node for _, one in self._coming)}
        busy = {node for node, then in since.items() if self.now < then + self.behaviours[SITES[node]].forgotten}
        found = {}
        for node, name in enumerate(SITES):
            one = self.behaviours[name]
            if one.comes <= self.now < one.goes and node not in busy:
                found[node] = name if one.registered is None else one.registered
        return found

    def send(self, node: int, purpose: Purpose, content: Packed, seconds: float) -> None:
        name = SITES[node]
        one, site = self.behaviours[name], self.together.sites[name]
        self._asked_at[node] = self.now
        self._coming = [(time, answer) for time, answer in self._coming if answer.node != node]
        if purpose == "hello":
            takes, *later = one.hellos
            one.hellos = tuple(later) or one.hellos
            content = pack(Parcel({}, site.hello())) if takes <= seconds else "it did not answer in time"
            self._coming.append((self.now + min(takes, seconds), Answer(node, purpose, content)))
            return
        note = read_text(content.text)["note"]
        takes = one.slow.get(note["round"], one.takes) if purpose == "work" else 2.0
        if purpose == "work":
            self.asked.append((name, note["round"]))
        if takes > seconds:
            self._coming.append((self.now + seconds, Answer(node, purpose, "it did not answer in time")))
            return
        if self.now + takes >= one.goes:
            self._coming.append((self.now + min(one.noticed, seconds), Answer(node, purpose, "node unavailable")))
            return
        task = unpack(content, site.expected(note))
        reply = pack(site.work(task) if purpose == "work" else site.finish(task))
        reply = one.tamper.get(note["round"], lambda same: same)(reply)
        times = self.asked.count((name, note["round"]))
        if note["round"] in one.diverges and 0.5 ** note["halvings"] > one.until - 0.5 * (times == 1):
            reply = one.tampered(reply)
        answer = one.instead.pop(note["round"], Answer(node, purpose, reply))
        self._coming.append((self.now + takes, answer))

    def answers(self) -> list[Answer]:
        due = [answer for time, answer in self._coming if time <= self.now]
        self._coming = [(time, answer) for time, answer in self._coming if time > self.now]
        return due


class Trial:
    """A federation with misbehaving sites."""

    def __init__(self, folder: Path, agreement: Agreement | None = None, **behaviours: Behaviour) -> None:
        settings: dict[str, Any] = {"rounds": 4, "deadline": 30.0, "gather": 10.0, "patience": 200.0}
        self.agreement = agreement or agreed("fedper", **settings)
        self.folder = folder
        self.together = Together(self.agreement, folder / "sites")
        named = {name.replace("_", "-"): one for name, one in behaviours.items()}
        self.network = Pretence(self.together, named)
        self.server = Server(self.agreement)
        self.logbook = Logbook(folder / "server", self.agreement)

    def run(self, terms: LiveTerms | None = None) -> None:
        network = self.network
        Coordinator(self.server, network, self.logbook, network.clock, network.sleep, terms).run()

    @property
    def lines(self) -> list[Line]:
        path = self.folder / "server" / "rounds.jsonl"
        return lines_in_order(path.read_bytes(), str(path))

    @property
    def status(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "server" / "status.json").read_text(encoding="utf-8")))


def test_a_quiet_federation_ends_with_the_serial_rows(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.run()
    serial = simulated(trial.agreement).run()
    torch.testing.assert_close(
        trial.server.federation["model"].shared, serial.federation["model"].shared, atol=1e-6, rtol=0
    )
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 4
    assert trial.status == {"state": "finished", "round": 4, "rounds": 4, "present": list(SITES), "message": ""}
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    final = serial.lines[-1].received.values["accuracy"]
    assert list(summary["finished"].values()) == pytest.approx(final)


def test_what_is_waited_for_stays_said_when_somebody_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each site that came once wiped the word off the status, and nothing was said for half a minute."""
    told: list[tuple[str, str, list[str]]] = []
    written = Logbook.status

    def status(self: Logbook, state: Any, server: Any, present: list[str], message: str, passing: bool) -> None:
        told.append((state, message, sorted(present)))
        written(self, state, server, present, message, passing)

    monkeypatch.setattr(Logbook, "status", status)
    Trial(tmp_path, site_b=Behaviour(comes=4.0), site_c=Behaviour(comes=8.0)).run()
    waiting = [(message, present) for state, message, present in told if state == "waiting"]
    assert all(message.startswith("waiting for the sites") for message, _ in waiting)
    assert ("waiting for the sites; not here: site-b, site-c", ["site-a"]) in waiting
    assert ("waiting for the sites; not here: site-c", ["site-a", "site-b"]) in waiting


def test_a_site_whose_line_was_gone_is_asked_again_within_its_deadline(tmp_path: Path) -> None:
    """The carrier gives a node up whose line is silent; it may be back soon, and was left out of the round."""
    lost = Answer(SITES.index("site-b"), "work", "no answer came through (code 5)")
    trial = Trial(tmp_path, site_b=Behaviour(instead={2: lost}))
    trial.run()
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 4


def test_a_late_site_is_left_out_of_the_round_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agreement = agreed("fedper", rounds=12, deadline=30.0, gather=10.0)
    trial = Trial(tmp_path, agreement, site_b=Behaviour(slow={2: 45.0}))
    with caplog.at_level(logging.INFO, logger="coterie"):
        trial.run()
    assert [note_of(line).answered for line in trial.lines][:2] == [list(SITES), ["site-a", "site-c"]]
    assert note_of(trial.lines[1]).unanswered == ["site-b"]
    assert "site-b" in note_of(trial.lines[-1]).answered
    assert "round 2 goes on without site-b" in caplog.text
    assert "a late answer of site site-b is not counted" in caplog.text


def test_a_late_sites_row_is_as_if_it_had_not_worked(tmp_path: Path) -> None:
    """What a site trained in a round that did not count for it leaves no trace."""
    trial = Trial(tmp_path, site_b=Behaviour(slow={2: 31.0}))
    trial.run()
    assert note_of(trial.lines[1]).unanswered == ["site-b"]
    other = Together(trial.agreement, tmp_path / "other")
    other.admit()
    for line in trial.lines:
        other.round(*note_of(line).asked, silent=tuple(note_of(line).unanswered))
    for slot, ours in trial.server.federation.slots.items():
        assert torch.equal(ours.shared, other.server.federation[slot].shared)
    assert trial.server.federation.last_round.tolist() == [4, 4, 4]
    mine = load_tensors(tmp_path / "sites" / "trial" / "site-b" / "round-00004.safetensors")[0]
    theirs = load_tensors(tmp_path / "other" / "trial" / "site-b" / "round-00004.safetensors")[0]
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_site_that_dies_does_not_stop_the_round(tmp_path: Path) -> None:
    trial = Trial(tmp_path, site_c=Behaviour(goes=7.0))
    trial.run()
    assert [len(note_of(line).answered) for line in trial.lines] == [3, 3, 2, 2]
    assert note_of(trial.lines[2]).unanswered == ["site-c"]
    assert trial.status["state"] == "finished"
    # The dead site is not asked again.
    assert [round for name, round in trial.network.asked if name == "site-c"] == [1, 2, 3]


def test_a_site_joins_in_the_middle(tmp_path: Path) -> None:
    agreement = agreed("fedtc", rounds=9, deadline=30.0, gather=3.0)
    trial = Trial(tmp_path, agreement, site_c=Behaviour(comes=16.0))
    trial.run()
    joined = [line.round for line in trial.lines if "site-c" in note_of(line).answered]
    assert joined
    assert joined == list(range(joined[0], 10))
    assert joined[0] > 2
    assert trial.server.federation.sizes.min() > 0


def test_a_site_that_missed_the_end_gets_its_model_when_the_server_starts_again(tmp_path: Path) -> None:
    trial = Trial(tmp_path, site_c=Behaviour(goes=10.0))
    trial.run()
    final = tmp_path / "sites" / "trial" / "site-c" / "final.safetensors"
    assert not final.exists()
    assert set(json.loads((tmp_path / "server" / "summary.json").read_text())["finished"]) == {"site-a", "site-b"}
    again = Trial(tmp_path, site_a=Behaviour(comes=1e6))
    again.run()
    assert final.exists()
    assert set(json.loads((tmp_path / "server" / "summary.json").read_text())["finished"]) == set(SITES)


@pytest.mark.thorough
def test_a_restarted_site_goes_on_with_its_personal_rows(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.together.sites = RestartedEveryTime(trial.together)
    trial.run()
    serial = simulated(trial.agreement).run()
    state = load_tensors(tmp_path / "sites" / "trial" / "site-a" / "final.safetensors")[0]
    torch.testing.assert_close(state["slot.model.own"], serial.federation["model"].own[:1], atol=1e-6, rtol=0)


class RestartedEveryTime(dict[str, Any]):
    """Sites that know nothing but what lies on their disks."""

    def __init__(self, together: Together) -> None:
        super().__init__()
        self._together = together

    def __getitem__(self, name: str) -> Any:
        return self._together.site(name)


def test_too_few_sites_end_the_run_with_a_way_out(tmp_path: Path) -> None:
    agreement = agreed("fedavg", rounds=4, deadline=30.0, gather=5.0, patience=60.0, least_sites=3)
    trial = Trial(tmp_path, agreement, site_c=Behaviour(goes=7.0))
    with pytest.raises(CoterieError, match=r"2 of at least 3 sites answered .*; not here: site-c; .* it resumes"):
        trial.run()
    assert trial.status["state"] == "failed"
    reached = trial.server.federation.round
    assert reached < 4
    # The same federation, once the site is back.
    again = Trial(tmp_path, agreement)
    again.run()
    serial = simulated(agreement).run()
    found, expected = again.server.federation["model"].shared, serial.federation["model"].shared
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert [line.round for line in again.lines] == [1, 2, 3, 4]


class KilledError(Exception):
    """The server's process is gone."""


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedper", "fedcac", "pfedsim", "scaffold"])
@pytest.mark.parametrize("moment", ["before the checkpoint", "after the checkpoint"])
def test_a_killed_server_resumes_to_the_same_rows(
    method: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = agreed(method, rounds=4, deadline=30.0, gather=10.0)
    trial = Trial(tmp_path, agreement)
    original = Logbook.checkpoint

    def dying(self: Logbook, server: Server) -> None:
        if moment == "after the checkpoint":
            original(self, server)
        if server.federation.round == 2:
            raise KilledError
        if moment != "after the checkpoint":
            original(self, server)

    monkeypatch.setattr(Logbook, "checkpoint", dying)
    with pytest.raises(KilledError):
        trial.run()
    monkeypatch.setattr(Logbook, "checkpoint", original)
    again = Trial(tmp_path, agreement)
    again.run()
    whole = Trial(tmp_path / "whole", agreement)
    whole.run()
    for slot, ours in whole.server.federation.slots.items():
        assert torch.equal(again.server.federation[slot].shared, ours.shared)
        assert torch.equal(again.server.federation[slot].own, ours.own)
    for name in SITES:
        mine = load_tensors(tmp_path / "sites" / "trial" / name / "final.safetensors")[0]
        theirs = load_tensors(tmp_path / "whole" / "sites" / "trial" / name / "final.safetensors")[0]
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    assert [line.round for line in again.lines] == [1, 2, 3, 4]


def rewritten(change: Callable[[dict[str, Any]], None]) -> Tamper:
    """An answer whose text is changed."""

    def tamper(packed: Packed) -> Packed:
        contents = json.loads(packed.text)
        change(contents)
        return Packed(packed.buffers, json.dumps(contents))

    return tamper


def set_shape(contents: dict[str, Any]) -> None:
    contents["tensors"][0][2] = [7]


def set_name(contents: dict[str, Any]) -> None:
    contents["tensors"][0][0] = "slot.other"


def set_round(contents: dict[str, Any]) -> None:
    contents["note"]["round"] = 1


def set_score(contents: dict[str, Any]) -> None:
    contents["note"]["trained"] = {"correct": 10**9, "loss": 0.0, "samples": 1}


def not_a_number(packed: Packed) -> Packed:
    return Packed({"float32": b"\xff\xff\xff\x7f" + packed.buffers["float32"][4:]}, packed.text)


TAMPERED: dict[str, tuple[Tamper, str]] = {
    "shape": (rewritten(set_shape), "expected is float32"),
    "name": (rewritten(set_name), "slot.other"),
    "round": (rewritten(set_round), "answers round 1, not 2"),
    "score": (rewritten(set_score), "malformed"),
    "not finite": (not_a_number, "NaN or infinite"),
    "longer": (lambda packed: Packed({"float32": packed.buffers["float32"] * 2}, packed.text), "bytes long"),
    "shorter": (lambda packed: Packed({}, packed.text), "bytes long"),
    "not json": (lambda packed: Packed(packed.buffers, "{"), "not JSON"),
    "other kind": (lambda packed: Packed({"float64": packed.buffers["float32"]}, packed.text), "bytes long"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TAMPERED)
def test_a_tampered_answer_is_refused_for_the_round_and_named(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tamper, reason = TAMPERED[kind]
    trial = Trial(tmp_path, site_b=Behaviour(tamper={2: tamper}))
    with caplog.at_level(logging.WARNING, logger="coterie"):
        trial.run()
    assert "round 2: site site-b is refused: " in caplog.text
    assert reason in note_of(trial.lines[1]).refused["site-b"]
    assert note_of(trial.lines[1]).answered == ["site-a", "site-c"]
    assert note_of(trial.lines[2]).answered == list(SITES)
    assert torch.isfinite(trial.server.federation["model"].shared).all()


@pytest.mark.thorough
def test_a_node_with_another_sites_name_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trial = Trial(tmp_path, site_b=Behaviour(registered="site-c"))
    with caplog.at_level(logging.WARNING, logger="coterie"):
        trial.run()
    assert "the node with the key of site-c says it is site-b" in caplog.text
    assert all("site-b" not in note_of(line).asked for line in trial.lines)


@pytest.mark.parametrize(("sites", "least"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (10, 6)])
def test_a_round_needs_a_majority_unless_told_otherwise(sites: int, least: int) -> None:
    names = tuple(f"s{number}" for number in range(sites))
    agreement = Agreement(name="trial", sites=names, shape=(4,), classes=2)
    assert agreement.least_sites == least
    assert Agreement.parse(agreement.plain()) == agreement
