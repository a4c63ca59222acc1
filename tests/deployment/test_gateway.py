"""The gateway before a SuperLink: what passes, what does not, its limits, and what it writes down."""

from __future__ import annotations

import asyncio
import base64
import datetime
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from coterie.deployment.flower import proxy as limits
from coterie.deployment.flower import site_processes, streams
from coterie.deployment.flower.audit import BURST, BURST_OF_ALL, SUMMARY, Audit
from coterie.deployment.flower.fleet import ACTIVATE, NOT_ACTIVATED
from coterie.deployment.flower.gateway import Gateway, opened
from coterie.deployment.flower.keys import Keys, accept_key, known_keys, make_keys, make_site_key
from coterie.deployment.flower.proxy import MOST_BYTES, SMALL, Gate, Head, Proxy
from coterie.deployment.flower.site_processes import clock_problem
from coterie.deployment.flower.streams import Target
from coterie.deployment.flower.wake_up import WakeUp, wake
from support import PATIENCE, eventually, reserved_port

pytestmark = pytest.mark.processes

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"
PASSES = "/v1/fleet/pull-object"
REGISTER = "/v1/fleet/register-node"


class Echo(BaseHTTPRequestHandler):
    """A SuperLink's stand-in: says what it was asked, and remembers it."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, dict[str, str], int]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        while "transfer-encoding" in self.headers and (size := int(self.rfile.readline() or b"0", 16)):
            body += self.rfile.read(size + 2)[:-2]
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, len(body)))
        if self.path.endswith("send-node-heartbeat"):
            self.send_response(307)
            self.send_header("location", "http://evil.example.org/")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(500 if self.path.endswith("confirm-message-received") else 200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("set-cookie", "a=b")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Setting:
    """A gateway, what is behind it, and its audit log."""

    def __init__(self, folder: Path, gate: Gate, keys: Keys | None = None) -> None:
        self.seen: list[tuple[str, dict[str, str], int]] = []
        self.behind = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Echo,), {"seen": self.seen}))
        self.audit = folder / "audit.jsonl"
        self.trust = None
        served = trust = None
        if keys is not None:
            served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            served.load_cert_chain(keys.certificate, keys.key)
            trust = ssl.create_default_context(cafile=str(keys.authority))
            self.behind.socket = served.wrap_socket(self.behind.socket, server_side=True)
            self.trust = trust
        target = Target("127.0.0.1", int(self.behind.server_address[1]), trust)
        self.listener = opened("127.0.0.1", 0)
        self.port = int(self.listener.getsockname()[1])
        self.wake_up = folder / "wake_up"
        self.proxy = Proxy(self.listener, target, gate, Audit(self.audit), served, WakeUp(self.wake_up))

    @contextmanager
    def running(self) -> Iterator[Setting]:
        loop = asyncio.new_event_loop()
        task = loop.create_task(self.proxy.run())

        def serve() -> None:
            asyncio.set_event_loop(loop)
            with pytest.raises(asyncio.CancelledError):
                loop.run_until_complete(task)

        threads = [threading.Thread(target=serve), threading.Thread(target=self.behind.serve_forever, args=(0.01,))]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(task.cancel)
            self.behind.shutdown()
            for thread in threads:
                thread.join()
            self.behind.server_close()
            self.listener.close()
            loop.close()

    def connection(self) -> http.client.HTTPConnection:
        if self.trust is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=self.trust)

    def ask(self, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> tuple[int, bytes]:
        connection = self.connection()
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def raw(self, content: bytes) -> bytes:
        """What comes back for bytes as they are."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as plain:
            with suppress(ConnectionError):  # a gateway that has seen enough may close before all is sent
                plain.sendall(content)
            found = b""
            try:
                while piece := plain.recv(65536):
                    found += piece
            except ConnectionResetError:
                pass
            return found

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()] if self.audit.exists() else []


@pytest.fixture(autouse=True)
def _no_long_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LINGER", 0.05)


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with Setting(tmp_path, Gateway(None)).running() as found:
        yield found


