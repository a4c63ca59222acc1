"""The server's side of Flower, started, watched and ended: a SuperLink and its SuperExec."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import tomli_w

from coterie.deployment.flower.keys import Keys
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
)
from coterie.errors import CoterieError, require
from coterie.files import write_whole

CONNECTION = "coterie"  # the SuperLink's name in Flower's settings
LIVE = ("pending", "starting", "running")
START = 60.0  # seconds until a SuperLink must be up
REGISTERED = "registered.json"


class Link:
    """A SuperLink and the SuperExec that runs its ServerApps, with everything they keep in `folder`.

    Without `keys` nothing is encrypted and every node is let in. Port 0 stands for any free one.
    """

    def __init__(self, folder: Path, keys: Keys | None, host: str = LOOPBACK, port: int = 0) -> None:
        self.folder, self.keys, self.host = folder.resolve(), keys, host
        self.port = port or free_port(host)
        self.home = self.folder / "flower"
        self.logs = {name: self.folder / f"{name}.log" for name in ("superlink", "superexec")}
        self._processes: dict[str, Process] = {}
        self._lock: Lock | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT by which this machine reaches the SuperLink."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return joined(host, self.port)

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
        words = ["flower-superlink", "--host", self.host, "--port", str(self.port), "--database", str(self.database)]
        words += ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
        words += ["--disable-runtime-dependency-installation"]
        if self.keys is None:
            return [*words, "--insecure"]
        words += ["--ssl-ca-certfile", str(self.keys.authority), "--ssl-certfile", str(self.keys.certificate)]
        return [*words, "--ssl-keyfile", str(self.keys.key), "--enable-supernode-auth"]

    def executor_command(self) -> list[str]:
        """The command of the SuperExec."""
        trust = ["--insecure"] if self.keys is None else ["--root-certificates", str(self.keys.authority)]
        secret = ["--superexec-auth-secret-file", str(self.secret)]
        return ["flower-superexec", *trust, "--runtime-api-address", self.address, *secret]

    def register_command(self, site: str) -> list[str]:
        """The command that lets the holder of a site's key in."""
        assert self.keys is not None, "without keys there is nothing to register"
        return ["flwr", "supernode", "register", str(self.keys.public(site)), CONNECTION, "--name", site]

    def run_command(self, app: Path, config: Values | None = None) -> list[str]:
        """The command that starts a run of an app."""
        return ["flwr", "run", str(app), CONNECTION, *(["--run-config", pairs(config)] if config else [])]

    def start(self) -> None:
        """Start both processes; returns when the SuperLink answers."""
        self._lock = Lock(self.folder / "lock", "a server")
        try:
            require_free(self.host, self.port)
            self.prepare()
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        if not self.database.exists():
            (self.folder / REGISTERED).unlink(missing_ok=True)
        superlink = self._spawn("superlink", self.command())
        end = time.monotonic() + START
        while not self._healthy():
            if superlink.code is not None or time.monotonic() > end:
                raise CoterieError(f"the SuperLink did not start ({superlink.last_words()}); see {superlink.log}")
            time.sleep(0.1)
        self._spawn("superexec", [*self.executor_command(), "--parent-pid", str(superlink.pid)])

    def prepare(self) -> None:
        """Write what the commands need: Flower's settings and the secret."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.home.mkdir(exist_ok=True)
        trust: dict[str, Any] = {"insecure": True}
        if self.keys is not None:
            trust = {"root-certificates": str(self.keys.authority.resolve())}
        settings = {"superlink": {"default": CONNECTION, CONNECTION: {"address": self.address, **trust}}}
        (self.home / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
        if not self.secret.exists():
            with os.fdopen(os.open(self.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(os.urandom(32).hex())

    def ended(self) -> str | None:
        """The first process that has ended by itself, if any: its name, its last words and its log."""
        for name, process in self._processes.items():
            if process.code is not None:
                return f"the {name} ended with code {process.code} ({process.last_words()}); see {process.log}"
        return None

    def stop(self) -> None:
        """End everything politely."""
        for name in ("superexec", "superlink"):
            if name in self._processes:
                self._processes.pop(name).terminate()
        self._release()

    def kill(self) -> None:
        """End everything by force, as a power cut would."""
        for process in self._processes.values():
            process.kill()
        self._processes.clear()
        self._release()

    def register(self, name: str, public_key: Path) -> bool:
        """Let the holder of a key in under a name; whether that is new."""
        known = self._registered()
        mark = hashlib.sha256(public_key.read_bytes()).hexdigest()
        if mark in known:
            return False
        answer = self.flower("supernode", "register", str(public_key), CONNECTION, "--name", name, check=False)
        taken = "Public key already in use" in str(answer.get("error-message"))
        require(bool(answer.get("success")) or taken, f"site {name} cannot be registered: {_message(answer)}")
        self._keep(known | {mark: {"site": name, "node": str(answer.get("node-id", ""))}})
        return not taken

    def forget_others(self, public_keys: Mapping[str, Path]) -> list[str]:
        """Shut out keys that were registered before and are none of these; the names of their sites."""
        known = self._registered()
        marks = {hashlib.sha256(path.read_bytes()).hexdigest() for path in public_keys.values()}
        gone = {mark: about for mark, about in known.items() if mark not in marks}
        for about in gone.values():
            answer = self.flower("supernode", "unregister", about["node"], CONNECTION, check=False)
            require(
                bool(answer.get("success")),
                f"a former key of {about['site']} cannot be shut out ({_message(answer)}); remove {self.database}, "
                "with which the SuperLink forgets all keys and runs (the federation's own checkpoint stays)",
            )
        self._keep({mark: about for mark, about in known.items() if mark in marks})
        return [about["site"] for about in gone.values()]

    def run(self, app: Path, config: Values | None = None) -> str:
        """Start a run of an app; its id."""
        return str(self.flower(*self.run_command(app, config)[1:])["run-id"])

    def run_status(self, run: str) -> tuple[str, str]:
        """The status of a run (such as 'running' or 'finished:completed') and its details."""
        found = self.flower("ls", CONNECTION, "--run-id", run)["runs"][0]
        return str(found["status"]), str(found.get("status-details") or "")

    def live_runs(self) -> list[str]:
        """The runs that have not finished, or not been found to be dead."""
        found = self.flower("ls", CONNECTION)["runs"]
        return [str(run["run-id"]) for run in found if run["status"] in LIVE]

    def stop_run(self, run: str) -> None:
        """Stop a run."""
        self.flower("stop", run, CONNECTION)

    def flower(self, *words: str, check: bool = True) -> dict[str, Any]:
        """What `flwr …` answers."""
        done = subprocess.run(
            [flower_command("flwr"), *words, "--format", "json"],
            env=environment(self.home),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = {"success": False, "error-message": done.stdout + done.stderr}
        if check and not answer.get("success"):
            raise CoterieError(f"'flwr {words[0]}' failed: {_message(answer)}")
        return answer

    def _spawn(self, name: str, words: list[str]) -> Process:
        command = [flower_command(words[0]), *words[1:]]
        process = Process(command, self.logs[name], environment(self.home), self.folder, self._lock)
        self._processes[name] = process
        return process

    def _healthy(self) -> bool:
        trust = None if self.keys is None else ssl.create_default_context(cafile=str(self.keys.authority))
        scheme = "http" if self.keys is None else "https"
        # Whatever proxy leads out of here, this address is ours.
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        try:
            with direct.open(f"{scheme}://{self.address}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _registered(self) -> dict[str, dict[str, str]]:
        path = self.folder / REGISTERED
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _keep(self, known: dict[str, dict[str, str]]) -> None:
        write_whole(self.folder / REGISTERED, json.dumps(known, indent=2).encode())

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _message(answer: Mapping[str, Any]) -> str:
    """Flower's own words, without the line that says which SuperLink was asked."""
    lines = [line.strip() for line in str(answer.get("error-message", "")).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("Using SuperLink")) or "without a word"
