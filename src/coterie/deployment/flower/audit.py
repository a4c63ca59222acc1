"""Who joined, what was asked, what left and what was refused: a JSON object a line, in a file only ever added to.

Each line carries a hash of the line before, so that one that was changed or taken out later shows. Run as `python -m
coterie.deployment.flower.audit FILE` it says where.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from coterie.deployment.messages import Packed

AUDIT = "audit.jsonl"
REFUSED = "refused"
AFTER = "after"
"""What a line calls the hash of the line before."""
LONGEST = 200  # letters of any one value
LONGEST_LINE = 64 << 10  # bytes: more than any line has
BURST = 20  # lines at once about one peer; after that one every PAUSE seconds
PAUSE = 10.0
BURST_OF_ALL, PAUSE_OF_ALL = 500, 1.0  # the same for all peers together
MOST_PEERS = 4096  # peers told apart; beyond them only the limit for all holds
SUMMARY = 60.0  # seconds between two lines about what was left out


def told_of(content: Packed | str) -> dict[str, str | int]:
    """What an audit log says of a message: enough to prove later which one it was, and nothing of what is in it."""
    if isinstance(content, str):
        return {"error": content}
    return {"bytes": content.bytes, "sha256": content.digest}


class Allowance:
    """So many at once, then one after every pause."""

    def __init__(self, burst: int, pause: float, now: float) -> None:
        self._burst, self._pause = burst, pause
        self._left, self._seen = float(burst), now

    def taken(self, now: float) -> bool:
        """Whether there is one left, which is then gone."""
        self._left = min(self._burst, self._left + (now - self._seen) / self._pause)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def full(self, now: float) -> bool:
        """Whether nothing is known of it that a new one would not know."""
        return self._left + (now - self._seen) / self._pause >= self._burst


class Audit:
    """A file of events: when, who, what, why.

    Several processes may write to one file: a line is written at once. A flood of refusals fills neither the disk nor
    hides others: each peer has its allowance of lines, all together have one, and what is left out is counted, in a
    line a minute. Values are written as JSON in ASCII, so that no newline or control character of a stranger's can pass
    for a line of its own. A file that was moved away is begun anew; one that cannot be written (a full disk) is said on
    stderr, and stops nothing.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._clock = path, clock
        self._peers: dict[str, Allowance] = {}
        self._all = Allowance(BURST_OF_ALL, PAUSE_OF_ALL, clock())
        self._left_out, self._left_out_peers = 0, set[str]()
        self._summed = self._forgot = clock()

    def note(self, event: str, **more: str | int) -> None:
        """Something happened that somebody may have to prove later."""
        self._write({"event": event, **more})

    def refused(self, peer: str, what: str, reason: str, **more: str | int) -> None:
        """Something was refused."""
        now = self._clock()
        self.sum_up(now)
        if self._allowed(peer, now):
            self._write({"event": REFUSED, "peer": peer, "path": what, "reason": reason, **more})
            return
        self._left_out += 1
        if len(self._left_out_peers) < MOST_PEERS:
            self._left_out_peers.add(peer)

    def sum_up(self, now: float | None = None, last: bool = False) -> None:
        """Say how much was left out, if it is time for that or the last occasion."""
        now = self._clock() if now is None else now
        if not self._left_out:
            self._summed = now if now - self._summed > SUMMARY else self._summed
        elif last or now - self._summed > SUMMARY:
            count, peers = self._left_out, len(self._left_out_peers)
            summary = f"{count} more refusals of {peers} peers were not written"
            self._write({"event": REFUSED, "peer": "", "path": "", "reason": summary})
            self._left_out, self._left_out_peers, self._summed = 0, set(), now

    def _allowed(self, peer: str, now: float) -> bool:
        if len(self._peers) >= MOST_PEERS and now - self._forgot > PAUSE:
            self._peers = {name: allowance for name, allowance in self._peers.items() if not allowance.full(now)}
            self._forgot = now
        if peer not in self._peers and len(self._peers) < MOST_PEERS:
            self._peers[peer] = Allowance(BURST, PAUSE, now)
        allowance = self._peers.get(peer)
        return (allowance is None or allowance.taken(now)) and self._all.taken(now)

    def _write(self, values: dict[str, str | int]) -> None:
        short = {name: value[:LONGEST] if isinstance(value, str) else value for name, value in values.items()}
        values = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **short}
        try:
            # Opened for each line: few are written, and the file may have been moved away in between.
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # until it is closed: no other line comes in between
                size = os.fstat(descriptor).st_size
                end = os.pread(descriptor, LONGEST_LINE, max(0, size - LONGEST_LINE))
                torn = size > 0 and not end.endswith(b"\n")  # by a full disk, or a power cut
                values[AFTER] = mark_of(end.removesuffix(b"\n").rpartition(b"\n")[2])
                os.write(descriptor, b"\n" * torn + json.dumps(values).encode("ascii") + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            line = json.dumps(values)
            print(f"{self.path} cannot be written ({error.strerror}): {line}", file=sys.stderr, flush=True)


def mark_of(line: bytes) -> str:
    """What the next line says of a line; nothing of none."""
    return hashlib.sha256(line).hexdigest()[:32] if line else ""


def broken_links(content: bytes) -> list[int]:
    """The numbers of the lines, counted from 1, before which something was changed or taken out.

    A file that was begun anew, when the one before was moved away, begins with a line that follows none.
    """
    lines, broken = content.splitlines(), []
    for number, line in enumerate(lines, 1):
        try:
            said = json.loads(line)[AFTER]
        except (ValueError, TypeError, KeyError):
            said = None
        if said != (mark_of(lines[number - 2]) if number > 1 else ""):
            broken.append(number)
    return broken


def main() -> int:
    """Say of a file whether all its lines follow one another."""
    broken = broken_links(Path(sys.argv[1]).read_bytes())
    for number in broken:
        print(f"line {number}: something before it was changed or taken out")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
