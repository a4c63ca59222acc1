"""A server whose processes are killed, or whose disk is full, goes on by itself, and its status is true meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.state_file import is_gone, read_state
from coterie.runs.tensors import load_tensors
from coterie.testing.together import Together
from support import eventually
from towns import Town, few_digits

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = [pytest.mark.real, pytest.mark.slow]

SITES = ("site-a", "site-b", "site-c")
LIMIT = 900.0  # seconds that any one wait may last
AGAIN = "it is started again in"


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    found = Town(tmp_path, few_digits(*SITES))
    try:
        yield found
    finally:
        found.close()


def begin(town: Town, rounds: int) -> None:
    """A federation that waits for all its sites."""
    training = {"method": "fedper", "model": "mlp", "rounds": rounds, "epochs": 1, "checkpoints": rounds}
    waiting = {"least_sites": 3, "gather": LIMIT, "deadline": LIMIT}
    found = Agreement(name="fed", sites=SITES, shape=(1, 8, 8), classes=10, **training, **waiting)
    town.agree(found, ["127.0.0.1"])


def launch(town: Town) -> None:
    town.start("server", f"federation server fed --port {town.port}")


def come_to(town: Town, round: int) -> None:
    assert eventually(lambda: len(town.rounds()) >= round or town.ended("server") is not None, LIMIT), said(town)
    assert len(town.rounds()) >= round, said(town)


def said(town: Town) -> str:
    return town.said("server")


def process(town: Town, word: str) -> int:
    """The process of the server's in whose command a word stands, and not the one that guards it."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes()
            if (path / "cwd").samefile(town.server) and word.encode() in words and b"guard.py" not in words:
                return int(path.name)
    raise AssertionError(f"there is no {word}")


def is_undisturbed(town: Town, folder: Path) -> None:
    """No site has missed a round, and the rows are those of a federation to which nothing happened."""
    lines = town.rounds()
    agreement = Agreement.read(town.folder / "fed" / "federation.toml")
    assert [line.round for line in lines] == list(range(1, agreement.rounds + 1))
    assert [note_of(line).answered for line in lines] == [list(SITES)] * agreement.rounds
    torch.set_num_threads(1)
    together = Together(agreement, folder, few_digits(*SITES))
    together.admit()
    for _ in lines:
        together.round()
    state = load_tensors(town.server / "checkpoint.safetensors")[0]
    assert torch.equal(state["slot.model.shared"], together.server.federation["model"].shared)


def test_whatever_is_killed_the_federation_goes_on_and_its_status_is_true(town: Town, tmp_path: Path) -> None:
    begin(town, 12)
    launch(town)
    for site in SITES:
        town.connect(site)
    come_to(town, 1)
    for word in ("flower-superlink", "app", "flower-superexec", "flower.gateway"):
        before = said(town).count(AGAIN)
        status = read_state(town.server)
        os.kill(int(status["pid"]) if word == "app" else process(town, word), signal.SIGKILL)
        assert eventually(lambda: said(town).count(AGAIN) > before, LIMIT), said(town)  # noqa: B023
        assert read_state(town.server)["state"] == "waiting"
        come_to(town, len(town.rounds()) + 1)
    # Whoever keeps all that up is killed: everything ends with it, and says so.
    pid = int(read_state(town.server)["pid"])
    town.kill("server")
    assert eventually(lambda: read_state(town.server)["state"] == "failed", LIMIT)
    assert eventually(lambda: is_gone({"state": "running", "pid": pid}), LIMIT)
    done = len(town.rounds())
    launch(town)
    assert eventually(lambda: town.ended("server") is not None, LIMIT), said(town)
    assert town.ended("server") == 0, said(town)
    assert read_state(town.server)["state"] == "finished"
    assert done < 12
    is_undisturbed(town, tmp_path / "undisturbed")


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root and mount")
def test_a_full_disk_is_waited_for_with_whatever_it_ends(town: Town, tmp_path: Path) -> None:
    begin(town, 4)
    town.server.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", town.server], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file systems can be mounted here")
    try:
        launch(town)
        for site in SITES:
            town.connect(site)
        come_to(town, 1)
        ballast = town.server / "ballast"
        fill(ballast)
        log = town.server / "log.txt"
        troubled = ("does not carry messages now", "cannot be written to")
        assert eventually(lambda: any(words in log.read_text() for words in troubled), LIMIT), said(town)
        assert eventually(lambda: AGAIN in said(town) or town.ended("server") is not None, LIMIT), said(town)
        assert town.ended("server") is None, said(town)
        fill(ballast)
        assert read_state(town.server).get("state") in ("waiting", "running")
        ballast.unlink()
        assert eventually(lambda: town.ended("server") is not None, LIMIT), said(town)
        assert town.ended("server") == 0, said(town)
        assert read_state(town.server)["state"] == "finished"
        is_undisturbed(town, tmp_path / "undisturbed")
    finally:
        town.close()
        subprocess.run(["umount", "-l", town.server])


def fill(path: Path) -> None:
    """Leave no room on a disk."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
