"""HTTP connections with limits: on the size of a head, and on the patience with whoever is slow."""

from __future__ import annotations

import asyncio
import base64
import resource
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import h11

from coterie.deployment.flower.processes import is_loopback, joined

HEAD_BYTES = 16 << 10  # of a request's or answer's head
PIECE = 64 << 10  # read and passed on at once
HANDSHAKE = 10.0  # seconds for TLS
STALL = 30.0  # seconds without a byte of a body, or without one taken
LINGER = 1.0  # seconds in which whoever was refused can read why
LINGER_BYTES = 1 << 20  # that may come in meanwhile


@dataclass(frozen=True)
class Target:
    """Where admitted requests go; with `trust` encrypted, and only if its certificate holds."""

    host: str
    port: int
    trust: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return joined(self.host, self.port)


class Stream:
    """HTTP with somebody, in pieces, never waited for without end."""

    def __init__(
        self, role: type[h11.CLIENT] | type[h11.SERVER], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)
        self._reader, self._writer = reader, writer
        self.used = time.monotonic()

    async def next(self, seconds: float) -> h11.Event:
        """What comes next, within so many seconds."""
        async with asyncio.timeout(seconds):
            while not isinstance(event := self.http.next_event(), h11.Event):
                self.http.receive_data(await self._reader.read(PIECE))
        return event

    async def send(self, *events: h11.Event) -> None:
        """Send events, at the pace of whoever takes them."""
        for event in events:
            self._writer.write(self.http.send(event) or b"")
        async with asyncio.timeout(STALL):
            await self._writer.drain()

    def ready_again(self) -> bool:
        """Get ready for the next request; whether that can be."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        self.used = time.monotonic()
        return True

    async def gone(self) -> None:
        """Wait until whoever is at the other end has closed; what they send meanwhile is kept."""
        while piece := await self._reader.read(PIECE):
            self.http.receive_data(piece)

    async def linger(self) -> None:
        """Read what is still sent, to nobody: a connection closed on unread bytes takes its last words with it."""
        left = LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while left > 0 and (piece := await self._reader.read(PIECE)):
                    left -= len(piece)

    async def close(self) -> None:
        """Close, once everything has been taken or has had its time."""
        self._writer.close()
        try:
            async with asyncio.timeout(STALL):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()


async def accepted_stream(accepted: socket.socket, served: ssl.SSLContext | None) -> Stream:
    """The connection behind an accepted socket, encrypted if it is to be."""
    watch_for_broken_line(accepted)
    reader = asyncio.StreamReader(limit=PIECE)
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, accepted, ssl=served, ssl_handshake_timeout=None if served is None else HANDSHAKE
        )
    except BaseException:
        accepted.close()
        raise
    return Stream(h11.SERVER, reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def watch_for_broken_line(connection: socket.socket) -> None:
    """Have the system notice within seconds if the line is dead on which somebody waits, and says nothing."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def reached_stream(target: Target) -> Stream:
    """A connection to a target, by the proxy that leads out of here if there is one (`https_proxy`, `no_proxy`)."""
    name = None if target.trust is None else target.host
    proxy = outbound_proxy(target)
    if proxy is None:
        reader, writer = await asyncio.open_connection(
            target.host, target.port, ssl=target.trust, server_hostname=name, limit=PIECE
        )
        return Stream(h11.CLIENT, reader, writer)
    reader, writer = await asyncio.open_connection(proxy.hostname, proxy.port or 80, limit=PIECE)
    try:
        await _pass_proxy(Stream(h11.CLIENT, reader, writer), proxy, target)
        if target.trust is not None:
            await writer.start_tls(target.trust, server_hostname=name)
    except BaseException:
        writer.transport.abort()
        raise
    return Stream(h11.CLIENT, reader, writer)


def outbound_proxy(target: Target) -> SplitResult | None:
    """The proxy by which a target is reached; this machine is always reached without one."""
    address = getproxies().get("https" if target.trust is not None else "http")
    if not address or is_loopback(target.host) or proxy_bypass(target.host):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


async def _pass_proxy(stream: Stream, proxy: SplitResult, target: Target) -> None:
    headers = [("host", str(target))]
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers.append(("proxy-authorization", f"Basic {base64.b64encode(login.encode()).decode()}"))
    await stream.send(h11.Request(method="CONNECT", target=str(target), headers=headers), h11.EndOfMessage())
    answer = await stream.next(HANDSHAKE)
    if not isinstance(answer, h11.Response) or not 200 <= answer.status_code < 300:
        said = answer.status_code if isinstance(answer, h11.Response) else "nothing"
        raise ConnectionError(f"the proxy {proxy.hostname} answers {said}")


def raised_file_limit(wanted: int) -> int:
    """How many files this process may open, once it has asked for as many as it wants."""
    most, possible = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < wanted:
        most = wanted if possible == resource.RLIM_INFINITY else min(wanted, possible)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, possible))
    return wanted if most == resource.RLIM_INFINITY else most
