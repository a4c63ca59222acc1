"""Who may talk to whom: a certificate authority, the server's certificate, and the public keys of the sites.

Sites make their own key pairs; the server is given the public halves and never sees the others. Certificates end: so
they are watched while a federation runs, and a new one is taken up without a restart.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import ipaddress
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.errors import CoterieError, require, unknown
from coterie.files import private_folder

ALWAYS = ("localhost", "127.0.0.1", "::1")
DAYS = {"authority": 3650, "server": 1825}
EVERYTHING = "all"
SERVER = "server"
AUTHORITY = "authority"


@dataclass(frozen=True)
class Keys:
    """The files of a federation's keys."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate by which sites know their server; it may be seen by all."""
        return self.folder / "ca.pem"

    @property
    def authority_key(self) -> Path:
        """What signs server certificates; it can stay in a safe."""
        return self.folder / "ca.key"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"

    @property
    def task_key(self) -> Path:
        """The private key by which the server signs tasks; the agreement names its public half."""
        return self.folder / "tasks.key"

    @property
    def public_folder(self) -> Path:
        """Where the public keys of the sites are."""
        return self.folder / "sites"

    def public(self, name: str) -> Path:
        """A site's public key."""
        return self.public_folder / f"{name}.pub"

    def accepted(self, sites: Iterable[str]) -> dict[str, Path]:
        """The public keys that there are of these sites."""
        return {name: self.public(name) for name in sites if self.public(name).is_file()}

    def require_complete(self, way_out: str) -> None:
        """Refuse to go on without the files that a server needs."""
        for path in (self.authority, self.certificate, self.key):
            require(path.is_file(), f"keys: {path} is missing; {way_out}")


def make_keys(folder: Path, hosts: Sequence[str] = (), renew: Sequence[str] = ()) -> list[Path]:
    """Make what is missing in `folder`: the authority and the server's certificate. The files written.

    The certificate holds for this machine and `hosts`. `renew` may name 'server', 'authority' (a new certificate for
    the same key, so that the one that sites have goes on to hold until it ends), or 'all', with new keys. A certificate
    that lacks a host is written anew with the same key: sites need not know.
    """
    for name in renew:
        if name not in (SERVER, AUTHORITY, EVERYTHING):
            raise unknown("key to renew", name, (SERVER, AUTHORITY, EVERYTHING))
    keys = Keys(folder)
    for path in (folder, folder / "sites"):
        private_folder(path)
    written = [] if keys.authority.exists() and EVERYTHING not in renew else _make_authority(keys)
    if AUTHORITY in renew and not written:
        require(
            keys.authority_key.exists(),
            f"keys: {keys.authority_key}, which signs certificates, is missing; put it back",
        )
        _sign_authority(keys, _read_key(keys.authority_key))
        return [keys.authority, *_make_server(keys, hosts, SERVER in renew)]
    return written + _make_server(keys, hosts, bool(written) or SERVER in renew)


def make_site_key(path: Path) -> str:
    """Make a site's key pair, the private half in `path`, the public one beside it as `.pub`; the public key."""
    key = _new_key()
    public = _public_text(key.public_key())
    _write(path, _private(key, openssh=True), secret=True)
    _write(path.with_name(f"{path.name}.pub"), public.encode() + b"\n", secret=False)
    return public


def make_task_key(path: Path) -> str:
    """Make the key pair by which a server signs tasks, the private half in `path`; the public one in a line."""
    key = Ed25519PrivateKey.generate()
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), secret=True)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def accept_key(keys: Keys, site: str, text: str) -> bool:
    """Take a site's public key, as it stands in a `.pub` file; whether it is another one than before."""
    public = _public_text(_read_public(f"accept: the key of {site}", text))
    for other in sorted((keys.folder / "sites").glob("*.pub")):
        taken = other.stem != site and other.read_text(encoding="utf-8").strip() == public
        require(not taken, f"accept: the key of {site} is that of {other.stem}, and each site has its own")
    path = keys.public(site)
    if path.is_file() and path.read_text(encoding="utf-8").strip() == public:
        return False
    private_folder(path.parent)
    _write(path, public.encode() + b"\n", secret=False)
    return True


