"""A connection to Ray: an existing cluster, the one this process uses already, or a local one of our own."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, require

CONNECT_SECONDS = 10.0
HEALTH = 30.0  # seconds
LOOPBACK = "127.0.0.1"
SMALLEST_STORE = 128 * 2**20
# Ray's sockets lie under its folder, and a socket's path has at most 107 characters.
LONGEST_FOLDER = 40


# With this switch Ray never listens beyond the machine. It is read once, when Ray is imported.
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_told: set[str] = set()  # packages that were imported with the switch set


def import_ray(local: bool) -> Any:
    """The package `ray`, which is an extra; `local` if it is to stay on this machine."""
    if local and "ray" in sys.modules:
        require(
            "ray" in _told or os.environ.get(LOCAL_ONLY) == "0" or sys.modules["ray"].is_initialized(),
            f"engine = 'ray': Ray was imported before it could be told to stay on this machine; set {LOCAL_ONLY}=0 "
            "before you import it, or call ray.init yourself",
        )
    if local and "ray" not in sys.modules:
        _told.add("ray")
    with _set({LOCAL_ONLY: "0"} if local else {}):
        try:
            return importlib.import_module("ray")
        except ImportError as error:
            raise CoterieError(f"engine = 'ray': Ray is not installed ({error}); pip install 'coterie[ray]'") from None


class RaySession:
    """Ray as long as it is needed: what was not started or joined here is left as it is by `close`.

    Without an `address` a local Ray is started for this process alone: it listens on the loopback interface
    only, has no dashboard, sends no usage statistics, and its files vanish with it. `cpus` is how many it
    counts, `store` the bytes of its object store.
    """

    def __init__(self, address: str, cpus: int, store: int) -> None:
        self.ray = import_ray(local=not address)
        self._owned = not self.ray.is_initialized()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if self._owned and address:
            self._join(address)
        elif self._owned:
            self._start(cpus, store)

    def total(self, resource: str) -> float:
        """How much of a resource ("CPU", "GPU") the cluster has."""
        return float(self.ray.cluster_resources().get(resource, 0.0))

    def noted(self, key: str) -> int:
        """The number that was last noted under a key; 0 if there is none."""
        return int(_notes()._internal_kv_get(key) or 0)

    def forget(self, key: str) -> None:
        """Delete what was noted under a key."""
        _notes()._internal_kv_del(key)

    def close(self) -> None:
        """Leave the cluster, or end the local one."""
        if self._owned:
            self.ray.shutdown()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _join(self, address: str) -> None:
        _require_reachable(address)
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # whatever Ray raises: connection, version, authentication
            with suppress(Exception):
                self.ray.shutdown()
            raise _unreachable(address, " ".join(str(error).split())) from error

    def _start(self, cpus: int, store: int) -> None:
        folder = tempfile.TemporaryDirectory(prefix="coterie-", ignore_cleanup_errors=True)
        if len(folder.name) <= LONGEST_FOLDER:
            self._folder = folder
        with _set({"RAY_USAGE_STATS_ENABLED": "0", LOCAL_ONLY: "0"}):
            self.ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                object_store_memory=max(store, SMALLEST_STORE),
                _node_ip_address=LOOPBACK,
                # Ray opens its folder to everybody, so it lies within one that is not.
                _temp_dir=None if self._folder is None else str(Path(self._folder.name) / "ray"),
            )
        found = self.ray.util.get_node_ip_address()
        if found != LOOPBACK:
            self.close()
            raise CoterieError(
                f"engine = 'ray': this version of Ray listens on {found}, not just on this machine; start Ray yourself "
                "('ray start --head') and give ray_address='auto'"
            )


def note(key: str, number: int) -> None:
    """Note a number with the cluster, where it outlives the process that noted it."""
    _notes()._internal_kv_put(key, str(number))


def _notes() -> Any:
    """Ray's key-value store. It is there in every process that is connected to a cluster."""
    return importlib.import_module("ray.experimental.internal_kv")


@contextmanager
def _set(wanted: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while; the processes that Ray starts meanwhile keep them."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _require_reachable(address: str) -> None:
    """Knock at the address first: Ray itself may try for minutes."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    require(
        bool(colon) and port.isdigit() and 0 < int(port) < 2**16,
        f"ray_address = '{address}': must be HOST:PORT, 'auto', or empty for a local Ray",
    )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise _unreachable(address, str(error)) from None
    command = Path(sys.executable).with_name("ray")
    if address.startswith("ray://") or not command.exists():
        return
    try:
        # Something that is not Ray would keep `ray.init` busy for a quarter of an hour.
        subprocess.run([command, "health-check", "--address", address], check=True, capture_output=True, timeout=HEALTH)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise _unreachable(address, "'ray health-check' says so") from None


def _unreachable(address: str, reason: str) -> CoterieError:
    return CoterieError(f"ray_address = '{address}': no Ray cluster can be reached there ({reason})")
