"""`python -m tools.mutants`: change the code in one place at a time, and see whether any test notices.

Mutants are drawn by `--seed` from all of these folders: `FOLDERS`. Each is put into a copy of
the sources, never into the sources, and tried on the tests that ran the changed line: those of the module first, then
the cheapest, until `--budget` seconds of the processor are used up. Which test runs which line is found out by running
them all once (minutes), and kept in `runs/mutants/map` for as long as test and code stay as they are. A mutant that
does many times the steps of the unchanged code counts as noticed, and so does one that waits for ever; both are named.

What came of each mutant goes to `runs/mutants/log.jsonl` at once: whoever calls again with the same code carries on.
Survivors that `tests/mutants/survivors.toml` explains are known; with any other, the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tools.mutants.copies import Copies, Outcome, Task
from tools.mutants.operators import Mutant, sample
from tools.mutants.reached import Reach, digest, read_map

ROOT = Path(__file__).parents[2]
PACKAGE = "src/coterie"
FOLDERS = ("methods", "maths", "core", "client", "rounds", "server_steps", "robust", "privacy", "scenarios")
# Doctests are tests: those of the folders themselves.
TESTS = (*(f"{PACKAGE}/{folder}" for folder in FOLDERS), *(f"tests/{folder}" for folder in FOLDERS))
SURVIVORS = ROOT / "tests" / "mutants" / "survivors.toml"
WARM = ("torch", "pytest", "hypothesis", "PIL.Image", "safetensors.torch", "scipy.cluster.hierarchy", "scipy.optimize")
FACTOR, START = 10, 1_000_000  # a mutant may do ten times the steps of the unchanged code, and a million
WORDS = ("killed", "overlong", "asleep", "crashed", "survived", "unreached")
ALIVE = ("survived", "unreached")

Key = tuple[str, str, str]


def main() -> int:
    """Read the command line and do as it says; 1 if a mutant survives that nobody has explained."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=300, help="how many mutants (0: all)")
    parser.add_argument("--seed", type=int, default=0, help="which")
    parser.add_argument("--only", action="append", help="a file or folder below src/coterie; may be repeated (all)")
    parser.add_argument(
        "--tests", action="append", help="a folder or file of tests; may be repeated (those of the folders)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at the same time")
    parser.add_argument("--budget", type=float, default=15.0, help="seconds of the processor for a mutant's tests")
    parser.add_argument("--record", type=Path, default=Path("runs/mutants"), help="where outcomes are recorded")
    parser.add_argument("--again", action="store_true", help="try the record's survivors again, but explained ones")
    parser.add_argument("--list", action="store_true", help="show the mutants and try none")
    given = parser.parse_args()
    drawn = sample({path: text(path) for path in files(given.only or FOLDERS)}, given.sample or sys.maxsize, given.seed)
    if given.list:
        for mutant in drawn:
            print(shown(record(Task([], mutant), Outcome(""))))
        return 0
    if not hasattr(os, "fork"):
        raise SystemExit("mutants run in forks, which this system does not have")
    given.record.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    warm()
    for number in (signal.SIGINT, signal.SIGTERM):  # either way, copies and forks go
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="coterie-mutants-") as folder:
        copies = Copies(ROOT, Path(folder), given.jobs)
        lines = tried(drawn, copies, given)
    return summary(lines)


def files(chosen: Iterable[str]) -> list[str]:
    """The modules meant, relative to the root."""
    listed: set[Path] = set()
    for name in chosen:
        place = ROOT / PACKAGE / name
        if not place.exists():
            raise SystemExit(f"--only: there is no {PACKAGE}/{name}")
        listed |= set(place.rglob("*.py") if place.is_dir() else [place])
    return sorted(path.relative_to(ROOT).as_posix() for path in listed)


@cache
def text(path: str) -> str:
    """The source of a module."""
    return (ROOT / path).read_text(encoding="utf-8")


def warm() -> None:
    """Load what every test needs, before the forks; nothing of the package itself, which each of them has changed."""
    for name in WARM:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    assert "coterie" not in sys.modules


