"""The server's day: wait for sites, ask them, go on without those that are late, and never lose a round's work.

How messages travel is the transport's business; everything that can go wrong with a site is handled here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from coterie.deployment.agreement import Agreement
from coterie.deployment.claims import fault_of
from coterie.deployment.envelopes import ServerEnvelopes
from coterie.deployment.logbook import Logbook
from coterie.deployment.messages import Packed, Purpose, RefusedError, one_line, read_text
from coterie.deployment.server import Report, Server
from coterie.deployment.state_file import State
from coterie.deployment.versions import LiveTerms
from coterie.deployment.waiting import AGAIN, LISTEN, POLL, RECONNECT, AnswerTimes, Pause, WaitingNews
from coterie.deployment.wire import Parcel, pack
from coterie.errors import CoterieError
from coterie.files import FULL

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Answer:
    """What came back from a node: a message, or the reason why there is none."""

    node: int
    purpose: Purpose
    content: Packed | str
    replied: bool = False  # whether the reason is the node's own, which therefore has nothing more to do


class UnsentError(CoterieError):
    """A message that cannot be sent now, and may be later."""


class DivergedError(CoterieError):
    """Training diverged at so many sites that a round cannot have enough answers."""


class Transport(Protocol):
    """Carries messages to nodes and back. A node has one message at a time."""

    def nodes(self) -> dict[int, str]:
        """The nodes that are connected and have nothing to do, each with the name it was registered by (or "")."""

    def send(self, node: int, purpose: Purpose, content: Packed, seconds: float) -> None:
        """Send a message that is void after so many seconds; an `UnsentError` if that cannot be done now."""

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
        terms: LiveTerms | None = None,
        envelopes: ServerEnvelopes | None = None,
    ) -> None:
        self.server, self.transport, self.logbook = server, transport, logbook
        self._terms = terms or LiveTerms(server.agreement)
        self._envelopes = envelopes  # without them nothing is signed: where no key was agreed on
        self._clock, self._sleep = clock, sleep
        self._times = AnswerTimes()
        self._sites: dict[int, str] = {}  # the site of every node that was admitted
        self._free: dict[int, str] = {}  # idle nodes, with the names they were registered by
        self._names: dict[int, str] = {}  # those names of all nodes ever seen
        self._greeted: set[int] = set()  # nodes that were asked who they are and have not answered
        self._refused: dict[int, Pause] = {}  # nodes that are not asked that for a while, or at all
        self._waiting: dict[int, str] = {}  # nodes that have not answered the open round, with their sites
        self._at_work: dict[int, tuple[str, float]] = {}  # nodes that train, with their sites and since when
        self._failed: dict[str, str] = {}  # why sites could not do what the open round asks
        self._unsent: dict[str, float] = {}  # sites whose tasks did not come through, and until when that is tried
        self._busy: set[int] = set()  # nodes that owe an answer
        self._doubles: dict[int, int] = {}  # refused nodes, each with the live node whose name it wants
        self._looked = -LISTEN
        self._told: tuple[State, str] = ("waiting", "")  # how the federation stands, in its status

    @property
    def agreement(self) -> Agreement:
        """The terms as they are now: waiting times may change while the federation runs."""
        return self._terms.now()

    def run(self) -> None:
        """All rounds that are left, then the farewell."""
        try:
            resumed = self.logbook.restore(self.server)
            if resumed:
                log.info("resumed after round %d", self.server.federation.round)
            self._gather(resumed and not self.server.finished)
            if not self.server.federation.round:
                for oddity in self.server.compare_data():
                    log.warning("%s", oddity)
            period = self.server.period
            while not self.server.finished:
                if self.server.period != period:
                    period = self.server.period
                    self._ask_anew()
                self._round()
            self._farewell()
        except BaseException as error:
            reason = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {one_line(error)}"
            log.error("%s", reason)
            self._status("failed", reason, passing=_is_passing(error))
            raise
        self._status("finished")

    def _gather(self, resumed: bool) -> None:
        """Wait a while for everybody; after a restart longer for those who were here: they must find the server again.

        A round without them would cost everybody their part in it.
        """
        begin, last = self._clock(), self.server.federation.last_round == self.server.federation.round
        news = WaitingNews(begin)
        known = {self.agreement.sites[client] for client in last.nonzero()[:, 0].tolist()}
        self._status("waiting", "waiting for the sites")
        here = 0
        while len(present := self._present()) < len(self.agreement.sites):
            if len(present) != here:
                here = len(present)
                self._status("waiting", f"waiting for the sites{self._others(list(present))}")
            waited = self._clock() - begin
            enough = not resumed or known <= present.keys() or waited >= RECONNECT
            if waited >= self.agreement.gather and enough:
                return
            if news.due(self._clock()):
                self._say("waiting", f"waiting for the sites{self._others(list(present))}")
            self._sleep(POLL)

    def _ask_anew(self) -> None:
        """A new period begins, to which sites may bring other data: ask everybody again what it has."""
        log.info("after round %d sites may come with other data", self.server.federation.round)
        self._sites = {}
        self._gather(resumed=True)

    def _round(self) -> None:
        """The next round, as soon as there are enough sites. Where too many diverge, it is taken again from the last
        good rows: once as it was, then with half the rates as often as was agreed on.
        """
        again = False
        while True:
            try:
                report = self._ask(self._enough())
                break
            except DivergedError as error:
                if not again:
                    again = True
                    self._say("running", f"{error}; the round is taken again from the last good rows")
                    continue
                if self.server.halvings >= self.agreement.halvings:
                    raise CoterieError(
                        f"{error}, each time; lower the rate ('coterie federation extend … --term lr=…') or "
                        "least_sites, or let rates be halved (halvings), then start the server again: it goes on from "
                        "the last round"
                    ) from None
                self.server.halve_rates()
                times = self.server.halvings
                self._say("running", f"{error}; the round is taken again with rates that are halved {times} times")
        self._write(lambda: self.logbook.add(report))
        self._write(lambda: self.logbook.checkpoint(self.server))
        self._status("running")

    def _write(self, write: Callable[[], None]) -> None:
        """Write to the disk; while that is full, wait: what the sites have done must not be lost for it."""
        begin, said_so = self._clock(), False
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in FULL or self._clock() >= begin + self.agreement.patience:
                    raise
                if not said_so:
                    said_so = True
                    log.error(
                        "%s cannot be written to (%s); make room, it goes on then", self.logbook.path, error.strerror
                    )
                self._sleep(AGAIN)

    def _enough(self) -> dict[str, int]:
        """The sites that are here, once they are as many as a round needs."""
        begin = self._clock()
        news = WaitingNews(begin)
        while len(present := self._present()) < (least := self.agreement.least_sites):
            if news.due(self._clock()):
                others = self._others(list(present))
                self._say("running", f"waiting for sites: {len(present)} of at least {least} are here{others}")
            if self._clock() >= begin + self.agreement.patience:
                round, others = self.server.federation.round + 1, self._others(list(present))
                raise CoterieError(
                    f"round {round}: {len(present)} of at least {least} sites were there within "
                    f"{self.agreement.patience:g} s{others}; start the missing ones, then the server again: it resumes"
                )
            self._sleep(POLL)
        return present

    def _ask(self, present: dict[str, int]) -> Report:
        """Send the tasks and take answers until nobody is awaited any more, each site as long as its own deadline says.

        If too few have come by then, answers are awaited longer, and late ones count.
        """
        begin = self._clock()
        self._failed, self._unsent, news = {}, {}, WaitingNews(begin)
        tasks = self.server.open_round(list(present))
        needed = min(self.agreement.least_sites, len(tasks))
        self._status("running", f"round {self.server.federation.round} is under way")
        self._send_tasks(tasks, present)
        asked_at, said_so = begin, False
        while self._waiting or self._unsent or len(self.server.answered) < needed:
            self._listen()
            self._require_possible(needed)
            now = self._clock()
            self._unsent = {name: until for name, until in self._unsent.items() if now < until}
            if self._unsent and now >= asked_at + AGAIN:
                asked_at = now
                self._ask_more(self._unsent)
            if news.due(now):
                done = self.server.settled
                round = self.server.federation.round
                self._say(
                    "running", f"round {round}: {len(done)} of {len(self.server.asked)} are done{self._others(done)}"
                )
            late = now >= begin + self.agreement.deadline or not (self._in_time(now) or self._unsent)
            if len(self.server.answered) >= needed:
                if late:
                    break
            elif late or not self._waiting:
                if not said_so:
                    said_so = True
                    self._wait_on(needed)
                if now >= begin + self.agreement.deadline + self.agreement.patience:
                    self._give_up(needed, now - begin)
                if now >= asked_at + AGAIN:
                    asked_at = now
                    self._ask_more()
            self._sleep(POLL)
        late_sites = sorted(self._waiting.values())
        for name in late_sites:
            self._times.missed(name)
        self._waiting, self._unsent = {}, {}
        report = self.server.close_round()
        report.seconds["round"] = self._clock() - begin
        if report.missing:
            late_words = f" ({', '.join(late_sites)}: no answer in time)" if late_sites else ""
            log.warning("round %d goes on without %s%s", report.round, ", ".join(report.missing), late_words)
        log.info("round %d: %s answered", report.round, ", ".join(report.answered))
        return report

    def _send_tasks(self, tasks: dict[str, Parcel], present: dict[str, int]) -> None:
        while tasks:  # each is let go once it is sent
            name, task = tasks.popitem()
            node = present[name]
            self._waiting[node] = name
            self._at_work[node] = (name, self._clock())
            self._unsent.pop(name, None)
            if not self._send(node, "work", pack(task)):
                del self._waiting[node], self._at_work[node]
                self._unsent[name] = math.inf

    def _in_time(self, now: float) -> list[str]:
        """The sites that are still awaited: each has a deadline of its own, from when it was asked."""
        most, asked = self.agreement.deadline, [self._at_work[node] for node in self._waiting]
        return [name for name, since in asked if now < since + self._times.deadline(name, most)]

    def _wait_on(self, needed: int) -> None:
        """Say that a round cannot go on yet, and why: nothing is done again, and nobody's work is lost."""
        round, answered = self.server.federation.round, self.server.answered
        message = (
            f"round {round} waits for answers: {len(answered)} of at least {needed} have come{self._others(answered)}"
        )
        log.warning("%s", message)
        self._status("running", message)

    def _ask_more(self, only: Collection[str] | None = None) -> None:
        """Ask whoever is here with nothing to do and has not answered: newcomers, and who could not do it before."""
        settled = self.server.settled
        present = {name: node for name, node in self._present().items() if name not in settled}
        if only is not None:
            present = {name: node for name, node in present.items() if name in only}
        if present:
            self._send_tasks(self.server.ask_more(list(present)), present)

    def _require_possible(self, needed: int) -> None:
        """Give the round up if too many have diverged: waiting for others would not help."""
        diverged = [name for name in self.server.settled if name not in self.server.answered]
        left = len(self.agreement.sites) - len(diverged)
        if left >= needed:
            return
        round = self.server.abandon_round().round
        self._waiting = {}
        raise DivergedError(
            f"round {round}: training diverged at {', '.join(diverged)}, so that at most {left} of at least {needed} "
            "sites can answer"
        )

    def _give_up(self, needed: int, seconds: float) -> None:
        """An error that says who is missing, who is at work and who could not do it."""
        answered, others = len(self.server.answered), self._others(self.server.answered)
        round = self.server.abandon_round().round
        raise CoterieError(
            f"round {round}: {answered} of at least {needed} sites answered within {seconds:.0f} s{others}; start the "
            "missing ones, raise deadline or patience in federation.toml if they are slow, then start the server "
            "again: it resumes, and what is trained is not trained again"
        )

    def _others(self, done: list[str]) -> str:
        """What is known of all sites but these."""
        now, rest = self._clock(), [site for site in self.agreement.sites if site not in done]
        since = dict(self._at_work.values())
        here = {self._sites[node] for node in self._free if node in self._sites}
        words = {
            "at work": [f"{site} ({now - since[site]:.0f} s)" for site in rest if site in since],
            "could not do it": [
                f"{site} ({why})" for site, why in self._failed.items() if site in rest and site in here
            ],
            "not here": [site for site in rest if site not in since and site not in here],
        }
        return "".join(f"; {what}: {', '.join(sites)}" for what, sites in words.items() if sites)

    def _farewell(self) -> None:
        """Give every site its finished model; whoever has taken part is waited for a while."""
        end = self._clock() + self.agreement.gather
        while (present := self._present()).keys() < self.server.standing.keys() and self._clock() < end:
            self._sleep(POLL)
        self._waiting = {node: name for name, node in present.items()}
        for name, task in self.server.farewells(list(present)).items():
            if not self._send(present[name], "finish", pack(task)):
                del self._waiting[present[name]]
        begin = self._clock()
        while self._waiting and self._clock() < begin + self._farewell_seconds:
            self._listen()
            self._sleep(POLL)
        absent = sorted(set(self.agreement.sites) - set(self.server.finals))
        if absent:
            log.warning("%s did not get the finished model: start the server again to hand it over", ", ".join(absent))
        self.logbook.finish(self.server)

    def _send(self, node: int, purpose: Purpose, content: Packed) -> bool:
        """Send a message; whether that could be done."""
        self._free.pop(node, None)
        self._busy.add(node)
        if self._envelopes is not None:
            site = self._names.get(node, "") if purpose == "hello" else self._sites[node]
            content = self._envelopes.sealed(node, site, purpose, self.server.federation.round, content)
        terms = self.agreement
        # An answer may come after the deadline and count, where too few others have come; later it still tells how long
        # the site takes.
        whole = terms.deadline + 2 * terms.patience
        seconds = {"hello": terms.hello, "work": whole, "finish": self._farewell_seconds}[purpose]
        try:
            self.transport.send(node, purpose, content, seconds)
        except UnsentError:
            self._busy.discard(node)
            self._free[node] = self._names.get(node, "")
            return False
        return True

    @property
    def _farewell_seconds(self) -> float:
        """How long sites have to take their finished models: there is no next round that would wait for them."""
        return self.agreement.deadline + self.agreement.hello

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
        # Whoever comes back is asked anew.
        here = self._free.keys() | self._greeted
        self._refused = {node: pause for node, pause in self._refused.items() if node in here}
        for node in self._freed_doubles():
            self._refused.pop(node, None)
        for node in self._free.keys() - self._sites.keys():
            if node not in self._refused or self._clock() >= self._refused[node].until:
                self._greeted.add(node)
                if not self._send(node, "hello", pack(Parcel())):
                    self._greeted.discard(node)
                    self._refused[node] = self._refused.get(node, Pause()).longer(self._clock())

    def _handle(self, answer: Answer) -> None:
        self._busy.discard(answer.node)
        if answer.replied or not isinstance(answer.content, str):
            self._free[answer.node] = self._names.get(answer.node, "")
        answer = self._opened(answer)
        asked = self._at_work.pop(answer.node, None) if answer.purpose == "work" else None
        if asked is not None and not isinstance(answer.content, str):
            self._times.took(asked[0], self._clock() - asked[1])
        if answer.purpose == "hello":
            self._admit(answer)
        elif answer.node in self._waiting:
            name = self._waiting.pop(answer.node)
            if isinstance(answer.content, str):
                self._failed[name] = one_line(answer.content)
                log.warning("site %s did not do its task: %s", name, one_line(answer.content))
                if asked is not None and not answer.replied:  # its line is gone, and may be back within its deadline
                    most = min(self.agreement.deadline, RECONNECT)
                    self._unsent[name] = asked[1] + self._times.deadline(name, most)
            elif answer.purpose == "work":
                self.server.receive(name, answer.content)
            else:
                self.server.part(name, answer.content)
        else:
            log.info("a late answer of site %s is not counted", self._sites.get(answer.node, answer.node))

    def _opened(self, answer: Answer) -> Answer:
        """The answer, if it is by the site that was asked and to what it was asked; else the reason why it is none."""
        if self._envelopes is None or isinstance(answer.content, str):
            return answer
        try:
            self._envelopes.check(answer.node, answer.content)
        except Exception as error:  # whatever an envelope does to us is its sender's fault
            return replace(answer, content=f"its message is refused: {fault_of(error)}")
        return answer

    def _admit(self, answer: Answer) -> None:
        self._greeted.discard(answer.node)
        if isinstance(answer.content, str):
            # It may be slow, or its owner may put right what is wrong with its data.
            pause = self._refused.get(answer.node, Pause()).longer(self._clock())
            self._refused[answer.node] = pause
            who, said = self._names.get(answer.node) or "a node", one_line(answer.content)
            accepted = " (has it accepted this version of the agreement?)" if self.agreement.former else ""
            log.warning(
                "%s does not say what it has: %s%s; it is asked again in %g s", who, said, accepted, pause.seconds
            )
            return
        try:
            note = read_text(answer.content.text)["note"]
            registered = self._names.get(answer.node, "")
            if registered in ("", note.get("site")):  # of any other name its key tells that it lies
                self._require_single(note.get("site"), answer.node)
            name = self.server.admit(note, registered)
            if self._envelopes is not None:
                self._envelopes.heard(name, note)
        except Exception as error:  # whatever a message does to us is its sender's fault
            self._refused[answer.node] = Pause(until=math.inf)
            log.warning("a site is refused: %s", fault_of(error))
            return
        self._refused.pop(answer.node, None)
        self._sites = {node: site for node, site in self._sites.items() if site != name} | {answer.node: name}
        log.info("site %s is here", name)
        self._status(*self._told)  # who is here has changed, and not what is waited for

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

    def _say(self, state: State, message: str) -> None:
        log.info("%s", message)
        self._status(state, message)

    def _status(self, state: State, message: str = "", passing: bool = False) -> None:
        self._told = (state, message)
        here = self._free.keys() | self._waiting.keys()
        present = [site for node, site in self._sites.items() if node in here]
        with suppress(OSError):  # what cannot be written down for those who watch must not end what they watch
            self.logbook.status(state, self.server, present, message, passing)


def _is_passing(error: BaseException) -> bool:
    """Whether a run ended through nothing of its own, so that the same run may go on."""
    return isinstance(error, KeyboardInterrupt | SystemExit) or (isinstance(error, OSError) and error.errno in FULL)
