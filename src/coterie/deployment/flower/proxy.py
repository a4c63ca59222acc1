"""An HTTP proxy that passes little on: a gate looks at every request before a byte of it goes further.

Two use it: the server's gateway (`gateway`), which keeps the network away from Flower's SuperLink, and a site's relay
(`relay`), which keeps apps away that the site has not agreed to. HTTP itself is h11's; here are the limits: on
connections, on the size of heads and bodies (counted while they come in), and on the patience with slow clients.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, TypeVar

import h11

from coterie.deployment.flower.audit import SUMMARY, Audit
from coterie.deployment.flower.streams import (
    HANDSHAKE,
    STALL,
    Stream,
    Target,
    accepted_stream,
    raised_file_limit,
    reached_stream,
)
from coterie.deployment.flower.wake_up import WakeUp


@dataclass(frozen=True)
class Head:
    """The head of a request."""

    peer: str
    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)


class RefusalError(Exception):
    """A request, or an answer to one, that is not passed on."""

    def __init__(self, status: int, reason: str, body: bytes = b"", **more: str | int) -> None:
        super().__init__(reason)
        self.status, self.reason, self.body, self.more = status, reason, body, more


class Gate:
    """Decides who is let in, and what passes of theirs; what it says nothing about passes as it is."""

    def admit(self, head: Head) -> None:
        """Refuse a request by its head, with a `RefusalError`: every one, unless a gate says which it lets in."""
        raise RefusalError(403, "this gate lets nobody in")

    def sender(self, head: Head) -> str:
        """Whose an admitted request is, as far as that is known: nobody shall have all connections."""
        return ""

    def sees_whole(self, path: str) -> bool:
        """Whether the answer to such a request is shown to `judge` before anything of it is passed on."""
        return False

    def judge(self, path: str, status: int, content: bytes) -> bytes:
        """What is passed on instead of an answer; a `RefusalError` if nothing is."""
        return content

    def takes_time(self, path: str) -> bool:
        """Whether such a request may wait for its answer, and is given up if the client goes away meanwhile."""
        return False

    def awaits(self, head: Head) -> str | None:
        """Until whose wake-up an empty answer is held back; None if it never is."""
        return None

    def reads(self, path: str) -> bool:
        """Whether such a request, which must be small then, is shown to `read` before anything of it is passed on."""
        return False

    def read(self, head: Head, body: bytes) -> None:
        """Refuse a request by its body, with a `RefusalError`."""

    def answered(self, head: Head, body: bytes, answer: bytes) -> None:
        """Take note of what was answered to a request that was awaited."""

    def spend(self, head: Head, size: int) -> None:
        """Take note of so many bytes of a request's body; a `RefusalError` if that is too much."""


MOST_BYTES = 16 << 20  # of a body: arrays travel in pieces of 5 MiB, an app has at most 10 MB
MOST_CONNECTIONS = 1024
MOST_OF_ONE = 256  # of one address: several sites may share one
MOST_OF_SENDER = 64  # with admitted requests of one sender
MOST_SILENT, MOST_SILENT_OF_ONE = 256, 64  # without an admitted request yet: in all, and of one address
HEAD = 10.0  # seconds for the head of a connection's first request
IDLE = 75.0  # seconds for the head of a later one
BODY = 300.0  # seconds for a whole body
ANSWER = 90.0  # seconds until an answer begins
HOLD = 25.0  # seconds for which an empty answer is held back at the most; a SuperNode waits 30
LOOK_AGAIN = 10.0  # seconds after which it is asked again, if no wake-up comes
SMALL = 256 << 10  # bytes of a request that is kept: an answer's table of contents is the largest
FRESH = 2.0  # seconds for which a used connection further on is used again; a SuperLink closes it after 5
PASSED_ON = (b"content-type", b"accept")  # headers, beside Flower's own


T = TypeVar("T")