def test_what_sites_ask_for_passes(setting: Setting) -> None:
    body = os.urandom(300_000)
    headers = {"content_type": "application/x-protobuf", "flwr_timestamp": "now", "cookie": "x", "accept": "a"}
    assert setting.ask(PASSES, body, **headers) == (200, body)
    path, passed, size = setting.seen[0]
    assert (path, size) == (PASSES, len(body))
    assert passed.items() >= {"flwr-timestamp": "now", "content-type": "application/x-protobuf", "accept": "a"}.items()
    assert "cookie" not in passed
    assert setting.lines == []


def test_a_connection_is_used_for_many_requests(setting: Setting) -> None:
    connection = setting.connection()
    for number in range(3):
        connection.request("POST", PASSES, b"x" * number)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"x" * number)
        assert "set-cookie" not in answer.headers
    connection.close()
    assert len(setting.seen) == 3


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/pull-task"),
        ("GET", PASSES),
        ("GET", "/health"),
        ("GET", "/docs"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", f"{PASSES}?x=/v1/control/start-run"),
        ("POST", f"{PASSES}/"),
        ("POST", "/V1/FLEET/pull-messages"),
        ("POST", "http://127.0.0.1/v1/control/start-run"),
        ("OPTIONS", "*"),
    ],
)
def test_everything_else_is_not_found(setting: Setting, method: str, path: str) -> None:
    assert setting.ask(path, b"x", method)[0] == 404
    assert setting.seen == []
    (line,) = setting.lines
    assert (line["peer"], line["path"], line["method"], line["reason"]) == ("127.0.0.1", path, method, "not for sites")


def test_a_claimed_length_is_refused_before_a_byte_is_read(setting: Setting) -> None:
    head = f"POST {PASSES} HTTP/1.1\r\nhost: x\r\ncontent-length: {MOST_BYTES + 1}\r\n\r\n"
    assert setting.raw(head.encode()).startswith(b"HTTP/1.1 413 ")
    assert setting.seen == []
    assert setting.lines[0]["reason"] == "a body of more than 16,777,216 bytes"


