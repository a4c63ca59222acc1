"""The script for Slurm: what the page shows, what it calls, and, with stand-ins for Slurm's commands, what it does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from coterie.engines.ray.session import LOCAL_ONLY
from coterie.runs.store import ROWS
from support import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "slurm" / "coterie.sbatch"
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")

# Two nodes, both of them here.
STAND_INS = {
    "scontrol": '[ "$*" = "show hostnames two-nodes" ] && printf "one\\ntwo\\n"',
    "hostname": "echo 127.0.0.1",
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
}


def called(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BASH), *words], capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **environment}
    )


def test_the_page_shows_the_script_and_bash_can_read_it() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert f"```bash\n{SCRIPT.read_text(encoding='utf-8')}```" in page
    assert called("-n", str(SCRIPT)).returncode == 0


def test_without_a_command_it_says_how_it_is_called() -> None:
    done = called(str(SCRIPT))
    assert done.returncode == 2
    assert done.stderr.startswith("usage: sbatch coterie.sbatch compare")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="the extra coterie[ray] is not installed")
def test_ray_knows_every_option_that_is_given_to_it() -> None:
    text = SCRIPT.read_text(encoding="utf-8").replace("\\\n", " ")
    calls = re.findall(r"\bray (start|health-check)((?: +--[^\n]*)?)", text)
    assert {command for command, _ in calls} == {"start", "health-check"}
    for command, rest in calls:
        known = subprocess.run(
            [Path(sys.executable).with_name("ray"), command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for option in re.findall(r"(?<= )--[a-z-]+", rest):
            assert option in known, f"ray {command} {option}"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="the extra coterie[ray] is not installed")
def test_it_starts_a_cluster_runs_the_command_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short, since sockets lie there
        done = called(
            str(SCRIPT),
            *["compare", "fedavg", "local", "--seeds", "0", "--clients", "3", "--rounds", "2", "--epochs", "1"],
            *["--out", str(tmp_path / "table")],
            PATH=os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]),
            SLURM_JOB_NODELIST="two-nodes",
            SLURM_JOB_NUM_NODES="2",
            SLURM_JOB_ID=str(os.getpid()),
            SLURM_CPUS_PER_TASK="1",
            RAY_TMPDIR=folder,
            PYTHONPATH=os.pathsep.join(sys.path),
            **{LOCAL_ONLY: "0"},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert "local" in done.stdout
        assert (tmp_path / "table" / "local-s0" / ROWS).is_file()
        assert eventually(lambda: not running(folder)), running(folder)


def running(folder: str) -> list[str]:
    """The processes that were started with a word of a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if folder in words:
            found.append(words[:200])
    return found
