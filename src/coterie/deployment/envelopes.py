"""Envelopes: who says what to whom, for which round, shown by a signature over all of it.

Flower carries messages and is no witness: fields that it fills in (who sent a message, to which it replies) are never
believed. A task is signed by the server's key, which the agreement names; an answer by the key of the site that was
accepted. Signed is what a message is for, in which federation, under which agreement, of which site and round, its
number, a nonce, and the hash of its content; all of that is checked before anything of the content is read.

Each task of a site has a larger number than the one before, so that an old one is refused. An answer has the number and
the nonce of its task, so that it answers nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from msgspec import Struct

from coterie.deployment.messages import Note, Packed, Purpose, RefusedError, one_line
from coterie.errors import CoterieError, require
from coterie.files import sealed_line, unsealed_line, write_whole
from coterie.runs.record import decoded

log = logging.getLogger("coterie")

PrivateKey = Ed25519PrivateKey | ec.EllipticCurvePrivateKey
PublicKey = Ed25519PublicKey | ec.EllipticCurvePublicKey

TASK, ANSWER = "task", "answer"
LONGEST_SEAL = 4096  # characters
LARGEST = 1 << 62  # numbers are nanoseconds since 1970, or one more than the last
LAST_TASK = "last-task.json"
HEARD = "last_task"
"""What a site's hello calls the number of the last task that it took."""


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """All that is signed of a message; `content` is the hash of what it carries."""

    kind: str
    purpose: Purpose
    federation: str
    agreement: str
    site: str
    round: int
    number: int
    nonce: str
    content: str

    @property
    def signed(self) -> bytes:
        """The bytes that the signature is of."""
        return b"coterie envelope 1\0" + json.dumps(asdict(self), sort_keys=True).encode()

    def about(self, packed: Packed, kind: str) -> Envelope:
        """The same about another content, as a task or as an answer."""
        return replace(self, kind=kind, content=packed.digest)


def sealed(packed: Packed, envelope: Envelope, key: PrivateKey) -> Packed:
    """A message with its envelope, signed.

    >>> key, message = Ed25519PrivateKey.generate(), Packed({"bool": b"x"}, "{}")
    >>> task = Envelope(kind=TASK, purpose="work", federation="f", agreement="0", site="a", round=1, number=1,
    ...     nonce="n", content=message.digest)
    >>> opened(sealed(message, task, key), key.public_key(), {"site": "a"}) == task
    True
    >>> opened(sealed(message, task, key), key.public_key(), {"site": "b"})
    Traceback (most recent call last):
    ...
    coterie.deployment.messages.RefusedError: its envelope is of site 'a', not 'b'
    """
    text, hash_used = envelope.signed, hashes.SHA384()
    signature = key.sign(text) if isinstance(key, Ed25519PrivateKey) else key.sign(text, ec.ECDSA(hash_used))
    return replace(packed, seal=json.dumps({**asdict(envelope), "signature": signature.hex()}))


