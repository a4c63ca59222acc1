"""What is killed, what somebody does then, and what must come of it: just what comes of it undisturbed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.crash.forks import KILLED, in_a_fork
from tests.crash.kills import Killer
from tests.deployment.test_coordinator import Trial

from coterie.cli import main
from coterie.runs.tensors import load_tensors

Outcome = dict[str, Any]
KILLED_AT = 60
"""A file operation in the middle of a run."""
# What measures time, and checksums of files that do.
TIMES = ("seconds", "seconds_per_round", "sessions", "created", "at", "time", "sha256")


class CrashError(AssertionError):
    """What comes of a kill is not what it should be."""


@dataclass(frozen=True)
class Scenario:
    """`before` makes what is there already, `act` is killed, `recover` is what somebody does then."""

    name: str
    before: Callable[[Path], None]
    act: Callable[[Path], None]
    recover: Callable[[Path], None]
    outcome: Callable[[Path], Outcome]


def say(*words: str) -> tuple[int, str]:
    """Run a command line: its exit code, and what it said on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return code, err.getvalue()


def do(*words: str) -> None:
    """Run a command line that must end well."""
    code, said = say(*words)
    if code != 0:
        raise CrashError(f"{' '.join(words)}: exit code {code}: {said[-500:]}")


def write_data(folder: Path) -> None:
    """Samples of four clients."""
    stream = np.random.default_rng(0)
    np.savez(folder / "own.npz", x=stream.normal(size=(120, 5)).astype("float32"), y=np.arange(120) % 3)


SETTINGS = ("--clients=4", "--epochs=1", "--batch=16", "--threads=1", "--partition=iid", "--checkpoint-every=1")


def start(folder: Path) -> None:
    """A whole run."""
    some = ("--rounds=4", "--join=0.75")
    do("run", "pfedcs", "--data", str(folder / "own.npz"), "--out", str(folder / "run"), *SETTINGS, *some)


def carry_on(folder: Path) -> None:
    """What the message says: resume a run, or begin it again if it had not begun."""
    code, said = say("resume", str(folder / "run"))
    if code == 0 or "is finished; there is nothing to resume" in said:
        return
    if "holds no run" not in said:
        raise CrashError(f"resume: {said[-500:]}")
    start(folder)


def run_killed(folder: Path) -> None:
    """A run whose process was killed in the middle."""
    write_data(folder)

    def die() -> None:
        Killer(folder, at=KILLED_AT).install()
        start(folder)

    if in_a_fork(die) != KILLED:
        raise CrashError("it was not killed")


def resume_only(folder: Path) -> None:
    """Carry a run on."""
    do("resume", str(folder / "run"))


def short_run(folder: Path) -> None:
    """A finished run of three rounds, of which not every one is tested and recorded."""
    write_data(folder)
    some = ("--rounds=3", "--evaluate-every=2", "--record-every=2")
    do("run", "fedper", "--data", str(folder / "own.npz"), "--out", str(folder / "run"), *SETTINGS, *some)


def extend(folder: Path) -> None:
    """Two rounds more."""
    do("resume", str(folder / "run"), "--rounds=5")


def extend_again(folder: Path) -> None:
    """The same command, or, if the run plans so many already, without it."""
    code, said = say("resume", str(folder / "run"), "--rounds=5")
    if code != 0 and "plans 5 already" in said:
        code, said = say("resume", str(folder / "run"))
        code = 0 if "is finished; there is nothing to resume" in said else code
    if code != 0:
        raise CrashError(f"resume --rounds: {said[-500:]}")


def compare(folder: Path) -> None:
    """Two methods, two seeds; the same command carries on."""
    small = ("--rounds=2", "--clients=3", "--epochs=1", "--batch=32", "--threads=1", "--partition=iid")
    words = ("compare", "local", "fedper", "--seeds", "0", "1", "--jobs=1", "--checkpoint-every=1", *small)
    do(*words, "--data", str(folder / "own.npz"), "--out", str(folder / "table"))


def federate(folder: Path) -> None:
    """A server and three sites, all on the disks of this folder; started again, they go on."""
    Trial(folder / "federation").run()


def own_method(folder: Path) -> None:
    """A method in a file of its own, beside the data."""
    write_data(folder)
    (folder / "mine.py").write_text("from coterie import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")


def run_own(folder: Path) -> None:
    """A run of that method."""
    words = ("--data", str(folder / "own.npz"), "--out", str(folder / "run"), *SETTINGS, "--rounds=2")
    do("run", f"{folder / 'mine.py'}:Mine", *words)


def carry_on_own(folder: Path) -> None:
    """Resume it, or begin it again if it had not begun."""
    code, said = say("resume", str(folder / "run"))
    if code != 0 and "holds no run" in said:
        run_own(folder)
    elif code != 0 and "is finished" not in said:
        raise CrashError(f"resume: {said[-500:]}")


def timeless(value: Any) -> Any:
    """A value without what depends on the clock."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def told(folder: Path) -> Outcome:
    """What every file says, without times; logs and locks are nobody's result."""
    found: Outcome = {}
    for path in sorted(folder.rglob("*")):
        name, content = os.fspath(path.relative_to(folder)), b"" if path.is_dir() else path.read_bytes()
        if path.is_dir() or path.name in ("log.txt", "audit.jsonl"):
            continue
        if path.suffix == ".json":
            found[name] = timeless(json.loads(content))
        elif path.suffix == ".jsonl":
            found[name] = [timeless(json.loads(line)) for line in content.splitlines()]
        elif path.suffix == ".safetensors":
            tensors, texts = load_tensors(path)  # its texts stand in any order
            found[name] = {one: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for one, tensor in tensors.items()}
            found[name] |= {f"text {one}": text for one, text in texts.items()}
        else:
            found[name] = hashlib.sha256(content).hexdigest()
    return found


def models_of_sites(folder: Path) -> Outcome:
    """What every site has in the end, and the server's last state; when sites came and went depends on the kill."""
    everything = told(folder)
    return {name: value for name, value in everything.items() if name.endswith("final.safetensors")}


SCENARIOS = (
    Scenario("run", write_data, start, carry_on, told),
    Scenario("resume", run_killed, resume_only, carry_on, told),
    Scenario("more rounds", short_run, extend, extend_again, told),
    Scenario("own method", own_method, run_own, carry_on_own, told),
    Scenario("compare", write_data, compare, compare, told),
    Scenario("federation", lambda folder: None, federate, federate, models_of_sites),
)
