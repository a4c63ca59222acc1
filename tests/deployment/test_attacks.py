"""Attacks on a real federation, each from where its attacker would stand. All are refused, and seen in an audit log."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from test_gateway import FOREIGN, signed

from coterie.deployment.flower.keys import make_site_key
from coterie.deployment.flower.processes import environment, flower_command
from coterie.deployment.flower.proxy import MOST_BYTES
from coterie.deployment.flower.relay import agreed, app_hash, packed_app
from coterie.deployment.flower.server_processes import CONNECTION
from coterie.deployment.flower.site_processes import SiteProcesses
from grounds import SITES, Ground
from support import PATIENCE, eventually

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = pytest.mark.real


def outsider(ground: Ground, *words: str) -> dict[str, Any]:
    """What Flower's own command line gets from the port that the network sees."""
    home = ground.folder / "outsider"
    home.mkdir(exist_ok=True)
    trust = {"root-certificates": str(ground.keys.authority)}
    settings = {"superlink": {"default": "x", "x": {"address": ground.link.address, **trust}}}
    (home / "config.toml").write_text(tomli_w.dumps(settings))
    command = [flower_command("flwr"), *words, "--format", "json"]
    done = subprocess.run(command, env=environment(home), cwd=home, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def refusals(audit: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in audit.read_text().splitlines()] if audit.exists() else []
    return [line for line in lines if line["event"] == "refused"]


def test_nobody_outside_can_start_a_run(ground: Ground, tmp_path: Path) -> None:
    app, before = ground.strange_app(tmp_path / "from-outside"), ground.link.live_runs()
    answer = outsider(ground, "run", str(app))
    assert not answer["success"]
    assert not list(tmp_path.iterdir())
    assert ground.link.live_runs() == before
    seen = [line for line in refusals(ground.link.audit) if line["path"].startswith("/v1/control/")]
    assert {(line["path"], line["reason"]) for line in seen} == {("/v1/control/start-run", "not for sites")}


def test_nobody_outside_can_register_a_node(ground: Ground, tmp_path: Path) -> None:
    make_site_key(tmp_path / "key")
    before = ground.link.flower("supernode", "list", CONNECTION)["nodes"]
    answer = outsider(ground, "supernode", "register", str(tmp_path / "key.pub"), "x", "--name", "site-a")
    assert not answer["success"]
    after = ground.link.flower("supernode", "list", CONNECTION)["nodes"]
    assert [node["node-id"] for node in after] == [node["node-id"] for node in before]
    assert any(line["path"] == "/v1/control/register-node" for line in refusals(ground.link.audit))


HALF_A_GIGABYTE = {
    "/v1/fleet/pull-object": "a body of more than 16,777,216 bytes",
    "/v1/fleet/push-object": "more than an answer has",
    "/v1/control/start-run": "not for sites",
    "/": "not for sites",
}


@pytest.mark.parametrize("path", HALF_A_GIGABYTE)
def test_half_a_gigabyte_is_refused(ground: Ground, path: str) -> None:
    """Even of a site that has a key, and says nothing of how much will come."""
    piece, host = bytes(1 << 20), ground.link.address
    trust = ssl.create_default_context(cafile=str(ground.keys.authority))
    connection = http.client.HTTPSConnection(host, timeout=PATIENCE, context=trust)
    headers = {name.replace("_", "-"): text for name, text in signed(ground.key("site-a")).items()}
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(500):
            yield piece
            sent += len(piece)

    with suppress(OSError):  # the connection is closed under its hands
        connection.request("POST", path, body(), headers, encode_chunked=True)
    connection.close()
    assert sent < 4 * MOST_BYTES
    reasons = [line["reason"] for line in refusals(ground.link.audit) if line["path"] == path]
    assert reasons[-1] == HALF_A_GIGABYTE[path]
    gateway = ground.link.process("gateway").pid
    (peak,) = [line for line in Path(f"/proc/{gateway}/status").read_text().splitlines() if line.startswith("VmHWM")]
    assert int(peak.split()[1]) < 300_000, peak


def test_a_site_runs_no_app_that_it_has_not_agreed_to(ground: Ground, tmp_path: Path) -> None:
    """Whoever holds the server can start any run there; the sites do not take part."""
    app, nodes = ground.strange_app(tmp_path / "evil"), [ground.nodes[name] for name in SITES]
    mark = app_hash(packed_app(app))
    run = ground.link.run(app, {"sent": str(tmp_path / "sent")})
    try:
        for node in nodes:
            assert eventually(lambda node=node: bool(refusals(node.audit))), node.log.read_text()
            (line,) = refusals(node.audit)
            assert (line["path"], line["hash"], line["server"]) == ("/v1/fleet/get-run", mark, ground.link.address)
            told: list[str] = []
            refused = f"REFUSED: the server wants to run the app {mark}, to which this site has not agreed"

            def is_told(node: SiteProcesses = node, told: list[str] = told, refused: str = refused) -> bool:
                """The relay's words come a moment after its audit line: through a pipe, to its log."""
                node.pass_on(told.append)
                return refused in told

            assert eventually(is_told), told
            assert eventually(lambda node=node: "Ignoring message" in node.process.said())
            assert node.process.code is None
            assert agreed(node.agreed, mark) is None
        sent = tmp_path / "sent"  # the app's own word, which comes after its messages
        assert eventually(lambda: sent.exists() and bool(sent.read_text()))
        assert len(json.loads(sent.read_text())) == len(SITES)
        assert (tmp_path / "evil.server").exists(), "the run itself is real"
        assert not (tmp_path / "evil.client").exists()
    finally:
        ground.link.stop_run(run)


def test_other_users_of_the_machine_get_no_task(ground: Ground) -> None:
    """The SuperNode's interface on loopback is open to all who have an account; it asks for a secret."""
    node = ground.nodes["site-a"]
    trust = ssl.create_default_context(cafile=str(node.loopback.authority))
    connection = http.client.HTTPSConnection("127.0.0.1", node.port, timeout=PATIENCE, context=trust)
    connection.request("POST", "/v1/runtime/acquire-task", b"", {"content-type": "application/protobuf"})
    assert connection.getresponse().status in (401, 403)
    connection.close()


def test_state_is_for_its_owner_alone(ground: Ground) -> None:
    node = ground.nodes["site-a"]
    for folder in (ground.link.folder, node.folder, ground.keys.folder):
        assert folder.stat().st_mode & 0o777 == 0o700
    for secret in (ground.link.secret, node.secret, ground.link.audit, node.loopback.key):
        assert secret.stat().st_mode & 0o777 == 0o600


def test_a_node_that_somebody_registered_is_removed_at_the_next_start(ground: Ground, tmp_path: Path) -> None:
    """By the private port, as a user of the server's machine could."""
    make_site_key(tmp_path / "key")
    words = ("supernode", "register", str(tmp_path / "key.pub"), CONNECTION, "--name", "site-a")
    node = ground.link.flower(*words)["node-id"]
    fresh, gone = ground.link.admit(ground.keys.accepted(ground.data))
    assert (fresh, gone) == ([], [f"node {node}, which nobody here registered,"])
    assert ground.nodes["site-a"].process.code is None, "the site itself stays"


@pytest.mark.parametrize("kind", ["as if it were the server", "to what nobody was asked", "that replies to nothing"])
def test_a_member_cannot_have_others_messages_stored(ground: Ground, kind: str) -> None:
    """With its own key, past its own software: one such message gave orders to another site, or ended the run."""
    body, reason = FOREIGN[kind]
    trust = ssl.create_default_context(cafile=str(ground.keys.authority))
    connection = http.client.HTTPSConnection("127.0.0.1", ground.link.port, timeout=PATIENCE, context=trust)
    headers = {name.replace("_", "-"): text for name, text in signed(ground.key("site-c")).items()}
    connection.request("POST", "/v1/fleet/push-messages", body, headers)
    assert connection.getresponse().status == 403
    connection.close()
    lines = [json.loads(line) for line in ground.link.audit.read_text().splitlines()]
    assert any(reason in line.get("reason", "") for line in lines)
    assert ground.link.ended() is None
