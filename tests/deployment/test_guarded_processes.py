"""Processes under guard end with whoever started them, and so does everything that they started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.deployment.flower.processes import (
    Lock,
    Process,
    environment,
    free_port,
    pairs,
    require_free,
    split_address,
)
from coterie.deployment.flower.site_processes import SiteProcesses
from coterie.errors import CoterieError
from support import PATIENCE, alive, eventually

pytestmark = pytest.mark.processes

# Starts a child, names both, and waits; the child is what a parent that is merely killed would leave behind.
PARENT = """
import subprocess, sys, time, os
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(3600)
"""
STARTER = """
import sys, time
from pathlib import Path
from coterie.deployment.flower.processes import Process, Lock
folder = Path(sys.argv[1])
command = [sys.executable, "-c", sys.argv[2]]
process = Process(command, folder / "log", {"PATH": "/bin"}, folder, Lock(folder / "lock", "it"))
print("started", flush=True)
time.sleep(3600)
"""


def family(log: Path) -> list[int]:
    assert eventually(lambda: log.exists() and len(log.read_text().split()) == 2)
    return [int(word) for word in log.read_text().split()]


def guarded(folder: Path, code: str) -> Process:
    return Process([sys.executable, "-c", code], folder / "log", dict(os.environ), folder)


@pytest.mark.parametrize("way", ["terminate", "kill"])
def test_a_process_ends_with_its_children(tmp_path: Path, way: str) -> None:
    process = guarded(tmp_path, PARENT)
    pids = family(tmp_path / "log")
    assert pids[0] == process.pid
    assert process.code is None
    code = getattr(process, way)()
    assert code == 128 + (signal.SIGTERM if way == "terminate" else signal.SIGKILL)
    assert eventually(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_starter_that_dies_leaves_nothing(tmp_path: Path, signal_number: signal.Signals) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path), PARENT], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == "started\n"
    pids = family(tmp_path / "log")
    with pytest.raises(CoterieError, match="it is already running"):
        Lock(tmp_path / "lock", "it", patience=0)
    starter.send_signal(signal_number)
    starter.wait(PATIENCE)
    starter.stdout.close()
    # The guard keeps the lock until its command has ended.
    Lock(tmp_path / "lock", "it", patience=PATIENCE).release()
    assert eventually(lambda: not any(map(alive, pids)))


def test_a_guard_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    process = guarded(tmp_path, PARENT)
    pids = family(tmp_path / "log")
    os.kill(int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert eventually(lambda: process.code is not None)
    assert eventually(lambda: not any(map(alive, pids)))


def test_a_starter_and_a_guard_that_are_killed_at_once(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path), PARENT], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    starter.stdout.readline()
    leader = family(tmp_path / "log")[0]
    guard = int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1])
    starter.kill()
    os.kill(guard, signal.SIGKILL)
    starter.communicate()
    # What the command itself started is its own business then: Flower's processes watch their parents.
    assert eventually(lambda: not alive(leader))
    os.killpg(leader, signal.SIGKILL)


TALKER = """
import sys, time
for number in range(10_000):
    print("line", number, flush=True)
    time.sleep(0.02)
"""


def test_a_log_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    process, log = guarded(tmp_path, TALKER), tmp_path / "log"
    assert eventually(lambda: "line 3\n" in process.said())
    assert process.news()[:2] == ["line 0", "line 1"]
    log.rename(tmp_path / "log.1")
    heard = process.news()  # there may be none for a moment, or already what was said since
    assert eventually(lambda: log.exists() and log.stat().st_size > 100)
    assert process.code is None
    kept = (tmp_path / "log.1").read_text() + log.read_text()
    numbers = [int(line.split()[1]) for line in kept.splitlines()[:-1]]
    assert numbers == list(range(len(numbers)))  # nothing is lost
    heard += process.news()
    assert log.read_text().splitlines()[0] in heard
    log.write_text("")  # copied and cut
    assert eventually(lambda: bool(process.news()))
    process.kill()


def test_a_full_disk_does_not_end_a_process(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "log").symlink_to("/dev/full")
    process = guarded(tmp_path, "print('nobody hears this', flush=True); raise SystemExit(7)")
    assert process.wait(PATIENCE) == 7


def test_the_exit_code_and_the_words_of_a_process(tmp_path: Path) -> None:
    process = guarded(tmp_path, "print('first'); print('\\x1b[92mlast\\x1b[0m  '); print('---'); raise SystemExit(7)")
    assert process.wait(PATIENCE) == 7
    assert process.last_words() == "last"
    assert process.news() == ["first", "last  ", "---"]
    assert process.news() == []
    again = guarded(tmp_path, "print('again')")
    again.wait(PATIENCE)
    assert again.said() == "again\n"
    grave = guarded(tmp_path, "print('grave'); print('INFO: all over')")
    grave.wait(PATIENCE)
    assert grave.last_words() == "grave"


def test_a_process_that_does_not_listen_is_ended_by_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.deployment.flower.processes.GRACE", 0.3)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(999)"
    )
    process = guarded(tmp_path, deaf)
    assert eventually(lambda: "deaf" in process.said())
    assert process.terminate() == 128 + signal.SIGKILL


def test_flowers_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = environment(tmp_path)
    assert {name for name in found if name.startswith("FLWR_")} == {
        "FLWR_HOME",
        "FLWR_TELEMETRY_ENABLED",
        "FLWR_DISABLE_UPDATE_CHECK",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL",
    }
    assert (found["FLWR_HOME"], found["OMP_NUM_THREADS"]) == (str(tmp_path), "1")


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CoterieError, match=rf"port = {port}: cannot be used .* or 0 for any free one"):
            require_free("127.0.0.1", port)
    require_free("127.0.0.1", free_port())


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":8000", "https://localhost:8000", "a:99999", "a:b"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(CoterieError, match=r"server = .*: must be HOST:PORT"):
        split_address(address)


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb"])
def test_settings_that_flower_would_misread(value: str) -> None:
    with pytest.raises(CoterieError, match="data = "):
        pairs({"data": value})


class Saying:
    """A process that runs, and has said something."""

    code = None

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)

    def news(self) -> list[str]:
        return [self.lines.pop(0)] if self.lines else []


def test_a_supernode_that_would_answer_one_behind_is_of_no_use(tmp_path: Path) -> None:
    """Its server was killed while it fetched a task: each answer that it sent from then on was the one before."""
    node = SiteProcesses(tmp_path, "127.0.0.1:9", {"name": "site-a"})
    words = (
        "Receiving: train message (ID: ab)",
        "Run ID 5 is not in `RUNNING` status. Ignoring message ab.",
        "Sending",
    )
    node._processes = {"supernode": Saying(*words), "relay": Saying()}  # type: ignore[dict-item]
    told: list[str] = []
    found = []
    for _ in words:
        node.pass_on(told.append)
        found.append(node._gone())
    assert found[0] is None
    assert found[1] == found[2] == "the supernode has a task left of a run that is over, and would answer one behind"
