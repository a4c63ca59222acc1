"""Where the day takes place: a server and its sites, each with a network, a disk and a clock of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.deployment.agreement import Agreement
from coterie.deployment.state_file import read_state
from networks import Network
from tools.chaos.hostile import ORDERS, TAMPERED
from towns import Town, few_digits, tampered_library

SITES = ("site-a", "site-b", "site-c", "site-d", "site-e")
SERVER = "server"
ADDRESS, PORT = "10.77.0.1", 8000
DISKS = {SERVER: "160m"}  # of a site: SMALL
SMALL = "6m"
CLOCK = Path(__file__).parent / "clock.c"
AGREED: dict[str, Any] = {
    "method": "fedper",
    "model": "mlp",
    "epochs": 1,
    "batch": 16,
    "lr": 0.05,
    "baseline": False,
    "checkpoints": 6,
    "least_sites": 3,
    "gather": 120.0,
    "deadline": 60.0,
    "hello": 60.0,
}
# What the words of a process's command tell of it.
SIGNS = {
    "superlink": "flower-superlink",
    "superexec": "flower-superexec",
    "supernode": "flower-supernode",
    "gateway": "flower.gateway",
    "relay": "flower.relay",
    "resident": "deployment.resident",
    "forkserver": "flower.forkserver",
    "guard": "guard.py",
}


class Place(Town):
    """The town of the day. A folder that was begun is gone on with."""

    def __init__(self, folder: Path, rounds: int, **terms: Any) -> None:
        self.begun = (folder / "fed").is_dir()
        folder.mkdir(parents=True, exist_ok=True)
        self.data = few_digits(*SITES)
        super().__init__(folder, self.data)
        self.network = Network(
            f"chaos-{os.getpid()}", dict(zip((SERVER, *SITES), (1, 11, 12, 13, 14, 15), strict=True))
        )
        self.network.build()
        self._end_left_overs()
        if not self.begun:
            agreement = Agreement(name="fed", sites=SITES, shape=(1, 8, 8), classes=10, rounds=rounds, **AGREED | terms)
            self.agree(agreement, [ADDRESS])
            (folder / "library").mkdir()
            tampered_library(folder / "library", TAMPERED)
        self.agreement = Agreement.read(folder / "fed" / "federation.toml")
        self.mounted = self._mount()
        self.clocks = self._build_clock()
        for host in (SERVER, *SITES):  # what a day that was interrupted may have left
            self.set_clock(host, 0)
            (self.disk(host) / "ballast").unlink(missing_ok=True)
            self.orders(host).unlink(missing_ok=True)

    def store(self, site: str) -> Path:
        """Where a site keeps its models."""
        return self.folder / "fed" / "sites" / self.agreement.name / site

    def own(self, host: str) -> Path:
        """Where a host's processes run."""
        return self.server if host == SERVER else self.folder / "fed" / "sites" / host

    def disk(self, host: str) -> Path:
        """The small disk of a host."""
        return self.server if host == SERVER else self.store(host)

    def set_clock(self, host: str, ahead: int) -> None:
        """Let a host's clock jump, for all that runs there."""
        path = self.folder / f"{host}.clock"
        with path.open("r+b" if path.exists() else "wb") as file:  # in place: those who look at it have mapped it
            file.write(ahead.to_bytes(8, sys.byteorder, signed=True))

    def launch(self, host: str) -> None:
        """Start a host's command."""
        around = [*self.network.within(host), "env", f"CHAOS_ORDERS={self.orders(host)}"]
        if self.clocks:
            around += [f"LD_PRELOAD={self.folder / 'clock.so'}", f"CHAOS_CLOCK={self.folder / f'{host}.clock'}"]
        if host == SERVER:
            self.start(SERVER, f"federation server fed --host {ADDRESS} --port {PORT}", tuple(around))
        else:
            around.append(f"PYTHONPATH={self.folder / 'library'}")
            self.connect(host, f"{ADDRESS}:{PORT}", tuple(around))
        self._note_pids()

    def orders(self, host: str) -> Path:
        """The file that says what a site's next answer is to be like."""
        return self.folder / f"{host}.{ORDERS}"

    def runs(self, host: str) -> bool:
        """Whether a host's command goes on."""
        return host in self._running and self._running[host].poll() is None

    def launcher(self, host: str) -> int:
        """The process of a host's command."""
        return self._running[host].pid

    def processes(self, host: str) -> dict[str, list[int]]:
        """What runs at a host, by name; those that Flower has for a message or a run are called app."""
        found: dict[str, list[int]] = {"launcher": [self.launcher(host)]} if self.runs(host) else {}
        own = self.own(host)
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if not (path / "cwd").samefile(own):
                    continue
                words = (path / "cmdline").read_bytes().decode(errors="replace")
                names = [name for name, sign in SIGNS.items() if sign in words]
                name = "guard" if "guard" in names else (names or ["app"])[0]
                found.setdefault(name, []).append(int(path.name))
        if host == SERVER and (pid := read_state(self.server).get("pid")) and pid != found.get("launcher", [0])[0]:
            with suppress(OSError):
                os.kill(int(pid), 0)
                found["app"] = [int(pid)]
                for name in ("forkserver", "superexec"):
                    if pid in found.get(name, []):
                        found[name].remove(pid)
        return {name: pids for name, pids in found.items() if pids}

    def end_all(self, host: str) -> None:
        """A power cut at a host."""
        with suppress(ProcessLookupError):
            if self.runs(host):
                self.kill(host)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            left = [pid for pids in self.processes(host).values() for pid in pids]
            if not left:
                return
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)

    def close(self) -> None:
        """End everything, and give back what was taken from the machine."""
        super().close()
        for host in (SERVER, *SITES):
            self.end_all(host)
        self.network.remove()

    def unmount(self) -> None:
        """Give the small disks back, with all that is on them."""
        for host in (SERVER, *SITES) if self.mounted else ():
            subprocess.run(["umount", "-l", self.disk(host)], check=False)

    def _mount(self) -> bool:
        for host in (SERVER, *SITES):
            path = self.disk(host)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.is_mount():
                continue
            size = f"size={DISKS.get(host, SMALL)},mode=700"
            if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", path], capture_output=True).returncode:
                return False
        return True

    def _build_clock(self) -> bool:
        words = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(self.folder / "clock.so"), str(CLOCK)]
        return shutil.which("gcc") is not None and subprocess.run(words).returncode == 0

    def _note_pids(self) -> None:
        pids = " ".join(str(process.pid) for process in self._running.values())
        (self.folder / "pids").write_text(pids)

    def _end_left_overs(self) -> None:
        """End what a day that was killed has left running here."""
        path = self.folder / "pids"
        for word in path.read_text().split() if path.is_file() else ():
            with suppress(OSError):
                if Path(f"/proc/{word}/cwd").samefile(self.folder):
                    os.kill(int(word), signal.SIGKILL)
        if self.begun:
            self._running.clear()
            for host in (SERVER, *SITES):
                self.agreement = Agreement.read(self.folder / "fed" / "federation.toml")
                self.end_all(host)
