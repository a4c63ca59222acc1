"""Certificates are watched, warned of a month before their end, and renewed while everything runs."""

from __future__ import annotations

import datetime
import http.client
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509

from coterie.deployment.flower import keys as keys_module
from coterie.deployment.flower.audit import Audit
from coterie.deployment.flower.gateway import READY, Gateway, gateway_words, shown
from coterie.deployment.flower.keys import (
    AGAIN,
    LOOK,
    ExpiryWatch,
    Keys,
    Renewal,
    accept_key,
    days_left,
    make_keys,
    make_site_key,
)
from coterie.deployment.flower.processes import LOOPBACK, Process, environment, free_port
from coterie.deployment.flower.proxy import Proxy
from coterie.deployment.flower.relay import READY as RELAY_READY
from coterie.deployment.flower.relay import RENEWED, relay_words
from coterie.deployment.flower.streams import Target
from support import PATIENCE, eventually, reserved_port


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    """Keys whose certificates end in 29 days (the server's) and in 40."""
    monkeypatch.setattr(keys_module, "DAYS", {"authority": 41, "server": 30})
    make_keys(tmp_path / "keys")
    monkeypatch.undo()
    return Keys(tmp_path / "keys")


def test_a_month_before_its_end_a_certificate_is_warned_of_once_a_day(short: Keys) -> None:
    now = [0.0]
    certificates = {"the server's": (short.certificate, "renew it"), "the authority's": (short.authority, "renew it")}
    watch = ExpiryWatch(certificates, lambda: now[0])
    assert watch.news() == ["the server's expires in 29 days; renew it"]
    for later, expected in ((1.0, 0), (LOOK, 0), (AGAIN - 1, 0), (AGAIN + LOOK, 1)):
        now[0] = later
        assert len(watch.news()) == expected, later
    make_keys(short.folder, renew=["server"])
    now[0] = 3 * AGAIN
    assert watch.news() == []
    short.certificate.unlink()
    now[0] = 5 * AGAIN
    assert watch.news() == [], "it is being replaced"


def test_an_expired_one_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "DAYS", {"authority": 10, "server": -0.5})
    make_keys(tmp_path)
    path = Keys(tmp_path).certificate
    assert ExpiryWatch({"it": (path, "renew it")}).news() == ["it has expired; renew it"]


def test_an_authority_renewed_with_its_key_is_known_to_who_has_the_old_one(short: Keys, tmp_path: Path) -> None:
    old = short.authority.read_bytes()
    assert make_keys(short.folder, renew=["authority"]) == [short.authority]
    assert days_left(short.authority) > 3000
    make_keys(short.folder, renew=["server"])
    certificate = x509.load_pem_x509_certificate(short.certificate.read_bytes())
    for trusted in (old, short.authority.read_bytes()):
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(trusted))
    before = x509.load_pem_x509_certificate(old)
    after = x509.load_pem_x509_certificate(short.authority.read_bytes())
    assert before.public_key() == after.public_key()
    assert after.not_valid_after_utc - before.not_valid_after_utc > datetime.timedelta(days=3000)


def test_halves_that_do_not_fit_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "pem").write_text("old")
    fits, read = [False], list[str]()

    def renew() -> None:
        if not fits[0]:
            raise ssl.SSLError(1, "key values mismatch")
        read.append((tmp_path / "pem").read_text())

    renewal = Renewal((tmp_path / "pem",), renew, "renewed")
    assert not renewal.look()
    (tmp_path / "pem").write_text("newer")
    assert not renewal.look()
    told = f"the old certificate stays in use: {tmp_path / 'pem'} cannot be used (key values mismatch)"
    assert renewal.look() == told
    assert not renewal.look(), "it is said once"
    fits[0] = True
    assert renewal.look() == "renewed"
    assert not renewal.look()
    assert read == ["newer"]


