"""Which lines each test runs, and in how many steps: a mutant's tests are chosen by the one, its end by the other."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest


@dataclass(frozen=True)
class Reach:
    """What running one test meant: seconds of the processor, steps, and the lines that it ran, by file."""

    seconds: float
    steps: int
    lines: dict[str, list[int]]


class Reached:
    """A plug-in of pytest that counts the steps (lines begun) of each test in the package.

    With a `changed` file, steps are the lines of that and the calls of others, which is fewer and takes less time.
    `tests` holds those that passed, `failed` the first that did not and why. After `limit` steps,
    `give_up` is called.
    """

    def __init__(
        self, root: Path, changed: str = "", limit: float = inf, give_up: Callable[[str], None] = print
    ) -> None:
        self.root, self.changed, self.limit, self.give_up = f"{root}/", changed, limit, give_up
        self.tests: dict[str, Reach] = {}
        self.failed: tuple[str, str] | None = None
        self.steps, self.current = 0, ""
        self._wrong: set[str] = set()
        self._lines: dict[str, set[int]] = {}
        self._watching: dict[CodeType, Callable[..., Any] | None] = {}

    def _step_in(self, path: str) -> Callable[..., Any]:
        lines = self._lines.setdefault(path, set())

        def step(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "line":
                self.steps += 1
                lines.add(frame.f_lineno)
                if self.steps > self.limit:
                    self.give_up(self.current)
            return step

        return step

    def _called(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in self._watching:
            inside = code.co_filename.startswith(f"{self.root}src/")
            self._watching[code] = self._step_in(code.co_filename.removeprefix(self.root)) if inside else None
        step = self._watching[code]
        if step is None or not self.changed or code.co_filename.endswith(self.changed):
            return step
        step(frame, "line", None)
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watch one test, from its fixtures to their end."""
        for lines in self._lines.values():
            lines.clear()
        self.current, before, begin = item.nodeid, self.steps, time.process_time()
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            seen = {path: sorted(lines) for path, lines in self._lines.items() if lines}
            if item.nodeid not in self._wrong:
                self.tests[item.nodeid] = Reach(time.process_time() - begin, self.steps - before, seen)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what failed."""
        self._failed(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """What cannot be imported has failed too."""
        self._failed(report)

    def _failed(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self._wrong.add(report.nodeid)
            self.failed = self.failed or (report.nodeid, _last_line(report))


def _last_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr).strip().rpartition("\n")[2]
    return str(text).strip().partition("\n")[0][:200]


def digest(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """A short hash of each file."""
    return {path: hashlib.sha256((root / path).read_bytes()).hexdigest()[:16] for path in sorted(set(paths))}


def write_map(file: Path, root: Path, tests: dict[str, Reach], also: Iterable[str]) -> None:
    """Keep what tests reached, with hashes of the files that they depend on."""
    depends = digest(root, [*also, *(path for reach in tests.values() for path in reach.lines)])
    kept = {"depends": depends, "tests": {name: asdict(reach) for name, reach in tests.items()}}
    file.write_text(json.dumps(kept))


def read_map(file: Path, root: Path) -> dict[str, Reach] | None:
    """What was kept, unless it is missing or any file that it depends on is another by now."""
    try:
        kept = json.loads(file.read_text())
        if digest(root, kept["depends"]) != kept["depends"]:
            return None
        return {name: Reach(**reach) for name, reach in kept["tests"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
