"""The server's side of a federation on Flower: its nodes are our sites. Public interfaces only."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

try:
    from flwr.app import Context, Message
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError("federations need Flower: pip install 'coterie[flower]'") from error

from coterie.deployment.agreement import Agreement
from coterie.deployment.claims import fault_of
from coterie.deployment.coordinator import Answer, Coordinator, UnsentError
from coterie.deployment.envelopes import PublicKey, ServerEnvelopes, read_private, read_public
from coterie.deployment.flower.audit import AUDIT, Audit, told_of
from coterie.deployment.flower.keys import Keys
from coterie.deployment.flower.records import KIND_OF, as_records, from_records
from coterie.deployment.flower.wake_up import wake
from coterie.deployment.logbook import Logbook
from coterie.deployment.messages import FAULTS, Packed, Purpose, one_line, spoken_fault
from coterie.deployment.server import Server
from coterie.deployment.versions import LiveTerms, with_own_terms
from coterie.deployment.wire import most_bytes
from coterie.errors import require
from coterie.files import log_to, private_folder
from coterie.runs.store import LOG

# Seconds after which a message may have been lost to a connected node, and how many times its slowest answer that is.
OVERDUE, SLOWER = 120.0, 4.0
PULL = 0.05  # seconds between two looks for one answer
MOST_PULLS = 40.0  # looks a second for all answers together: each is a request to the SuperLink
AFTER_TROUBLE = 2.0  # seconds before another look if the SuperLink could not answer

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Sent:
    """A message under way: to whom, what for, since when, and when it is void."""

    node: int
    purpose: Purpose
    since: float
    end: float


class FlowerTransport:
    """Messages through Flower's grid. A node that still owes an answer counts as busy, even when the answer is late.

    Flower hands a message out once: what a broken line swallows on its way to a node is lost, though the node comes
    back. So one that is here and overdue (by far, and twice as far each time in a row) is taken to be free again. What
    it is sent then takes the place of what it owes.

    Each answer is pulled by a thread of its own: Flower waits for all pieces of an answer, for minutes if the site that
    sends them is slow or has gone, and nobody else shall wait for that. What the SuperLink cannot do now (its disk is
    full, the machine too busy) is said once, and tried again.
    """

    def __init__(
        self,
        grid: Grid,
        most_bytes: int,
        sites: Collection[str] | None = None,
        audit: Audit | None = None,
        wake_up: Path | None = None,
    ) -> None:
        self._wake_up = wake_up  # by which the gateway hears that there is something to get
        self._grid, self._most_bytes, self._audit = grid, most_bytes, audit
        self._names: dict[int, str] = {}  # of all nodes that were ever here
        self._sites = sites  # whose keys are registered; without keys anybody may come
        self._open: dict[str, Sent] = {}  # by the message's number
        self._slowest: dict[int, float] = {}  # seconds that a node has taken for an answer
        self._given_up: dict[int, int] = {}  # messages to a node in a row that were never answered
        self._pulled: SimpleQueue[Message] = SimpleQueue()
        self._idle: dict[int, str] = {}
        self._trouble = ""

    def nodes(self) -> dict[int, str]:
        """Connected nodes that owe no answer, with the names that their keys were registered by."""
        busy = {sent.node for sent in self._open.values() if not self._overdue(sent)}
        try:
            self._idle = {int(info.node_id): str(info.name) for info in self._grid.get_nodes()}
            self._say("")
        except Exception as error:  # those who were here are still here, as far as anybody knows
            self._say(one_line(error) or type(error).__name__)
        self._names |= self._idle
        # A node whose key has no name of ours is not even asked.
        known = {node: name for node, name in self._idle.items() if self._sites is None or name in self._sites}
        return {node: name for node, name in known.items() if node not in busy}

    def send(self, node: int, purpose: Purpose, content: Packed, seconds: float) -> None:
        """Push a message; an `UnsentError` if that cannot be done now."""
        message = Message(as_records(content), dst_node_id=node, message_type=KIND_OF[purpose], ttl=seconds)
        try:
            (number,) = self._grid.push_messages([message])
        except Exception as error:
            self._say(one_line(error) or type(error).__name__)
            raise UnsentError(f"Flower cannot carry it now ({type(error).__name__})") from None
        if number:
            now, owed = time.monotonic(), [earlier for earlier, sent in self._open.items() if sent.node == node]
            for earlier in owed:
                del self._open[earlier]
                self._given_up[node] = self._given_up.get(node, 0) + 1
            self._open[number] = Sent(node, purpose, now, now + seconds)
            threading.Thread(target=self._pull, args=(number,), name=f"pull {number}", daemon=True).start()
            if self._wake_up is not None:
                wake(self._wake_up, self._names.get(node, ""))
            self._note("asked", node, purpose, content)

    def answers(self) -> list[Answer]:
        """What was pulled. Replies are matched by message: an error does not say which node it is about."""
        answers = []
        now = time.monotonic()
        while not self._pulled.empty():
            reply = self._pulled.get()
            sent = self._open.pop(reply.metadata.reply_to_message_id, None)
            if sent is None:  # the carrier says that it replies to what nobody has asked
                self._note_foreign(reply)
                continue
            self._given_up.pop(sent.node, None)
            self._slowest[sent.node] = max(self._slowest.get(sent.node, 0.0), now - sent.since)
            content = self._content(reply)
            self._note("answered", sent.node, sent.purpose, content)
            replied = not reply.has_error() or reply.error.code in FAULTS  # all other errors are the carrier's
            answers.append(Answer(sent.node, sent.purpose, content, replied))
        for number in [number for number, sent in self._open.items() if sent.end < now]:
            sent = self._open.pop(number)
            answers.append(Answer(sent.node, sent.purpose, "it did not answer in time"))
        return answers

    def _pull(self, number: str) -> None:
        """Look for the answer to a message until it is there, or nobody waits for it any more."""
        while number in self._open:
            pause = max(PULL, len(self._open) / MOST_PULLS)
            try:
                replies = list(self._grid.pull_messages([number]))
            except Exception as error:  # whatever the carrier cannot do, it may be able to do later
                self._say(one_line(error) or type(error).__name__)
                replies, pause = [], AFTER_TROUBLE
            for reply in replies:
                self._pulled.put(reply)
            if any(reply.metadata.reply_to_message_id == number for reply in replies):
                return
            time.sleep(pause)

    def _say(self, trouble: str) -> None:
        """Say what the SuperLink cannot do, once as long as it stays the same; nothing: it can again."""
        before, self._trouble = self._trouble, trouble
        if trouble and trouble != before:
            log.error("Flower's SuperLink does not carry messages now (%s); trying on (see superlink.log)", trouble)
        elif before and not trouble:
            log.info("Flower's SuperLink carries messages again")

    def _overdue(self, sent: Sent) -> bool:
        usual = max(OVERDUE, SLOWER * self._slowest.get(sent.node, 0.0))
        return time.monotonic() > sent.since + math.ldexp(usual, self._given_up.get(sent.node, 0))  # usual · 2ⁿ

    def _note(self, event: str, node: int, purpose: Purpose, content: Packed | str) -> None:
        if self._audit is not None:
            name = self._names.get(node, "")
            self._audit.note(event, site=name, node=str(node), purpose=purpose, **told_of(content))

    def _note_foreign(self, reply: Message) -> None:
        if self._audit is not None:
            node = str(reply.metadata.src_node_id)
            self._audit.refused(f"node {node}", "", "it replies to what was not asked")

    def _content(self, reply: Message) -> Packed | str:
        if reply.has_error():
            return spoken_fault(reply.error.code)
        try:
            return from_records(reply.content, self._most_bytes)
        except Exception as error:  # whatever a message does to us is its sender's fault
            return f"its message is refused: {fault_of(error)}"


def server_app(agreement_path: Path) -> ServerApp:
    """The Flower ServerApp of a federation.

    Its run configuration names the server's folder (`directory`) and the server's own copy of the agreement
    (`agreement`), which says how long to wait, and its folder of keys (`keys`); `keyed` says whether sites are known by
    theirs, `wake_up` where the gateway hears of messages.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        given = context.run_config
        agreement = with_own_terms(Agreement.read(agreement_path), str(given["agreement"]))
        directory = private_folder(Path(str(given["directory"])))
        with log_to(directory / LOG):
            server = Server(agreement)
            sites = agreement.sites if given["keyed"] else None
            wake_up = Path(str(given["wake_up"])) if given["wake_up"] else None
            transport = FlowerTransport(grid, most_bytes(server.federation), sites, Audit(directory / AUDIT), wake_up)
            terms = LiveTerms(agreement, Path(str(given["agreement"])) if given["agreement"] else None)
            envelopes = _envelopes(agreement, Keys(Path(str(given["keys"]))), bool(given["keyed"]))
            Coordinator(server, transport, Logbook(directory, agreement), terms=terms, envelopes=envelopes).run()

    return app


def _envelopes(agreement: Agreement, keys: Keys, keyed: bool) -> ServerEnvelopes | None:
    """What tasks are signed with, and answers are known by; nothing where no key was agreed on."""
    if not agreement.server_key:
        return None
    key = read_private(keys.task_key)
    agreed = read_public("server_key", agreement.server_key)
    require(
        key.public_key() == agreed,
        f"{keys.task_key}: is not the key that federation.toml names (server_key), which sites know; put that back",
    )

    def key_of(site: str) -> PublicKey:
        return read_public(f"the key of {site}", keys.public(site).read_text(encoding="utf-8"))

    return ServerEnvelopes(agreement.name, agreement.digest, key, key_of if keyed else None)
