"""Processes that end with their starter, and what Flower's commands need around them."""

from __future__ import annotations

import fcntl
import importlib.util
import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from coterie.deployment.flower import guard
from coterie.errors import CoterieError, PassingError, require
from coterie.files import PARTIAL, private_folder

GRACE = 10.0  # seconds that a process has to end politely
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LOOPBACK = "127.0.0.1"

Values = Mapping[str, str | int | float | bool]


class Process:
    """A command under guard, its output appended to a log file.

    However this Python ends, the guard ends the command and all that it started (see `guard`).
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path, lock: Lock | None = None
    ) -> None:
        self.command, self.log = list(command), log
        with log.open("ab") as output:
            self._file = os.fstat(output.fileno()).st_ino
            self._begin = self._read = os.fstat(output.fileno()).st_size
            self._guard = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, str(GRACE), str(log), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,  # Ctrl-C in a terminal is for the starter alone
                # A guard that outlives its starter keeps the lock until its command has ended.
                pass_fds=() if lock is None else (lock.descriptor,),
            )
        assert self._guard.stdout is not None
        line = self._guard.stdout.readline()
        self._guard.stdout.close()
        if not line:
            self._guard.wait()
            raise PassingError(f"'{command[0]}' cannot be started; see {log}")
        self.pid = int(line)

    @property
    def code(self) -> int | None:
        """The exit code, None while the command runs."""
        return self.wait(0)

    def said(self) -> str:
        """What the command has written so far; if its log was moved away, since then."""
        return self._content("_begin").decode("utf-8", errors="replace")

    def _content(self, place: Literal["_begin", "_read"]) -> bytes:
        """The log from a place on. Where it was moved away or cut, a new one is read from its beginning."""
        try:
            with self.log.open("rb") as output:
                about = os.fstat(output.fileno())
                if about.st_ino != self._file or about.st_size < getattr(self, place):
                    self._file, self._begin, self._read = about.st_ino, 0, 0
                output.seek(getattr(self, place))
                return output.read()
        except FileNotFoundError:
            return b""

    def news(self) -> list[str]:
        """The lines that the command has written since this was last asked."""
        whole = self._content("_read").rpartition(b"\n")
        self._read += len(whole[0]) + len(whole[1])
        return COLOURS.sub("", whole[0].decode("utf-8", errors="replace")).splitlines()

    def last_words(self) -> str:
        """The last line that the command has written, of those that are no mere information if there are any."""
        lines = [line.strip() for line in COLOURS.sub("", self.said()).splitlines()]
        lines = [line for line in lines if any(letter.isalpha() for letter in line)]
        grave = [line for line in lines if not line.startswith("INFO")]
        return (grave or lines or ["it said nothing"])[-1]

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; the exit code, or None if the time is over before."""
        known = self._guard.returncode is not None
        try:
            code = self._guard.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        if code < 0 and not known:
            # Somebody killed the guard itself, which had no time to end its command.
            guard.end_session(self.pid)
        return code

    def terminate(self) -> int:
        """End the command politely, by force if it does not; the exit code."""
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.close()
        code = self.wait(GRACE + 5)
        return self.kill() if code is None else code

    def kill(self) -> int:
        """End the command and all that it started by force, at once."""
        if self.code is None:
            guard.end_session(self.pid)
        code = self.wait(5)
        if code is None:
            self._guard.kill()
            code = self._guard.wait()
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.close()
        return code


class Lock:
    """A folder is used by one starter at a time; the guards of its processes hold the lock too."""

    def __init__(self, path: Path, what: str, patience: float = GRACE + 5) -> None:
        private_folder(path.parent)
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        end = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    os.close(self.descriptor)
                    raise CoterieError(
                        f"{what} is already running, from the same folder {path.parent}; end it first"
                    ) from None
                time.sleep(0.2)

    def release(self) -> None:
        """Let others in, as soon as the guards have gone too."""
        os.close(self.descriptor)


def flower_command(name: str) -> str:
    """The path of one of Flower's commands."""
    beside = Path(sysconfig.get_path("scripts")) / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if importlib.util.find_spec("flwr") is None or path is None:
        raise CoterieError("Flower is not installed; pip install 'coterie[flower]'")
    return path


def environment(home: Path) -> dict[str, str]:
    """The environment of all of Flower's processes; `home` is where it keeps its settings and unpacks apps."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    # Whatever proxy leads out of here, this machine is reached without it.
    direct = ",".join(filter(None, [kept.get("no_proxy", kept.get("NO_PROXY", "")), "localhost", LOOPBACK, "::1"]))
    ours = {"no_proxy": direct, "NO_PROXY": direct, "PYTHONUNBUFFERED": "1"}
    return kept | settings(home) | ours | {"PATH": _with_scripts(kept.get("PATH", os.defpath))}


def settings(home: Path) -> dict[str, str]:
    """The environment variables that are Flower's own."""
    return {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # by default a task waits half a second more to be seen
    }


def write_secret(path: Path) -> None:
    """Make a file with a secret that only its owner can read, unless there is one."""
    if not path.exists():
        fresh = path.with_name(path.name + PARTIAL)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(os.urandom(32).hex())
        fresh.replace(path)


def _with_scripts(path: str) -> str:
    # Flower finds its own commands through PATH.
    return os.pathsep.join([sysconfig.get_path("scripts"), path])


def pairs(values: Values) -> str:
    """Settings as Flower's commands take them.

    >>> pairs({"name": "site-a", "rounds": 3})
    'name="site-a" rounds=3'
    """
    for name, value in values.items():
        strange = isinstance(value, str) and any(letter in '"\\' or not letter.isprintable() for letter in value)
        require(not strange, f"{name} = {value}: must not hold quotes, backslashes or control characters")
    return " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())


def free_port(host: str = LOOPBACK) -> int:
    """A port that nobody listens on just now."""
    with socket.socket(family(host)) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def require_free(host: str, port: int) -> None:
    """Refuse a port that is taken, or an address that is not this machine's."""
    with socket.socket(family(host)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise PassingError(
                f"port = {port}: cannot be used on {host} ({error.strerror}); name another, or 0 for any free one"
            ) from None


def family(host: str) -> socket.AddressFamily:
    """The kind of address that a host has."""
    try:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise CoterieError(f"host = {host}: cannot be found ({error.strerror})") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def joined(host: str, port: int) -> str:
    """An address as one text.

    >>> joined("localhost", 8000), joined("::1", 8000)
    ('localhost:8000', '[::1]:8000')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    >>> split_address("[::1]:8000")
    ('::1', 8000)
    """
    host, _, port = address.rpartition(":")
    whole = bool(host) and port.isdecimal() and 0 < int(port) < 65536 and "/" not in host
    require(whole, f"server = {address}: must be HOST:PORT, such as example.org:8000")
    return host.removeprefix("[").removesuffix("]"), int(port)
