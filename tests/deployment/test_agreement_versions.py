"""A federation whose agreement changes on the way: more rounds, other sites, other data; nothing of who has left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deployment.test_coordinator import Trial

from coterie.cli import main
from coterie.cli.federation.follower import NextVersion
from coterie.cli.federation.join import _differences as differences_of_files
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.flower.folder import write_folder
from coterie.deployment.flower.server_processes import ServerProcesses
from coterie.deployment.logbook import Logbook
from coterie.deployment.messages import RefusedError
from coterie.deployment.server import Server
from coterie.deployment.versions import FIXED, differences, extended
from coterie.errors import CoterieError
from coterie.files import sealed_line
from coterie.methods import METHODS
from coterie.runs.record import Line, lines_in_order
from coterie.runs.tensors import load_tensors
from coterie.testing.together import SITES, Together, agreed, site_data

NEW = "site-d"
DATA = {name: site_data(number, 18 + 5 * number) for number, name in enumerate((*SITES, NEW))}


def slow(*methods: str) -> list[Any]:
    return [pytest.param(method, marks=pytest.mark.slow) for method in methods]


class Course:
    """A federation in one process whose server and sites start anew, from their disks, with each version."""

    def __init__(self, folder: Path, agreement: Agreement, data: dict[str, Dataset] | None = None) -> None:
        self.folder, self.data = folder, data or DATA
        self.begin(agreement)

    def begin(self, agreement: Agreement) -> None:
        self.together = Together(agreement, self.folder / "sites", self.data, poison=True)
        self.logbook = Logbook(self.folder / "server", agreement)
        self.logbook.restore(self.together.server)

    def rounds(self, count: int, present: Sequence[str] = ()) -> None:
        self.together.admit(*present)
        for _ in range(count):
            self.logbook.add(self.together.round(*present))
            self.logbook.checkpoint(self.together.server)

    def extend(self, **changes: Any) -> Agreement:
        agreement = extended(self.together.agreement, **changes)
        self.begin(agreement)
        return agreement

    def final(self, site: str) -> dict[str, torch.Tensor]:
        return load_tensors(self.folder / "sites" / "trial" / site / "final.safetensors")[0]


def four(method: str, rounds: int) -> Agreement:
    plain = agreed(method, rounds=rounds, validation=0.2).plain()
    return type(agreed("fedavg")).parse(plain | {"sites": [*SITES, NEW]})


def same(first: Course, second: Course, sites: Sequence[str]) -> None:
    for site in sites:
        mine, theirs = first.final(site), second.final(site)
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            if tensor.shape == mine[name].shape:  # what has a place for each site has another number of them
                assert torch.equal(mine[name], tensor), f"{site} {name}"


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedper", *slow("scaffold", "ditto", "fedrema")])
def test_more_rounds_are_as_if_they_had_been_agreed_from_the_start(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"deadline": 30.0, "gather": 10.0}
    trial = Trial(tmp_path / "extended", agreed(method, rounds=2, **settings))
    trial.run()
    longer = extended(trial.agreement, rounds=5)
    assert (longer.version, longer.former) == (2, (trial.agreement.fingerprint,))
    again = Trial(tmp_path / "extended", longer)
    again.run()
    assert [line.round for line in again.lines] == [1, 2, 3, 4, 5]
    whole = Trial(tmp_path / "whole", agreed(method, rounds=5, **settings))
    whole.run()
    for slot, ours in whole.server.federation.slots.items():
        assert torch.equal(again.server.federation[slot].shared, ours.shared)
        assert torch.equal(again.server.federation[slot].own, ours.own)
    for name in SITES:
        mine = load_tensors(tmp_path / "extended" / "sites" / "trial" / name / "final.safetensors")[0]
        theirs = load_tensors(tmp_path / "whole" / "sites" / "trial" / name / "final.safetensors")[0]
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedproto", *slow("fedavg", "fedper", "moon", "fedrep")])
def test_a_site_that_is_added_ends_as_one_that_was_named_and_came_late(method: str, tmp_path: Path) -> None:
    course = Course(tmp_path / "added", agreed(method, rounds=4, validation=0.2))
    course.rounds(2)
    course.extend(add=[NEW])
    course.rounds(2)
    course.together.finish()
    late = Course(tmp_path / "late", four(method, 4))
    late.rounds(2, SITES)
    late.rounds(2, (*SITES, NEW))
    late.together.finish()
    same(course, late, (*SITES, NEW))


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedper", *slow("fedavg", "ditto")])
def test_who_stays_ends_as_if_the_leaver_had_fallen_silent(method: str, tmp_path: Path) -> None:
    rest = ("site-a", "site-c")
    course = Course(tmp_path / "left", agreed(method, rounds=6))
    course.rounds(2)
    agreement = course.extend(remove=["site-b"])
    assert (agreement.sites, agreement.keys) == (rest, (0, 2))
    course.rounds(1)
    course.together.finish()
    silent = Course(tmp_path / "silent", agreed(method, rounds=6))
    silent.rounds(2)
    silent.rounds(1, rest)
    silent.together.finish()
    same(course, silent, rest)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_goes_on_when_one_comes_and_one_leaves(method: str, tmp_path: Path) -> None:
    course = Course(tmp_path, agreed(method, rounds=6, validation=0.2))
    course.rounds(3)
    course.extend(add=[NEW], remove=["site-b"])
    course.rounds(3)
    found = course.together.finish()
    assert set(found) == {"site-a", "site-c", NEW}
    assert [report.answered for report in course.together.reports] == [["site-a", "site-c", NEW]] * 3
    for site in found:
        for name, tensor in course.final(site).items():
            if name.startswith("slot.model") or name.startswith("tested"):
                assert torch.isfinite(tensor).all(), f"{site} {name}"


@pytest.mark.parametrize("method", ["pfedsim", "fedamp"])
def test_nothing_of_who_has_left_stays_at_the_server(method: str, tmp_path: Path) -> None:
    course = Course(tmp_path, agreed(method, rounds=6))
    course.rounds(4)
    (tmp_path / "server" / "summary.json").write_text("{}")
    federation = course.together.server.federation
    rows = {site: federation["model"].own[number].numpy().tobytes() for number, site in enumerate(SITES)}

    def holds(row: bytes) -> bool:
        return any(row in path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file())

    assert all(map(holds, rows.values()))
    course.extend(remove=["site-b"])
    assert [holds(rows[site]) for site in SITES] == [True, False, True]
    assert set(course.together.server.standing) == {"site-a", "site-c"}
    assert course.logbook.checkpoints() == [4]
    assert not (tmp_path / "server" / "summary.json").exists(), "it goes on, and has no end yet"
    assert [line.round for line in lines(tmp_path)] == [1, 2, 3, 4], "that it took part is not forgotten"


def test_a_take_over_that_is_cut_off_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(tmp_path, agreed("fedamp", rounds=6))
    course.rounds(2)
    agreement = extended(course.together.agreement, remove=["site-b"])

    def cut_off(self: Logbook) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Logbook, "_remove_former", cut_off)
        with pytest.raises(KeyboardInterrupt):
            course.begin(agreement)
    assert len(course.logbook.checkpoints()) == 2
    course.begin(agreement)
    assert course.logbook.checkpoints() == [2]


def test_sites_that_are_all_new_go_on_from_what_the_others_left(tmp_path: Path) -> None:
    course = Course(tmp_path, agreed("fedavg", rounds=6), {**DATA, "site-e": site_data(8, 30)})
    course.rounds(2)
    shared = course.together.server.federation["model"].shared.clone()
    course.extend(add=[NEW, "site-e"], remove=SITES)
    course.together.admit()
    server = course.together.server
    task = server.open_round([NEW, "site-e"])[NEW]
    assert torch.equal(server.federation["model"].shared, shared)
    assert torch.equal(task.tensors["slot.model"], shared[0])


def lines(folder: Path) -> list[Line]:
    path = folder / "server" / "rounds.jsonl"
    return lines_in_order(path.read_bytes(), str(path))


def test_a_site_that_has_not_accepted_the_new_version_is_told_so(tmp_path: Path) -> None:
    course = Course(tmp_path, agreed("fedper", rounds=6))
    course.rounds(1)
    old = course.together.sites["site-a"].hello()
    course.extend(rounds=7)
    with pytest.raises(RefusedError, match="site-a has accepted version 1 of the agreement and not yet version 2"):
        course.together.server.admit(old)


def test_with_a_new_version_sites_may_bring_other_data(tmp_path: Path) -> None:
    data = dict(DATA)
    course = Course(tmp_path, agreed("fedper", rounds=6), data)
    course.rounds(1)
    data["site-b"] = site_data(7, 40)
    course.begin(course.together.agreement)
    with pytest.raises(RefusedError, match="it must go on with the data that it began with"):
        course.together.admit("site-b")
    course.extend(terms={"lr": 0.01})
    course.together.admit("site-b")
    assert course.together.server.standing["site-b"].samples == 30


def test_a_schedule_of_new_data_asks_everybody_anew(tmp_path: Path) -> None:
    trial = Trial(tmp_path, agreed("fedper", rounds=5, deadline=30.0, gather=10.0, fresh_data=2))
    larger, served = site_data(7, 40), trial.network.send

    def send(node: int, purpose: Any, content: Any, seconds: float) -> None:
        if purpose == "hello" and trial.server.federation.round == 2 and SITES[node] == "site-b":
            trial.together.data = {"site-b": larger}
            trial.together.sites["site-b"] = trial.together.site("site-b")
        served(node, purpose, content, seconds)

    trial.network.send = send
    trial.run()
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 5
    assert trial.server.standing["site-b"].samples == 30
    assert {known.period for known in trial.server.standing.values()} == {"1.2"}


@pytest.mark.parametrize("term", FIXED)
def test_what_models_are_made_of_cannot_change(term: str) -> None:
    with pytest.raises(CoterieError, match=f"term = {term}: cannot change"):
        extended(agreed("fedavg"), terms={term: 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add": ["site-a"]}, "add = site-a: is one of the sites already"),
        ({"remove": ["site-x"]}, "unknown site of trial 'site-x'"),
        ({"terms": {"version": 9}}, "term = version: cannot change"),
        ({"terms": {"rounds": 9}}, "has an option of its own, --rounds"),
        ({"terms": {"epoch": 9}}, "unknown option 'epoch'"),
        ({"terms": {"lr": -1}}, "lr = -1.0: must be greater than 0"),
        ({}, "nothing changes"),
        ({"rounds": 3}, "nothing changes"),
        ({"remove": list(SITES)}, "name at least one site"),
    ],
)
def test_changes_that_are_none_or_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        extended(agreed("fedavg"), **changes)


def test_versions_follow_each_other() -> None:
    first = agreed("fedavg", rounds=3)
    assert "version" not in first.plain()
    second = extended(first, rounds=5)
    third = extended(second, add=["site-d"], remove=["site-c"], terms={"epochs": 1, "least_sites": 2})
    assert third.former == (first.fingerprint, second.fingerprint)
    assert (third.version, third.sites, third.keys) == (3, ("site-a", "site-b", "site-d"), (0, 1, 3))
    assert type(third).parse(third.plain()) == third
    assert len({first.fingerprint, second.fingerprint, third.fingerprint}) == 3
    assert differences(second, third) == [
        "site-d is a new site",
        "site-c is no site any more",
        "epochs: 2 becomes 1",
        "least_sites: 1 becomes 2",
    ]
    with pytest.raises(CoterieError, match="version = 2: follows 0 others"):
        type(first).parse(first.plain() | {"version": 2})
    with pytest.raises(CoterieError, match="must be a number of its own for each of the 3 sites"):
        type(first).parse(second.plain() | {"numbers": [1, 2, 2]})


def test_a_majority_stays_one() -> None:
    five = Agreement(name="trial", sites=tuple("abcde"), shape=(4,), classes=2)
    assert extended(five, remove=["a", "b"]).least_sites == 2
    chosen = Agreement(name="trial", sites=tuple("abcde"), shape=(4,), classes=2, least_sites=5)
    assert extended(chosen, remove=["a", "b"]).least_sites == 3


def test_a_server_refuses_a_state_of_another_federation(tmp_path: Path) -> None:
    course = Course(tmp_path, agreed("fedper", rounds=6))
    course.rounds(1)
    stranger = extended(agreed("fedper", rounds=9), rounds=12)
    with pytest.raises(CoterieError, match="is of another agreement"):
        Logbook(tmp_path / "server", stranger).restore(Server(stranger))


def folder_of(tmp_path: Path) -> Path:
    agreement = Agreement(name="six", sites=SITES, shape=(6,), classes=3, rounds=9, epochs=1)
    write_folder(tmp_path / "six", agreement)
    return tmp_path / "six"


def test_the_command_writes_the_next_version_and_keeps_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path)
    (folder / "keys" / "sites").mkdir(parents=True)
    key = folder / "keys" / "sites" / "site-b.pub"
    key.write_text("a key")
    before = (folder / "federation.toml").read_text()
    words = ["--rounds", "12", "--add", "site-d", "--remove", "site-b", "--term", "lr=0.5", "--term", "fresh_data=4"]
    assert main(["federation", "extend", str(folder), *words]) == 0
    said = capsys.readouterr().out
    assert "site-d is a new site" in said
    assert "coterie federation join federation.toml --name site-a --changed" in said
    assert "coterie federation join federation.toml --name site-d --root-certificate ca.pem" in said
    assert "the server deletes its rows and values" in said
    assert (folder / "versions" / "1.toml").read_text() == before
    agreement = Agreement.read(folder / "federation.toml")
    assert (agreement.version, agreement.rounds, agreement.lr, agreement.fresh_data) == (2, 12, 0.5, 4)
    assert agreement.sites == ("site-a", "site-c", "site-d")
    assert not key.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing changes; name --rounds"),
        (["--rounds", "4"], "rounds = 4: 5 are done; name more than that"),
        (["--term", "lr"], "term = 'lr': must be NAME=VALUE"),
        (["--term", "seed=3"], "term = seed: cannot change in the course of a federation"),
        (["--remove", "site-x"], "unknown site of six 'site-x'"),
    ],
)
def test_the_command_refuses_in_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path)
    (folder / "server").mkdir()
    (folder / "server" / "status.json").write_text(
        '{"state": "running", "round": 6, "message": "round 6 is under way"}'
    )
    before = (folder / "federation.toml").read_text()
    assert main(["federation", "extend", str(folder), *words]) == 2
    assert message in capsys.readouterr().err
    assert (folder / "federation.toml").read_text() == before
    assert not (folder / "versions").exists()


def test_the_next_version_waits_for_the_round_under_way(tmp_path: Path) -> None:
    path, now = tmp_path / "federation.toml", [0.0]
    path.write_text("rounds = 3\n")
    following = NextVersion(path, 1, clock=lambda: now[0])
    under_way = {"state": "running", "round": 3, "message": "round 3 is under way"}
    assert not following.is_due(under_way)
    path.write_text("rounds = 30\nversion = 2\n")
    assert not following.is_due(under_way)
    assert not following.is_due({**under_way, "message": "round 3 waits for answers: 1 of at least 2 have come"})
    assert following.is_due({"state": "running", "round": 3, "message": ""})
    assert following.is_due({"state": "running", "round": 4, "message": "round 4 is under way"})
    assert following.is_due({"state": "waiting", "round": 3, "message": "waiting for the sites"})
    now[0] = 901.0
    assert following.is_due(under_way)
    path.write_text("version = ")
    assert not following.is_due(under_way)


def test_other_keys_count_after_the_round_too(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "site-a.pub").write_text("a key")
    following = NextVersion(tmp_path / "federation.toml", 1, tmp_path / "sites")
    assert not following.is_due({})
    (tmp_path / "sites" / "site-b.pub").write_text("a key")
    assert not following.is_due({"state": "running", "round": 3, "message": "round 3 is under way"})
    assert following.is_due({"state": "running", "round": 4, "message": "round 4 is under way"})
    (tmp_path / "sites" / "site-b.pub").unlink()
    assert not following.is_due({})


def test_a_file_of_thousands_of_levels_is_refused_in_a_line_and_no_newer_version(tmp_path: Path) -> None:
    deep, sound = tmp_path / "federation.toml", tmp_path / "sound.toml"
    deep.write_text(f"version = {'[' * 3000}{']' * 3000}")
    sound.write_text(agreed("fedavg").toml())
    assert not NextVersion(deep, 1).is_due({})
    with pytest.raises(CoterieError, match="not a TOML file"):
        Agreement.read(deep)
    with pytest.raises(CoterieError, match="cannot be read; remove it to join anew"):
        differences_of_files(deep, sound)


def test_what_the_superlink_kept_of_a_leaver_is_forgotten(tmp_path: Path) -> None:
    link = ServerProcesses(tmp_path, None)
    known = {"mark": {"site": "site-a", "node": "1"}, "other": {"site": "site-b", "node": "2"}}
    (tmp_path / "registered.json").write_bytes(sealed_line(json.dumps(known).encode()))
    files = [link.database, link.database.with_name(f"{link.database.name}-wal")]
    for path in files:
        path.write_text("messages")
    assert link.forget_unless(["site-a", "site-b", "site-c"]) == []
    assert all(path.exists() for path in files)
    assert link.forget_unless(["site-a", "site-c"]) == ["site-b"]
    assert not any(path.exists() for path in files)
