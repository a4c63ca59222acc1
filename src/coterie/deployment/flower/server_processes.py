"""The server's side of Flower, started, watched and ended: a SuperLink, its SuperExec, and the gateway before them.

The SuperExec starts the server's app by a forkserver, so that it is there at once however busy the machine is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import tomli_w
from msgspec import Struct

from coterie.deployment.flower.audit import AUDIT
from coterie.deployment.flower.commands import Commands
from coterie.deployment.flower.forkserver import READY as CALLED
from coterie.deployment.flower.forkserver import SERVER_APP, forkserver_words, stand_in, surroundings
from coterie.deployment.flower.gateway import MOST_ANSWER, READY, gateway_words
from coterie.deployment.flower.keys import Keys, make_keys
from coterie.deployment.flower.processes import (
    LOOPBACK,
    Lock,
    Process,
    Values,
    environment,
    flower_command,
    free_port,
    joined,
    pairs,
    require_free,
    write_secret,
)
from coterie.deployment.flower.wake_up import SOCKET
from coterie.deployment.state_file import LOCK
from coterie.errors import CoterieError, PassingError, require
from coterie.files import private_folder, sealed_line, unsealed_line, write_whole
from coterie.runs.record import decoded

log = logging.getLogger("coterie")

CONNECTION = "coterie"  # the SuperLink's name in Flower's settings
LIVE = ("pending", "starting", "running")
LOOK = 10.0  # seconds between two looks whether the SuperLink answers
HANGING = 180.0  # seconds without an answer after which a SuperLink is taken to hang, on the busiest machine
ATTEMPTS = 3  # at a command that changes nothing
START = 300.0  # seconds until a SuperLink or a gateway must be up, on the busiest machine
REGISTERED = "registered.json"
UNSETTLED = ".unsettled"  # is there while what the SuperLink knows and what we know that it knows may differ


class Registered(Struct, frozen=True):
    """Whose key the SuperLink knows, and by which node."""

    site: str
    node: str


class ServerProcesses:
    """A SuperLink and the SuperExec that runs its ServerApps, with everything they keep in `folder`.

    Both are for this machine alone; `host` and `port` are those of the gateway, which lets sites through and nothing
    else. Without `keys` nothing is encrypted and every node is let in. Port 0 stands for any free one.
    """

    def __init__(self, folder: Path, keys: Keys | None, host: str = LOOPBACK, port: int = 0) -> None:
        self.folder, self.keys, self.host = folder.resolve(), keys, host
        self.port = port or free_port(host)
        self.inner = free_port()  # of the SuperLink
        self.home = self.folder / "flower"
        self.logs = {name: self.folder / f"{name}.log" for name in ("superlink", "superexec", "gateway")}
        self.logs["forkserver"] = self.logs["superexec"]  # what an app says is found in one place
        self.forkserver, self.scripts = self.folder / ".forkserver.socket", self.folder / ".commands"
        self.most_bytes = MOST_ANSWER  # of an answer
        self._processes: dict[str, Process] = {}
        self._lock: Lock | None = None
        self._claimed = False
        self._commands: Commands | None = None
        self._looked = self._answered = 0.0  # when the SuperLink was last asked whether it is well, and said so
        self.opened = False  # whether it was up before
        self.stopped: list[str] = []  # runs of before, which had not ended when this was started

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT by which a site on this machine reaches the gateway."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return joined(host, self.port)

    @property
    def superlink(self) -> str:
        """HOST:PORT of the SuperLink."""
        return joined(LOOPBACK, self.inner)

    @property
    def loopback(self) -> Keys:
        """The SuperLink's own certificate, made at each start: so the gateway's can be renewed while it runs."""
        return Keys(self.folder / "loopback")

    @property
    def audit(self) -> Path:
        """What the gateway refused."""
        return self.folder / AUDIT

    @property
    def wake_up(self) -> Path:
        """By which the gateway hears of messages to sites."""
        return self.folder / SOCKET

    @property
    def database(self) -> Path:
        """Where the SuperLink keeps nodes and runs."""
        return self.folder / "superlink.db"

    @property
    def secret(self) -> Path:
        """What the SuperExec proves itself with."""
        return self.folder / "superexec.secret"

    def command(self) -> list[str]:
        """The command of the SuperLink."""
        words = ["flower-superlink", "--host", LOOPBACK, "--port", str(self.inner), "--database", str(self.database)]
        words += ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
        words += ["--disable-runtime-dependency-installation"]
        if self.keys is None:
            return [*words, "--insecure"]
        loopback = self.loopback
        words += ["--ssl-ca-certfile", str(loopback.authority), "--ssl-certfile", str(loopback.certificate)]
        return [*words, "--ssl-keyfile", str(loopback.key), "--enable-supernode-auth"]

    def executor_command(self) -> list[str]:
        """The command of the SuperExec."""
        trust = ["--insecure"] if self.keys is None else ["--root-certificates", str(self.loopback.authority)]
        secret = ["--superexec-auth-secret-file", str(self.secret)]
        return ["flower-superexec", *trust, "--runtime-api-address", self.superlink, *secret]

    def forkserver_command(self) -> list[str]:
        """The command of the forkserver, found where the SuperExec's `PATH` begins with the folder of scripts."""
        return [sys.executable, "-m", *forkserver_words(self.forkserver, SERVER_APP)]

    def gateway_command(self) -> list[str]:
        """The command of the gateway."""
        around = (self.keys, self.loopback, self.audit, self.wake_up, self.most_bytes)
        return [sys.executable, "-m", *gateway_words(self.host, self.port, self.superlink, *around)]

    def register_command(self, site: str) -> list[str]:
        """The command that lets the holder of a site's key in."""
        assert self.keys is not None, "without keys there is nothing to register"
        return ["flwr", "supernode", "register", str(self.keys.public(site)), CONNECTION, "--name", site]

    def run_command(self, app: Path, config: Values | None = None) -> list[str]:
        """The command that starts a run of an app."""
        return ["flwr", "run", str(app), CONNECTION, *(["--run-config", pairs(config)] if config else [])]

    def start(self) -> None:
        """Start the SuperLink and the SuperExec; nobody else reaches them before the gateway is opened.

        Runs of before that have not ended are stopped before there is a SuperExec, which would take them up: two apps
        would write to one folder then, and the death of the one would be taken for the other's.
        """
        if not self._claimed:
            self._lock = Lock(self.folder / LOCK, "a server")
        try:
            require_free(self.host, self.port)
            if self.keys is not None:
                make_keys(self.loopback.folder, renew=["all"])  # so that it never expires
            self.prepare()
            self._start()
        except BaseException:
            self.stop()
            raise

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Nobody else uses the folder within, however often this is started and stopped."""
        self._lock, self._claimed = Lock(self.folder / LOCK, "a server"), True
        try:
            yield
        finally:
            self._claimed = False
            self._release()

    def _start(self) -> None:
        if (self.folder / UNSETTLED).exists():
            self._forget()
        if not self.database.exists():
            (self.folder / REGISTERED).unlink(missing_ok=True)
            (self.folder / UNSETTLED).touch()
        forkserver = self._spawn("forkserver", self.forkserver_command())
        superlink = self._spawn("superlink", self.command())
        _await(superlink, "SuperLink", self._healthy)
        _await(forkserver, "forkserver", lambda: CALLED in forkserver.said())
        self.stopped = [] if (self.folder / UNSETTLED).exists() else self._stop_former()
        self._spawn("superexec", [*self.executor_command(), "--parent-pid", str(superlink.pid)])

    def _stop_former(self) -> list[str]:
        with self.together():
            runs = self.live_runs()
            for run in runs:
                self.stop_run(run)
        return runs

    def open(self) -> None:
        """Start the gateway, which lets the keys through that are accepted now."""
        (self.folder / UNSETTLED).unlink(missing_ok=True)
        gateway = self._spawn("gateway", self.gateway_command())
        _await(gateway, "gateway", lambda: READY in gateway.said())
        self._looked = self._answered = time.monotonic()
        self.opened = True

    def prepare(self) -> None:
        """Write what the commands need: Flower's settings and the secret."""
        private_folder(self.folder)
        private_folder(self.home)
        trust: dict[str, Any] = {"insecure": True}
        if self.keys is not None:
            make_keys(self.loopback.folder)
            trust = {"root-certificates": str(self.loopback.authority)}
        settings = {"superlink": {"default": CONNECTION, CONNECTION: {"address": self.superlink, **trust}}}
        (self.home / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
        write_secret(self.secret)
        stand_in(self.scripts, self.forkserver, SERVER_APP)

    def process(self, name: str) -> Process:
        """One of the processes: forkserver, superlink, superexec or gateway."""
        return self._processes[name]

    def ended(self) -> str | None:
        """The first process that has ended by itself, if any: its name, its last words and its log.

        Whoever the forkserver has started lives on without it, and without a forkserver there is another way to start.
        """
        for name, process in self._processes.items():
            if process.code is not None and name != "forkserver":
                return f"the {name} ended with code {process.code} ({process.last_words()}); see {process.log}"
        return None

    def hangs(self) -> str | None:
        """That the SuperLink runs and has not answered for minutes, in words; it is asked from time to time."""
        now = time.monotonic()
        if now >= self._looked + LOOK:
            if self._healthy():
                self._answered = now
            self._looked = time.monotonic()
        if now < self._answered + HANGING:
            return None
        return f"the superlink has not answered for {HANGING:g} s; see {self.process('superlink').log}"

    def stop(self) -> None:
        """End everything politely."""
        for name in ("gateway", "superexec", "forkserver", "superlink"):
            if name in self._processes:
                self._processes.pop(name).terminate()
        self._release()

    def kill(self) -> None:
        """End everything by force, as a power cut would."""
        for process in self._processes.values():
            process.kill()
        self._processes.clear()
        self._release()

    def admit(self, public_keys: Mapping[str, Path]) -> tuple[list[str], list[str]]:
        """Let the holders of these keys in, each under its site's name, and nobody else.

        Whoever was registered otherwise is shut out. The sites whose keys are new, and who was shut out.
        """
        marks = {hashlib.sha256(path.read_bytes()).hexdigest(): site for site, path in public_keys.items()}
        known = self._registered()
        kept = {mark: about for mark, about in known.items() if about.site == marks.get(mark)}
        fresh = [site for mark, site in marks.items() if mark not in kept]
        with self.together():
            gone = self._shut_out({about.node for about in kept.values()}, known)
            self._keep(kept)
            if fresh:
                # Flower takes no key twice: whoever is ended after Flower knows a key and before it is written down
                # that it does could never register it again.
                (self.folder / UNSETTLED).touch()
            for site in fresh:
                self._register(site, public_keys[site])
            (self.folder / UNSETTLED).unlink(missing_ok=True)
        return fresh, gone

    def forget_unless(self, sites: Collection[str]) -> list[str]:
        """Before the start: who was registered and is no site any more. All that the SuperLink kept goes if there is
        anybody: messages of theirs may be in it. Keys are registered anew.
        """
        gone = sorted({about.site for about in self._registered().values()} - set(sites))
        if gone:
            self._forget()
        return gone

    def _forget(self) -> None:
        """Remove all that the SuperLink kept."""
        for path in self.folder.glob(f"{self.database.name}*"):
            path.unlink()

    def _shut_out(self, kept: Collection[str], known: Mapping[str, Registered]) -> list[str]:
        """Unregister all nodes but some; the names of the others."""
        names = {about.node: f"a former key of {about.site}" for about in known.values()}
        listed = self._looked_up("supernode", "list", CONNECTION)["nodes"]
        strange = [str(node["node-id"]) for node in listed if node["status"] != "unregistered"]
        gone = [node for node in strange if node not in kept]
        for node in gone:
            self.flower("supernode", "unregister", node, CONNECTION)
        return [names.get(node, f"node {node}, which nobody here registered,") for node in gone]

    def _register(self, site: str, public_key: Path) -> None:
        mark = hashlib.sha256(public_key.read_bytes()).hexdigest()
        answer = self.flower(*self.register_command(site)[1:], check=False)
        if "Public key already in use" in str(answer.get("error-message")):
            (self.folder / UNSETTLED).unlink(missing_ok=True)  # nothing was registered
            raise CoterieError(
                f"site {site}: its key was shut out before, and Flower takes no key twice; have the site make another "
                f"('coterie federation join --new-key'), or remove {self.database}, with which the SuperLink forgets "
                "all keys and runs (the federation's own checkpoint stays)"
            )
        require(bool(answer.get("success")), f"site {site} cannot be registered: {_message(answer)}")
        self._keep(self._registered() | {mark: Registered(site, str(answer["node-id"]))})

    def run(self, app: Path, config: Values | None = None) -> str:
        """Start a run of an app; its id."""
        return str(self.flower(*self.run_command(app, config)[1:])["run-id"])

    def run_status(self, run: str) -> tuple[str, str]:
        """The status of a run (such as 'running' or 'finished:completed') and its details."""
        run_about = self.flower("ls", CONNECTION, "--run-id", run)["runs"][0]
        return str(run_about["status"]), str(run_about.get("status-details") or "")

    def live_runs(self) -> list[str]:
        """The runs that have not finished, or not been found to be dead."""
        runs = self._looked_up("ls", CONNECTION)["runs"]
        return [str(run["run-id"]) for run in runs if run["status"] in LIVE]

    def stop_run(self, run: str) -> None:
        """Stop a run."""
        self.flower("stop", run, CONNECTION)

    def _looked_up(self, *words: str) -> dict[str, Any]:
        """What `flwr …` answers that changes nothing: on a machine that is far too busy it is asked again."""
        for left in reversed(range(ATTEMPTS)):
            try:
                return self.flower(*words)
            except PassingError:
                if not left:
                    raise
        raise AssertionError

    def flower(self, *words: str, check: bool = True) -> dict[str, Any]:
        """What `flwr …` answers."""
        if self._commands is None:
            with self.together():
                return self.flower(*words, check=check)
        said = self._commands.printed([*words, "--format", "json"])
        try:
            answer: dict[str, Any] = json.loads(said)
        except json.JSONDecodeError:
            answer = {"success": False, "error-message": said}
        if check and not answer.get("success"):
            raise PassingError(f"'flwr {words[0]}' failed: {_message(answer)}")
        return answer

    @contextmanager
    def together(self) -> Iterator[None]:
        """Flower's commands within share one process: starting that takes longer than the commands."""
        if self._commands is not None:
            yield
            return
        with Commands(environment(self.home), self.folder) as self._commands:
            try:
                yield
            finally:
                self._commands = None

    def _spawn(self, name: str, words: list[str]) -> Process:
        command = words if words[0] == sys.executable else [flower_command(words[0]), *words[1:]]
        around = environment(self.home)
        if name == "forkserver":
            around |= surroundings()
        if name == "superexec":
            around["PATH"] = os.pathsep.join([str(self.scripts), around["PATH"]])
        process = Process(command, self.logs[name], around, self.folder, self._lock)
        self._processes[name] = process
        return process

    def _healthy(self) -> bool:
        trust = None if self.keys is None else ssl.create_default_context(cafile=str(self.loopback.authority))
        scheme = "http" if self.keys is None else "https"
        # Whatever proxy leads out of here, this address is ours.
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        try:
            with direct.open(f"{scheme}://{self.superlink}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _registered(self) -> dict[str, Registered]:
        """The keys that the SuperLink knows; if that cannot be read, none, and all are registered anew."""
        path = self.folder / REGISTERED
        try:
            return decoded(unsealed_line(path.read_bytes()), dict[str, Registered], f"'{path}' is damaged")
        except FileNotFoundError:
            return {}
        except (CoterieError, ValueError) as error:
            log.error("%s: %s; all keys are registered anew", path.name, error)
            (self.folder / UNSETTLED).touch()
            path.unlink()
            return {}

    def _keep(self, known: Mapping[str, Registered]) -> None:
        write_whole(self.folder / REGISTERED, sealed_line(msgspec.json.encode(known)))

    def _release(self) -> None:
        if self._lock is not None and not self._claimed:
            self._lock.release()
            self._lock = None


def _await(process: Process, what: str, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + START
    while not ready():
        if process.code is not None or time.monotonic() > end:
            raise PassingError(f"the {what} did not start ({process.last_words()}); see {process.log}")
        time.sleep(0.1)


def _message(answer: Mapping[str, Any]) -> str:
    """Flower's own words, without the line that says which SuperLink was asked."""
    lines = [line.strip() for line in str(answer.get("error-message", "")).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("Using SuperLink")) or "without a word"
