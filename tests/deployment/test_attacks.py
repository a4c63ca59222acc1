"""Attacks on a real federation, each from where its attacker would stand. All are refused, and seen in an audit log."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from test_front import signed

from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.app import agreed, app_hash, packed_app
from coterie.deployment.flower.folder import write_app
from coterie.deployment.flower.keys import Keys, accept_key, make_keys, make_site_key
from coterie.deployment.flower.link import CONNECTION, Link
from coterie.deployment.flower.node import Node
from coterie.deployment.flower.processes import environment, flower_command
from coterie.deployment.flower.proxy import MOST_BYTES
from coterie.experiment.directory import LOG
from support import PATIENCE, eventually

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = pytest.mark.real

EVIL = """
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

Path({marker!r}).touch()
app = {kind}()
"""
EVIL_SERVER = """

@app.main()
def main(grid, context):
    nodes = [info.node_id for info in grid.get_nodes()]
    messages = [Message(RecordDict(), dst_node_id=node, message_type="query.hello", ttl=600.0) for node in nodes]
    grid.push_messages(messages)
    Path(context.run_config["sent"]).write_text(str(nodes))
    import time
    time.sleep(600)
"""


@dataclass
class Ground:
    """A server with one site that is connected to it."""

    folder: Path
    link: Link
    keys: Keys
    node: Node

    def outsider(self, *words: str) -> dict[str, Any]:
        """What Flower's own command line gets from the port that the network sees."""
        home = self.folder / "outsider"
        home.mkdir(exist_ok=True)
        trust = {"root-certificates": str(self.keys.authority)}
        settings = {"superlink": {"default": "x", "x": {"address": self.link.address, **trust}}}
        (home / "config.toml").write_text(tomli_w.dumps(settings))
        command = [flower_command("flwr"), *words, "--format", "json"]
        done = subprocess.run(command, env=environment(home), cwd=home, capture_output=True, text=True)
        return dict(json.loads(done.stdout))

    def evil_app(self, marker: Path) -> Path:
        """An app that leaves a mark wherever it runs."""
        app = self.folder / "evil"
        write_app(app, agreement())
        for side, kind in (("client", "ClientApp"), ("server", "ServerApp")):
            text = EVIL.format(marker=f"{marker}.{side}", kind=kind) + (EVIL_SERVER if side == "server" else "")
            (app / "coterie_app" / f"{side}.py").write_text(text)
        project = (app / "pyproject.toml").read_text()
        (app / "pyproject.toml").write_text(f'{project}sent = ""\n')
        return app

    def refusals(self, audit: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in audit.read_text().splitlines()] if audit.exists() else []


def agreement() -> Agreement:
    return Agreement(name="attacked", sites=("site-a",), shape=(1, 8, 8), classes=10, model="mlp", rounds=1)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("attacked")
    np.savez(folder / "a.npz", x=np.zeros((20, 8, 8), np.float32), y=np.arange(20) % 10)
    make_keys(folder / "keys")
    keys = Keys(folder / "keys")
    accept_key(keys, "site-a", make_site_key(folder / "site-a"))
    with Link(folder / "server", keys) as link:
        link.admit(keys.accepted(["site-a"]))
        link.open()
        settings = {"name": "site-a", "data": str(folder / "a.npz"), "state": str(folder / "state")}
        node = Node(folder / "state" / "site-a", link.address, settings, folder / "site-a", keys.authority)
        write_app(folder / "app", agreement())
        node.agree_only(packed_app(folder / "app"))
        with node:
            node.wait_accepted(PATIENCE)
            yield Ground(folder, link, keys, node)


def test_nobody_outside_can_start_a_run(ground: Ground, tmp_path: Path) -> None:
    app = ground.evil_app(tmp_path / "evil")
    answer = ground.outsider("run", str(app))
    assert not answer["success"]
    assert not list(tmp_path.iterdir())
    assert ground.link.live_runs() == []
    seen = [line for line in ground.refusals(ground.link.audit) if line["path"].startswith("/v1/control/")]
    assert {(line["path"], line["reason"]) for line in seen} == {("/v1/control/start-run", "not for sites")}


def test_nobody_outside_can_register_a_node(ground: Ground, tmp_path: Path) -> None:
    make_site_key(tmp_path / "key")
    answer = ground.outsider("supernode", "register", str(tmp_path / "key.pub"), "x", "--name", "site-a")
    assert not answer["success"]
    assert len(ground.link.flower("supernode", "list", CONNECTION)["nodes"]) == 1
    assert any(line["path"] == "/v1/control/register-node" for line in ground.refusals(ground.link.audit))


@pytest.mark.parametrize("path", ["/v1/fleet/push-object", "/v1/control/start-run", "/"])
def test_half_a_gigabyte_is_refused(ground: Ground, path: str) -> None:
    """Even of a site that has a key, and says nothing of how much will come."""
    piece, host = bytes(1 << 20), ground.link.address
    trust = ssl.create_default_context(cafile=str(ground.keys.authority))
    connection = http.client.HTTPSConnection(host, timeout=PATIENCE, context=trust)
    headers = {name.replace("_", "-"): text for name, text in signed(ground.folder / "site-a").items()}
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
    reasons = [line["reason"] for line in ground.refusals(ground.link.audit) if line["path"] == path]
    assert reasons[-1] == ("a body of more than 16,777,216 bytes" if "fleet" in path else "not for sites")
    front = ground.link.process("front").pid
    (peak,) = [line for line in Path(f"/proc/{front}/status").read_text().splitlines() if line.startswith("VmHWM")]
    assert int(peak.split()[1]) < 300_000, peak


