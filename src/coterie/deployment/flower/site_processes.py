"""A site's processes: a SuperNode behind a relay, started until its server takes it, and the site's resident."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Self

from coterie.deployment.flower.audit import AUDIT
from coterie.deployment.flower.forkserver import CLIENT_APP, forkserver_words, stand_in, surroundings
from coterie.deployment.flower.keys import ExpiryWatch, Keys, make_keys
from coterie.deployment.flower.processes import (
    LOOPBACK,
    Lock,
    Process,
    Values,
    environment,
    flower_command,
    free_port,
    is_loopback,
    joined,
    pairs,
    split_address,
    write_secret,
)
from coterie.deployment.flower.relay import AGREED, READY, agree, relay_words
from coterie.deployment.messages import UNANSWERED
from coterie.errors import CoterieError, PassingError, UnwelcomeError
from coterie.files import private_folder, write_whole

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


FORGOTTEN = 120.0  # seconds after which a server has registered all keys, and forgotten a node that was killed
AGAIN = 3.0  # seconds before another attempt
LONGEST = 60.0  # seconds between attempts at the most
START = 300.0  # seconds until a relay must be open, on the busiest machine
QUIET = 10.0  # seconds without a connection after which to say so

# What a SuperNode says, and what that means.
ACCEPTED = "SuperNode ID:"
REFUSED = "[code: 2004]"
HOPELESS: dict[str, tuple[type[CoterieError], str]] = {
    "CERTIFICATE_VERIFY_FAILED": (
        UnwelcomeError,
        "the server's certificate is not the one expected ({words}); take the federation's ca.pem from whoever runs "
        "the server, and name the server as in its certificate ('coterie federation keys --host')",
    ),
    "Unable to parse the private key": (
        CoterieError,
        "{key}: is no key that Flower reads; use one of 'coterie federation join'",
    ),
}
# Words in a SuperNode's log that its owner should hear of.
NEWS = {
    "Receiving: query": "the server asks for this site's name and the size of its data",
    "Receiving: train message": "a task came in: training begins",
    "Sending: train message": "training is done, the result is being sent",
    "Receiving: train.finish": "the finished model comes in",
    "Sending: train.finish": "the finished model is kept here",
    UNANSWERED: "what the server asked for could not be done; the reason is in this site's log",
}
AUTHORITY = "the certificate by which this site knows its server"
NEW_AUTHORITY = (
    "ask whoever runs the server for a new one, and take it with 'coterie federation join … --root-certificate'"
)
HELPERS = ("resident", "forkserver")  # the processes without which a SuperNode stays connected
RESIDENT = "coterie.deployment.resident"
# A SuperNode that says so has begun the message's task all the same: from then on each answer that it sends is the one
# before, for which nobody waits any more, until it is started anew. That a server was killed brings it there.
STRAY = "status. Ignoring message"
PORT_TAKEN = ("address already in use", "Runtime HTTP API failed to start")

Tell = Callable[[str], None]


def _silent(_: str) -> None:
    pass


@dataclass
class Restarts:
    """When a process that ends by itself is started again: at once, and later if that happens often.

    >>> one = Restarts()
    >>> [one.due(now) for now in (0.0, 0.5, 1.0, 2.0, 2.5, 600.0)]
    [True, False, True, False, False, True]
    """

    pause: float = 0.0
    began: float | None = None

    def due(self, now: float) -> bool:
        """Whether to start it now; if so it counts as started."""
        if self.began is not None and now - self.began < self.pause:
            return False
        settled = self.began is None or now - self.began > FORGOTTEN
        self.pause = 1.0 if settled else min(2 * self.pause, LONGEST)
        self.began = now
        return True


class SiteProcesses:
    """The SuperNode of a site, and what belongs to it; everything that it keeps is in `folder`.

    `settings` is what the site's resident gets to know: name, data, state and, if need be, label and agreement. Without
    `key` and `authority` nothing is encrypted on the way to the server. Port 0 stands for any free one; it is only for
    this machine. Only apps that were given to `agree` are ever run.

    Five processes: the relay, through which the SuperNode reaches its server; the SuperNode; the SuperExec that starts
    an app's processes; the forkserver, from which these are forked; and the resident, to which they pass on what is
    asked. The first three talk on loopback, which other users of the machine reach too: so the SuperNode and the relay
    have a certificate of this node's own, and the SuperExec proves itself with a secret. The last two listen on sockets
    in this node's folder, which nobody else can enter.
    """

    def __init__(
        self,
        folder: Path,
        server: str,
        settings: Values,
        key: Path | None = None,
        authority: Path | None = None,
        port: int = 0,
    ) -> None:
        self.folder, self.server = folder.resolve(), server
        self.audit = self.folder / AUDIT
        self.settings = settings
        self.key, self.authority = key, authority
        self._wished = port
        self.port = port or free_port()
        self.relay_port = free_port()
        self.home = self.folder / ".flower"  # no federation's or site's name begins with a dot
        self.loopback = Keys(self.folder / ".loopback")
        self.secret = self.folder / ".superexec.secret"
        self.agreed = self.folder / f".{AGREED}"
        self.sockets = {name: self.folder / f".{name}.socket" for name in HELPERS}
        self.log = self.folder / "supernode.log"  # of all but the relay
        self.expiry = ExpiryWatch({} if authority is None else {AUTHORITY: (authority, NEW_AUTHORITY)})
        self._processes: dict[str, Process] = {}
        self._restarts: dict[str, Restarts] = {}
        self._lock: Lock | None = None
        self.connected = False  # as far as `keep_alive` knows
        self._is_behind = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def agree(self, app: bytes) -> str:
        """Let a packed app run here; its hash."""
        return agree(self.agreed, app)

    def agree_only(self, app: bytes) -> str:
        """Let a packed app run here, and none that was agreed to before; its hash."""
        self._take_lock()
        if self.agreed.exists():
            shutil.rmtree(self.agreed)
        return self.agree(app)

    def commands(self) -> dict[str, list[str]]:
        """The commands of the relay, the SuperNode and its SuperExec."""
        runtime = joined(LOOPBACK, self.port)
        loopback, secret = self.loopback, ["--superexec-auth-secret-file", str(self.secret)]
        words = ["flower-supernode", "--superlink", joined(LOOPBACK, self.relay_port)]
        words += ["--root-certificates", str(loopback.authority), "--host", LOOPBACK, "--port", str(self.port)]
        words += ["--ssl-ca-certfile", str(loopback.authority), "--ssl-certfile", str(loopback.certificate)]
        words += ["--ssl-keyfile", str(loopback.key), "--isolation", "process", *secret]
        config = {"name": self.settings["name"], "resident": str(self.sockets["resident"]), "audit": str(self.audit)}
        words += ["--node-config", pairs(config)]
        words += [] if self.key is None else ["--auth-supernode-private-key", str(self.key)]
        relay = relay_words(self.relay_port, self.server, self.authority, loopback, self.agreed, self.audit)
        executor = [
            "flower-superexec",
            "--runtime-api-address",
            runtime,
            "--root-certificates",
            str(loopback.authority),
        ]
        return {
            "relay": [sys.executable, "-m", *relay],
            "resident": [sys.executable, "-m", RESIDENT, str(self._resident_settings)],
            "forkserver": [sys.executable, "-m", *forkserver_words(self.sockets["forkserver"], CLIENT_APP)],
            "supernode": words,
            "superexec": [*executor, *secret],
        }

    def prepare(self) -> None:
        """Write what the commands need: the certificate for loopback and the secret."""
        for path in (self.folder, self.home, self.agreed):
            private_folder(path)
        make_keys(self.loopback.folder)
        write_secret(self.secret)
        settings = {**self.settings, "socket": str(self.sockets["resident"]), "key": str(self.key or "")}
        write_whole(self._resident_settings, json.dumps(settings).encode())
        stand_in(self._scripts, self.sockets["forkserver"], CLIENT_APP)

    def start(self) -> None:
        """Start the processes that do not run; whether the server takes the node is another question."""
        self._take_lock()
        self.prepare()
        if "relay" not in self._processes or self.relay.code is not None:
            self._start_relay()
        self.revive()
        if "superexec" in self._processes:
            self._processes.pop("superexec").terminate()
        supernode, self._is_behind = self._spawn("supernode"), False
        self._spawn("superexec", "--parent-pid", str(supernode.pid))

    def revive(self, tell: Tell = _silent) -> None:
        """Start the resident and the forkserver if they do not run: nobody else need notice."""
        for name in HELPERS:
            known, restarts = self._processes.get(name), self._restarts.setdefault(name, Restarts())
            if known is not None and known.code is None:
                continue
            if restarts.due(time.monotonic()):
                if known is not None:
                    tell(f"the {name} ended with code {known.code}; it is started again (its log is {self.log})")
                self._spawn(name)

    def _take_lock(self) -> None:
        if self._lock is None:
            self._lock = Lock(self.folder / "lock", "this site")

    def _start_relay(self) -> None:
        make_keys(self.loopback.folder, renew=["all"])  # so that it never expires
        relay = self._spawn("relay")
        end = time.monotonic() + START
        while READY not in relay.said():
            if relay.code is not None or time.monotonic() > end:
                self.relay_port = free_port()  # for another attempt
                raise PassingError(f"the relay did not start ({relay.last_words()}); see {relay.log}")
            time.sleep(0.05)

    def _spawn(self, name: str, *more: str) -> Process:
        words = self.commands()[name]
        command = words if words[0] == sys.executable else [flower_command(words[0]), *words[1:]]
        log = self.folder / "relay.log" if name == "relay" else self.log
        around = environment(self.home) | self._surroundings(name)
        self._processes[name] = Process([*command, *more], log, around, self.folder, self._lock)
        return self._processes[name]

    def _surroundings(self, name: str) -> dict[str, str]:
        """What the environment of a process has besides Flower's."""
        if name == "superexec":
            return {"PATH": os.pathsep.join([str(self._scripts), environment(self.home)["PATH"]])}
        return surroundings() if name == "forkserver" else {}

    @property
    def _resident_settings(self) -> Path:
        return self.folder / ".resident.json"

    @property
    def _scripts(self) -> Path:
        return self.folder / ".commands"

    @property
    def process(self) -> Process:
        """The SuperNode's process, which may have ended."""
        assert "supernode" in self._processes, "the node was not started"
        return self._processes["supernode"]

    @property
    def relay(self) -> Process:
        """The relay's process, which may have ended."""
        return self._processes["relay"]

    @property
    def resident(self) -> Process:
        """The resident's process, which may have ended."""
        return self._processes["resident"]

    @property
    def accepted(self) -> bool:
        """Whether the server has taken this node."""
        return ACCEPTED in self.process.said()

    def wait_accepted(self, timeout: float | None = None, tell: Tell = _silent) -> None:
        """Wait until the server takes the node; start it again as often as that helps.

        A server remembers a node that was killed for a minute and refuses it as long. If it still refuses after that,
        or there is no hope, an error says why. There may be no server yet: that can take `timeout` seconds.
        """
        begin, refused, said_so = time.monotonic(), 0.0, False
        while not self.accepted:
            now = time.monotonic()
            if timeout is not None and now - begin > timeout:
                raise PassingError(
                    f"server = {self.server}: did not take this site within {timeout:g} s; see {self.log}"
                )
            self._require_hope()
            if self.process.code is not None:
                refused = self._reconsider(refused, tell)
                time.sleep(AGAIN)
                self.start()
            elif not said_so and not refused and now - begin > QUIET:
                tell(f"no connection to {self.server} yet; trying on")
                said_so = True
            time.sleep(0.1)

    def _require_hope(self) -> None:
        """An error about what no further attempt would change."""
        said = self.process.said() + self.relay.said()
        if any(sign in said for sign in PORT_TAKEN):
            return  # somebody else answers at this port of the machine's own, with another certificate, too
        for sign, (kind, meaning) in HOPELESS.items():
            if sign in said:
                line = next(line for line in said.splitlines() if sign in line)
                raise kind(meaning.format(words=line.strip(), key=self.key))

    def _reconsider(self, refused: float, tell: Tell) -> float:
        """What to do about a node that ended before it was taken: an error, or since when it has been refused."""
        said, words = self.process.said(), self.process.last_words()
        if any(sign in said for sign in PORT_TAKEN) and not self._wished:
            self.port = free_port()
            return refused
        clock = clock_problem(self.server, self.authority)
        if not refused:
            why = "its key is not known yet, or its last connection still counts" if REFUSED in said else words
            why = clock or why
            tell(f"the server at {self.server} does not take this site yet ({why}); trying on for {FORGOTTEN:g} s")
            return time.monotonic()
        if time.monotonic() - refused > FORGOTTEN:
            why, way_out = words, f"see {self.log}"
            if REFUSED in said:
                why = "it refuses this site for good: the key is not registered there, or was withdrawn"
                way_out = "have it accepted there with 'coterie federation keys DIR --accept', then start this again"
            if clock:
                why, way_out = clock, "then start this again"
            raise UnwelcomeError(f"server = {self.server}: {why}; {way_out}")
        return refused

    def keep_alive(self, tell: Tell = _silent) -> None:
        """Stay connected until interrupted; a process that ends by itself is started again."""
        pause = AGAIN
        while True:
            self.wait_accepted(tell=tell)
            began, self.connected = time.monotonic(), True
            self.relay.news()  # what it said of vain attempts is over
            tell(f"connected to {self.server}")
            while (gone := self._gone()) is None:
                self.pass_on(tell)
                for warning in self.expiry.news():
                    tell(f"warning: {warning}")
                self.revive(tell)
                time.sleep(0.5)
            self.connected = False
            self.pass_on(tell)
            if time.monotonic() - began > FORGOTTEN:
                pause = AGAIN
            tell(f"{gone}; it is started again in {pause:g} s")
            self.process.terminate()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
            self.start()

    def _gone(self) -> str | None:
        """Which process without which the site is not connected has ended by itself, or is of no use, in words."""
        if self._is_behind:
            return "the supernode has a task left of a run that is over, and would answer one behind"
        for name, process in self._processes.items():
            if process.code is not None and name not in HELPERS:
                return f"the {name} ended with code {process.code} ({process.last_words()})"
        return None

    def pass_on(self, tell: Tell) -> None:
        """Tell what has happened since this was last asked."""
        for line in self.relay.news():
            tell(line)
        for line in self.process.news():
            self._is_behind |= STRAY in line
            news = [text for words, text in NEWS.items() if words in line]
            if news or "ERROR" in line:
                tell(news[0] if news else line)

    def terminate(self) -> None:
        """End the node politely: it signs off, and may come back at once."""
        for name in ("supernode", "superexec", "relay", *HELPERS):  # the SuperNode signs off through the relay
            if name in self._processes:
                self._processes.pop(name).terminate()
        self._restarts.clear()
        self._release()

    def kill(self) -> None:
        """End the node by force, as a power cut would."""
        for process in self._processes.values():
            process.kill()
        self._processes.clear()
        self._restarts.clear()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
