"""Certificates and keys: formats, permissions, whom they hold for, and that nothing is lost by accident."""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from coterie.deployment.flower.keys import (
    Keys,
    accept_key,
    covers,
    days_left,
    fingerprint,
    hosts_of,
    known_keys,
    make_keys,
    make_site_key,
)
from coterie.errors import CoterieError

SITES = ("site-a", "site-b")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    make_keys(tmp_path / "keys", ["server.example.org", "192.0.2.7"])
    found = Keys(tmp_path / "keys")
    for site in SITES:
        assert accept_key(found, site, make_site_key(tmp_path / site))
    return found


def contents(keys: Keys) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in keys.folder.rglob("*") if path.is_file()}


def changed(keys: Keys, before: dict[Path, bytes]) -> set[Path]:
    return {path for path, content in contents(keys).items() if before.get(path) != content}


def test_private_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o755)  # existed, and open to all
    old = os.umask(0)
    try:
        make_keys(tmp_path / "keys")
        make_site_key(tmp_path / "own")
    finally:
        os.umask(old)
    keys = Keys(tmp_path / "keys")
    for path in (keys.authority_key, keys.key, tmp_path / "own"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (keys.folder, keys.folder / "sites"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_sites_keys_are_openssh_pairs_that_differ(keys: Keys, tmp_path: Path) -> None:
    seen = set()
    for site in SITES:
        private = load_ssh_private_key((tmp_path / site).read_bytes(), None)
        public = load_ssh_public_key(keys.public(site).read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert private.public_key() == public
        seen.add(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    assert len(seen) == len(SITES)
    assert sorted(known_keys(keys).values()) == list(SITES)


def test_the_server_has_no_private_key_of_a_site(keys: Keys) -> None:
    private = {path for path, content in contents(keys).items() if b"PRIVATE KEY" in content}
    assert private == {keys.authority_key, keys.key}


def test_accepting_keys(keys: Keys, tmp_path: Path) -> None:
    public = (tmp_path / "site-a.pub").read_text()
    assert not accept_key(keys, "site-a", f"{public.strip()} a comment\n")
    assert accept_key(keys, "site-a", make_site_key(tmp_path / "another"))
    assert keys.accepted(["site-a", "site-x"]) == {"site-a": keys.public("site-a")}
    with pytest.raises(CoterieError, match="the key of site-a is that of site-b, and each site has its own"):
        accept_key(keys, "site-a", (tmp_path / "site-b.pub").read_text())
    with pytest.raises(CoterieError, match="is a private key, which must not leave its site"):
        accept_key(keys, "site-a", (tmp_path / "site-a").read_text())
    for nonsense in ("", "hello", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA", public[:60]):
        with pytest.raises(CoterieError, match="must be a public key as 'coterie federation join' prints it"):
            accept_key(keys, "site-a", nonsense)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    public = make_site_key(tmp_path / "own")
    said = subprocess.run(["ssh-keygen", "-lf", tmp_path / "own.pub"], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1] == fingerprint(public)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "server.example.org", "192.0.2.7"])
def test_the_servers_certificate_holds_for(keys: Keys, host: str) -> None:
    authority, certificate = (
        x509.load_pem_x509_certificate(path.read_bytes()) for path in (keys.authority, keys.certificate)
    )
    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    policy = PolicyBuilder().store(Store([authority])).time(datetime.datetime.now(datetime.UTC))
    policy.build_server_verifier(name).verify(certificate, [])
    with pytest.raises(VerificationError):
        policy.build_server_verifier(x509.DNSName("elsewhere.example.org")).verify(certificate, [])
    assert covers(keys.certificate, host)
    assert not covers(keys.certificate, "elsewhere.example.org")


def test_tls_works_with_them_and_not_with_anothers(keys: Keys, tmp_path: Path) -> None:
    make_keys(tmp_path / "others")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(keys.certificate, keys.key)

    def connect(authority: Path) -> str:
        near, far = socket.socketpair()

        def serve() -> None:
            try:
                with served.wrap_socket(far, server_side=True) as tls:
                    tls.sendall(b"hello")
            except (ssl.SSLError, OSError):
                far.close()

        server = threading.Thread(target=serve)
        server.start()
        try:
            trust = ssl.create_default_context(cafile=str(authority))
            with trust.wrap_socket(near, server_hostname="localhost") as tls:
                return tls.recv(5).decode()
        finally:
            near.close()
            server.join(10)

    assert connect(keys.authority) == "hello"
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(Keys(tmp_path / "others").authority)


def test_what_exists_stays(keys: Keys) -> None:
    before = contents(keys)
    assert make_keys(keys.folder) == []
    assert contents(keys) == before


def test_another_host_changes_only_the_certificate(keys: Keys) -> None:
    before = contents(keys)
    assert make_keys(keys.folder, ["new.example.org"]) == [keys.certificate]
    assert changed(keys, before) == {keys.certificate}
    assert {"new.example.org", "server.example.org", "192.0.2.7", "localhost"} <= set(hosts_of(keys.certificate))


def test_renewing(keys: Keys) -> None:
    before = contents(keys)
    make_keys(keys.folder, renew=["server"])
    assert changed(keys, before) == {keys.certificate, keys.key}
    assert "server.example.org" in hosts_of(keys.certificate)
    before = contents(keys)
    make_keys(keys.folder, renew=["all"])
    assert changed(keys, before) == {keys.authority, keys.authority_key, keys.certificate, keys.key}
    assert stat.S_IMODE(keys.key.stat().st_mode) == 0o600
    assert "server.example.org" in hosts_of(keys.certificate)
    signed = x509.load_pem_x509_certificate(keys.certificate.read_bytes())
    signed.verify_directly_issued_by(x509.load_pem_x509_certificate(keys.authority.read_bytes()))


def test_years_lie_ahead(keys: Keys) -> None:
    assert 1000 < days_left(keys.certificate) < days_left(keys.authority)


def test_the_servers_key_is_the_certificates(keys: Keys) -> None:
    private = load_pem_private_key(keys.key.read_bytes(), None)
    assert private.public_key() == x509.load_pem_x509_certificate(keys.certificate.read_bytes()).public_key()


def test_mistakes(keys: Keys) -> None:
    with pytest.raises(CoterieError, match=r"unknown key to renew 'site-a'.*server"):
        make_keys(keys.folder, renew=["site-a"])
    with pytest.raises(CoterieError, match=r"host = a b: must be a host name"):
        make_keys(keys.folder, ["a b"])
    keys.authority_key.unlink()
    with pytest.raises(CoterieError, match=r"ca.key, which signs the certificate, is missing; .*--renew all"):
        make_keys(keys.folder, ["new.example.org"])
    keys.authority.write_text("nothing")
    keys.certificate.unlink()
    with pytest.raises(CoterieError, match="missing"):
        keys.require_complete("make them")
