"""A private channel between two processes of one site: a socket in a folder that nobody else can enter.

A message is a head, plain values as JSON, and buffers of bytes whose lengths the head names. Nothing is pickled, and
no more is read than whoever reads allows.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import chdir, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from coterie.deployment.messages import LONGEST_NOTE, PURPOSES, Packed, Purpose, RefusedError, one_line

LENGTH = 8  # bytes that say how long the head is
MOST_HEAD = 4 * LONGEST_NOTE + (16 << 20)  # a note in any letters, and an agreement
MOST_BYTES = 16 << 30  # of all buffers: more than any message that Flower carries
PIECE = 1 << 20
BACKLOG = 16


class BrokenOffError(ConnectionError):
    """The other side went away in the middle of a message."""


@dataclass(frozen=True)
class Request:
    """What a site is asked: for which purpose, by which agreement (the text of its TOML file)."""

    purpose: Purpose
    agreement: str
    content: Packed


def listening(path: Path) -> socket.socket:
    """A socket at a path that only this user can reach; one that somebody left behind is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        with chdir(path.parent):  # the names of such sockets are short
            listener.bind(path.name)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    return listener


def connected(path: Path) -> socket.socket:
    """A connection to whoever listens at a path."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with chdir(path.parent):
            connection.connect(path.name)
    except BaseException:
        connection.close()
        raise
    return connection


def ask(path: Path, request: Request) -> Packed | int:
    """What the resident at a path answers: a message, or the number of a fault."""
    with closing(connected(path)) as connection:
        head = {"purpose": request.purpose, "agreement": request.agreement}
        _send(connection, head, request.content)
        answer = Reading(connection)
        if "fault" in answer.head:
            return int(answer.head["fault"])
        return answer.content(MOST_BYTES)


def answer(connection: socket.socket, content: Packed | int) -> None:
    """Answer what came in on a connection, with a message or the number of a fault."""
    if isinstance(content, int):
        _send(connection, {"fault": content}, Packed({}, ""))
    else:
        _send(connection, {}, content)


class Reading:
    """A message whose head has been read; its buffers are read only by whoever has seen that they are not too long."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        length = int.from_bytes(_read(connection, LENGTH))
        if length > MOST_HEAD:
            raise RefusedError(f"a head of {length:,} bytes; at most {MOST_HEAD:,} are read")
        self.head: dict[str, Any] = json.loads(_read(connection, length))
        self._lengths: dict[str, int] = {kind: int(length) for kind, length in self.head["buffers"].items()}
        self._unread = sum(self._lengths.values())

    def request(self, most_bytes: int) -> Request:
        """The whole message as a request."""
        purpose = self.head["purpose"]
        if purpose not in PURPOSES:
            raise RefusedError(f"nobody asks a site for '{one_line(purpose)}'")
        return Request(cast(Purpose, purpose), str(self.head["agreement"]), self.content(most_bytes))

    def content(self, most_bytes: int) -> Packed:
        """The rest of the message, if that is of so many bytes at the most."""
        if self._unread > most_bytes:
            raise RefusedError(f"it holds {self._unread:,} bytes; at most {most_bytes:,} are due")
        buffers = {}
        for kind, length in self._lengths.items():
            buffers[kind] = _read(self._connection, length)
            self._unread -= length
        return Packed(buffers, self.head["text"], self.head["seal"])

    def skip(self) -> None:
        """Read what is left, and forget it: whoever is still sending would not hear an answer."""
        while self._unread > 0:
            self._unread -= len(_read(self._connection, min(self._unread, PIECE)))


def _send(connection: socket.socket, head: dict[str, Any], content: Packed) -> None:
    lengths = {kind: len(buffer) for kind, buffer in content.buffers.items()}
    encoded = json.dumps({**head, "text": content.text, "seal": content.seal, "buffers": lengths}).encode()
    connection.sendall(len(encoded).to_bytes(LENGTH) + encoded)
    for buffer in filter(None, content.buffers.values()):  # whoever has read all may be gone when nothing is sent
        connection.sendall(buffer)


def _read(connection: socket.socket, length: int) -> bytes:
    pieces, left = [], length
    while left:
        piece = connection.recv(min(left, PIECE))
        if not piece:
            raise BrokenOffError("the other side went away")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