class Proxy:
    """Listens on a socket and serves each connection in a task of its own."""

    def __init__(
        self,
        listener: socket.socket,
        target: Target,
        gate: Gate,
        audit: Audit,
        served: ssl.SSLContext | None = None,
        wake_up: WakeUp | None = None,
    ) -> None:
        self.wake_up = wake_up
        self.listener, self.target, self.gate, self.audit, self.served = listener, target, gate, audit, served
        self.most = min(MOST_CONNECTIONS, (raised_file_limit(2 * MOST_CONNECTIONS + 64) - 64) // 2)
        self._open: Counter[str] = Counter()
        self._senders: Counter[str] = Counter()
        self._silent: dict[asyncio.Task[Any], str] = {}  # connections without an admitted request, with their addresses
        self._tasks: set[asyncio.Task[None]] = set()
        self._trouble = ""

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        self.listener.setblocking(False)
        summing_up = asyncio.create_task(self._sum_up())
        try:
            with nullcontext() if self.wake_up is None else self.wake_up.heard():
                while True:
                    try:
                        accepted, address = await loop.sock_accept(self.listener)
                    except OSError:  # out of file descriptors, or the client has gone again
                        await asyncio.sleep(0.1)
                        continue
                    self._take(accepted, str(address[0]))
        finally:
            for task in (*self._tasks, summing_up):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.audit.sum_up(last=True)

    async def _sum_up(self) -> None:
        while True:
            await asyncio.sleep(SUMMARY)
            self.audit.sum_up()

    def _take(self, accepted: socket.socket, peer: str) -> None:
        if self._open.total() >= self.most or self._open[peer] >= min(MOST_OF_ONE, self.most):
            accepted.close()
            self.audit.refused(peer, "", "too many connections")
            return
        self._make_room(peer)
        self._open[peer] += 1
        task = asyncio.create_task(self._serve(accepted, peer))
        self._silent[task] = peer
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _make_room(self, peer: str) -> None:
        """Of too many connections that have said nothing yet, the oldest makes way: others say at once who they are."""
        silent = Counter(self._silent.values())
        whose = peer if silent[peer] >= MOST_SILENT_OF_ONE else max(silent, key=lambda one: silent[one], default=peer)
        if silent[peer] < MOST_SILENT_OF_ONE and silent.total() < min(MOST_SILENT, self.most // 2):
            return
        oldest = next(task for task, address in self._silent.items() if address == whose)
        del self._silent[oldest]
        oldest.cancel()
        self.audit.refused(whose, "", "silent, while others come")

    def admitted(self, sender: str) -> None:
        """A request of this connection is admitted; too many connections of one sender are refused."""
        task = asyncio.current_task()
        if task is None or self._silent.pop(task, None) is None:
            return  # it was before
        if sender and self._senders[sender] >= MOST_OF_SENDER:
            raise RefusalError(429, "too many connections of one sender")
        self._senders[sender] += 1
        task.add_done_callback(lambda _: self._senders.subtract([sender]))

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._silent.pop(task, None)

    async def _serve(self, accepted: socket.socket, peer: str) -> None:
        try:
            await _Connection(self, peer, await accepted_stream(accepted, self.served)).serve()
        except ssl.SSLError as error:
            self.audit.refused(peer, "", f"no TLS connection: {error.reason or 'broken off'}")
        except OSError:
            pass  # whoever goes away is not refused
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]

    def say(self, trouble: str) -> None:
        """Say on stderr why nothing can be passed on, once as long as it stays the same; nothing: it can again."""
        if trouble != self._trouble:
            self._trouble = trouble
            print(trouble or f"{self.target} answers again", file=sys.stderr, flush=True)


class _Connection:
    """One client's connection, and one further on while it is needed."""

    def __init__(self, proxy: Proxy, peer: str, stream: Stream) -> None:
        self._proxy, self._peer, self._stream = proxy, peer, stream
        self._onward: Stream | None = None

    async def serve(self) -> None:
        patience = HEAD
        try:
            while await self._exchange(patience):
                patience = IDLE
            await self._stream.close()
        finally:
            self._stream.abort()
            self._drop_onward()

    async def _exchange(self, patience: float) -> bool:
        """Take a request and answer it; whether another one may follow."""
        head, audit = Head(self._peer, "", ""), self._proxy.audit
        try:
            request = await self._stream.next(patience)
            if not isinstance(request, h11.Request):
                return False
            head = _head_of(request, self._peer)
            self._proxy.gate.admit(head)
            self._proxy.admitted(self._proxy.gate.sender(head))
            if int(head.headers.get("content-length", "0")) > MOST_BYTES:
                raise _too_large()
            wake_up, awaited = self._proxy.wake_up, self._proxy.gate.awaits(head)
            if wake_up is not None and awaited is not None:
                await self._hold(head, request, wake_up, awaited)
            elif self._proxy.gate.reads(head.path):
                body = await self._small_body()
                self._proxy.gate.read(head, body)
                await self._pass_back(*await self._asked(request, body))
            else:
                await self._take(head, request)
                await self._answer(head)
        except RefusalError as refusal:
            self._drop_onward()
            if refusal.status < 500:
                audit.refused(self._peer, head.path, refusal.reason, method=head.method, **refusal.more)
            await self._refuse(refusal)
            return False
        except h11.RemoteProtocolError as error:
            audit.refused(self._peer, head.path, f"is not HTTP as it should be: {error}", method=head.method)
            await self._refuse(RefusalError(error.error_status_hint, "bad request"))
            return False
        except TimeoutError:
            if patience == HEAD or head.path:
                audit.refused(self._peer, head.path, "too slow", method=head.method)
            return False
        return self._stream.ready_again()

    async def _take(self, head: Head, request: h11.Request) -> None:
        """Pass a request on, piece by piece."""
        onward = await self._reach()
        async with _trouble_further_on(self._proxy):
            await onward.send(_passed_on(request, self._proxy.target))
        if self._stream.http.they_are_waiting_for_100_continue:
            await self._stream.send(h11.InformationalResponse(status_code=100, headers=[]))
        total = 0
        async with asyncio.timeout(BODY):
            while isinstance(event := await self._stream.next(STALL), h11.Data):
                total += len(event.data)
                if total > MOST_BYTES:
                    raise _too_large()
                self._proxy.gate.spend(head, len(event.data))
                async with _trouble_further_on(self._proxy):
                    await onward.send(h11.Data(data=event.data))
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError
        async with _trouble_further_on(self._proxy):
            await onward.send(h11.EndOfMessage())

    async def _answer(self, head: Head) -> None:
        """Pass the answer back, piece by piece unless the gate wants to see it whole."""
        onward, gate = self._onward, self._proxy.gate
        assert onward is not None
        answer = await (self._while_there(self._begun(onward)) if gate.takes_time(head.path) else self._begun(onward))
        headers = [(name, value) for name, value in answer.headers if _is_passed_on(name)]
        pieces = _Pieces(self._proxy, onward)
        if gate.sees_whole(head.path):
            whole = b"".join([piece async for piece in pieces])
            whole = gate.judge(head.path, answer.status_code, whole)
            headers.append((b"content-length", str(len(whole)).encode()))
            begin = h11.Response(status_code=answer.status_code, headers=headers)
            await self._stream.send(begin, h11.Data(data=whole), h11.EndOfMessage())
        else:
            headers += _framing(answer.headers, (b"transfer-encoding", b"chunked"))
            await self._stream.send(h11.Response(status_code=answer.status_code, headers=headers))
            async for piece in pieces:
                await self._stream.send(h11.Data(data=piece))
            await self._stream.send(h11.EndOfMessage())
        if not onward.ready_again():
            self._drop_onward()

    async def _begun(self, onward: Stream) -> h11.Response:
        """The head of an answer."""
        async with _trouble_further_on(self._proxy):
            while isinstance(answer := await onward.next(ANSWER), h11.InformationalResponse):
                pass
        # Flower's clients give a connection up for good at 500, and try again at 503: a disk is full for a while only.
        if isinstance(answer, h11.Response) and answer.status_code == 500:
            self._proxy.say(f"{self._proxy.target} cannot do now what it is asked (status 500)")
            raise RefusalError(503, "it cannot be done now")
        self._proxy.say("")
        # A client would follow a redirection to where no gate is.
        if not isinstance(answer, h11.Response) or 300 <= answer.status_code < 400:
            raise RefusalError(502, "no answer that could be passed on")
        return answer

    async def _hold(self, head: Head, request: h11.Request, wake_up: WakeUp, awaited: str) -> None:
        """Ask further on until the answer is not empty: at once, at a wake-up, and from time to time."""
        body, end = await self._small_body(), time.monotonic() + HOLD
        while True:
            with wake_up.awaited(awaited) as woken:  # before it is asked, so that no wake-up is missed
                answer, whole = await self._while_there(self._asked(request, body))
                left = end - time.monotonic()
                if answer.status_code != 200 or whole or left <= 0:
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_AGAIN)):
                        await self._while_there(woken.wait())
        if answer.status_code == 200:
            self._proxy.gate.answered(head, body, whole)
        await self._pass_back(answer, whole)

    async def _pass_back(self, answer: h11.Response, whole: bytes) -> None:
        """Pass a whole answer back."""
        headers = [(name, value) for name, value in answer.headers if _is_passed_on(name)]
        headers.append((b"content-length", str(len(whole)).encode()))
        begin = h11.Response(status_code=answer.status_code, headers=headers)
        await self._stream.send(begin, h11.Data(data=whole), h11.EndOfMessage())

    async def _asked(self, request: h11.Request, body: bytes) -> tuple[h11.Response, bytes]:
        """The whole answer to a request, asked anew."""
        onward = await self._reach()
        async with _trouble_further_on(self._proxy):
            await onward.send(_passed_on(request, self._proxy.target), h11.Data(data=body), h11.EndOfMessage())
        answer = await self._begun(onward)
        whole = b"".join([piece async for piece in _Pieces(self._proxy, onward)])
        if not onward.ready_again():
            self._drop_onward()
        return answer, whole

    async def _small_body(self) -> bytes:
        """A request's body that is kept, to be sent more than once."""
        body = b""
        async with asyncio.timeout(BODY):
            while isinstance(event := await self._stream.next(STALL), h11.Data):
                body += event.data
                if len(body) > SMALL:
                    raise RefusalError(413, f"a body of more than {SMALL:,} bytes")
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError
        return body

    async def _while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work, unless the client goes away before it is done: nobody would get what came of it."""
        doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._stream.gone())
        try:
            await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise ConnectionResetError
            return doing.result()
        finally:
            for task in (doing, gone):
                task.cancel()
            await asyncio.gather(doing, gone, return_exceptions=True)

    async def _reach(self) -> Stream:
        """A connection further on: the one used just now, or a new one."""
        if self._onward is not None and time.monotonic() - self._onward.used < FRESH:
            return self._onward
        self._drop_onward()
        async with _trouble_further_on(self._proxy), asyncio.timeout(HANDSHAKE):
            self._onward = await reached_stream(self._proxy.target)
        return self._onward

    def _drop_onward(self) -> None:
        if self._onward is not None:
            self._onward.abort()
            self._onward = None

    async def _refuse(self, refusal: RefusalError) -> None:
        """Answer a request that is not passed on, if nothing was answered yet."""
        if self._stream.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        # The time is for sites: one whose clock is off learns so from any answer.
        headers = [("date", formatdate(usegmt=True)), ("connection", "close")]
        headers.append(("content-length", str(len(refusal.body))))
        if refusal.body:
            headers.append(("content-type", "application/json"))
        begin = h11.Response(status_code=refusal.status, headers=headers)
        with suppress(TimeoutError, OSError):
            await self._stream.send(begin, h11.Data(data=refusal.body), h11.EndOfMessage())
            await self._stream.linger()


class _Pieces:
    """The body of an answer, as it comes in."""

    def __init__(self, proxy: Proxy, onward: Stream) -> None:
        self._proxy, self._onward = proxy, onward
        self._total = 0

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> bytes:
        async with _trouble_further_on(self._proxy):
            event = await self._onward.next(STALL)
        if isinstance(event, h11.EndOfMessage):
            raise StopAsyncIteration
        if not isinstance(event, h11.Data):
            raise RefusalError(502, "the answer broke off")
        self._total += len(event.data)
        if self._total > MOST_BYTES:
            raise RefusalError(502, "the answer is too long")
        return bytes(event.data)


@asynccontextmanager
async def _trouble_further_on(proxy: Proxy) -> AsyncIterator[None]:
    """What goes wrong within is not the client's fault, who may try again."""
    try:
        yield
    except TimeoutError:
        proxy.say(f"no answer from {proxy.target} in time")
        raise RefusalError(504, "no answer in time") from None
    except (OSError, h11.RemoteProtocolError) as error:
        proxy.say(f"no connection to {proxy.target}: {_spoken(error)}")
        raise RefusalError(502, "nobody answers") from None


