"""The server's gateway: all that the network sees of a federation.

Run as `python -m coterie.deployment.flower.gateway`.

Flower's SuperLink carries on one port what sites need and a control interface without a login. So it listens on this
machine alone, and the gateway before it lets through what sites need: requests to `/v1/fleet/`, signed with a key that
the federation knows, of at most 16 MiB. Everything else is answered with 404 and stands in the audit log.

The SuperLink believes a message what it says of its sender. So the gateway reads it before: a message from a site must
be from that site's node, to the server, and the one reply to a message that this node was given; and no more bytes may
follow than an answer has. Nothing else is ever stored.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import ssl
from collections import OrderedDict
from pathlib import Path

from coterie.deployment.flower import fleet
from coterie.deployment.flower.audit import Audit
from coterie.deployment.flower.keys import Keys, Renewal, known_keys
from coterie.deployment.flower.processes import family, split_address
from coterie.deployment.flower.proxy import Gate, Head, Proxy, RefusalError
from coterie.deployment.flower.streams import Target
from coterie.deployment.flower.wake_up import WakeUp

READY = "the gateway is open"
MOST_ANSWER = 16 << 30  # bytes, where nobody says less
MOST_REMEMBERED = 10_000  # messages
BACKLOG = 256


class Gateway(Gate):
    """The gate before a SuperLink: `keys` are those that may pass, by their DER form, each with its site.

    Without keys (in the insecure mode) everybody may who asks for what sites ask for. `most_bytes` is the length of the
    longest answer.
    """

    def __init__(self, keys: dict[bytes, str] | None, most_bytes: int = MOST_ANSWER) -> None:
        self._keys, self._most_bytes = keys, most_bytes
        self._given: OrderedDict[str, int] = OrderedDict()  # the node that each message was given to
        self._replies: OrderedDict[str, str] = OrderedDict()  # the reply to each message
        self._left: dict[str, int] = {}  # bytes that may still follow an answer, by site
        self._paths = fleet.OF_SITES | (fleet.OF_STRANGERS if keys is None else set())

    def admit(self, head: Head) -> None:
        """Let sites' requests through."""
        if head.path not in self._paths or head.method != "POST":
            raise RefusalError(404, "not for sites")
        if self._keys is None:
            return
        key = fleet.signer(head.headers)
        if key is None:
            raise RefusalError(404, "not signed by any key")
        if key not in self._keys:
            words = "the gateway does not know this SuperNode's key"
            raise RefusalError(404, "signed by a key that the federation does not know", fleet.not_activated(words))

    def awaits(self, head: Head) -> str | None:
        """That there is nothing to do is held back until the site is woken; without keys, for anybody."""
        return self.sender(head) if head.path == fleet.PULL else None

    def sender(self, head: Head) -> str:
        """The site whose key signed a request; without keys nobody's."""
        return "" if self._keys is None else self._keys.get(fleet.signer(head.headers) or b"", "")

    def answered(self, head: Head, body: bytes, answer: bytes) -> None:
        """Remember which messages a node was given."""
        if not answer:
            return
        node, messages = fleet.given_messages(body, answer)
        for message in messages:
            self._given[message] = node
        while len(self._given) > MOST_REMEMBERED:
            self._given.popitem(last=False)
        while len(self._replies) > MOST_REMEMBERED:
            self._replies.popitem(last=False)

    def reads(self, path: str) -> bool:
        """Messages of sites are read."""
        return path == fleet.PUSH

    def read(self, head: Head, body: bytes) -> None:
        """A message must be the one reply to one that its sender was given."""
        try:
            reply = fleet.pushed_reply(body)
        except ValueError as error:
            raise RefusalError(fleet.RUN_IS_OVER, f"a message that {error}") from None
        if self._given.get(reply.reply_to) != reply.node:
            raise RefusalError(fleet.RUN_IS_OVER, "a message that nobody asked for")
        if self._replies.setdefault(reply.reply_to, reply.message) != reply.message:
            raise RefusalError(fleet.RUN_IS_OVER, "a second reply to a message")
        self._left[self.sender(head)] = self._most_bytes

    def spend(self, head: Head, size: int) -> None:
        """The pieces of an answer follow it, and no more than it has."""
        if head.path != fleet.PUSH_OBJECT or self._keys is None:
            return
        site = self.sender(head)
        self._left[site] = self._left.get(site, 0) - size
        if self._left[site] < 0:
            raise RefusalError(fleet.RUN_IS_OVER, "more than an answer has")


def gateway_words(
    host: str,
    port: int,
    superlink: str,
    keys: Keys | None,
    inner: Keys,
    audit: Path,
    wake_up: Path,
    most_bytes: int = MOST_ANSWER,
) -> list[str]:
    """The arguments of `python -m` that start a gateway; `inner` is what the SuperLink is known by."""
    words = [__name__, "--host", host, "--port", str(port), "--superlink", superlink, "--audit", str(audit)]
    words += ["--most-bytes", str(most_bytes), "--wake-up", str(wake_up)]
    secure = [] if keys is None else ["--keys", str(keys.folder), "--superlink-certificate", str(inner.authority)]
    return [*words, *secure]


def opened(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    return socket.create_server((host, port), family=family(host), backlog=BACKLOG)


async def served(proxy: Proxy, ready: str, renewal: Renewal | None = None) -> None:
    """Run a proxy until a signal ends it, with the newest certificates."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(proxy.run())
    watching = None if renewal is None else asyncio.ensure_future(renewal.watch())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    print(ready, flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if watching is not None:
        watching.cancel()


def shown(proxy: Proxy, keys: Keys) -> Renewal:
    """Have a proxy show the server's certificate, and show the next one when that is there."""

    def show() -> None:
        # Each time a new one: a context that was given a certificate and a key that do not fit serves nobody any more.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(keys.certificate, keys.key)
        proxy.served = context

    show()
    return Renewal((keys.certificate, keys.key), show, "the server's certificate was renewed")


def main() -> None:
    """Open the gateway and serve until ended."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--superlink", required=True, help="HOST:PORT of the SuperLink, on this machine")
    parser.add_argument("--audit", required=True, type=Path, help="the file for what is refused")
    parser.add_argument("--wake-up", type=Path, help="the socket by which the server says whom it has sent a message")
    parser.add_argument("--most-bytes", type=int, default=MOST_ANSWER, help="the length of the longest answer")
    parser.add_argument("--keys", type=Path, help="the folder of keys; without it nothing is encrypted")
    parser.add_argument("--superlink-certificate", help="what to know the SuperLink by")
    given = parser.parse_args()
    keys = None if given.keys is None else Keys(given.keys)
    trust = None if keys is None else ssl.create_default_context(cafile=given.superlink_certificate)
    target = Target(*split_address(given.superlink), trust)
    known = None if keys is None else known_keys(keys)
    wake_up = None if given.wake_up is None else WakeUp(given.wake_up)
    gate, listener = Gateway(known, given.most_bytes), opened(given.host, given.port)
    proxy = Proxy(listener, target, gate, Audit(given.audit), wake_up=wake_up)
    asyncio.run(served(proxy, READY, None if keys is None else shown(proxy, keys)))


if __name__ == "__main__":
    main()