def tried(drawn: list[Mutant], copies: Copies, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The record of every mutant drawn, from the log or by trying it."""
    folder: Path = given.record.absolute()
    log = folder / "log.jsonl"
    known = {line["key"]: line for line in logged(log)}
    if given.again:
        known = {key: line for key, line in known.items() if line["outcome"] not in ALIVE or is_explained(line)}
    new = [mutant for mutant in drawn if key_of(mutant) not in known]
    with Progress(auto_refresh=False) as progress, log.open("a", encoding="utf-8") as out:  # no thread beside the forks
        reaches = mapped(copies, given.tests or TESTS, folder / "map", progress) if new else {}
        tasks = [task_of(mutant, reaches, given.budget) for mutant in new]
        bar = progress.add_task("", total=len(new))
        survived = 0
        unreached = ((task, Outcome("unreached")) for task in tasks if not task.tests)
        for task, outcome in chain(unreached, copies.run(task for task in tasks if task.tests)):
            line = record(task, outcome)
            known[line["key"]] = line
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
            out.flush()
            survived += line["outcome"] in ALIVE
            progress.update(bar, advance=1, description=f"{len(new)} mutants, {survived} survived")
            progress.refresh()
        sound(copies, {known[key_of(mutant)]["test"] for mutant in new}, progress)
    return [known[key_of(mutant)] for mutant in drawn]


def task_of(mutant: Mutant, reaches: dict[str, Reach], budget: float) -> Task:
    """What is to be run for a mutant."""
    tests, left_out = selected(mutant, reaches, budget)
    steps, seconds = (sum(getattr(reaches[test], name) for test in tests) for name in ("steps", "seconds"))
    return Task(tests, mutant, left_out, FACTOR * steps + START, seconds)


def mapped(copies: Copies, places: Sequence[str], folder: Path, progress: Progress) -> dict[str, Reach]:
    """What each test in files or folders reaches; of those that have changed, or what they run, the tests are run."""
    folder.mkdir(exist_ok=True)
    parts = [
        part.relative_to(ROOT).as_posix()
        for place in places
        for part in ([ROOT / place] if place.startswith("src") else sorted((ROOT / place).glob("test_*.py")))
    ]
    parts += [place for place in places if place.endswith(".py")]
    kept = {part: folder / f"{part.replace('/', '.')}.json" for part in parts}
    stale = [part for part, file in kept.items() if read_map(file, ROOT) is None]
    bar = progress.add_task("which test runs which line", total=len(stale))
    for task, outcome in copies.run(Task([part], map=kept[part]) for part in stale):
        if outcome.test:
            progress.print(f"left out, since it fails without any mutant: {outcome.test}: {outcome.why}")
        progress.update(bar, advance=1, description=f"which test runs which line ({task.tests[0]})")
        progress.refresh()
    return {test: reach for file in kept.values() for test, reach in (read_map(file, ROOT) or {}).items()}


def selected(mutant: Mutant, reaches: dict[str, Reach], budget: float) -> tuple[list[str], int]:
    """The tests that run the changed line within the budget, and how many more there are.

    First those of the module, of these those whose names have most words of the line, and of these the cheapest. What
    is computed at import is every test's that runs anything of the module.
    """
    lines = {mutant.line, mutant.statement}
    able = []
    for test, reach in reaches.items():
        ran = reach.lines.get(mutant.path, [])
        if lines & set(ran) if mutant.in_function else ran:
            able.append(test)
    stem = Path(mutant.path).stem
    near = (f"/test_{stem}.py", f"/{stem}.py::", f"[{stem}]", f"[{stem}-")
    words = set(re.findall("[a-z]{5,}", text(mutant.path).splitlines()[mutant.line - 1].lower()))

    def rank(test: str) -> tuple[int, int, float]:
        place = next((at for at, mark in enumerate(near) if mark in test), len(near))
        return place, -sum(word in test for word in words), reaches[test].seconds

    able.sort(key=rank)
    taken: list[str] = []
    for test in able:
        budget -= reaches[test].seconds
        if budget < 0 and taken:
            break
        taken.append(test)
    return taken, len(able) - len(taken)


def sound(copies: Copies, killers: set[str], progress: Progress) -> None:
    """Run the tests that noticed something on the unchanged code: one that fails there as well has noticed nothing."""
    for task, outcome in copies.run([Task(sorted(filter(None, killers)))] if any(killers) else []):
        if outcome.word != "survived":
            progress.print(
                f"[red]fails without any mutant: {outcome.test}: {outcome.why}[/red] ({len(task.tests)} tried)"
            )
            raise SystemExit(1)


@cache
def key_of(mutant: Mutant) -> str:
    """What a mutant is known by in the log: the change, and the text that it changes."""
    version = digest(ROOT, [mutant.path])[mutant.path]
    return f"{mutant.path}@{version}:{mutant.start}-{mutant.end}:{mutant.new}"


def record(task: Task, outcome: Outcome) -> dict[str, Any]:
    """A line of the log."""
    mutant = task.mutant
    assert mutant is not None
    before, after = mutant.difference(text(mutant.path))
    place = {"key": key_of(mutant), "path": mutant.path, "line": mutant.line, "operator": mutant.operator}
    said = {"outcome": outcome.word, **{name: value for name, value in asdict(outcome).items() if name != "word"}}
    return {**place, "before": before, "after": after, **said, "tests": list(task.tests), "left_out": task.left_out}


def logged(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of the log; one that was cut off when a call was interrupted does not count."""
    kept = log.read_text(encoding="utf-8") if log.exists() else ""
    for line in kept.splitlines():
        with suppress(ValueError):
            yield json.loads(line)
    if kept and not kept.endswith("\n"):
        log.write_text(kept + "\n", encoding="utf-8")


@cache
def explained() -> dict[Key, str]:
    """Why survivors may survive, by file and the lines before and after."""
    listed = tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))["survivor"] if SURVIVORS.exists() else []
    return {(one["path"], one["before"], one["after"]): one["why"] for one in listed}


def is_explained(line: dict[str, Any]) -> bool:
    """Whether a survivor is known as one."""
    return (line["path"], line["before"], line["after"]) in explained()


def shown(line: dict[str, Any]) -> str:
    """A mutant as text."""
    place = f"{line['path'].removeprefix(PACKAGE + '/')}:{line['line']} {line['operator']} {line['outcome']}".strip()
    return f"{place}\n  - {line['before']}\n  + {line['after']}"


def summary(lines: list[dict[str, Any]]) -> int:
    """Print a table by package and what nobody has explained."""
    console = Console(highlight=False)
    table = Table("package", "mutants", *WORDS, "explained", title=f"{len(lines)} mutants")
    open_ones = []
    for package in (*FOLDERS, ""):
        here = [line for line in lines if line["path"].startswith(f"{PACKAGE}/{package}")]
        alive = [line for line in here if line["outcome"] in ALIVE]
        unknown = [line for line in alive if not is_explained(line)]
        counts = Counter(line["outcome"] for line in here)
        row = (len(here), *(counts[word] for word in WORDS), len(alive) - len(unknown))
        table.add_row(package or "all", *map(str, row))
        open_ones = unknown
    console.print(table)
    for line in open_ones:
        console.print(shown(line), markup=False, soft_wrap=True)
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
