"""A site's side of a federation on Flower: passes on what comes in, to the process that trains.

Flower starts a process for every message. So nothing is imported here that takes long: no PyTorch, none of our own
numerical parts. Model and data are with the site's resident.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

try:
    from flwr.app import Context, Error, Message
    from flwr.clientapp import ClientApp
except ImportError as error:
    raise ImportError("federations need Flower: pip install 'coterie[flower]'") from error

from coterie.deployment.channel import MOST_BYTES, Request, ask
from coterie.deployment.flower.audit import Audit, told_of
from coterie.deployment.flower.records import as_records, from_records
from coterie.deployment.messages import GONE, UNANSWERED, Packed, Purpose, code_of, spoken_fault

log = logging.getLogger("coterie")

START = 240.0  # seconds until a resident must be there, on the busiest machine
AGAIN = 0.05  # seconds between two attempts
ATTEMPTS = 3  # at one message, if the resident dies of it


def client_app(agreement_path: Path) -> ClientApp:
    """The Flower ClientApp of a site.

    Its node configuration names the socket of the site's resident (`resident`), and in `audit` the file in which the
    site keeps what it was asked and what left it.
    """
    app = ClientApp()

    def answer(message: Message, context: Context, purpose: Purpose) -> Message:
        path = str(context.node_config.get("audit") or "")
        audit = Audit(Path(path)) if path else None
        try:
            packed = from_records(message.content, MOST_BYTES)
            if audit is not None:
                audit.note("asked", purpose=purpose, **told_of(packed))
            request = Request(purpose, agreement_path.read_text(encoding="utf-8"), packed)
            reply = answer_of(Path(str(context.node_config["resident"])), request)
        except Exception as error:
            # What went wrong may hold names of files and of what is in them: it stays in this site's log.
            log.exception("%s: %s", purpose, UNANSWERED)
            reply = code_of(error)
        if audit is not None:
            audit.note("left", purpose=purpose, **told_of(spoken_fault(reply) if isinstance(reply, int) else reply))
        return Message(Error(reply) if isinstance(reply, int) else as_records(reply), reply_to=message)

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


def answer_of(resident: Path, request: Request) -> Packed | int:
    """What the resident answers. One that is not there yet is waited for; one that dies is asked again once it is back:
    it goes on from the site's disk. If it dies of every attempt, that is the answer.
    """
    left, end = ATTEMPTS, time.monotonic() + START
    while left and time.monotonic() < end:
        try:
            return ask(resident, request)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(AGAIN)
        except ConnectionError:
            log.warning("the process that trains ended in the middle of '%s'", request.purpose)
            left, end = left - 1, time.monotonic() + START
    log.error("%s: %s (%s)", request.purpose, UNANSWERED, spoken_fault(GONE))
    return GONE
