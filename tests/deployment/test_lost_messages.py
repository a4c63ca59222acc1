"""What a broken line swallowed: a site that is here and owes an answer for far too long can be asked again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

from coterie.deployment.flower import server
from coterie.deployment.flower.audit import Audit
from coterie.deployment.flower.server import OVERDUE, SLOWER, FlowerTransport
from coterie.deployment.wire import Parcel, pack

NODE = 7
NOTHING = pack(Parcel())


class SilentGrid:
    """A node that is connected; what it answers, and when, is up to the test."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.replies: list[str] = []  # the numbers of messages that are answered
        self.foreign: list[str] = []  # what is said to be answered, and was not asked

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=NODE, name="site-a")]

    def push_messages(self, messages: list[Any]) -> list[str]:
        self.sent += [f"message {len(self.sent) + number}" for number in range(len(messages))]
        return self.sent[-len(messages) :]

    def pull_messages(self, numbers: list[str]) -> list[Any]:
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

    def ask(self) -> None:
        self.transport.send(NODE, "work", NOTHING, 1e6)

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
    assert [answer.node for answer in line.transport.answers()] == [NODE]
    line.ask()
    line.now += OVERDUE + 1
    assert line.free, "an answer makes up for it"


def test_what_it_is_sent_then_takes_the_place_of_what_it_owes(line: Line) -> None:
    line.ask()
    line.now += OVERDUE + 1
    line.ask()
    line.grid.replies = line.grid.sent[:1]  # it had not been lost after all
    assert line.transport.answers() == []
    assert not line.free
    line.grid.replies = line.grid.sent[1:]
    assert len(line.transport.answers()) == 1
    assert line.free


def test_slow_sites_have_longer(line: Line) -> None:
    line.ask()
    line.now += OVERDUE - 1
    line.grid.replies = line.grid.sent[:]
    assert len(line.transport.answers()) == 1
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
    assert [answer.node for answer in transport.answers()] == [NODE]
    assert transport.answers() == []
    noted = [json.loads(text) for text in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [text["reason"] for text in noted if text["event"] == "refused"] == ["it replies to what was not asked"] * 2
