"""A process that starts another one and ends it when whoever asked for it goes away, however that happens.

It is run as a script of its own: `guard.py GRACE LOG COMMAND …`. Its stdin is a pipe that only the starter holds open;
the end of the pipe, by intention or because the starter was killed, ends the command: first politely, after GRACE
seconds by force, and with everything in the command's session. The command's process id is the first line on stdout,
its output is appended to the file LOG. That may be moved away at any time (`mv`, logrotate): a new one is begun. What a
full disk does not take is lost, and the command goes on. Only the standard library is used: a guard must be small and
quick to start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

LAST_WORDS = 2.0  # seconds to write down what a command said before its end


def end_with_starter(child: subprocess.Popen[bytes], grace: float) -> None:
    """Wait for the end of stdin, then end the child."""
    # Not through sys.stdin: a thread that waits inside it would hold its lock when the guard exits.
    while os.read(0, 64):
        pass
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGTERM)
    timer = threading.Timer(grace, end_session, [child.pid])
    timer.daemon = True
    timer.start()


def end_with_guard() -> None:
    """In the command, before it begins: end politely if the guard itself is killed (where the system can do that)."""
    if sys.platform == "linux":
        set_signal_of_parents_death = 1
        ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGTERM)


def end_session(leader: int) -> None:
    """End by force whatever is left of a session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class Log:
    """A file that is appended to wherever it is now."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file = -1

    def write(self, content: bytes) -> None:
        """Append, as far as there is room."""
        with suppress(OSError):
            if not self._in_place():
                self._reopen()
            while content:
                content = content[os.write(self._file, content) :]

    def _in_place(self) -> bool:
        if self._file < 0:
            return False
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def _reopen(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def pass_on(output: int, log: Log) -> None:
    """Write what a command says to its log until it, and all that it started, says nothing any more."""
    while content := os.read(output, 1 << 16):
        log.write(content)


def main() -> int:
    """Start the command, wait for it, leave nothing of it behind; its exit code (128 + n after signal n)."""
    grace, log, command = float(sys.argv[1]), Log(sys.argv[2]), sys.argv[3:]
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the pipe ends a guard: a signal to all processes must not leave its command alone. A handler that
        # does nothing, and not SIG_IGN, which the command would inherit.
        signal.signal(name, lambda *_: None)
    output, written = os.pipe()
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=written,
        stderr=written,
        start_new_session=True,
        preexec_fn=end_with_guard,
    )
    os.close(written)
    writer = threading.Thread(target=pass_on, args=(output, log), daemon=True)
    writer.start()
    print(child.pid, flush=True)
    threading.Thread(target=end_with_starter, args=(child, grace), daemon=True).start()
    # As long as the child is not reaped, its id cannot become that of another session.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    end_session(child.pid)
    code = child.wait()
    writer.join(LAST_WORDS)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())
