"""Looks at the server five times a second: whether it ever falls silent, and whether its status is true."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from coterie.deployment.state_file import read_state
from tools.chaos.place import SERVER, Place

LOOK = 0.2  # seconds between two looks
QUIET = 15.0  # seconds after which it must be said what is waited for
SPARE = 2.0  # seconds by which a look may be late on a busy machine
LAG = 15.0  # seconds by which the status may lag behind
# The words of a wait.
WAITS = re.compile(
    r"wait|are done|again|does not carry|cannot be written|starting|being started|trying on|looking|stopped|resumes"
)


@dataclass
class Watch:
    """What was seen since the last time that this was asked for."""

    place: Place
    silence: float = 0.0  # the longest, in seconds
    lag: float = 0.0  # the longest time for which the status was not true
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._words, self._since, self._last = "", time.monotonic(), ""
        self._untrue: tuple[str, float] | None = None
        self._down = 0.0  # until when nobody can speak
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join(10)

    def excuse(self, seconds: float) -> None:
        """Whoever would speak is stopped, or was ended and is being started, for so long."""
        with self._lock:
            self._down = max(self._down, time.monotonic() + seconds)

    def taken(self) -> tuple[float, float, list[str]]:
        """The longest silence and lag since this was last asked, and what was wrong."""
        with self._lock:
            found = self.silence, self.lag, self.violations
            self.silence, self.lag, self.violations = 0.0, 0.0, []
        return found

    def _look_on(self) -> None:
        while not self._ended.wait(LOOK):
            with suppress(OSError), self._lock:
                self._listen()
                self._compare()

    def _listen(self) -> None:
        """Measure how long nothing new was said."""
        now, place = time.monotonic(), self.place
        state = read_state(place.server)
        logs = [place.folder / f"{SERVER}.log", place.server / "log.txt"]
        sizes = [path.stat().st_size if path.exists() else 0 for path in logs]
        words = f"{sizes} {state.get('state')} {state.get('message')}"
        if now < self._down:
            self._words, self._since = words, now
            return
        seconds = now - self._since
        if not WAITS.search(self._last):
            self.silence = max(self.silence, seconds)
            if seconds > QUIET + SPARE and "silence" not in self._said:
                self._said.add("silence")
                self.violations.append(f"silence of more than {QUIET:g} s after '{self._last}'")
        if words != self._words:
            self._words, self._since = words, now
            self._last = f"{state.get('message') or ''} / {_last_line(logs[0])}"
            self._said.discard("silence")

    def _compare(self) -> None:
        """Compare what the status says with what is so."""
        now, wrong = time.monotonic(), self._wrong()
        if not wrong or now < self._down:
            self._untrue = None
            self._said -= {wrong for wrong in self._said if wrong != "silence"}
            return
        if self._untrue is None or self._untrue[0] != wrong:
            self._untrue = (wrong, now)
        seconds = now - self._untrue[1]
        self.lag = max(self.lag, seconds)
        if seconds > LAG and wrong not in self._said:
            self._said.add(wrong)
            self.violations.append(f"the status was not true for {LAG:g} s: {wrong}")

    def _wrong(self) -> str:
        place = self.place
        state = read_state(place.server)
        kind, round = state.get("state"), int(state.get("round", 0))
        path = place.server / "rounds.jsonl"
        lines = path.read_bytes().count(b"\n") if path.is_file() else 0
        if not state:
            return "there is none, or none that can be read"
        if kind == "finished" and lines < place.agreement.rounds:
            return f"it says finished after {lines} rounds"
        if kind == "failed" and place.runs(SERVER):
            return f"it says failed ({state.get('message')}) while the server runs"
        if kind in ("running", "waiting"):
            if not place.runs(SERVER):
                return f"it says {kind}, and nothing runs"
            if not 0 <= round - lines <= 1 and not (kind == "waiting" and round >= lines - 1):
                return f"it says round {round}, and {lines} are done"
            if not _lives(int(state.get("pid", 0))):
                return f"it says {kind} in the name of a process that has ended"
        return ""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _last_line(path) -> str:  # type: ignore[no-untyped-def]
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").splitlines()
    return lines[-1] if lines else ""
