"""What a broken line swallowed: a site that is here and owes an answer for far too long can be asked again."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

from coterie.deployment.coordinator import Answer, UnsentError
from coterie.deployment.flower import server
from coterie.deployment.flower.audit import Audit
from coterie.deployment.flower.server import OVERDUE, SLOWER, FlowerTransport
from coterie.deployment.wire import Parcel, pack

NODE, OTHER = 7, 8
NOTHING = pack(Parcel())


class SilentGrid:
    """A node that is connected; what it answers, and when, is up to the test."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.replies: list[str] = []  # the numbers of messages that are answered
        self.broken = ""  # what the SuperLink says, instead of doing anything
        self.uploading, self.arrived = "", threading.Event()  # an answer of which pieces are still missing
        self.foreign: list[str] = []  # what is said to be answered, and was not asked

    def _fail(self) -> None:
        if self.broken:
            raise RuntimeError(self.broken)

    def get_nodes(self) -> list[Any]:
        self._fail()
        return [SimpleNamespace(node_id=node, name=name) for node, name in ((NODE, "site-a"), (OTHER, "site-b"))]

    def push_messages(self, messages: list[Any]) -> list[str]:
        self._fail()
        self.sent += [f"message {len(self.sent) + number}" for number in range(len(messages))]
        return self.sent[-len(messages) :]

    def pull_messages(self, numbers: list[str]) -> list[Any]:
        self._fail()
        if self.uploading in numbers:
            self.arrived.wait()
        found = [number for number in self.replies if number in numbers]
        self.replies = [number for number in self.replies if number not in found]
        told = [SimpleNamespace(reply_to_message_id=number, src_node_id=9) for number in (*self.foreign, *found)]
        self.foreign = []
        error = SimpleNamespace(code=0)
        return [SimpleNamespace(metadata=one, has_error=lambda: True, error=error) for one in told]


class Line:
    """The transport, its grid, and a clock that the test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.grid = 0.0, SilentGrid()
        monkeypatch.setattr(server.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(server, "Message", lambda *_, **__: None)
        self.transport = FlowerTransport(cast(Any, self.grid), 1000)

    def ask(self, node: int = NODE) -> None:
        self.transport.send(node, "work", NOTHING, 1e6)

    def answers(self, count: int) -> list[Answer]:
        """So many answers, as soon as they are there; a moment later no more are."""
        found = self.transport.answers()
        for _ in range(200):
            if len(found) >= count > 0:
                break
            time.sleep(0.01 if count else 0.002)
            found += self.transport.answers()
        return found

    @property
    def free(self) -> bool:
        return NODE in self.transport.nodes()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(monkeypatch)


def test_a_node_is_free_again_when_its_message_must_be_lost_and_each_time_later(line: Line) -> None:
    assert line.free
    for times in (1, 2, 4):
        line.ask()
        line.now += times * OVERDUE
        assert not line.free
        line.now += 1
        assert line.free
    line.ask()
    line.grid.replies = [line.grid.sent[-1]]
    assert [answer.node for answer in line.answers(1)] == [NODE]
    line.ask()
    line.now += OVERDUE + 1
    assert line.free, "an answer makes up for it"


def test_what_it_is_sent_then_takes_the_place_of_what_it_owes(line: Line) -> None:
    line.ask()
    line.now += OVERDUE + 1
    line.ask()
    line.grid.replies = line.grid.sent[:1]  # it had not been lost after all
    assert line.answers(0) == []
    assert not line.free
    line.grid.replies = line.grid.sent[1:]
    assert len(line.answers(1)) == 1
    assert line.free


def test_slow_sites_have_longer(line: Line) -> None:
    line.ask()
    line.now += OVERDUE - 1
    line.grid.replies = line.grid.sent[:]
    assert len(line.answers(1)) == 1
    line.ask()
    line.now += SLOWER * (OVERDUE - 1)
    assert not line.free
    line.now += 1
    assert line.free


def test_what_replies_to_nothing_that_was_asked_is_left_aside(line: Line, tmp_path: Path) -> None:
    """An empty message to the server's node once ended the run with a KeyError."""
    transport = FlowerTransport(cast(Any, line.grid), 1000, audit=Audit(tmp_path / "audit.jsonl"))
    transport.send(NODE, "work", NOTHING, 1e6)
    line.grid.foreign = ["", "message 99"]
    line.grid.replies = line.grid.sent[:]
    line.transport = transport
    assert [answer.node for answer in line.answers(1)] == [NODE]
    assert line.answers(0) == []
    noted = [json.loads(text) for text in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [text["reason"] for text in noted if text["event"] == "refused"] == ["it replies to what was not asked"] * 2


def test_a_site_that_is_slow_to_upload_keeps_nobody_waiting(line: Line) -> None:
    """One that crashed while it uploaded once stopped everybody for three minutes."""
    line.ask()
    line.ask(OTHER)
    line.grid.uploading, line.grid.replies = line.grid.sent[0], line.grid.sent[:]
    assert [answer.node for answer in line.answers(1)] == [OTHER]
    assert line.answers(0) == []
    line.grid.arrived.set()
    assert [answer.node for answer in line.answers(1)] == [NODE]


def test_what_the_carrier_cannot_do_now_is_said_once_and_tried_again(
    line: Line, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, on which the SuperLink answers with an error of its own, once ended the run."""
    monkeypatch.setattr(server, "AFTER_TROUBLE", 0.01)
    assert line.transport.nodes() == {NODE: "site-a", OTHER: "site-b"}
    line.ask()
    with caplog.at_level(logging.INFO, logger="coterie"):
        line.grid.broken = "500 Internal Server Error"
        for _ in range(3):
            assert line.transport.nodes() == {OTHER: "site-b"}, "as far as is known"
            with pytest.raises(UnsentError, match="Flower cannot carry it now"):
                line.ask(OTHER)
        time.sleep(0.2)
        assert line.transport.answers() == []
        line.grid.broken, line.grid.replies = "", line.grid.sent[:]
        assert [answer.node for answer in line.answers(1)] == [NODE]
        assert line.transport.nodes() == {NODE: "site-a", OTHER: "site-b"}
    assert caplog.text.count("does not carry messages now (500 Internal Server Error)") == 1
    assert caplog.text.count("carries messages again") == 1