def test_a_refusal_tells_the_time(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which a site finds out that its clock is off."""
    monkeypatch.setattr(site_processes, "SECONDS", PATIENCE)  # who has no answer in time finds nothing
    assert clock_problem(f"127.0.0.1:{setting.port}", None) == ""
    assert "s ahead of the server's" in clock_problem(f"127.0.0.1:{setting.port}", None, lambda: time.time() + 3600)


def test_a_length_that_nobody_claims_is_counted(setting: Setting) -> None:
    """Chunks without end: neither kept nor passed on beyond the limit."""
    head = f"POST {PASSES} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    with socket.create_connection(("127.0.0.1", setting.port), timeout=PATIENCE) as plain:
        plain.sendall(head)
        sent = 0
        try:
            for _ in range(200):
                plain.sendall(chunk)
                sent += 1
        except OSError:
            pass
    assert eventually(lambda: bool(setting.lines))
    assert setting.lines[0]["reason"] == "a body of more than 16,777,216 bytes"
    assert not any(size > MOST_BYTES for _, _, size in setting.seen)


def test_two_lengths_or_two_signatures_are_refused(setting: Setting) -> None:
    smuggled = f"POST {PASSES} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello"
    assert setting.raw(smuggled.encode()).startswith(b"HTTP/1.1 400 ")
    twice = (
        f"POST {PASSES} HTTP/1.1\r\nhost: x\r\nflwr-public-key: a\r\nflwr-public-key: b\r\ncontent-length: 0\r\n\r\n"
    )
    assert setting.raw(twice.encode()).startswith(b"HTTP/1.1 400 ")
    assert setting.seen == []
    assert len(setting.lines) == 2


def test_a_head_without_end_is_refused(setting: Setting) -> None:
    assert setting.raw(b"POST / HTTP/1.1\r\nx: " + b"a" * 100_000).startswith(b"HTTP/1.1 431 ")
    assert b" 400 " in setting.raw(b"\x16\x03\x01 hello, this is TLS\r\n\r\n")


def test_what_a_full_disk_makes_of_a_request_is_to_be_tried_again(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 500 a SuperNode's heart stops for good, though it goes on asking; at 503 it does not."""
    assert setting.ask("/v1/fleet/confirm-message-received")[0] == 503
    assert "cannot do now what it is asked (status 500)" in capsys.readouterr().err
    assert setting.lines == []


def test_a_redirection_is_not_passed_on(setting: Setting) -> None:
    assert setting.ask("/v1/fleet/send-node-heartbeat")[0] == 502


def test_a_path_cannot_forge_a_line(setting: Setting) -> None:
    setting.raw(b'POST /a\x85\x0b"}\xe2\x80\xa8{"peer":"1.2.3.4 HTTP/1.1\r\nhost: x\r\n\r\n')
    setting.ask("/" + "long" * 1000)
    text = setting.audit.read_text()
    assert text.isascii()
    assert len(text.splitlines()) == len(setting.lines) == 2
    assert {line["peer"] for line in setting.lines} == {"127.0.0.1"}
    assert len(setting.lines[1]["path"]) == 200


def test_slow_clients_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD", 0.2)
    monkeypatch.setattr(limits, "STALL", 0.2)
    monkeypatch.setattr(streams, "STALL", 0.2)
    with Setting(tmp_path, Gateway(None)).running() as setting:
        assert setting.raw(b"POST /v1/fleet/pull") == b""
        monkeypatch.setattr(limits, "HEAD", PATIENCE)  # this head is whole, however late a busy machine sends it
        assert setting.raw(f"POST {PASSES} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc".encode()) == b""
        assert [(line["path"], line["reason"]) for line in setting.lines] == [("", "too slow"), (PASSES, "too slow")]


def test_connections_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_OF_ONE", 3)
    with Setting(tmp_path, Gateway(None)).running() as setting:
        held = [socket.create_connection(("127.0.0.1", setting.port)) for _ in range(3)]
        assert setting.raw(b"") == b""
        assert eventually(lambda: bool(setting.lines))
        assert setting.lines[0]["reason"] == "too many connections"
        for one in held:
            one.close()
        assert eventually(lambda: _passes(setting))


def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    """1,024 of them, from many addresses, once had sites' connections refused: now the oldest of them make way."""
    with Setting(tmp_path, Gateway(None)).running() as setting:
        spoken = setting.connection()
        spoken.request("POST", PASSES, b"x")
        assert spoken.getresponse().read() == b"x"
        held = []
        try:
            for number in range(1024):
                try:
                    own = (f"127.0.1.{number % 16}", 0)
                    one = socket.create_connection(("127.0.0.1", setting.port), source_address=own)
                except OSError:
                    pytest.skip("this system has one address of its own only")
                held.append(one)
            for _ in range(3):
                assert setting.ask(PASSES, b"y") == (200, b"y")
            spoken.request("POST", PASSES, b"z")
            assert spoken.getresponse().read() == b"z", "who was admitted before stays"
        finally:
            for one in held:
                one.close()
            spoken.close()
        assert {line["reason"] for line in setting.lines} <= {"silent, while others come", "too slow"}


def test_one_site_does_not_take_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_OF_SENDER", 2)
    keys = Keys(tmp_path / "keys")
    make_keys(keys.folder)
    for site in ("site-a", "site-b"):
        accept_key(keys, site, make_site_key(tmp_path / site))
    with Setting(tmp_path, Gateway(known_keys(keys)), keys).running() as setting:
        held = []
        for _ in range(2):
            held.append(setting.connection())
            held[-1].request(
                "POST",
                PASSES,
                b"x",
                {name.replace("_", "-"): text for name, text in signed(tmp_path / "site-a").items()},
            )
            assert held[-1].getresponse().read() == b"x"
        assert setting.ask(PASSES, b"x", **signed(tmp_path / "site-a"))[0] == 429
        assert setting.ask(PASSES, b"x", **signed(tmp_path / "site-b")) == (200, b"x")
        for one in held:
            one.close()
        assert eventually(lambda: setting.ask(PASSES, b"x", **signed(tmp_path / "site-a"))[0] == 200)


def _passes(setting: Setting) -> bool:
    try:
        return setting.ask(PASSES)[0] == 200
    except OSError:
        return False


def test_nobody_behind_it(setting: Setting, capfd: pytest.CaptureFixture[str]) -> None:
    there = setting.proxy.target
    with reserved_port() as port:
        setting.proxy.target = Target("127.0.0.1", port)
        for _ in range(3):
            assert setting.ask(PASSES)[0] == 502
    assert setting.lines == [], "nobody was refused"
    assert capfd.readouterr().err.count("no connection to 127.0.0.1:") == 1
    setting.proxy.target = there
    assert setting.ask(PASSES)[0] == 200
    assert capfd.readouterr().err == f"{there} answers again\n"


def test_only_known_keys_pass_and_what_is_behind_must_prove_itself(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    keys = Keys(tmp_path / "keys")
    accept_key(keys, "site-a", make_site_key(tmp_path / "site-a"))
    make_site_key(tmp_path / "stranger")
    with Setting(tmp_path, Gateway(known_keys(keys)), keys).running() as setting:
        assert setting.ask(PASSES, b"x", **signed(tmp_path / "site-a")) == (200, b"x")
        status, body = setting.ask(ACTIVATE, b"x", **signed(tmp_path / "stranger"))
        assert (status, json.loads(body)["code"]) == (404, NOT_ACTIVATED)
        assert setting.ask(PASSES, b"x")[0] == 404
        false = signed(tmp_path / "site-a") | {"flwr_timestamp": "another"}
        assert setting.ask(PASSES, b"x", **false)[0] == 404
        assert setting.ask(REGISTER, b"x", **signed(tmp_path / "site-a"))[0] == 404
        assert len(setting.seen) == 1
        assert [line["reason"] for line in setting.lines] == [
            "signed by a key that the federation does not know",
            "not signed by any key",
            "not signed by any key",
            "not for sites",
        ]
        assert setting.raw(b"GET / HTTP/1.1\r\n\r\n") == b""
        assert eventually(lambda: len(setting.lines) == 5)
        assert setting.lines[-1]["reason"].startswith("no TLS connection")
        make_keys(tmp_path / "others")
        other = ssl.create_default_context(cafile=str(Keys(tmp_path / "others").authority))
        setting.proxy.target = Target("127.0.0.1", setting.proxy.target.port, other)
        assert setting.ask(PASSES, b"x", **signed(tmp_path / "site-a"))[0] == 502


class Outbound(BaseHTTPRequestHandler):
    """A proxy such as hospitals have: it connects, and knows nothing more."""

    asked: list[str]

    def do_CONNECT(self) -> None:
        self.asked.append(f"{self.path} {self.headers.get('proxy-authorization', '')}")
        host, port = self.path.split(":")
        with socket.create_connection((host, int(port))) as far:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pass_bytes, args=(far, self.connection))
            back.start()
            _pass_bytes(self.connection, far)
            back.join()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _pass_bytes(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


def test_a_proxy_on_the_way_out_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path / "keys")
    asked: list[str] = []
    outbound = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Outbound,), {"asked": asked}))
    threading.Thread(target=outbound.serve_forever, args=(0.01,)).start()
    body = os.urandom(3_000_000)
    try:
        with Setting(tmp_path, Gateway(None), Keys(tmp_path / "keys")).running() as setting:
            proxy = f"http://me:my%20self@127.0.0.1:{outbound.server_address[1]}"  # not a secret
            monkeypatch.setenv("https_proxy", proxy)
            assert setting.ask(PASSES, b"x") == (200, b"x")
            assert asked == [], "not to this machine"
            monkeypatch.setattr(streams, "is_loopback", lambda host: False)
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            assert setting.ask(PASSES, body) == (200, body)
            login = base64.b64encode(b"me:my self").decode()
            assert asked == [f"{setting.proxy.target} Basic {login}"]
    finally:
        outbound.shutdown()
        outbound.server_close()


