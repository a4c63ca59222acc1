"""Kinds of faults: what each does to the place, and when it is over."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tools.chaos.hostile import ANSWERS, REQUESTS
from tools.chaos.place import ADDRESS, PORT, SERVER, SITES
from tools.chaos.states import BACKUPS, OF_SERVER, OF_SITES

if TYPE_CHECKING:
    from tools.chaos.day import Day

PHASES = ("opening", "asked", "training", "answering", "closing")
REPOSITORY = Path(__file__).resolve().parents[2]

REFUSED = 180.0  # seconds within which a second start must have ended

Act = Callable[["Day", "Fault", Random], str]
"""Injects a fault; what it did, in words."""


@dataclass(frozen=True)
class Fault:
    """A fault as it was drawn: when, where, what, and what all else of it is drawn by."""

    number: int
    round: int
    phase: str
    family: str
    kind: str
    host: str
    seed: int


def kill(name: str) -> Act:
    """kill -9 of a process of the host's, or of all of a name."""

    def act(day: Day, fault: Fault, draw: Random) -> str:
        found = day.place.processes(fault.host)
        pids = found.get(name, [])
        if name == "guard" and pids:
            pids = [draw.choice(pids)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return f"{name} ({len(pids)})"

    return act


def cut_power(day: Day, fault: Fault, draw: Random) -> str:
    """kill -9 of everything at the host, at once."""
    day.place.end_all(fault.host)
    return "everything"


def stop(name: str) -> Act:
    """SIGSTOP of a host's processes, and SIGCONT some seconds later."""

    def act(day: Day, fault: Fault, draw: Random) -> str:
        found = day.place.processes(fault.host)
        pids = [pid for pids in found.values() for pid in pids] if name == "everything" else found.get(name, [])
        seconds = draw.uniform(1, 10)

        def go_on() -> None:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        if fault.host == SERVER:
            day.watch.excuse(seconds)
        day.later(seconds, go_on, fault)
        return f"{name} ({len(pids)}) for {seconds:.1f} s"

    return act


def unplug(day: Day, fault: Fault, draw: Random) -> str:
    """The host's line is cut, half open; and comes back."""
    seconds = draw.uniform(2, 20 if fault.host != SERVER else 8)
    day.place.network.plug(fault.host, False)
    day.later(seconds, lambda: day.place.network.plug(fault.host, True), fault)
    return f"for {seconds:.1f} s"


def slow(day: Day, fault: Fault, draw: Random) -> str:
    """What the host sends trickles."""
    rate, seconds = draw.choice((8, 16, 32)), draw.uniform(10, 30)
    space = day.place.network.within(fault.host)
    words = [*space, "tc", "qdisc", "replace", "dev", "line", "root", "tbf"]
    subprocess.run([*words, "rate", f"{rate}kbit", "burst", "2kb", "latency", "5000ms"], check=True)
    day.later(
        seconds,
        lambda: subprocess.run([*space, "tc", "qdisc", "del", "dev", "line", "root"], check=False, capture_output=True),
        fault,
    )
    return f"{rate} kbit/s for {seconds:.1f} s"


def fill(day: Day, fault: Fault, draw: Random) -> str:
    """The host's disk is full, and some seconds later it is not any more."""
    seconds, ballast = draw.uniform(2, 12), day.place.disk(fault.host) / "ballast"
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    day.later(seconds, lambda: ballast.unlink(missing_ok=True), fault)
    return f"for {seconds:.1f} s"


def jump(ahead: int) -> Act:
    """The host's clock jumps, and jumps back some seconds later."""

    def act(day: Day, fault: Fault, draw: Random) -> str:
        seconds = draw.uniform(3, 12)
        day.place.set_clock(fault.host, ahead)
        day.later(seconds, lambda: day.place.set_clock(fault.host, 0), fault)
        return f"{ahead:+d} s for {seconds:.1f} s"

    return act


def second(what: str) -> Act:
    """Somebody starts the same a second time: from the same folder, or from a copy of it."""

    def act(day: Day, fault: Fault, draw: Random) -> str:
        place, host = day.place, fault.host
        words = [*place.network.within(host), sys.executable, "-m", "coterie", "federation"]
        folder = "fed"
        if what == "copy":
            folder = f"copy-{fault.number}"
            ignored = ("*.log", "superlink.db*", "*.socket", "ballast", *(SITES if host == SERVER else ()))
            subprocess.run(["mkdir", "-p", place.folder / folder], check=True)
            excluded = [f"--exclude={one}" for one in ignored]
            packed = subprocess.run(
                ["tar", "-C", place.folder / "fed", "-cf", "-", *excluded, "."], capture_output=True
            )
            subprocess.run(["tar", "-C", place.folder / folder, "-xf", "-"], input=packed.stdout, check=False)
        if host == SERVER:
            words += ["server", folder, "--host", ADDRESS, "--port", str(PORT + 1), "--status", "off"]
        else:
            words += ["client", folder, "--name", host, "--data", f"{host}.npz", "--server", f"{ADDRESS}:{PORT}"]
            words += ["--status", "off"]
        with (place.folder / "seconds.log").open("ab") as log:
            process = subprocess.Popen(words, cwd=place.folder, stdout=log, stderr=log, env=day.environment(host))
        seconds = draw.uniform(15, 30)
        if what == "same":  # it must refuse to run
            end_by = time.monotonic() + REFUSED

            def has_refused() -> bool:
                if process.poll() is None and time.monotonic() < end_by:
                    return False
                process.kill()
                if (code := process.wait()) != 2:
                    day.note_violation(f"fault {fault.number}: a second start from one folder ended with code {code}")
                return True

            day.healed_when(has_refused, fault)
            return "until it has refused to run"

        def end() -> None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
            shutil.rmtree(place.folder / folder, ignore_errors=True)

        day.later(seconds, end, fault)
        return f"for {seconds:.1f} s"

    return act


def answer(kind: str) -> Act:
    """The site's next answer is tampered with, by its own library."""

    def act(day: Day, fault: Fault, draw: Random) -> str:
        day.place.orders(fault.host).write_text(kind)
        day.healed_when(lambda: not day.place.orders(fault.host).exists(), fault)
        return kind

    return act


def request(kind: str) -> Act:
    """Something comes past the site's library, signed with its key."""

    def act(day: Day, fault: Fault, draw: Random) -> str:
        place, keys = day.place, day.place.folder / "fed" / "keys"
        words = [*place.network.within(fault.host), sys.executable, "-m", "tools.chaos.hostile", ADDRESS, str(PORT)]
        words += [str(keys / "ca.pem"), str(place.own(fault.host) / "key"), kind]
        with (place.folder / "requests.log").open("ab") as log:
            process = subprocess.Popen(words, cwd=REPOSITORY, stdout=log, stderr=log)
        day.healed_when(lambda: process.poll() is not None, fault)
        return kind

    return act


@dataclass(frozen=True)
class Family:
    """Faults of one kind: how often it is drawn, and its members for each kind of host."""

    weight: int
    server: dict[str, Act]
    site: dict[str, Act]


OF_SERVERS = ("app", "superlink", "superexec", "gateway", "forkserver", "launcher", "guard")
OF_A_SITE = ("launcher", "supernode", "superexec", "relay", "resident", "forkserver", "guard")
CLOCKS = {f"clock {ahead:+d} s": jump(ahead) for ahead in (3600, -3600, 100)}
FAMILIES = {
    "kill -9": Family(
        24,
        {f"kill {name}": kill(name) for name in OF_SERVERS} | {"power cut": cut_power},
        {f"kill {name}": kill(name) for name in OF_A_SITE} | {"power cut": cut_power},
    ),
    "SIGSTOP": Family(
        10,
        {f"stop {name}": stop(name) for name in ("app", "superlink", "gateway", "launcher", "everything")},
        {f"stop {name}": stop(name) for name in ("supernode", "relay", "resident", "launcher", "everything")},
    ),
    "lines": Family(8, {"line cut": unplug}, {"line cut": unplug, "slow upload": slow}),
    "full disk": Family(5, {"disk full": fill}, {"disk full": fill}),
    "clock": Family(4, CLOCKS, CLOCKS),
    "damaged state": Family(8, OF_SERVER, OF_SITES),
    "old back-up": Family(2, BACKUPS, BACKUPS),
    "duplicates": Family(
        3,
        {"a second server": second("same"), "a server from a copy": second("copy")},
        {"a second client": second("same"), "a client from a copy": second("copy")},
    ),
    "hostile answer": Family(26, {}, {f"answer: {kind}": answer(kind) for kind in ANSWERS}),
    "hostile request": Family(10, {}, {f"request: {kind}": request(kind) for kind in REQUESTS}),
}
AT_SERVER = 0.4  # the share of faults that are at the server, where a family has such


def drawn(seed: int, rounds: int, count: int, families: tuple[str, ...] = tuple(FAMILIES)) -> list[Fault]:
    """The day's faults, in their order.

    >>> drawn(0, 200, 300) == drawn(0, 200, 300), len(drawn(0, 200, 300))
    (True, 300)
    """
    draw, found = Random(seed), []
    for _ in range(count):
        name = draw.choices(families, [FAMILIES[name].weight for name in families])[0]
        family = FAMILIES[name]
        at_server = bool(family.server) and draw.random() < AT_SERVER
        kind = draw.choice(sorted(family.server if at_server else family.site))
        host = SERVER if at_server else draw.choice(SITES)
        place = (draw.randint(2, max(2, rounds - 3)), draw.choice(PHASES))
        found.append((*place, name, kind, host, draw.randrange(1 << 30)))
    found.sort(key=lambda one: (one[0], PHASES.index(one[1])))
    return [Fault(number, *one) for number, one in enumerate(found, 1)]


def act_of(fault: Fault) -> Act:
    """What a fault does."""
    family = FAMILIES[fault.family]
    return (family.server if fault.host == SERVER else family.site)[fault.kind]
