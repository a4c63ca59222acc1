"""Federations on Flower: its messages carry our parcels, its nodes are our sites. Public interfaces only."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError("federations need Flower: pip install 'coterie[flower]'") from error

from coterie.core.federation import Federation
from coterie.deployment.agreement import Agreement
from coterie.deployment.answers import fault_of
from coterie.deployment.coordinator import Answer, Coordinator, Purpose
from coterie.deployment.extension import accepted_terms
from coterie.deployment.faults import code_of, spoken_fault
from coterie.deployment.flower.audit import AUDIT, Audit
from coterie.deployment.flower.node import UNANSWERED
from coterie.deployment.live import LiveTerms
from coterie.deployment.logbook import Logbook
from coterie.deployment.server import Server
from coterie.deployment.site import Site
from coterie.deployment.sitedata import load_site_data
from coterie.deployment.store import Store
from coterie.deployment.wire import KINDS, Packed, Parcel, RefusedError, one_line, pack, read_text, unpack
from coterie.errors import require
from coterie.experiment.directory import LOG
from coterie.files import log_to, private_folder

log = logging.getLogger("coterie")

# Flower's kinds of message, each with a handler of ours.
KIND_OF: dict[Purpose, str] = {"hello": "query.hello", "work": "train", "finish": "train.finish"}
# An array's own header, beside the numbers.
HEADER = 4096


def as_records(packed: Packed) -> RecordDict:
    """A packed parcel as Flower's records: one array for each kind of number, and the text."""
    arrays = {kind: Array(np.frombuffer(buffer, np.uint8)) for kind, buffer in packed.buffers.items()}
    return RecordDict({"arrays": ArrayRecord(arrays), "text": ConfigRecord({"json": packed.text})})


def from_records(records: RecordDict, most_bytes: int) -> Packed:
    """The packed parcel in Flower's records; anything else, or more bytes than are due, is refused."""
    arrays, text = records.get("arrays"), records.get("text")
    if not isinstance(arrays, ArrayRecord) or not isinstance(text, ConfigRecord) or set(records) != {"arrays", "text"}:
        raise RefusedError(f"its records are {', '.join(sorted(records)) or 'none'}; expected are arrays, text")
    json = text.get("json")
    if not isinstance(json, str):
        raise RefusedError("its text is missing")
    if not set(arrays) <= set(KINDS):
        raise RefusedError(f"its arrays are {', '.join(sorted(arrays))}; allowed are {', '.join(KINDS)}")
    total = sum(len(array.data) for array in arrays.values())
    if total > most_bytes + HEADER * len(arrays):
        raise RefusedError(f"it holds {total:,} bytes; at most {most_bytes:,} are due")
    buffers = {}
    for kind, array in arrays.items():
        buffers[kind] = _plain_bytes(kind, array)
    return Packed(buffers, json)


def _plain_bytes(kind: str, array: Array) -> bytes:
    """The bytes that an array of bytes holds. What its header claims is compared with what is there before it counts:
    whoever believes it reserves memory for a shape that somebody made up.
    """
    try:
        file = io.BytesIO(array.data)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file, max_header_size=HEADER)
    except Exception as error:  # headers are parsed as Python literals, with every error that these may have
        raise RefusedError(f"its array '{kind}' cannot be read ({type(error).__name__})") from None
    content = array.data[file.tell() :]
    if dtype != np.uint8 or shape != (len(content),):
        claimed = f"{dtype} {one_line(shape)}"
        raise RefusedError(f"its array '{kind}' is {claimed} in {len(content)} bytes; expected are bytes")
    return content


def _told_of(content: Packed | str) -> dict[str, str | int]:
    """What an audit log says of a message: enough to prove later which one it was, and nothing of what is in it."""
    if isinstance(content, str):
        return {"error": content}
    return {"bytes": content.bytes, "sha256": content.digest}


