"""What decides over requests that a proxy passes on, and what it sees of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


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


class Gate(Protocol):
    """Decides what passes."""

    def admit(self, head: Head) -> None:
        """Refuse a request by its head, with a `RefusalError`."""

    def sees_whole(self, path: str) -> bool:
        """Whether the answer to such a request is shown to `judge` before anything of it is passed on."""

    def judge(self, path: str, status: int, content: bytes) -> bytes:
        """What is passed on instead of an answer; a `RefusalError` if nothing is."""

    def takes_time(self, path: str) -> bool:
        """Whether such a request may wait for its answer, and is given up if the client goes away meanwhile."""

    def awaits(self, head: Head) -> str | None:
        """For whom a bell may ring until which an empty answer is held back; None if it never is."""
