"""How long a round waits follows how long sites take: slow machines finish, and nobody's work is lost or done twice."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deployment.test_coordinator import Behaviour, KilledError, Trial

from coterie import files
from coterie.deployment import site as at_site
from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.coordinator import Answer, UnsentError
from coterie.deployment.flower.folder import write_app
from coterie.deployment.messages import Packed, Purpose
from coterie.deployment.server import Server
from coterie.deployment.store import Store
from coterie.deployment.versions import LiveTerms
from coterie.deployment.waiting import AnswerTimes
from coterie.errors import CoterieError
from coterie.runs import directory, tensors
from coterie.runs.record import Line, Seconds, Travelled
from coterie.testing.together import SITES, Together, agreed


def test_the_deadline_is_three_times_the_slowest_of_the_last_five_answers() -> None:
    times = AnswerTimes()
    for seconds in (90.0, 25.0, 11.0, 12.0, 13.0):
        times.took("a", seconds)
    assert times.deadline("a", 600.0) == 270.0
    times.took("a", 14.0)  # the first is forgotten
    assert times.deadline("a", 600.0) == 75.0
    times.took("b", 1.0)
    assert times.deadline("b", 600.0) == 60.0
    assert times.deadline("b", 10.0) == 10.0
    assert times.deadline("c", 600.0) == 600.0


def test_whoever_leaves_questions_unanswered_is_waited_for_half_as_long_each_time() -> None:
    times = AnswerTimes()
    for expected in (600.0, 300.0, 150.0, 75.0, 60.0, 60.0):
        assert times.deadline("a", 600.0) == expected
        times.missed("a")
    times.took("a", 50.0)  # late, and all is as usual
    assert times.deadline("a", 600.0) == 150.0


def slow(seconds: float, **more: Any) -> dict[str, Behaviour]:
    return {name.replace("-", "_"): Behaviour(takes=seconds, **more) for name in SITES}


def test_a_busy_machine_still_finishes_and_nothing_is_asked_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agreement = agreed("fedper", rounds=3, deadline=30.0, gather=10.0, patience=200.0, least_sites=2)
    trial = Trial(tmp_path, agreement, **slow(100.0, hellos=(40.0,)))
    trial.run()
    assert trial.status["state"] == "finished"
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 3
    assert set(Counter(trial.network.asked).values()) == {1}
    assert "round 1 waits for answers: 0 of at least 2 have come; at work: site-a (30 s), site-b (30 s)" in caplog.text
    assert "done again" not in caplog.text


def test_a_late_answer_counts_where_too_few_others_have_come(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=3, deadline=30.0, gather=10.0, patience=200.0, least_sites=3)
    trial = Trial(tmp_path, agreement, site_b=Behaviour(slow={2: 75.0}))
    trial.run()
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 3
    assert [round for name, round in trial.network.asked if name == "site-b"] == [1, 2, 3]
    whole = Trial(tmp_path / "whole", agreement)
    whole.run()
    assert torch.equal(trial.server.federation["model"].shared, whole.server.federation["model"].shared)


def test_a_round_of_few_needs_no_more_than_it_asked(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=3, join=0.34, deadline=30.0, gather=10.0, patience=100.0, least_sites=2)
    trial = Trial(tmp_path, agreement)
    trial.run()
    assert [len(note_of(line).answered) for line in trial.lines] == [1, 1, 1]


def test_an_agreement_whose_rounds_may_be_too_small_for_its_share_limit_is_refused() -> None:
    terms: dict[str, Any] = {"name": "trial", "sites": SITES, "shape": (4,), "classes": 2}
    with pytest.raises(CoterieError, match=r"share_limit = 0.4: a mix of 2 .*raise least_sites \(it is 2\) or join"):
        Agreement(**terms, share_limit=0.4, least_sites=2)
    assert Agreement(**terms, share_limit=0.4).least_sites == 3
    with pytest.raises(CoterieError, match="a mix of 3 cannot keep it"):
        Agreement(**terms, share_limit=0.3)


def test_least_sites_are_enough_for_the_share_limit_in_the_app_too(tmp_path: Path) -> None:
    """The app has the defaults of terms that may change."""
    agreement = Agreement(name="trial", sites=tuple("abcdefghij"), shape=(4,), classes=2, share_limit=0.25, join=0.5)
    assert agreement.least_sites == 8  # half of them are four
    write_app(tmp_path / "one", agreement)
    write_app(tmp_path / "two", replace(agreement, least_sites=9))
    one, two = ((tmp_path / name / "federation.toml").read_text() for name in ("one", "two"))
    assert one == two


def test_a_slow_hello_is_waited_for_and_one_without_an_answer_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agreement = agreed("fedper", rounds=3, deadline=10.0, hello=100.0, gather=300.0)
    trial = Trial(tmp_path, agreement, site_a=Behaviour(hellos=(90.0,)), site_b=Behaviour(hellos=(101.0, 101.0, 1.0)))
    trial.run()
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 3
    for seconds in (5, 10):
        said = f"site-b does not say what it has: it did not answer in time; it is asked again in {seconds} s"
        assert caplog.text.count(said) == 1


def test_a_dead_site_costs_a_round_what_sites_usually_take_and_not_the_whole_deadline(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=4, deadline=600.0, gather=10.0)
    trial = Trial(tmp_path, agreement, site_c=Behaviour(goes=7.0, noticed=300.0))
    trial.run()
    assert note_of(trial.lines[2]).unanswered == ["site-c"]
    assert 60 <= trial.lines[2].seconds.total < 61
    assert trial.status["state"] == "finished"


def test_a_slow_site_gives_nobody_else_more_time(tmp_path: Path) -> None:
    """Site-a takes a minute, and so may take three; whoever is gone is waited for as long as its own answers took."""
    agreement = agreed("fedper", rounds=4, epochs=1, deadline=600.0, gather=10.0)
    behaviours = {"site_a": Behaviour(takes=70.0), "site_c": Behaviour(goes=73.0, noticed=500.0)}
    trial = Trial(tmp_path, agreement, **behaviours)
    trial.run()
    assert [note_of(line).unanswered for line in trial.lines] == [[], ["site-c"], [], []]
    assert 70 <= trial.lines[1].seconds.total < 71


def test_a_silent_site_holds_up_fewer_and_fewer_seconds_of_a_round(tmp_path: Path) -> None:
    """It is here, takes every task and never answers; the transport takes it to be free again after 400 s."""
    agreement = agreed("fedper", rounds=5, epochs=1, deadline=600.0, gather=10.0, patience=100.0)
    trial = Trial(tmp_path, agreement, site_b=Behaviour(takes=1e9, forgotten=400.0))
    trial.run()
    assert [note_of(line).unanswered for line in trial.lines if "site-b" in note_of(line).asked]
    seconds = [line.seconds.total for line in trial.lines if "site-b" in note_of(line).asked]
    assert seconds == pytest.approx([600.0, 300.0], abs=1.0)


@pytest.mark.parametrize("last", [True, False])
def test_an_answer_that_cannot_be_read_does_not_cost_its_site_the_next_round(last: bool, tmp_path: Path) -> None:
    """It once left its site out of the next round if it was the last to come."""
    takes = 5.0 if last else 1.0
    unread = Answer(SITES.index("site-b"), "work", "its message is refused: nobody can read it", replied=True)
    trial = Trial(tmp_path, site_b=Behaviour(takes=takes, instead={2: unread}))
    trial.run()
    assert [note_of(line).answered for line in trial.lines] == [list(SITES), ["site-a", "site-c"], *[list(SITES)] * 2]
    assert [round for name, round in trial.network.asked if name == "site-b"] == [1, 2, 3, 4]


@pytest.mark.thorough
def test_a_site_that_becomes_slower_is_missed_once(tmp_path: Path) -> None:
    """Its late answer tells how slow it is now."""
    agreement = agreed("fedper", rounds=20, epochs=1, deadline=600.0, gather=10.0)
    trial = Trial(tmp_path, agreement, site_b=Behaviour(slow=dict.fromkeys(range(3, 21), 80.0)))
    trial.run()
    missed = [line.round for line in trial.lines if "site-b" in note_of(line).unanswered]
    asked = [round for name, round in trial.network.asked if name == "site-b"]
    assert missed == [3]
    assert asked[:3] == [1, 2, 3]
    assert asked[3:] == list(range(asked[3], 21))  # from the next question on it answers in time


@pytest.mark.thorough
def test_the_deadline_can_be_raised_while_a_round_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = agreed("fedper", rounds=3, deadline=30.0, gather=10.0)
    path = tmp_path / "federation.toml"
    path.write_text(agreement.toml())
    trial = Trial(tmp_path, agreement, site_b=Behaviour(takes=45.0))
    original = trial.network.sleep

    def sleep(seconds: float) -> None:
        original(seconds)
        if trial.network.now > 20 and path.read_text() == agreement.toml():
            path.write_text(replace(agreement, deadline=100.0).toml())

    monkeypatch.setattr(trial.network, "sleep", sleep)
    with caplog.at_level(logging.INFO, logger="coterie"):
        trial.run(LiveTerms(agreement, path))
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 3
    assert "federation.toml has changed: deadline = 100.0 (was 30.0)" in caplog.text


def test_other_terms_cannot_change_while_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agreement = Agreement(name="trial", sites=SITES, shape=(4,), classes=2)
    path = tmp_path / "federation.toml"
    path.write_text(agreement.toml())
    terms = LiveTerms(agreement, path)
    path.write_text(replace(agreement, lr=0.5, deadline=1.0).toml())
    assert terms.now() is agreement
    assert "changed in more than waiting times" in caplog.text
    path.write_text("deadline = ")
    assert terms.now() is agreement
    assert "cannot be used" in caplog.text
    path.unlink()
    assert terms.now() is agreement
    path.write_text(replace(agreement, patience=7.0).toml())
    assert terms.now().patience == 7.0


def test_who_gives_up_says_who_is_at_work_and_who_is_not_here(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=3, deadline=30.0, gather=10.0, patience=100.0, least_sites=2)
    trial = Trial(tmp_path, agreement, site_b=Behaviour(takes=1e6), site_c=Behaviour(goes=3.0))
    with pytest.raises(
        CoterieError, match=r"round 1: 1 of at least 2 sites answered within 130 s; at work: site-b \(1"
    ):
        trial.run()
    assert "not here: site-c" in trial.status["message"]
    assert trial.server.federation.round == 0


@pytest.mark.thorough
def test_what_is_asked_again_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = agreed("fedcac", rounds=4, deadline=30.0, gather=10.0)
    trained: list[int] = []
    do_work = at_site.do_work

    def counting(worker: Any, federation: Any, client: int, *rest: Any) -> Any:
        trained.append(client)
        return do_work(worker, federation, client, *rest)

    close = Server.close_round

    def killed(self: Server) -> Any:
        if self.federation.round == 3:
            raise KilledError
        return close(self)

    monkeypatch.setattr(at_site, "do_work", counting)
    monkeypatch.setattr(Server, "close_round", killed)
    with pytest.raises(KilledError):
        Trial(tmp_path, agreement).run()
    monkeypatch.setattr(Server, "close_round", close)
    again = Trial(tmp_path, agreement)
    again.run()
    assert ("site-a", 3) in again.network.asked
    assert Counter(trained) == {0: 4, 1: 4, 2: 4}
    whole = Trial(tmp_path / "whole", agreement)
    whole.run()
    assert torch.equal(again.server.federation["model"].own, whole.server.federation["model"].own)


def test_another_task_of_the_same_round_is_trained(tmp_path: Path) -> None:
    together = Together(agreed("fedper"), tmp_path)
    together.admit()
    task = together.server.open_round(list(SITES))["site-a"]
    site = together.sites["site-a"]
    first, again = site.work(task), site.work(task)
    assert again.note["seconds"] == first.note["seconds"]
    other = site.work(replace(task, note=task.note | {"rounds_taken": 1}))
    assert other.note["seconds"] != first.note["seconds"]
    (site.store.path / "round-00001.safetensors").unlink()
    assert site.work(task).note["seconds"] != first.note["seconds"]  # what came of it is gone


def test_an_answer_that_cannot_be_kept_is_sent_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Together(agreed("local"), tmp_path)
    together.admit()
    task = together.server.open_round(list(SITES))["site-a"]
    site = together.sites["site-a"]
    assert site.work(task).note == site.work(task).note  # nothing to send is kept, too

    def full(self: Store, *_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "keep_answer", full)
    answer = together.sites["site-b"].work(replace(task, note=task.note | {"client": 1}))
    assert answer.note["diverged"] is False


def test_after_a_restart_the_server_waits_for_those_who_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = agreed("fedper", rounds=4, deadline=30.0, gather=5.0)
    close = Server.close_round

    def killed(self: Server) -> Any:
        if self.federation.round == 3:
            raise KilledError
        return close(self)

    monkeypatch.setattr(Server, "close_round", killed)
    with pytest.raises(KilledError):
        Trial(tmp_path, agreement).run()
    monkeypatch.setattr(Server, "close_round", close)
    again = Trial(tmp_path, agreement, site_b=Behaviour(comes=70.0), site_c=Behaviour(comes=80.0))
    again.run()
    assert [note_of(line).answered for line in again.lines] == [list(SITES)] * 4


def test_a_full_disk_is_waited_for_and_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = agreed("fedper", rounds=3, deadline=30.0, gather=10.0, patience=100.0)
    trial, failures = Trial(tmp_path, agreement), [OSError(errno.ENOSPC, "No space left on device")] * 4
    write = files.write_whole

    def full(path: Path, content: bytes) -> None:
        if trial.server.federation.round == 2 and failures and path.parent.name == "checkpoints":
            raise failures.pop()
        write(path, content)

    monkeypatch.setattr(tensors, "write_whole", full)
    trial.run()
    assert not failures
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 3
    assert set(Counter(trial.network.asked).values()) == {1}
    assert caplog.text.count("cannot be written to (No space left on device); make room, it goes on then") == 1


def test_half_a_line_and_half_a_file_are_not_left_behind(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "status.json.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(tmp_path / "status.json", b"x" * 10)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "rounds.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        directory.RunDirectory(tmp_path).add_line(
            Line(round=1, cohort=[], seconds=Seconds(0, 0, 0), bytes=Travelled(0, 0))
        )
    store = Store(tmp_path, "trial", "a", "fingerprint")
    (store.path / "round-00001.safetensors.partial").touch()
    Store(tmp_path, "trial", "a", "fingerprint")
    assert list(store.path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "pfedsim"])
def test_sites_that_are_asked_later_in_a_round_are_owed_the_same(method: str, tmp_path: Path) -> None:
    found = []
    for late in ((), ("site-b",)):
        together = Together(agreed(method, rounds=3), tmp_path / str(len(late)))
        together.admit()
        for _ in range(3):
            tasks = together.server.open_round([name for name in SITES if name not in late])
            tasks |= together.server.ask_more([*late, "site-a"])  # once more, where nothing came
            for name, task in tasks.items():
                together.server.receive(name, together.answer(name, task))
            assert together.server.close_round().answered == list(SITES)
        found.append(together.server.federation["model"])
    torch.testing.assert_close(found[0].shared, found[1].shared)
    torch.testing.assert_close(found[0].own, found[1].own)


def test_whoever_is_waited_for_is_said_within_fifteen_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agreement = agreed("fedper", rounds=2, deadline=300.0, gather=40.0, patience=100.0)
    trial = Trial(tmp_path, agreement, site_b=Behaviour(comes=20.0, slow={1: 50.0}))
    with caplog.at_level(logging.INFO, logger="coterie"):
        trial.run()
    assert "waiting for the sites; not here: site-b" in caplog.text
    assert "round 1: 2 of 3 are done; at work: site-b (15 s)" in caplog.text
    assert "round 1: 2 of 3 are done; at work: site-b (45 s)" in caplog.text
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 2


def test_a_task_that_cannot_be_sent_now_is_sent_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tmp_path, agreed("fedper", rounds=3, deadline=30.0, gather=10.0))
    send, failed = trial.network.send, list[str]()

    def sometimes(node: int, purpose: Purpose, content: Packed, seconds: float) -> None:
        name = SITES[node]
        round = trial.server.federation.round
        if purpose == "work" and name == "site-b" and round == 2 and len(failed) < 3:
            failed.append(name)
            raise UnsentError("not now")
        send(node, purpose, content, seconds)

    monkeypatch.setattr(trial.network, "send", sometimes)
    trial.run()
    assert len(failed) == 3
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 3
