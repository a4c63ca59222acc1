"""What an accepted site can say: answers that its own library tampers with, and messages past its library."""

from __future__ import annotations

import base64
import datetime
import http.client
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

ORDERS = "orders"  # the end of the name of the file that says what a site's next answer is to be like

# Appended to the library of every site: what becomes of an answer before it is signed, by the words in the file.
TAMPERED = """

import os as _os

import numpy as _np

_orders = Path(_os.environ["CHAOS_ORDERS"])
_how = [""]
_before: list[Packed] = []


def _filled(packed, value):
    numbers = _np.frombuffer(packed.buffers["float32"], _np.float32).copy()
    numbers[: max(1, len(numbers) // 3)] = value
    return Packed({**packed.buffers, "float32": numbers.tobytes()}, packed.text)


def _scaled(packed, factor):
    numbers = _np.frombuffer(packed.buffers["float32"], _np.float32) * _np.float32(factor)
    return Packed({**packed.buffers, "float32": numbers.tobytes()}, packed.text)


def _noted(packed, **changes):
    whole = json.loads(packed.text)
    whole["note"] |= changes
    return Packed(packed.buffers, json.dumps(whole))


def _tested(packed, **changes):
    whole = json.loads(packed.text)
    for moment in ("received", "trained"):
        whole["note"][moment] |= changes
    return Packed(packed.buffers, json.dumps(whole))


def _named(packed, name):
    whole = json.loads(packed.text)
    whole["tensors"][0][0] = name
    return Packed(packed.buffers, json.dumps(whole))


def _worded(packed, value):
    return Packed(packed.buffers, packed.text.replace('"round": ', f'"x": {value}, "round": '))


def _raised(packed):
    raise ValueError("a site that does not want to")


def _bare(packed, **note):
    whole = json.loads(packed.text)
    return Packed({}, json.dumps({"tensors": [], "note": {"round": whole["note"]["round"], "diverged": False} | note}))


_WAYS = {
    "a row of 3e38": lambda p: _filled(p, 3e38),
    "a row of NaN": lambda p: _filled(p, float("nan")),
    "a row that is infinite": lambda p: _filled(p, float("inf")),
    "a row a thousand times too large": lambda p: _scaled(p, 1000.0),
    "10^19 samples": lambda p: _tested(p, samples=10**19, correct=0),
    "a loss of 10^400": lambda p: _tested(p, loss=10**400),
    "scores that are texts": lambda p: _tested(p, loss="much", correct=[1]),
    "a number of 5,000 digits": lambda p: _worded(p, "9" * 5000),
    "100,000 levels deep": lambda p: Packed({}, "[" * 100_000),
    "NaN in the text": lambda p: _worded(p, "NaN"),
    "no JSON at all": lambda p: Packed(p.buffers, "\\x00\\xff{"),
    "one number too many": lambda p: Packed({"float32": p.buffers["float32"] + bytes(4)}, p.text),
    "half of its numbers": lambda p: Packed({"float32": p.buffers["float32"][::2]}, p.text),
    "no tensors": lambda p: _bare(p),
    "another tensor, in several lines": lambda p: _named(p, "slot.x\\n2026-01-01 INFO site site-a is here"),
    "escapes for terminals": lambda p: _named(p, "\\x1b[2J\\x1b]0;owned\\x07"),
    "that it diverged": lambda p: _bare(p, diverged=True),
    "that it has lost everything": lambda p: _bare(p, lost=True),
    "another round": lambda p: _noted(p, round=10**6),
    "a note of 4 MB": lambda p: _noted(p, x="y" * 4_000_000),
    "its answer of before": lambda p: _before[0],
    "without a signature": lambda p: p,
    "by another key": lambda p: p,
    "in another's name": lambda p: p,
    "an error in place of an answer": _raised,
}


def tampered(packed):
    _how[0] = ""
    if "fingerprint" in packed.text or '"diverged"' not in packed.text:
        return packed  # a hello, or the finished model
    honest = packed
    try:
        how = _orders.read_text().strip()
        if how in _WAYS and (_before or how != "its answer of before"):
            _orders.unlink()
            _how[0] = how
            return _WAYS[how](packed)
    except FileNotFoundError:
        pass
    finally:
        _before[:] = [honest]
    return packed


_properly = SiteEnvelopes.sealed


def _sealed(self, task, packed):
    if _how[0] == "without a signature":
        return packed
    if _how[0] == "by another key":
        return sealed(packed, task.about(packed, ANSWER), Ed25519PrivateKey.generate())
    if _how[0] == "in another's name":
        other = "site-b" if task.site == "site-a" else "site-a"
        return sealed(packed, replace(task.about(packed, ANSWER), site=other), self._key)
    return _properly(self, task, packed)


SiteEnvelopes.sealed = _sealed
"""
ANSWERS = tuple(
    line.split('"')[1] for line in TAMPERED.partition("_WAYS = {")[2].splitlines() if line.startswith('    "')
)
"""The kinds of tampered answers."""


