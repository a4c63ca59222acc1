"""Copies of the sources, in which tests are run in forks of a process that has PyTorch loaded; never the sources."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.mutants.operators import Mutant
from tools.mutants.reached import Reached, write_map

PARTS = ("src", "tests", "tools", "examples", "benchmarks", "pyproject.toml", "README.md", "docs", "results")
LEFT_OUT = "not (processes or ray or real or slow)"
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", "--tb=short")
OVERLONG, BROKEN = 77, 78  # exit codes
ASLEEP = 2400  # looks, in all of which a process slept and used no processor: it waits for what never comes
LOOK = 0.05
MEMORY, FILE = 4 << 30, 1 << 28  # bytes that a mutant may ask for or write


@dataclass(frozen=True)
class Task:
    """Tests to run, with a mutant or without; `left_out` more would reach it.

    The clean code takes so many `seconds` of the processor; `limit` steps at most are taken; what tests reached goes to
    the file `map`.
    """

    tests: Sequence[str]
    mutant: Mutant | None = None
    left_out: int = 0
    limit: float = float("inf")
    seconds: float = float("inf")
    map: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """How it ended ("survived", "killed", "overlong", "asleep" or "crashed"), by which test, and what that said."""

    word: str
    test: str = ""
    why: str = ""
    seconds: float = 0.0


class Copies:
    """Some copies of the sources in a folder, each of which runs one task at a time."""

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self.root, self.free = root, [folder / str(number) for number in range(jobs)]
        self.busy: dict[int, tuple[Task, Path, float, int]] = {}
        for copy in self.free:
            for part in (one for one in PARTS if (root / one).is_dir()):
                shutil.copytree(root / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            for part in (one for one in PARTS if (root / one).is_file()):
                shutil.copy(root / part, copy / part)

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Run all tasks, several at a time; whatever happens, nothing of them is left running."""
        waiting = iter(tasks)
        try:
            while True:
                while self.free and (task := next(waiting, None)) is not None:
                    self._begin(task, self.free.pop())
                if not self.busy:
                    return
                time.sleep(LOOK)
                yield from self._ended()
        finally:
            for child in self.busy:
                _kill(child)
                os.waitpid(child, 0)

    def _begin(self, task: Task, copy: Path) -> None:
        if task.mutant is not None:
            source = (self.root / task.mutant.path).read_text(encoding="utf-8")
            (copy / task.mutant.path).write_text(task.mutant.applied(source), encoding="utf-8")
        child = os.fork()
        if child == 0:
            try:
                os._exit(_in_the_child(task, copy))
            except BaseException:
                _say(copy, "", traceback.format_exc())
                os._exit(BROKEN)
        self.busy[child] = (task, copy, time.monotonic(), 0)

    def _ended(self) -> Iterator[tuple[Task, Outcome]]:
        for child, (task, copy, begin, asleep) in list(self.busy.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            asleep = asleep + 1 if not ended and _sleeps(child) else 0
            self.busy[child] = (task, copy, begin, asleep)
            if asleep > ASLEEP:
                _kill(child)
                ended, status = os.waitpid(child, 0)
            if ended:
                _kill(child)  # whatever its tests left behind
                del self.busy[child]
                if task.mutant is not None:
                    shutil.copy(self.root / task.mutant.path, copy / task.mutant.path)
                self.free.append(copy)
                yield task, _outcome(copy, status, asleep > ASLEEP, time.monotonic() - begin)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _sleeps(child: int) -> bool:
    """Whether a process waits for something else than a processor; unknown counts as no."""
    with suppress(OSError):
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    return False


def _outcome(copy: Path, status: int, asleep: bool, seconds: float) -> Outcome:
    with suppress(OSError, ValueError):
        said: dict[str, Any] = json.loads((copy / "outcome.json").read_text())
        code = os.waitstatus_to_exitcode(status)
        if code == BROKEN:
            raise SystemExit(f"the tests could not be run in {copy}: {said}")
        # Tests that are not there any more under their names have noticed nothing.
        known = {0: "survived", OVERLONG: "overlong", -signal.SIGXCPU: "overlong", 4: "unreached", 5: "unreached"}
        word = (
            "asleep"
            if asleep
            else "killed"
            if said["test"] and code > 0 and code != OVERLONG
            else known.get(code, "crashed")
        )
        return Outcome(word, said["test"], said["why"] or f"exit code {code}" * (code != 0), seconds)
    return Outcome("crashed", "", f"status {status}", seconds)


def _say(copy: Path, test: str, why: str) -> None:
    (copy / "outcome.json").write_text(json.dumps({"test": test, "why": why}), encoding="utf-8")


def _in_the_child(task: Task, copy: Path) -> int:
    import resource

    import pytest

    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(copy)
    temporary = copy / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    tempfile.tempdir = None
    os.environ |= {"TMPDIR": str(temporary), "PYTHONPATH": f"{copy / 'src'}:{copy}", "OMP_NUM_THREADS": "1"}
    if task.mutant is not None:
        bounds = {resource.RLIMIT_DATA: MEMORY, resource.RLIMIT_FSIZE: FILE, resource.RLIMIT_CORE: 0}
        for limit, bound in (bounds | {resource.RLIMIT_CPU: int(10 * task.seconds) + 60}).items():
            resource.setrlimit(limit, (bound, resource.getrlimit(limit)[1]))
        # Compiled anew each time: two mutants of one second and one size would be taken for the same.
        sys.dont_write_bytecode = True
        for old in (copy / task.mutant.path).parent.glob(f"__pycache__/{Path(task.mutant.path).stem}.*"):
            old.unlink()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("coterie", "tools", "tests")]:
        del sys.modules[name]
    home = Path(__file__).parents[2]
    ours = ("", str(home), str(home / "src"))
    sys.path[:] = [str(copy / "src"), str(copy), *(path for path in sys.path if path not in ours)]
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)

    def give_up(test: str) -> None:
        _say(copy, test, f"more than {task.limit:,.0f} steps")
        os._exit(OVERLONG)

    _say(copy, "", "the process died")
    watch = Reached(copy, task.mutant.path if task.mutant else "", task.limit, give_up)
    stop = ["--exitfirst"] if task.map is None else []
    code = int(pytest.main([*OPTIONS, *stop, "-m", LEFT_OUT, *task.tests], plugins=[watch]))
    used = str(getattr(sys.modules.get("coterie"), "__file__", copy))
    if not used.startswith(str(copy)):
        raise RuntimeError(f"the tests use {used}")
    _say(copy, *(watch.failed or ("", "")))
    if task.map is not None:
        helpers = [path.relative_to(copy).as_posix() for path in (copy / "tests").glob("*.py")]
        own = [copy / test for test in task.tests]
        files = [file for path in own for file in (path.rglob("*.py") if path.is_dir() else [path])]
        write_map(task.map, copy, watch.tests, [*helpers, *(file.relative_to(copy).as_posix() for file in files)])
    return code