def signed(path: Path) -> dict[str, str]:
    key = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signed_at = datetime.datetime.now(datetime.UTC).isoformat()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = key.sign(signed_at.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr_public_key": base64.b64encode(public).decode(),
        "flwr_timestamp": signed_at,
        "flwr_signature": base64.b64encode(signature).decode(),
    }


def test_a_flood_neither_fills_the_disk_nor_hides_others(tmp_path: Path) -> None:
    now = 0.0
    audit = Audit(tmp_path / "audit.jsonl", clock=lambda: now)
    for _ in range(10_000):
        audit.refused("192.0.2.1", "/x", "not for sites")
    audit.refused("192.0.2.2", "/evil", "not for sites")
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert len(lines) == BURST + 1
    assert json.loads(lines[-1])["path"] == "/evil"
    now = SUMMARY + 1
    audit.sum_up()
    assert "9980 more refusals of 1 peers" in (tmp_path / "audit.jsonl").read_text()
    for number in range(10_000):
        audit.refused(f"2001:db8::{number:x}", "/x", "not for sites")
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) < BURST_OF_ALL + 2 * BURST


def test_an_audit_log_that_was_torn_moved_or_cannot_be_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"time": "half a li')
    audit = Audit(path)
    audit.refused("a", "/", "first")
    assert json.loads(path.read_text().splitlines()[1])["reason"] == "first"
    path.rename(tmp_path / "old")
    audit.refused("a", "/", "second")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "second" in path.read_text()
    Audit(tmp_path / "none" / "audit.jsonl").refused("a", "/", "third")
    assert "third" in capfd.readouterr().err