def signed(key_file: Path) -> dict[str, str]:
    """The headers by which Flower's requests are a site's."""
    key = load_ssh_private_key(key_file.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC).isoformat()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return {
        "flwr-public-key": base64.b64encode(public).decode(),
        "flwr-timestamp": now,
        "flwr-signature": base64.b64encode(key.sign(now.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
    }


def pushed(source: int, target: int, reply_to: str, count: int = 1) -> bytes:
    """A request to store messages."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
    from flwr.proto.node_pb2 import Node

    about = {"src_node_id": source, "dst_node_id": target, "message_id": "made-up", "reply_to_message_id": reply_to}
    request = PushMessagesRequest(
        node=Node(node_id=source),
        messages_list=[Message(metadata=Metadata(**about))] * count,
        message_object_trees=[ObjectTree(object_id="made-up")] * count,
    )
    return bytes(request.SerializeToString())


class Line:
    """A site's way to the gateway, past its library."""

    def __init__(self, host: str, port: int, authority: Path, key: Path) -> None:
        self.host, self.port, self.key = host, port, key
        self.trust = ssl.create_default_context(cafile=str(authority))

    def ask(self, path: str, body: Any, sign: bool = True) -> int:
        """The status of an answer; 0 if the connection was broken off."""
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=30, context=self.trust)
        try:
            connection.request("POST", path, body, signed(self.key) if sign else {}, encode_chunked=not sign)
            return int(connection.getresponse().status)
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def silent(self, count: int, seconds: float) -> None:
        """Open connections that say nothing."""
        opened = []
        with suppress(OSError):
            while len(opened) < count:
                opened.append(socket.create_connection((self.host, self.port), timeout=5))
            time.sleep(seconds)
        for connection in opened:
            connection.close()


PUSH, PULL = "/v1/fleet/push-messages", "/v1/fleet/pull-messages"
OTHER = 7_777_777_777  # a node that nobody has
REQUESTS: dict[str, Callable[[Line], object]] = {
    "orders to another site, as if it were the server": lambda line: line.ask(PUSH, pushed(1, OTHER, "")),
    "an answer to nothing": lambda line: line.ask(PUSH, pushed(OTHER, 1, "")),
    "an answer to what nobody was asked": lambda line: line.ask(PUSH, pushed(OTHER, 1, "made up")),
    "two messages in one": lambda line: line.ask(PUSH, pushed(OTHER, 1, "made up", 2)),
    "no message at all": lambda line: line.ask(PUSH, pushed(OTHER, 1, "", 0)),
    "what is no message": lambda line: line.ask(PUSH, b"\xff" * 4000),
    "a run started from outside": lambda line: line.ask("/v1/control/start-run", b""),
    "64 MB to one path": lambda line: line.ask(PULL, iter([bytes(1 << 20)] * 64), sign=False),
    "300 requests in a row": lambda line: [line.ask(PUSH, b"") for _ in range(300)],
    "200 connections that say nothing": lambda line: line.silent(200, 8.0),
}
"""What comes past a site's library, with its key."""


def main(host: str, port: str, authority: str, key: str, kind: str) -> None:
    """Send one of the requests, from wherever this process stands."""
    REQUESTS[kind](Line(host, int(port), Path(authority), Path(key)))


if __name__ == "__main__":
    main(*sys.argv[1:])