def opened(packed: Packed, key: PublicKey, expected: Mapping[str, object]) -> Envelope:
    """The envelope of a message, if it is signed by a key, is of this content, and says what is expected."""
    envelope, signature = _read(packed.seal)
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, envelope.signed)
        else:
            key.verify(signature, envelope.signed, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise RefusedError("its envelope is not signed by the key that counts") from None
    for name, value in {**expected, "content": packed.digest}.items():
        said = getattr(envelope, name)
        if said != value:
            raise RefusedError(f"its envelope is of {name} {one_line(repr(said))}, not {one_line(repr(value))}")
    return envelope


def _read(seal: str) -> tuple[Envelope, bytes]:
    if not seal:
        raise RefusedError("it is not signed")
    try:
        values: Any = json.loads(seal) if len(seal) <= LONGEST_SEAL else None
        signature = bytes.fromhex(values.pop("signature"))
        envelope = Envelope(**values)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise RefusedError("its envelope cannot be read") from None
    kinds = {"round": int, "number": int}
    if any(type(getattr(envelope, item.name)) is not kinds.get(item.name, str) for item in fields(envelope)):
        raise RefusedError("its envelope cannot be read")
    return envelope, signature


def read_private(path: Path) -> PrivateKey:
    """A private key in OpenSSH's format, without a password."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CoterieError(f"{path}: cannot be read as a private key in OpenSSH's format ({one_line(error)})") from None
    require(isinstance(key, PrivateKey), f"{path}: is neither an Ed25519 nor an elliptic-curve key")
    assert isinstance(key, PrivateKey)
    return key


def read_public(what: str, text: str) -> PublicKey:
    """A public key as it stands in an agreement or in a `.pub` file."""
    try:
        key = load_ssh_public_key(text.strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        raise CoterieError(f"{what} = {one_line(text, 80)}: must be a public key (ssh-ed25519 AAAA…)") from None
    require(isinstance(key, PublicKey), f"{what}: is neither an Ed25519 nor an elliptic-curve key")
    assert isinstance(key, PublicKey)
    return key


class ServerEnvelopes:
    """What a server signs, and whose answers it takes: those by the key of the site that was asked.

    `key_of` gives the accepted key of a site. Without it (in the insecure mode) nobody's key is known, and answers are
    taken as they come.
    """

    def __init__(
        self,
        federation: str,
        agreement: str,
        key: PrivateKey,
        key_of: Callable[[str], PublicKey] | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._federation, self._agreement, self._key, self._key_of = federation, agreement, key, key_of
        self._clock = clock
        self._asked: dict[int, Envelope] = {}  # by node
        self._last: dict[str, int] = {}  # by site

    def sealed(self, node: int, site: str, purpose: Purpose, round: int, packed: Packed) -> Packed:
        """A task for a node."""
        number = max(self._clock(), self._last.get(site, 0) + 1)
        self._last[site] = number
        envelope = Envelope(
            kind=TASK,
            purpose=purpose,
            federation=self._federation,
            agreement=self._agreement,
            site=site,
            round=round,
            number=number,
            nonce=os.urandom(16).hex(),
            content=packed.digest,
        )
        self._asked[node] = envelope
        return sealed(packed, envelope, self._key)

    def check(self, node: int, packed: Packed) -> None:
        """Refuse what is no answer to the last task of a node, by the site that this was for."""
        if self._key_of is None:
            return
        if node not in self._asked:
            raise RefusedError("nobody asked for it")
        task = self._asked[node]
        expected = {item.name: getattr(task, item.name) for item in fields(task)}
        opened(packed, self._key_of(task.site), expected | {"kind": ANSWER})

    def heard(self, site: str, note: Note) -> None:
        """Take note of which task a site took last: its next one has a larger number, whatever the clocks say."""
        number = note.get(HEARD, 0)
        if type(number) is not int or not 0 <= number < LARGEST:
            raise RefusedError("it does not say which task it took last")
        self._last[site] = max(number, self._last.get(site, 0))


class LastTask(Struct, frozen=True):
    """The task that a site took last."""

    number: int
    nonce: str = ""
    content: str = ""


class SiteEnvelopes:
    """What a site takes: tasks for itself, by the key that its agreement names, each once. Its answers are signed.

    `folder` is where it keeps the number of the last task that it took. `key` is its own; without one (in the insecure
    mode) its answers are not signed.
    """

    def __init__(
        self, federation: str, agreement: str, site: str, server: PublicKey, key: PrivateKey | None, folder: Path
    ) -> None:
        self._expected = {"kind": TASK, "federation": federation, "agreement": agreement}
        self._site, self._server, self._key, self._path = site, server, key, folder / LAST_TASK

    def opened(self, purpose: Purpose, packed: Packed) -> Envelope:
        """The envelope of a task that is for this site now, and of none before."""
        envelope = opened(packed, self._server, {**self._expected, "purpose": purpose})
        if envelope.site != self._site and (envelope.site or purpose != "hello"):
            raise RefusedError(f"its envelope is of site {one_line(repr(envelope.site))}, not '{self._site}'")
        if purpose == "hello":  # tells no more than it told before, and has to work whatever the server's clock says
            return envelope
        last = self._read()
        task = LastTask(envelope.number, envelope.nonce, envelope.content)
        if task != last:  # whoever carries it may bring the last one again
            if task.number <= last.number:
                raise RefusedError("it is an old task, or another one than its server sent")
            write_whole(self._path, sealed_line(msgspec.json.encode(task)))
        return envelope

    def sealed(self, task: Envelope, packed: Packed) -> Packed:
        """An answer to a task."""
        return packed if self._key is None else sealed(packed, task.about(packed, ANSWER), self._key)

    @property
    def last(self) -> int:
        """The number of the last task that was taken."""
        return self._read().number

    def _read(self) -> LastTask:
        try:
            return decoded(unsealed_line(self._path.read_bytes()), LastTask, f"'{self._path}' is damaged")
        except FileNotFoundError:
            return LastTask(0)
        except (CoterieError, ValueError) as error:
            # Numbers are times: whatever was sent before this was written is an old task.
            log.error("%s: %s; tasks from before it was written count as taken", self._path.name, error)
            return LastTask(self._path.stat().st_mtime_ns)