class FlowerTransport:
    """Messages through Flower's grid. A node that still owes an answer counts as busy, even when the answer is late."""

    def __init__(
        self, grid: Grid, most_bytes: int, sites: Collection[str] | None = None, audit: Audit | None = None
    ) -> None:
        self._grid, self._most_bytes, self._audit = grid, most_bytes, audit
        self._names: dict[int, str] = {}  # of all nodes that were ever here
        self._sites = sites  # whose keys are registered; without keys anybody may come
        self._open: dict[str, tuple[int, Purpose, float]] = {}  # message -> node, purpose, when it is void

    def nodes(self) -> dict[int, str]:
        """Connected nodes that owe no answer, with the names that their keys were registered by."""
        busy = {node for node, _, _ in self._open.values()}
        found = {int(info.node_id): str(info.name) for info in self._grid.get_nodes() if info.node_id not in busy}
        self._names |= found
        # A node whose key has no name of ours is not even asked.
        return {node: name for node, name in found.items() if self._sites is None or name in self._sites}

    def send(self, node: int, purpose: Purpose, content: Packed, seconds: float) -> None:
        """Push a message."""
        message = Message(as_records(content), dst_node_id=node, message_type=KIND_OF[purpose], ttl=seconds)
        (number,) = self._grid.push_messages([message])
        if number:
            self._open[number] = (node, purpose, time.monotonic() + seconds)
            self._note("asked", node, purpose, content)

    def answers(self) -> list[Answer]:
        """Pull what is there. Replies are matched by message: an error does not say which node it is about."""
        if not self._open:
            return []
        found = []
        for reply in self._grid.pull_messages(list(self._open)):
            node, purpose, _ = self._open.pop(reply.metadata.reply_to_message_id)
            content = self._content(reply)
            self._note("answered", node, purpose, content)
            found.append(Answer(node, purpose, content))
        now = time.monotonic()
        for number in [number for number, (_, _, end) in self._open.items() if end < now]:
            node, purpose, _ = self._open.pop(number)
            found.append(Answer(node, purpose, "it did not answer in time"))
        return found

    def _note(self, event: str, node: int, purpose: Purpose, content: Packed | str) -> None:
        if self._audit is not None:
            name = self._names.get(node, "")
            self._audit.note(event, site=name, node=str(node), purpose=purpose, **_told_of(content))

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
    (`agreement`), which says how long to wait; `keyed` says whether sites are known by their keys.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        given = context.run_config
        agreement = with_own_terms(agreement_path, str(given["agreement"]))
        directory = private_folder(Path(str(given["directory"])))
        with log_to(directory / LOG):
            server = Server(agreement)
            sites = agreement.sites if given["keyed"] else None
            transport = FlowerTransport(grid, most_bytes(server.federation), sites, Audit(directory / AUDIT))
            terms = LiveTerms(agreement, Path(str(given["agreement"])) if given["agreement"] else None)
            Coordinator(server, transport, Logbook(directory, agreement), terms=terms).run()

    return app


def with_own_terms(packed: Path, path: str) -> Agreement:
    """The agreement of an app, with the terms of one's own copy that may change; in all else both must be the same."""
    agreement = Agreement.read(packed)
    if not path:
        return agreement
    own = Agreement.read(Path(path))
    require(own.fingerprint == agreement.fingerprint, f"{path}: was changed after this app was packed; start again")
    return own


def client_app(agreement_path: Path) -> ClientApp:
    """The Flower ClientApp of a site; its node configuration names the site, its data and its folder.

    `name`, `data` and `state` are needed; `agreement` is the site's own copy, `label` names a table's label column,
    `audit` the file in which the site keeps what it was asked and what left it.
    """
    app = ClientApp()

    def site(context: Context) -> Site:
        node: dict[str, Any] = dict(context.node_config)
        agreement = accepted_terms(Agreement.read(agreement_path), str(node.get("agreement") or ""))
        name = str(node["name"])
        data = load_site_data(agreement, Path(str(node["data"])), str(node.get("label") or "label"))
        store = Store(Path(str(node["state"])), agreement.name, name, agreement.fingerprint, agreement.former)
        return Site(agreement, name, data, store)

    def answer(message: Message, context: Context, purpose: Purpose) -> Message:
        path = str(context.node_config.get("audit") or "")
        audit = Audit(Path(path)) if path else None
        try:
            reply = honest_answer(message, context, purpose, audit)
        except Exception as error:
            # What went wrong may hold names of files and of what is in them: it stays in this site's log.
            log.exception("%s: %s", purpose, UNANSWERED)
            code = code_of(error)
            if audit is not None:
                audit.note("left", purpose=purpose, error=spoken_fault(code))
            return Message(Error(code), reply_to=message)
        if audit is not None:
            audit.note("left", purpose=purpose, **_told_of(reply))
        return Message(as_records(reply), reply_to=message)

    def honest_answer(message: Message, context: Context, purpose: Purpose, audit: Audit | None) -> Packed:
        here = site(context)
        packed = from_records(message.content, most_bytes(here.federation))
        if audit is not None:
            audit.note("asked", purpose=purpose, **_told_of(packed))
        if purpose == "hello":
            return pack(Parcel({}, here.hello()))
        task = unpack(packed, here.expected(read_text(packed.text)["note"]))
        return pack(here.work(task) if purpose == "work" else here.finish(task))

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return answer(message, context, "hello")

    @app.train()
    def work(message: Message, context: Context) -> Message:
        return answer(message, context, "work")

    @app.train("finish")
    def finish(message: Message, context: Context) -> Message:
        return answer(message, context, "finish")

    return app


def most_bytes(federation: Federation) -> int:
    """More than any honest message holds: every slot of every client, and room for what is measured."""
    width = sum(slot.width for slot in federation.slots.values())
    return 4 * width * (federation.clients + 1) + (64 << 20)