def test_a_gateway_goes_on_with_the_old_certificate_if_the_new_one_does_not_fit(short: Keys, tmp_path: Path) -> None:
    """A context that was once given halves that do not fit would serve nobody any more."""
    make_keys(tmp_path / "others")
    with socket.socket() as listener:
        proxy = Proxy(listener, Target(LOOPBACK, 1), Gateway(None), Audit(tmp_path / "audit"))
        renewal = shown(proxy, short)
        served, certificate = proxy.served, short.certificate.read_bytes()
        assert served is not None
        before = end_of_memory(served, short.authority)
        short.certificate.write_bytes(Keys(tmp_path / "others").certificate.read_bytes())
        assert not renewal.look()
        assert "cannot be used ([X509: KEY_VALUES_MISMATCH]" in renewal.look()
        assert proxy.served is served
        assert end_of_memory(served, short.authority) == before
        short.certificate.write_bytes(certificate)
        make_keys(short.folder, renew=["server"])
        assert renewal.look() == "the server's certificate was renewed"
        assert proxy.served is not None
        assert end_of_memory(proxy.served, short.authority) != before


def end_of_memory(served: ssl.SSLContext, authority: Path) -> str:
    """When the certificate ends that a context shows, in a handshake without a network."""
    trust = ssl.create_default_context(cafile=str(authority))
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = served.wrap_bio(there, here, server_side=True)
    client = trust.wrap_bio(here, there, server_hostname=LOOPBACK)
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    found = client.getpeercert()
    assert found is not None
    return str(found["notAfter"])


@pytest.fixture
def gateway(short: Keys, tmp_path: Path) -> Iterator[tuple[Process, Keys, int]]:
    """A gateway with a certificate that ends soon; nobody is behind it."""
    accept_key(short, "site-a", make_site_key(tmp_path / "site-a"))
    make_keys(tmp_path / "inner")
    with reserved_port() as port, reserved_port() as nobody:
        behind, inner = f"{LOOPBACK}:{nobody}", Keys(tmp_path / "inner")
        words = gateway_words(LOOPBACK, port, behind, short, inner, tmp_path / "audit", tmp_path / "wake_up")
        log, home = tmp_path / "gateway.log", environment(tmp_path / "home")
        process = Process([sys.executable, "-m", *words], log, home, tmp_path)
        assert eventually(lambda: READY in process.said()), process.said()
        yield process, short, port
        process.terminate()


def end_of(port: int, authority: Path) -> str:
    """When the certificate ends that a server shows."""
    trust = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=PATIENCE, context=trust)
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    found = connection.sock.getpeercert()
    connection.close()
    assert found is not None
    return str(found["notAfter"])


@pytest.mark.processes
def test_a_gateway_shows_a_renewed_certificate_without_a_restart(gateway: tuple[Process, Keys, int]) -> None:
    process, keys, port = gateway
    before, pid = end_of(port, keys.authority), process.pid
    make_keys(keys.folder, renew=["server"])
    assert eventually(lambda: "the server's certificate was renewed" in process.said())
    assert end_of(port, keys.authority) != before
    assert (process.pid, process.code) == (pid, None)


@pytest.mark.slow
@pytest.mark.processes
def test_a_relay_takes_a_new_authority_without_a_restart(gateway: tuple[Process, Keys, int], tmp_path: Path) -> None:
    _, keys, port = gateway
    own, here = Keys(tmp_path / "loopback"), tmp_path / "ca.pem"
    make_keys(own.folder)
    here.write_bytes(own.authority.read_bytes())  # of somebody else
    (tmp_path / "agreed").mkdir()
    at = free_port()
    words = relay_words(at, f"{LOOPBACK}:{port}", here, own, tmp_path / "agreed", tmp_path / "site-audit")
    relay = Process([sys.executable, "-m", *words], tmp_path / "relay.log", environment(tmp_path / "home"), tmp_path)
    try:
        assert eventually(lambda: RELAY_READY in relay.said()), relay.said()
        assert status_of(at, own) == 502, "the server's certificate is not the one expected"
        here.write_bytes(keys.authority.read_bytes())
        assert eventually(lambda: RENEWED in relay.said())
        assert status_of(at, own) == 404, "the gateway answers: it asks for a signature"
    finally:
        relay.terminate()


def status_of(port: int, own: Keys) -> int:
    trust = ssl.create_default_context(cafile=str(own.authority))
    connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=PATIENCE, context=trust)
    connection.request("POST", "/v1/fleet/pull-messages", b"")
    found = connection.getresponse().status
    connection.close()
    return found