def _spoken(error: Exception) -> str:
    """What became of a connection, in words.

    >>> _spoken(ConnectionRefusedError(111, "Connect call failed ('192.0.2.1', 8000)"))
    'nobody listens there'
    >>> _spoken(ConnectionResetError("Connection lost"))
    'it was broken off'
    """
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    # A connection that ends within an answer is no HTTP to h11, which has words of its own for it.
    closed = isinstance(error, h11.RemoteProtocolError) and "ConnectionClosed" in str(error)
    return "it was broken off" if closed or isinstance(error, ConnectionError) else str(error)


def _head_of(request: h11.Request, peer: str) -> Head:
    head = Head(peer, request.method.decode("ascii"), request.target.decode("latin-1"))
    for name, value in request.headers:
        known = name.decode("latin-1")
        # Whoever reads the first of two sees another request than whoever reads the last.
        if known in head.headers and _is_passed_on(name):
            raise RefusalError(400, f"two headers {known}")
        head.headers[known] = value.decode("latin-1")
    return head


def _passed_on(request: h11.Request, target: Target) -> h11.Request:
    headers = [(name, value) for name, value in request.headers if _is_passed_on(name)]
    headers += [(b"host", str(target).encode())]
    headers += [(b"accept-encoding", b"identity"), *_framing(request.headers, (b"content-length", b"0"))]
    return h11.Request(method=request.method, target=request.target, headers=headers)


def _framing(headers: Iterable[tuple[bytes, bytes]], without: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """How the length of a body is told: as it was told here."""
    known = dict(headers)
    if b"transfer-encoding" in known:
        return [(b"transfer-encoding", b"chunked")]
    return [(b"content-length", known[b"content-length"])] if b"content-length" in known else [without]


def _is_passed_on(name: bytes) -> bool:
    return name in PASSED_ON or name.startswith(b"flwr-")


def _too_large() -> RefusalError:
    return RefusalError(413, f"a body of more than {MOST_BYTES:,} bytes")