def pulled(gateway: Setting, found: list[tuple[int, bytes]]) -> threading.Thread:
    """Ask for messages in a thread; what comes back is added to what was found."""

    def ask() -> None:
        connection = gateway.connection()
        connection.request("POST", PULL, body=b"")
        answer = connection.getresponse()
        found.append((answer.status, answer.read()))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_an_empty_answer_is_held_back_until_the_bell_rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOK_AGAIN", 300.0)
    monkeypatch.setattr(limits, "HOLD", 300.0)
    monkeypatch.setattr(Echo, "answered", [b"", b"a message"], raising=False)
    monkeypatch.setattr(Echo, "do_POST", answer_in_turn)
    with Setting(tmp_path, Gateway(None)).running() as gateway:
        found: list[tuple[int, bytes]] = []
        thread = pulled(gateway, found)
        assert eventually(lambda: len(gateway.seen) == 1)
        assert not found
        assert eventually(lambda: wake(gateway.wake_up, "site-a") is None and bool(found))
        thread.join()
    assert found == [(200, b"a message")]
    assert gateway.seen == [(PULL, gateway.seen[0][1], 0)] * 2


def answer_in_turn(self: Any) -> None:
    """A SuperLink's stand-in that has one answer after the other."""
    self.seen.append((self.path, {}, int(self.headers.get("content-length", 0))))
    content = self.answered[min(len(self.seen), len(self.answered)) - 1]
    self.send_response(200)
    self.send_header("content-length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)


def test_an_empty_answer_is_given_in_the_end_and_looked_for_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOK_AGAIN", 0.01)
    monkeypatch.setattr(limits, "HOLD", 3.0)
    with Setting(tmp_path, Gateway(None)).running() as gateway:
        # A second passes with every look: how long one takes on a busy machine does not matter.
        monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: float(len(gateway.seen))))
        found: list[tuple[int, bytes]] = []
        pulled(gateway, found).join()
        assert found == [(200, b"")]
        assert len(gateway.seen) == 3


def test_nothing_is_fetched_for_a_client_that_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOK_AGAIN", 300.0)
    monkeypatch.setattr(limits, "HOLD", 300.0)
    with Setting(tmp_path, Gateway(None)).running() as gateway:
        connection = gateway.connection()
        connection.request("POST", PULL, body=b"")
        assert eventually(
            lambda: len(gateway.seen) == 1 and bool(gateway.proxy.wake_up and gateway.proxy.wake_up._waiting)
        )
        connection.close()
        assert eventually(lambda: not gateway.proxy._open)
        wake(gateway.wake_up, "")
        assert gateway.connection().connect() is None  # the gateway is still there
        assert len(gateway.seen) == 1


NODE, SERVER = 5, 1


