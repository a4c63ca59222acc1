"""How far this machine's clock is off the server's: Flower refuses sites whose clocks differ, and does not say why."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path

from coterie.deployment.flower.processes import is_loopback, split_address

# Signed times may be so many seconds ahead of the server's clock, and so many behind it.
AHEAD, BEHIND = 5.0, 305.0
SECONDS = 3.0  # that a server has to answer


def clock_problem(server: str, authority: Path | None, now: Callable[[], float] = time.time) -> str:
    """What is wrong with this machine's clock, in words; nothing if it is near enough, or nobody tells.

    Any answer of the server has its time in it. That time is cut to whole seconds.
    """
    scheme = "http" if authority is None else "https"
    try:
        trust = None if authority is None else ssl.create_default_context(cafile=str(authority))
        # As the relay goes: by the proxy that leads out of here, if one does, but never to this machine.
        proxies: dict[str, str] | None = {} if is_loopback(split_address(server)[0]) else None
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=trust)
        )
        try:
            with opener.open(f"{scheme}://{server}/health", timeout=SECONDS) as answer:
                headers: Message = answer.headers
        except urllib.error.HTTPError as refusal:
            headers = refusal.headers
        there = parsedate_to_datetime(str(headers["Date"])).timestamp()
    except (OSError, ValueError, TypeError):
        return ""
    return _spoken(now() - there)


def _spoken(ahead: float) -> str:
    """What a difference of so many seconds means.

    >>> _spoken(2.0), _spoken(-100.0)
    ('', '')
    >>> print(_spoken(3600.0))
    this machine's clock is 3600 s ahead of the server's; at most 5 s are accepted: set both clocks (NTP)
    """
    if -BEHIND < ahead < AHEAD + 1:
        return ""
    way, most = ("ahead of", AHEAD) if ahead > 0 else ("behind", BEHIND - AHEAD)
    return (
        f"this machine's clock is {abs(ahead):.0f} s {way} the server's; at most {most:.0f} s are accepted: set both "
        "clocks (NTP)"
    )