def known_keys(keys: Keys) -> dict[bytes, str]:
    """The accepted keys in DER form, each with its site."""
    sites = {}
    for path in sorted((keys.folder / "sites").glob("*.pub")):
        key = _read_public(str(path), path.read_text(encoding="utf-8"))
        sites[key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)] = path.stem
    return sites


def fingerprint(public: str) -> str:
    """A public key in short, as `ssh-keygen -lf` shows it: to be compared over the telephone."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def hosts_of(certificate: Path) -> list[str]:
    """The hosts that a certificate holds for."""
    return _names(_read_certificate(certificate))


def covers(certificate: Path, host: str) -> bool:
    """Whether a certificate holds for a host."""
    return str(_as_name(host).value) in hosts_of(certificate)


def days_left(certificate: Path) -> int:
    """For how many more days a certificate holds."""
    end = _read_certificate(certificate).not_valid_after_utc
    return (end - datetime.datetime.now(datetime.UTC)).days


def _names(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise CoterieError(f"{path}: is not a certificate in PEM format") from None


def _make_authority(keys: Keys) -> list[Path]:
    key = _new_key()
    _write(keys.authority_key, _private(key, openssh=False), secret=True)
    _sign_authority(keys, key)
    return [keys.authority, keys.authority_key]


def _sign_authority(keys: Keys, key: ec.EllipticCurvePrivateKey) -> None:
    name = _name("Coterie federation")
    builder = _builder(name, name, key, DAYS["authority"])
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    _write(keys.authority, _signed(builder, key), secret=False)


def _make_server(keys: Keys, hosts: Sequence[str], renew: bool) -> list[Path]:
    """The server's certificate, if there is none, or one that lacks a host."""
    existing = hosts_of(keys.certificate) if keys.certificate.exists() else []
    names = list(dict.fromkeys(str(_as_name(host).value) for host in (*ALWAYS, *existing, *hosts)))
    if not renew and existing and keys.key.exists() and set(names) <= set(existing):
        return []
    way_out = "put it back, or make everything anew: --renew all"
    require(
        keys.authority_key.exists(), f"keys: {keys.authority_key}, which signs the certificate, is missing; {way_out}"
    )
    authority, signer = _read_certificate(keys.authority), _read_key(keys.authority_key)
    written = [keys.certificate]
    if renew or not keys.key.exists():
        _write(keys.key, _private(_new_key(), openssh=False), secret=True)
        written.append(keys.key)
    key = _read_key(keys.key)
    builder = _builder(_name("Coterie server"), authority.subject, key, DAYS["server"])
    builder = builder.add_extension(x509.SubjectAlternativeName([_as_name(name) for name in names]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    mark = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    _write(keys.certificate, _signed(builder.add_extension(mark, critical=False), signer), secret=False)
    return written


def _read_public(what: str, text: str) -> ec.EllipticCurvePublicKey:
    require("PRIVATE" not in text, f"{what} is a private key, which must not leave its site; send the public one")
    try:
        key = load_ssh_public_key(text.strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        raise CoterieError(
            f"{what}: must be a public key as 'coterie federation join' prints it (ecdsa-sha2-… AAAA…)"
        ) from None
    require(isinstance(key, ec.EllipticCurvePublicKey), f"{what}: must be an elliptic-curve key (ecdsa-sha2-…)")
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


def _public_text(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        raise CoterieError(f"{path}: is not a private key in PEM format (without a password)") from None
    require(isinstance(key, ec.EllipticCurvePrivateKey), f"{path}: is not an elliptic-curve key")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _private(key: ec.EllipticCurvePrivateKey, openssh: bool) -> bytes:
    # Flower reads nodes' keys in OpenSSH's format only; TLS wants PKCS 8.
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH if openssh else PrivateFormat.PKCS8, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _as_name(host: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        plain = host and all(part and part.replace("-", "").isalnum() and part.isascii() for part in host.split("."))
        require(bool(plain), f"host = {host}: must be a host name or an address, without a port")
        return x509.DNSName(host.lower())


def _usage(*purposes: str) -> x509.KeyUsage:
    def has(purpose: str) -> bool:
        return purpose in purposes

    return x509.KeyUsage(
        digital_signature=has("digital_signature"),
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=has("key_cert_sign"),
        crl_sign=has("crl_sign"),
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    # Clocks of sites differ; a certificate made now must hold there too.
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _signed(builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM)


def _write(path: Path, content: bytes, secret: bool) -> None:
    """Write a file whole, never readable by others for a moment if it is secret."""
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    beside.replace(path)


DAYS_OF_WARNING = 30
LOOK = 3600.0  # seconds between two looks at how long certificates hold
AGAIN = 86400.0  # seconds between two warnings of the same
RENEWAL = 5.0  # seconds between two looks for new ones

Stamps = tuple[tuple[int, int, int] | None, ...]


def warning_of(what: str, certificate: Path, way_out: str) -> str:
    """What is to be done about a certificate that ends within a month; nothing before."""
    try:
        left = days_left(certificate)
    except (CoterieError, OSError):  # it is being replaced, or was taken away
        return ""
    if left >= DAYS_OF_WARNING:
        return ""
    return f"{what} {'has expired' if left < 0 else f'expires in {left} days'}; {way_out}"


class ExpiryWatch:
    """Warns of certificates that end within thirty days: once a day, as long as nothing is done about it.

    `certificates` are the files by what they are, each with what to do in time.
    """

    def __init__(
        self, certificates: Mapping[str, tuple[Path, str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._certificates, self._clock = certificates, clock
        self._looked: float | None = None
        self._told: dict[str, float] = {}

    def news(self) -> list[str]:
        """What has to be said now."""
        now = self._clock()
        if self._looked is not None and now - self._looked < LOOK:
            return []
        self._looked, warnings = now, []
        for what, (path, way_out) in self._certificates.items():
            warning = warning_of(what, path, way_out)
            if warning and now - self._told.get(what, -AGAIN) >= AGAIN:
                self._told[what] = now
                warnings.append(warning)
        return warnings


class Renewal:
    """Files that are read again when they have changed: by `renew`, which fails as long as they do not fit together.

    It must change nothing then, so that the old ones stay in use.
    """

    def __init__(self, paths: tuple[Path, ...], renew: Callable[[], None], told: str) -> None:
        self._paths, self._renew, self._told = paths, renew, told
        self._seen = self._stamps()
        self._unfit = Counter[Stamps]()  # how often they were looked at as they were, and could not be used

    def look(self) -> str:
        """Read them again if need be; what there is to be said about it."""
        stamps = self._stamps()
        if stamps == self._seen:
            return ""
        try:
            self._renew()
        except (OSError, ValueError) as error:  # TLS errors are the first
            self._unfit[stamps] += 1
            if self._unfit[stamps] != 2:  # at first sight, the other half may still be being written
                return ""
            names = " and ".join(map(str, self._paths))
            return f"the old certificate stays in use: {names} cannot be used ({error})"
        self._seen = stamps
        self._unfit.clear()
        return self._told

    async def watch(self) -> None:
        """Look from time to time, for ever."""
        while True:
            await asyncio.sleep(RENEWAL)
            if news := self.look():
                print(news, flush=True)

    def _stamps(self) -> Stamps:
        stamps: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                about = path.stat()
                stamps.append((about.st_mtime_ns, about.st_size, about.st_ino))
            except OSError:
                stamps.append(None)
        return tuple(stamps)