def push(**about: Any) -> bytes:
    """A site's request to store a message, honest unless told otherwise."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
    from flwr.proto.node_pb2 import Node

    count = about.pop("count", 1)
    known = {"src_node_id": NODE, "dst_node_id": SERVER, "message_id": "answer", "reply_to_message_id": "task"}
    message = Message(metadata=Metadata(**{**known, **about}))
    tree = ObjectTree(object_id="answer")
    return bytes(
        PushMessagesRequest(
            node=Node(node_id=NODE), messages_list=[message] * count, message_object_trees=[tree] * count
        ).SerializeToString()
    )


def given(gate: Gateway, *messages: str, node: int = NODE) -> None:
    """A node was given messages, as the gateway sees that."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node

    answer = PullMessagesResponse(messages_list=[Message(metadata=Metadata(message_id=name)) for name in messages])
    request = PullMessagesRequest(node=Node(node_id=node))
    gate.answered(Head("", "POST", PULL), request.SerializeToString(), answer.SerializeToString())


FOREIGN: dict[str, tuple[bytes, str]] = {
    "as if it were the server": (push(src_node_id=SERVER, dst_node_id=9, reply_to_message_id=""), "from node 1"),
    "to another site": (push(dst_node_id=9), "is to node 9"),
    "that replies to nothing": (push(reply_to_message_id=""), "replies to nothing"),
    "without a number": (push(message_id=""), "replies to nothing"),
    "to what another site was asked": (push(reply_to_message_id="another's task"), "nobody asked for"),
    "to what nobody was asked": (push(reply_to_message_id="made up"), "nobody asked for"),
    "in two": (push(count=2), "is 2 messages"),
    "empty": (push(count=0), "is 0 messages"),
    "no message": (b"\xff" * 20, "cannot be read"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_message_that_is_no_answer_is_not_stored(kind: str, tmp_path: Path) -> None:
    """Flower checks whose request it is, and believes the message what it says of its sender and its receiver."""
    body, reason = FOREIGN[kind]
    gate = Gateway(None)
    given(gate, "task")
    given(gate, "another's task", node=9)
    with Setting(tmp_path, gate).running() as setting:
        assert setting.ask(PUSH, body)[0] == 403
        assert setting.seen == []
        assert reason in setting.lines[-1]["reason"]
        assert setting.ask(PUSH, push())[0] == 200, "the honest answer is still taken"


def test_each_message_is_answered_once_however_often_that_is_said(tmp_path: Path) -> None:
    gate = Gateway(None)
    given(gate, "task", "other")
    with Setting(tmp_path, gate).running() as setting:
        for _ in range(2):  # what was answered may not have come through
            assert setting.ask(PUSH, push())[0] == 200
        assert setting.ask(PUSH, push(message_id="second"))[0] == 403
        assert "a second reply" in setting.lines[-1]["reason"]
        assert setting.ask(PUSH, push(message_id="second", reply_to_message_id="other"))[0] == 200
        assert setting.ask(PUSH, bytes(SMALL + 1))[0] == 413
    assert len(setting.seen) == 3


def test_no_more_bytes_follow_than_an_answer_has(tmp_path: Path) -> None:
    """Ten unasked messages once made the SuperLink's database sixty times as large."""
    keys = Keys(tmp_path / "keys")
    make_keys(keys.folder)
    accept_key(keys, "site-a", make_site_key(tmp_path / "own"))
    gate, piece = Gateway(known_keys(keys), most_bytes=100_000), "/v1/fleet/push-object"
    given(gate, "task", "next")
    with Setting(tmp_path, gate, keys).running() as setting:
        headers = signed(tmp_path / "own")
        assert setting.ask(piece, bytes(10), **headers)[0] == 403, "nothing was announced"
        assert setting.ask(PUSH, push(), **headers)[0] == 200
        assert setting.ask(piece, bytes(60_000), **headers)[0] == 200
        assert setting.ask(piece, bytes(60_000), **headers)[0] == 403
        assert "more than an answer has" in setting.lines[-1]["reason"]
        assert setting.ask(PUSH, push(reply_to_message_id="next"), **headers)[0] == 200
        assert setting.ask(piece, bytes(90_000), **headers)[0] == 200
