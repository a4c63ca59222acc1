"""The audit logs of a server and a site: both tell of the same messages, by the same hashes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

from flwr.app import Context, Message, Metadata, RecordDict

from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.audit import Audit, broken_links
from coterie.deployment.flower.client import client_app
from coterie.deployment.flower.server import FlowerTransport
from coterie.deployment.messages import Packed
from coterie.deployment.resident import SiteSettings
from coterie.deployment.wire import Parcel, pack
from coterie.testing.together import SITES, agreed, site_data
from residents import resident_in_a_thread
from support import eventually

SITE, NODE = "site-a", 7


class LocalGrid:
    """Flower's grid with one node, whose app answers at once."""

    def __init__(self, agreement: Agreement, folder: Path, data: Path) -> None:
        path = folder / "federation.toml"
        path.write_text(agreement.toml())
        settings = SiteSettings(SITE, str(data), str(folder))
        own = {"resident": str(resident_in_a_thread(folder, settings)), "audit": str(folder / "site.jsonl")}
        self._app = client_app(path)
        self._context = Context(run_id=1, node_id=NODE, node_config=own, state=RecordDict(), run_config={})
        self._replies: list[Message] = []

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=NODE, name=SITE)]

    def push_messages(self, messages: list[Message]) -> list[str]:
        self._replies += [self._app(message, self._context) for message in messages]
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, _: list[str]) -> list[Message]:
        found, self._replies = self._replies, []
        return found


def as_within_a_run(content: Any, reply_to: Message | None = None, **about: Any) -> Message:
    """A message as Flower makes it where a run is under way."""
    if reply_to is not None:
        return Message(content, reply_to=reply_to)
    known = {"message_id": "1", "reply_to_message_id": "", "group_id": "", "created_at": time.time()}
    return Message(content=content, metadata=Metadata(run_id=1, src_node_id=1, **cast(Any, known | about)))


@pytest.fixture(autouse=True)
def run_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.deployment.flower.server.Message", as_within_a_run)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def asked(folder: Path, content: Packed, data: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What server and site wrote down when the server asked for a hello."""
    grid = LocalGrid(agreed("fedper"), folder, data)
    transport = FlowerTransport(cast(Any, grid), 1000, SITES, Audit(folder / "server.jsonl"))
    assert transport.nodes() == {NODE: SITE}
    transport.send(NODE, "hello", content, 60.0)
    assert eventually(lambda: bool(transport.answers()))
    return lines(folder / "server.jsonl"), lines(folder / "site.jsonl")


def test_what_left_a_site_is_what_came_to_the_server(tmp_path: Path) -> None:
    own = site_data(0, 23)
    np.savez(tmp_path / "own.npz", x=own.inputs.numpy(), y=own.labels.numpy())
    content = pack(Parcel())
    server, site = asked(tmp_path, content, tmp_path / "own.npz")
    assert [(line["event"], line["site"], line["purpose"]) for line in server] == [
        ("asked", SITE, "hello"),
        ("answered", SITE, "hello"),
    ]
    assert [line["event"] for line in site] == ["asked", "left"]
    assert [line["sha256"] for line in server] == [line["sha256"] for line in site]
    assert site[0]["sha256"] == content.digest
    assert site[0]["sha256"] != site[1]["sha256"]
    assert all(line["time"].endswith("+00:00") for line in server + site)


def test_of_an_error_the_code_leaves_and_nothing_else(tmp_path: Path) -> None:
    server, site = asked(tmp_path, pack(Parcel()), tmp_path / "patients-with-a-diagnosis.npz")
    assert (server[-1]["event"], site[-1]["event"]) == ("answered", "left")
    assert server[-1]["error"] == site[-1]["error"]
    assert "diagnosis" not in json.dumps(server + site)


def test_a_line_that_is_changed_or_taken_out_shows(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(5):
        Audit(path).note("asked", number=number)  # by one process or another
    whole = path.read_bytes()
    assert broken_links(whole) == []
    lines = whole.splitlines(keepends=True)
    assert broken_links(b"".join(lines[:2] + lines[3:])) == [3]
    assert broken_links(whole.replace(b'"number": 1', b'"number": 7')) == [3]
    assert broken_links(b"".join(lines[1:])) == [1]
    path.write_bytes(whole + b'{"time": "2026')  # torn by a power cut
    Audit(path).note("asked", number=5)
    assert broken_links(path.read_bytes()) == [6], "the torn line itself follows none"
    path.rename(tmp_path / "audit.jsonl.1")
    Audit(path).note("asked", number=6)
    assert broken_links(path.read_bytes()) == []


def test_lines_of_several_processes_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    threads = [Thread(target=lambda: [Audit(path).note("asked", number=n) for n in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(path)) == 200
    assert broken_links(path.read_bytes()) == []
