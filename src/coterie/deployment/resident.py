"""The resident of a site: the one process that holds its model, its data and PyTorch, as long as the site takes part.

Run as `python -m coterie.deployment.resident SETTINGS`. Whatever carries a federation's messages passes them on to it,
by a private channel; it answers one after the other. It keeps nothing in memory that counts: what outlives a message is
on the site's disk, so that it may be killed at any time, started again and asked again.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from coterie.data.loading import DEFAULT_LABEL
from coterie.deployment import channel
from coterie.deployment.agreement import Agreement
from coterie.deployment.envelopes import HEARD, SiteEnvelopes, read_private, read_public
from coterie.deployment.messages import UNANSWERED, Packed, RefusedError, code_of, read_text
from coterie.deployment.site import Site
from coterie.deployment.site_data import data_stamp, load_site_data
from coterie.deployment.store import Store
from coterie.deployment.versions import accepted_terms
from coterie.deployment.wire import Parcel, most_bytes, pack, unpack
from coterie.devices import PROCESSOR
from coterie.errors import require
from coterie.processes import keep_freed_memory

log = logging.getLogger("coterie")


class Resident:
    """Answers what its site is asked. The site is built for the first message, and again only if something changed:
    the agreement, or the data on the disk.
    """

    def __init__(self, settings: SiteSettings) -> None:
        self._settings = settings
        self._built: tuple[Agreement, str, Site, SiteEnvelopes | None] | None = None

    def answer(self, incoming: channel.Reading) -> Packed | int:
        """The answer to a message; the number of a fault if there is none, whose text stays in this site's log."""
        try:
            return self._answer(incoming)
        except channel.BrokenOffError:
            raise
        except Exception as error:
            log.exception("%s: %s", incoming.head.get("purpose"), UNANSWERED)
            incoming.skip()
            return code_of(error)

    def _answer(self, incoming: channel.Reading) -> Packed:
        site, envelopes = self._site(str(incoming.head["agreement"]))
        request = incoming.request(most_bytes(site.federation))
        envelope = None if envelopes is None else envelopes.opened(request.purpose, request.content)
        if request.purpose == "hello":
            last = {} if envelopes is None else {HEARD: envelopes.last}
            answer = Parcel({}, site.hello() | last)
        else:
            note = read_text(request.content.text)["note"]
            if envelope is not None and note.get("round") != envelope.round:
                raise RefusedError(f"its envelope is of round {envelope.round}, and the task is not")
            task = unpack(request.content, site.expected(note))
            answer = site.work(task) if request.purpose == "work" else site.finish(task)
        packed = pack(answer)
        return packed if envelopes is None or envelope is None else envelopes.sealed(envelope, packed)

    def _site(self, packed: str) -> tuple[Site, SiteEnvelopes | None]:
        settings = self._settings
        agreement = accepted_terms(Agreement.parse(tomllib.loads(packed)), settings.agreement)
        stamp = data_stamp(Path(settings.data))
        if self._built is None or self._built[:2] != (agreement, stamp):
            if self._built is not None and self._built[1] != stamp:
                log.warning("the data in %s have changed; they are read again", settings.data)
            self._built = None  # never two at once
            data = load_site_data(agreement, Path(settings.data), settings.label)
            store = Store(Path(settings.state), agreement.name, settings.name, agreement.fingerprint, agreement.former)
            site = Site(agreement, settings.name, data, store, settings.device)
            self._built = (agreement, stamp, site, _envelopes(agreement, settings, store))
        return self._built[2:]


@dataclass(frozen=True)
class SiteSettings:
    """Who the site is: its name, its data, where its state is kept; its own copy of the agreement if it has one.

    `device` is where it trains, `key` the file of its private key.
    """

    name: str
    data: str
    state: str
    label: str = DEFAULT_LABEL
    agreement: str = ""
    device: str = PROCESSOR
    key: str = ""


def _envelopes(agreement: Agreement, settings: SiteSettings, store: Store) -> SiteEnvelopes | None:
    """What tasks are known by, and answers are signed with; nothing where no key was agreed on."""
    if not agreement.server_key:
        require(not settings.key, "server_key: the agreement names no key of its server; accept one that does")
        return None
    server = read_public("server_key", agreement.server_key)
    key = read_private(Path(settings.key)) if settings.key else None
    return SiteEnvelopes(agreement.name, agreement.digest, settings.name, server, key, store.path)


def serve(listener: socket.socket, resident: Resident) -> None:
    """Answer whoever connects, one after the other, for ever."""
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                channel.answer(connection, resident.answer(channel.Reading(connection)))
            except Exception as error:  # whoever asked has gone, or never made sense: the next one may
                log.warning("a message was not answered (%s)", type(error).__name__)


def main() -> None:
    """Read the settings, open the channel, serve until ended."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)
    keep_freed_memory()
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    serve(channel.listening(Path(settings.pop("socket"))), Resident(SiteSettings(**settings)))


if __name__ == "__main__":
    main()