def test_a_site_runs_no_app_that_it_has_not_agreed_to(ground: Ground, tmp_path: Path) -> None:
    """Whoever holds the server can start any run there; the sites do not take part."""
    app = ground.evil_app(tmp_path / "evil")
    mark = app_hash(packed_app(app))
    run = ground.link.run(app, {"sent": str(tmp_path / "sent")})
    try:
        assert eventually(lambda: bool(ground.refusals(ground.node.audit))), ground.node.log.read_text()
        assert len(json.loads((tmp_path / "sent").read_text())) == 1
        (line,) = ground.refusals(ground.node.audit)
        assert (line["path"], line["hash"], line["server"]) == ("/v1/fleet/get-run", mark, ground.link.address)
        told: list[str] = []
        ground.node.pass_on(told.append)
        assert f"REFUSED: the server wants to run the app {mark}, to which this site has not agreed" in told
        assert eventually(lambda: "Ignoring message" in ground.node.process.said())
        assert (tmp_path / "evil.server").exists(), "the run itself is real"
        assert not (tmp_path / "evil.client").exists()
        assert ground.node.process.code is None
        assert agreed(ground.node.agreed, mark) is None
    finally:
        ground.link.stop_run(run)


def test_other_users_of_the_machine_get_no_task(ground: Ground) -> None:
    """The SuperNode's interface on loopback is open to all who have an account; it asks for a secret."""
    trust = ssl.create_default_context(cafile=str(ground.node.loopback.authority))
    connection = http.client.HTTPSConnection("127.0.0.1", ground.node.port, timeout=PATIENCE, context=trust)
    connection.request("POST", "/v1/runtime/acquire-task", b"", {"content-type": "application/protobuf"})
    assert connection.getresponse().status in (401, 403)
    connection.close()


def test_state_is_for_its_owner_alone(ground: Ground) -> None:
    for folder in (ground.link.folder, ground.node.folder, ground.keys.folder):
        assert folder.stat().st_mode & 0o777 == 0o700
    for secret in (ground.link.secret, ground.node.secret, ground.link.audit, ground.node.loopback.key):
        assert secret.stat().st_mode & 0o777 == 0o600


def test_a_node_that_somebody_registered_is_removed_at_the_next_start(ground: Ground, tmp_path: Path) -> None:
    """By the private port, as a user of the server's machine could."""
    make_site_key(tmp_path / "key")
    words = ("supernode", "register", str(tmp_path / "key.pub"), CONNECTION, "--name", "site-a")
    node = ground.link.flower(*words)["node-id"]
    fresh, gone = ground.link.admit(ground.keys.accepted(["site-a"]))
    assert (fresh, gone) == ([], [f"node {node}, which nobody here registered,"])
    assert ground.node.process.code is None, "the site itself stays"


@pytest.mark.slow
def test_a_second_node_under_a_live_name_does_not_end_an_insecure_run(tmp_path: Path) -> None:
    terms: dict[str, Any] = {"deadline": 600.0, "gather": 600.0, "epochs": 1, "batch": 10, "lr": 0.1}
    two = Agreement(
        name="two",
        sites=("site-a", "site-b"),
        shape=(1, 8, 8),
        classes=10,
        model="mlp",
        rounds=2,
        least_sites=2,
        **terms,
    )
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.random((20, 8, 8), np.float32), y=np.arange(20) % 10)
    write_app(tmp_path / "app", two)
    packed, nodes = packed_app(tmp_path / "app"), []
    with Link(tmp_path / "server", None) as link:
        link.open()
        status = http.client.HTTPConnection(link.address, timeout=PATIENCE)
        status.request("POST", "/v1/control/list-runs", b"")
        assert status.getresponse().status == 404
        (tmp_path / "two.toml").write_text(two.toml())
        link.run(tmp_path / "app", {"directory": str(tmp_path / "run"), "agreement": str(tmp_path / "two.toml")})
        try:
            for number, name in enumerate(("site-b", "site-b", "site-a")):
                state = tmp_path / f"state-{number}"
                settings = {"name": name, "data": str(tmp_path / "data.npz"), "state": str(state)}
                nodes.append(Node(state / name, link.address, settings))
                nodes[-1].agree(packed)
                nodes[-1].start()
                nodes[-1].wait_accepted(PATIENCE)
            assert eventually(lambda: '"finished"' in _read(tmp_path / "run" / "status.json"), 2 * PATIENCE), _read(
                tmp_path / "run" / LOG
            )
        finally:
            for node in nodes:
                node.terminate()
        assert "site site-b is here already, as another node" in _read(tmp_path / "run" / LOG)
        assert len(_read(tmp_path / "run" / "rounds.jsonl").splitlines()) == 2
        assert "/v1/control/list-runs" in _read(link.audit)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
