"""The server's day: wait for sites, ask them, go on without those that are late, and never lose a round's work.

How messages travel is the transport's business; everything that can go wrong with a site is handled here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from coterie.deployment.logbook import Logbook
from coterie.deployment.server import Report, Server, fault_of
from coterie.deployment.wire import Packed, Parcel, RefusedError, one_line, pack, read_text
from coterie.errors import CoterieError

log = logging.getLogger("coterie")

Purpose = Literal["hello", "work", "finish"]

POLL = 0.05  # seconds between two looks for answers
LISTEN = 1.0  # seconds between two looks for new sites


@dataclass(frozen=True)
class Answer:
    """What came back from a node: a message, or the reason why there is none."""

    node: int
    purpose: Purpose
    content: Packed | str


class Transport(Protocol):
    """Carries messages to nodes and back. A node has one message at a time."""

    def nodes(self) -> dict[int, str]:
        """The nodes that are connected and have nothing to do, each with the name it was registered by (or "")."""

    def send(self, node: int, purpose: Purpose, content: Packed, seconds: float) -> None:
        """Send a message that is void after so many seconds."""

    def answers(self) -> list[Answer]:
        """What has come in since the last call."""


class Coordinator:
    """Runs a federation to its end, from its last checkpoint if there is one."""

    def __init__(
        self,
        server: Server,
        transport: Transport,
        logbook: Logbook,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.server, self.transport, self.logbook = server, transport, logbook
        self.agreement = server.agreement
        self._clock, self._sleep = clock, sleep
        self._sites: dict[int, str] = {}  # the site of every node that was admitted
        self._free: dict[int, str] = {}  # idle nodes, with the names they were registered by
        self._names: dict[int, str] = {}  # those names of all nodes ever seen
        self._refused: set[int] = set()
        self._waiting: set[int] = set()  # nodes of the open round that have not answered
        self._busy: set[int] = set()  # nodes that owe an answer
        self._doubles: dict[int, int] = {}  # refused nodes, each with the live node whose name it wants
        self._looked = -LISTEN

    def run(self) -> None:
        """All rounds that are left, then the farewell."""
        try:
            if self.logbook.restore(self.server):
                log.info("resumed after round %d", self.server.federation.round)
            self._gather()
            while not self.server.finished:
                self._round()
            self._farewell()
        except BaseException as error:
            told = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {one_line(error)}"
            log.error("%s", told)
            self._status("failed", told)
            raise
        self._status("finished")

    def _gather(self) -> None:
        """Wait a while for everybody."""
        end = self._clock() + self.agreement.gather
        self._status("waiting", "waiting for the sites")
        while len(self._present()) < len(self.agreement.sites) and self._clock() < end:
            self._sleep(POLL)

    def _round(self) -> None:
        """The next round, as soon as there are enough sites; a round that too few answer is done again."""
        end = self._clock() + self.agreement.patience
        least = self.agreement.least_sites
        while True:
            while len(present := self._present()) < least:
                if self._clock() >= end:
                    raise CoterieError(
                        f"round {self.server.federation.round + 1}: {len(present)} of at least {least} sites were "
                        f"there within {self.agreement.patience:g} s; start the missing ones, then the server again: "
                        "it resumes"
                    )
                self._sleep(POLL)
            report = self._ask(present)
            if report is not None:
                break
        self.logbook.add(report)
        self.logbook.checkpoint(self.server)
        self._status("running")

    def _ask(self, present: dict[str, int]) -> Report | None:
        """Send the tasks and take answers until the deadline; nothing if too few came."""
        begin = self._clock()
        tasks = self.server.open_round(list(present))
        self._status("running", f"round {self.server.federation.round} is under way")
        self._waiting = {present[name] for name in tasks}
        while tasks:  # each is let go once it is sent
            name, task = tasks.popitem()
            self._send(present[name], "work", pack(task))
        self._await_answers(begin + self.agreement.deadline)
        late = [self._sites[node] for node in self._waiting]
        self._waiting = set()
        if self.server.answered < self.agreement.least_sites:
            report = self.server.abandon_round()
            log.warning("round %d is done again: only %d sites answered", report.round, len(report.trained))
            return None
        report = self.server.close_round()
        report.seconds["round"] = self._clock() - begin
        if report.missing:
            log.warning("round %d goes on without %s%s", report.round, ", ".join(report.missing), _late(late))
        log.info("round %d: %s answered", report.round, ", ".join(report.answered))
        return report

    def _farewell(self) -> None:
        """Give every site its finished model; whoever has taken part is waited for a while."""
        end = self._clock() + self.agreement.gather
        while (present := self._present()).keys() < self.server.standing.keys() and self._clock() < end:
            self._sleep(POLL)
        self._waiting = set(present.values())
        for name, task in self.server.farewells(list(present)).items():
            self._send(present[name], "finish", pack(task))
        self._await_answers(self._clock() + self.agreement.deadline)
        absent = sorted(set(self.agreement.sites) - set(self.server.finals))
        if absent:
            log.warning("%s did not get the finished model: start the server again to hand it over", ", ".join(absent))
        self.logbook.finish(self.server)

    def _send(self, node: int, purpose: Purpose, content: Packed) -> None:
        self._free.pop(node, None)
        self._busy.add(node)
        self.transport.send(node, purpose, content, self.agreement.deadline)

    def _await_answers(self, end: float) -> None:
        """Listen until everybody who was asked has answered, or the time is up."""
        while self._waiting and self._clock() < end:
            self._listen()
            self._sleep(POLL)

    def _present(self) -> dict[str, int]:
        """The sites that are here with nothing to do; newly connected nodes are asked who they are."""
        self._listen()
        return {self._sites[node]: node for node in self._free if node in self._sites}

    def _listen(self) -> None:
        """Handle what has come in, and from time to time look for new nodes."""
        for answer in self.transport.answers():
            self._handle(answer)
        if self._clock() - self._looked < LISTEN:
            return
        self._looked = self._clock()
        self._free = self.transport.nodes()
        self._busy -= self._free.keys()
        self._names |= self._free
        self._refused &= self._free.keys()  # whoever comes back is asked anew
        for node in self._freed_doubles():
            self._refused.discard(node)
        for node in self._free.keys() - self._sites.keys() - self._refused:
            self._send(node, "hello", pack(Parcel()))

    def _handle(self, answer: Answer) -> None:
        self._busy.discard(answer.node)
        if not isinstance(answer.content, str):
            self._free[answer.node] = self._names.get(answer.node, "")
        if answer.purpose == "hello":
            self._admit(answer)
        elif answer.node in self._waiting:
            self._waiting.discard(answer.node)
            name = self._sites[answer.node]
            if isinstance(answer.content, str):
                log.warning("site %s did not do its task: %s", name, one_line(answer.content))
            elif answer.purpose == "work":
                self.server.receive(name, answer.content)
            else:
                self.server.part(name, answer.content)
        else:
            log.info("a late answer of site %s is not counted", self._sites.get(answer.node, answer.node))

    def _admit(self, answer: Answer) -> None:
        try:
            if isinstance(answer.content, str):
                raise RefusedError(answer.content)
            note = read_text(answer.content.text)["note"]
            self._require_single(note.get("site"), answer.node)
            name = self.server.admit(note, self._names.get(answer.node, ""))
        except Exception as error:  # whatever a message does to us is its sender's fault
            self._refused.add(answer.node)
            log.warning("a site is refused: %s", fault_of(error))
            return
        self._sites = {node: site for node, site in self._sites.items() if site != name} | {answer.node: name}
        log.info("site %s is here", name)
        self._status("running" if self.server.federation.round else "waiting")

    def _require_single(self, name: object, node: int) -> None:
        """Refuse a name that a live node has: without keys anybody can claim it, and the first one stays."""
        for other, site in self._sites.items():
            if site == name and other != node and self._is_live(other):
                self._doubles[node] = other
                raise RefusedError(f"site {site} is here already, as another node; only one may be")

    def _is_live(self, node: int) -> bool:
        return node in self._free or node in self._busy

    def _freed_doubles(self) -> list[int]:
        """Refused nodes whose name has become free: they are asked again."""
        freed = [node for node, other in self._doubles.items() if not self._is_live(other)]
        for node in freed:
            del self._doubles[node]
        return freed

    def _status(self, state: Literal["waiting", "running", "finished", "failed"], message: str = "") -> None:
        here = self._free.keys() | self._waiting
        self.logbook.status(state, self.server, [site for node, site in self._sites.items() if node in here], message)


def _late(sites: list[str]) -> str:
    return f" ({', '.join(sites)}: no answer in time)" if sites else ""
