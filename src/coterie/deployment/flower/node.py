"""A site's side of Flower: a SuperNode that is started until its server takes it, and kept alive."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from coterie.deployment.flower.clocks import clock_problem
from coterie.deployment.flower.processes import (
    LOOPBACK,
    Lock,
    Process,
    Values,
    environment,
    flower_command,
    free_port,
    pairs,
)
from coterie.errors import CoterieError

FORGOTTEN = 120.0  # seconds after which a server has registered all keys, and forgotten a node that was killed
AGAIN = 3.0  # seconds before another attempt
LONGEST = 60.0  # seconds between attempts at the most
QUIET = 10.0  # seconds without a connection after which to say so

# What a SuperNode says, and what that means.
ACCEPTED = "SuperNode ID:"
REFUSED = "[code: 2004]"
HOPELESS = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not the one expected ({words}); take the federation's "
    "ca.pem from whoever runs the server, and name the server as in its certificate ('coterie federation keys --host')",
    "Unable to parse the private key": "{key}: is no key that Flower reads; use one of 'coterie federation keys'",
}
# What a site's app writes above the text of an error, which it keeps to itself.
UNANSWERED = "the server was told only that something went wrong"
# Words in a SuperNode's log that its owner should hear of.
NEWS = {
    "Receiving: query": "the server asks for this site's name and the size of its data",
    "Receiving: train message": "a task came in: training begins",
    "Sending: train message": "training is done, the result is being sent",
    "Receiving: train.finish": "the finished model comes in",
    "Sending: train.finish": "the finished model is kept here",
    UNANSWERED: "what the server asked for could not be done; the reason is in this site's log",
}
PORT_TAKEN = ("address already in use", "Runtime HTTP API failed to start")

Tell = Callable[[str], None]


def _silent(_: str) -> None:
    pass


class Node:
    """The SuperNode of a site; everything that it keeps is in `folder`.

    `settings` is what the site's app gets to know: name, data, state and, if need be, label. Without `key` and
    `authority` nothing is encrypted. Port 0 stands for any free one; it is only for this machine.
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
        self.folder, self.server, self.settings = folder.resolve(), server, dict(settings)
        self.key, self.authority = key, authority
        self._wished = port
        self.port = port or free_port()
        self.home = self.folder / ".flower"  # no federation's or site's name begins with a dot
        self.log = self.folder / "supernode.log"
        self._process: Process | None = None
        self._lock: Lock | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def command(self) -> list[str]:
        """The command of the SuperNode."""
        words = ["flower-supernode", "--superlink", self.server, "--host", LOOPBACK, "--port", str(self.port)]
        words += ["--node-config", pairs(self.settings)]
        if self.key is None or self.authority is None:
            return [*words, "--insecure"]
        return [*words, "--root-certificates", str(self.authority), "--auth-supernode-private-key", str(self.key)]

    def start(self) -> None:
        """Start the process; whether the server takes it is another question."""
        if self._lock is None:
            self._lock = Lock(self.folder / "lock", "this site")
        self.home.mkdir(parents=True, exist_ok=True)
        words = self.command()
        command = [flower_command(words[0]), *words[1:]]
        self._process = Process(command, self.log, environment(self.home), self.folder, self._lock)

    @property
    def process(self) -> Process:
        """The process, which may have ended."""
        assert self._process is not None, "the node was not started"
        return self._process

    @property
    def accepted(self) -> bool:
        """Whether the server has taken this node."""
        return ACCEPTED in self.process.said()

    def wait_accepted(self, timeout: float | None = None, tell: Tell = _silent) -> None:
        """Wait until the server takes the node; start it again as often as that helps.

        A server remembers a node that was killed for a minute and refuses it as long. If it still refuses after that,
        or there is no hope, an error says why. There may be no server yet: that can take `timeout` seconds.
        """
        begin, refused, told = time.monotonic(), 0.0, False
        while not self.accepted:
            now = time.monotonic()
            if timeout is not None and now - begin > timeout:
                raise CoterieError(
                    f"server = {self.server}: did not take this site within {timeout:g} s; see {self.log}"
                )
            if self.process.code is not None:
                refused = self._reconsider(refused, tell)
                time.sleep(AGAIN)
                self.start()
            elif not told and not refused and now - begin > QUIET:
                tell(f"no connection to {self.server} yet; trying on")
                told = True
            time.sleep(0.1)

    def _reconsider(self, refused: float, tell: Tell) -> float:
        """What to do about a node that ended before it was taken: an error, or since when it has been refused."""
        said, words = self.process.said(), self.process.last_words()
        for sign, meaning in HOPELESS.items():
            if sign in said:
                line = next(line for line in said.splitlines() if sign in line)
                raise CoterieError(meaning.format(words=line.strip(), key=self.key))
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
                way_out = "have a key made with 'coterie federation keys' where the server runs, and start that again"
            if clock:
                why, way_out = clock, "then start this again"
            raise CoterieError(f"server = {self.server}: {why}; {way_out}")
        return refused

    def keep_alive(self, tell: Tell = _silent) -> None:
        """Stay connected until interrupted; a process that ends by itself is started again."""
        pause = AGAIN
        while True:
            self.wait_accepted(tell=tell)
            began = time.monotonic()
            tell(f"connected to {self.server}")
            while self.process.code is None:
                self._pass_on(tell)
                time.sleep(0.5)
            self._pass_on(tell)
            if time.monotonic() - began > FORGOTTEN:
                pause = AGAIN
            words = self.process.last_words()
            tell(f"the SuperNode ended with code {self.process.code} ({words}); it is started again in {pause:g} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
            self.start()

    def _pass_on(self, tell: Tell) -> None:
        for line in self.process.news():
            news = [text for words, text in NEWS.items() if words in line]
            if news or "ERROR" in line:
                tell(news[0] if news else line)

    def terminate(self) -> None:
        """End the node politely: it signs off, and may come back at once."""
        if self._process is not None:
            self._process.terminate()
        self._release()

    def kill(self) -> None:
        """End the node by force, as a power cut would."""
        if self._process is not None:
            self._process.kill()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
