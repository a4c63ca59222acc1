"""A connection to Ray: an existing cluster, the one this process uses already, or a local one of our own."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from coterie.errors import CoterieError, PassingError, require

log = logging.getLogger("coterie")
T = TypeVar("T")

CONNECT_SECONDS = 5.0
# Seconds between knocks at the head, and how many in vain mean that it is lost: after 60 s, Ray ends the process.
KNOCK_AGAIN, IN_VAIN = 5.0, 5
SLOW = 10.0  # seconds after which it is said that a cluster is waited for
HEALTH = 60.0  # seconds: a busy machine takes long to start the command that asks
# How HTTP/2 begins, which all of Ray speaks: our first frame, settings without any; the server's is its settings too.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS = 4
LOOPBACK = "127.0.0.1"
SMALLEST_STORE = 128 * 2**20
# Ray's sockets lie under its folder, and a socket's path has at most 107 characters.
LONGEST_FOLDER = 40


# With this switch Ray never listens beyond the machine. It is read once, when Ray is imported.
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_told: set[str] = set()  # packages that were imported with the switch set
# Whether Ray shows a token when it connects: exactly where the cluster asks for one. Read when Ray is imported, too.
AUTHENTICATION = "RAY_AUTH_MODE"
WITH_TOKEN = {AUTHENTICATION: "token"}


def import_ray(local: bool, wanted_by: str = "engine = 'ray'") -> Any:
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
            raise CoterieError(f"{wanted_by}: Ray is not installed ({error}); pip install 'coterie[ray]'") from None


class RaySession:
    """Ray as long as it is needed: what was not started or joined here is left as it is by `close`.

    Without an `address` a local Ray is started for this process alone: it listens on the loopback interface only,
    has no dashboard, sends no usage statistics, and its files vanish with it. `cpus` is how many it counts, `store` the
    bytes of its object store. `option` is what the address is called where it was given.

    Without its head a cluster does nothing, and Ray would end this process after a minute: whoever waits here asks
    `require_head` now and then, and lets the head be asked by `asked`.
    """

    def __init__(self, address: str, cpus: int = 1, store: int = 0, option: str = "ray_address") -> None:
        where = f"{option} = '{address}'"
        self.where = where if address else "engine = 'ray'"
        loaded = sys.modules.get("ray")
        self._owned = loaded is None or not loaded.is_initialized()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._cleanup = ExitStack()
        self._closed = threading.Event()
        with _told_if_slow(self.where):
            if self._owned and address:
                self._cleanup.enter_context(_set(_way_in(address, where)))
            self.ray = import_ray(not address, self.where)
            if self._owned:
                context = self._join(address, where) if address else self._start(cpus, store)
                # Ray Client has no such address: its server tells what becomes of the cluster.
                head = str(getattr(context, "address_info", {}).get("gcs_address", ""))
            else:
                head = str(getattr(self.ray.get_runtime_context(), "gcs_address", ""))
        if self._owned:
            self._cleanup.enter_context(_silent())
        self._in_vain = 0  # the last knocks at the head
        threading.Thread(target=self._watch_head, args=(head,), name="coterie ray head", daemon=True).start()

    def total(self, resource: str) -> float:
        """How much of a resource ("CPU", "GPU") the cluster has."""
        return float(self.asked(self.ray.cluster_resources).get(resource, 0.0))

    def free(self, resource: str) -> float:
        """How much of a resource nobody has taken."""
        return float(self.asked(self.ray.available_resources).get(resource, 0.0))

    def most(self, resource: str) -> float:
        """How much of a resource the machine has that has most of it."""
        nodes = [node["Resources"] for node in self.asked(self.ray.nodes) if node["Alive"]]
        return max((float(node.get(resource, 0.0)) for node in nodes), default=0.0)

    def noted(self, key: str) -> int:
        """The number that was last noted under a key; 0 if there is none."""
        return int(self.asked(lambda: _notes()._internal_kv_get(key)) or 0)

    def forget(self, key: str) -> None:
        """Delete what was noted under a key."""
        self.asked(lambda: _notes()._internal_kv_del(key))

    def asked(self, question: Callable[[], T]) -> T:
        """What the head answers to a question; an error if it is lost, where the question alone would wait for it."""
        self.require_head()
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=ask, name="coterie ray question", daemon=True).start()
        while not wait([answer], timeout=1.0).done:
            self.require_head()
        return answer.result()

    def require_head(self) -> None:
        """An error if nobody has answered at the head for a while."""
        if self._in_vain >= IN_VAIN:
            raise PassingError(f"{self.where}: the head of the Ray cluster is lost, nobody answers there any more")

    def _watch_head(self, address: str) -> None:
        """Knock at the head again and again; a machine that is only busy takes a connection all the same."""
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            return
        while not self._closed.wait(KNOCK_AGAIN):
            try:
                socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
            except OSError:
                self._in_vain += 1
            else:
                self._in_vain = 0

    def close(self) -> None:
        """Leave the cluster, or end the local one."""
        self._closed.set()
        if self._owned:
            self.ray.shutdown()
        self._cleanup.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _join(self, address: str, where: str) -> Any:
        try:
            with _own_handler():
                return self.ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # whatever Ray raises: connection, version, authentication
            with suppress(Exception):
                self.ray.shutdown()
            self._cleanup.close()
            raise _unreachable(where, " ".join(str(error).split())) from error

    def _start(self, cpus: int, store: int) -> Any:
        folder = tempfile.TemporaryDirectory(prefix="coterie-", ignore_cleanup_errors=True)
        if len(folder.name) <= LONGEST_FOLDER:
            self._folder = folder
        try:
            with _set({"RAY_USAGE_STATS_ENABLED": "0", LOCAL_ONLY: "0"}), _own_handler():
                context = self.ray.init(
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
        except Exception as error:  # whatever Ray raises, among it a bare Exception
            with suppress(Exception):
                self.close()
            raise PassingError(
                f"engine = 'ray': no local Ray could be started ({' '.join(str(error).split())}); engine = 'processes' "
                "computes the same without"
            ) from error
        address = self.ray.util.get_node_ip_address()
        if address != LOOPBACK:
            self.close()
            raise CoterieError(
                f"engine = 'ray': this version of Ray listens on {address}, not just on this machine; start Ray "
                "yourself ('ray start --head') and give ray_address='auto'"
            )
        return context


def fetched(reference: Any) -> Any:
    """What a reference stands for, in a process that Ray has started."""
    return importlib.import_module("ray").get(reference)


def note(key: str, number: int) -> None:
    """Note a number with the cluster, where it outlives the process that noted it."""
    _notes()._internal_kv_put(key, str(number))


def _notes() -> Any:
    """Ray's key-value store. It is there in every process that is connected to a cluster."""
    return importlib.import_module("ray.experimental.internal_kv")


@contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while; the processes that Ray starts meanwhile keep them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _way_in(address: str, where: str) -> dict[str, str]:
    """Knock at the address first, since Ray itself may try for minutes; what the environment must say besides.

    A cluster asks for a token if there was one where it was started, also without a word about it: Ray leaves one in
    the home directory when it is first used on a machine alone.
    """
    if address != "auto":
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        require(
            bool(colon) and port.isdigit() and 0 < int(port) < 2**16,
            f"{where}: must be HOST:PORT, or 'auto' for the cluster that this machine belongs to",
        )
        try:
            _knock(host.strip("[]"), int(port))
        except OSError as error:
            raise _unreachable(where, str(error) or type(error).__name__) from None
    if address.startswith("ray://") or not Path(sys.executable).with_name("ray").exists():
        return {}
    trouble = _health(address)
    if "AuthenticationError" in trouble and AUTHENTICATION not in os.environ:
        again = _health(address, WITH_TOKEN)
        require(
            bool(again) or "ray" not in sys.modules,
            f"{where}: the cluster asks for a token, and Ray was imported without; export {AUTHENTICATION}=token first",
        )
        if not again:
            return WITH_TOKEN
        trouble = f"it asks for a token; export {AUTHENTICATION}=token and RAY_AUTH_TOKEN as on its head"
    if trouble:
        raise _unreachable(where, trouble)
    return {}


def _health(address: str, settings: Mapping[str, str] = MappingProxyType({})) -> str:
    """What keeps a cluster from answering; nothing if it does.

    Something else that speaks HTTP/2 would keep `ray.init` busy for a quarter of an hour.
    """
    named = [] if address == "auto" else ["--address", address]
    command = [str(Path(sys.executable).with_name("ray")), "health-check", *named]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=HEALTH, env={**os.environ, **settings})
    except subprocess.TimeoutExpired:
        return f"'ray health-check' had no answer in {HEALTH:g} s"
    except subprocess.CalledProcessError as error:
        return _last_words(error.stderr)
    return ""


def _knock(host: str, port: int) -> None:
    """An error unless somebody answers who speaks HTTP/2."""
    with socket.create_connection((host, port), CONNECT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
            return  # it would first have to be shaken hands with
        connection.settimeout(CONNECT_SECONDS)
        connection.sendall(HELLO)
        answer = connection.recv(9)
        if len(answer) < 4 or answer[3] != SETTINGS:
            raise OSError("what answers is not Ray")


def _last_words(output: bytes) -> str:
    """What a command of Ray's said in the end: the last line that says something."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-1].split()) if lines else "'ray health-check' says so"


def _unreachable(where: str, reason: str) -> CoterieError:
    return CoterieError(
        f"{where}: no Ray cluster can be reached there ({reason}); 'ray status' on its head tells, 'ray start --head' "
        "starts one"
    )


@contextmanager
def _own_handler() -> Iterator[None]:
    """`ray.init` has SIGTERM end the process, for good: whoever handles it keeps doing so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:  # somebody else than Python had set it, and only they can again
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _told_if_slow(where: str) -> Iterator[None]:
    """Say that Ray is waited for, if that takes long."""
    teller = threading.Timer(SLOW, log.warning, ("%s: Ray has not answered yet; waiting for it", where))
    teller.daemon = True
    teller.start()
    try:
        yield
    finally:
        teller.cancel()


@contextmanager
def _silent() -> Iterator[None]:
    """Ray prints what its daemons report on stdout, pages of it when a node is lost; others may read our stdout."""
    module = importlib.import_module("ray._private.worker")
    before = getattr(module, "print_to_stdstream", None)
    if before is None:
        yield
        return
    vars(module)["print_to_stdstream"] = _nothing
    try:
        yield
    finally:
        vars(module)["print_to_stdstream"] = before


def _nothing(*_: object, **__: object) -> None:
    """Prints nothing."""
