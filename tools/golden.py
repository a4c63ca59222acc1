"""`python tools/golden.py OLD [NEW]`: does the new code compute, bit for bit, what the old code computed?

OLD and NEW are commits or directories that hold `src/coterie`; NEW is the working tree unless told otherwise. Every
method runs on a small problem with both, at the same time and on this machine, and what the runs left on disk is
compared: final rows, values, recorded mixes (W), metrics of every round, and the ledger's bytes. Only the public
Python interface and the plain files of a run directory are used, so that the package may be turned inside out.

The exit code is 1 if anything differs that was not allowed to (`--allow-bytes`, `--allow-names`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from safetensors import safe_open

if TYPE_CHECKING:
    import coterie as ct

Array = npt.NDArray[Any]
Run = dict[str, dict[str, Array]]  # kind -> name -> what was recorded

KINDS = ("partition", "rows", "values", "W", "metrics", "bytes")
SIDES = ("old", "new")
ENGINES = ("serial", "stacked", "processes")
JOINS = (1.0, 0.5)


@dataclass(frozen=True)
class Case:
    """One experiment that both trees run."""

    method: str
    engine: str
    join: float
    model: str

    @property
    def setting(self) -> str:
        """The case but for its method, in words."""
        return f"{self.engine} {self.join:g}" + ("" if self.model == "mlp" else f" {self.model}")

    @property
    def folder(self) -> str:
        """The name of its run directory."""
        return f"{self.method}-{self.setting.replace(' ', '-')}"


@dataclass(frozen=True)
class Difference:
    """Something that the two trees do not agree on; `absent` if one of them has nothing of that name."""

    kind: str
    name: str
    text: str
    absent: bool = False


# Comparison: pure functions of what was recorded.


def same_bits(old: Array, new: Array) -> Array:
    """Where two arrays of one shape and dtype agree bit for bit; every NaN equals every other.

    >>> same_bits(np.array([0.0, np.nan, 1.0]), np.array([-0.0, np.nan, 1.0])).tolist()
    [False, True, True]
    """
    if old.dtype.kind != "f":
        return np.asarray(old == new)
    bits = f"u{old.dtype.itemsize}"
    equal = np.ascontiguousarray(old).view(bits) == np.ascontiguousarray(new).view(bits)
    return np.asarray(equal | (np.isnan(old) & np.isnan(new)))


def unlike(old: Array, new: Array) -> str:
    """How two arrays differ, in words; empty if they do not.

    >>> unlike(np.zeros(3), np.zeros(4))
    'float64 [3] became float64 [4]'
    """
    if (old.dtype.kind, old.shape) != (new.dtype.kind, new.shape) or (
        old.dtype != new.dtype and old.dtype.kind not in "U"
    ):
        return f"{old.dtype} {list(old.shape)} became {new.dtype} {list(new.shape)}"
    same = same_bits(old, new)
    if same.all():
        return ""
    if old.size == 1:
        return f"{old.item()!r} became {new.item()!r}"
    count = f"{int((~same).sum())} of {same.size} differ"
    if old.dtype.kind != "f":
        return count
    gap = np.abs(new[~same].astype(np.float64) - old[~same].astype(np.float64))
    return f"{count}, by {np.nanmax(gap):.2g} at most" if np.isfinite(gap).any() else f"{count}, in what is finite"


def compared(old: Run, new: Run) -> list[Difference]:
    """Everything that two runs of one case do not agree on."""
    found: list[Difference] = []
    for kind in KINDS:
        before, after = old.get(kind, {}), new.get(kind, {})
        texts = {name: unlike(before[name], after[name]) for name in before.keys() & after.keys()}
        found += [Difference(kind, name, text) for name, text in texts.items() if text]
        gone, come = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
        for name in gone:
            twin = next((other for other in come if not unlike(before[name], after[other])), None)
            if twin is None:
                found.append(Difference(kind, name, "only old", absent=True))
            else:
                come.remove(twin)
                found.append(Difference(kind, name, f"is now called {twin} (same bits)", absent=True))
        found += [Difference(kind, name, "only new", absent=True) for name in come]
    return sorted(found, key=lambda one: (KINDS.index(one.kind), one.name))


def allowed(difference: Difference, method: str, bytes_of: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a difference was announced: the bytes of a method, or a name that one side alone has."""
    if difference.kind == "bytes" and method in bytes_of:
        return True
    return difference.absent and any(fnmatch(difference.name, pattern) for pattern in names)


# What a run directory says, by plain files alone.


def read_run(directory: Path) -> Run:
    """Everything that a run left on disk and that must stay the same."""
    run: Run = {kind: {} for kind in KINDS}
    for name, value in _tensors(directory / "rows.safetensors")[0].items():
        run["values" if name.startswith("value.") else "rows"][name] = value
    run["partition"] = _tensors(directory / "partition.safetensors")[0]
    for file in sorted((directory / "mixes").glob("*.safetensors")):
        tensors, about = _tensors(file)
        for name, value in tensors.items():
            run["W"][f"round {int(file.stem)}, {name}"] = value
        for key, text in about.items():
            run["W"][f"round {int(file.stem)}, {key}"] = np.array(text)
    for text in (directory / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        line.pop("seconds", None)
        for name, value in _flat(line.pop("bytes", {})):
            run["bytes"][f"round {line['round']}, {name}"] = value
        for name, value in _flat(line):
            run["metrics"][f"round {line['round']}, {name}"] = value
    return run


def _tensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Array]]:
    """The leaves of a JSON value by dotted name; a list of numbers is one leaf, and null in it is NaN.

    Empty lists are left out. Metrics by client stood beside their means before they had a place of their own.
    """
    if value == []:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            inside = name if key == "values" else f"{name}.{key}" if name else key
            yield from _flat(inner, inside)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{number}")
    else:
        whole = not isinstance(value, list) or all(isinstance(item, int | str) for item in value)
        yield name, np.array(value) if whole and value is not None else np.array(value, np.float64)


# The side that is compared: a process of its own, which imports its own tree.


def methods_of_this_tree() -> list[str]:
    """The names of all methods, as the registry or else the command line knows them."""
    with suppress(ImportError, AttributeError):
        return sorted(importlib.import_module("coterie.methods").METHODS)
    listed = subprocess.run(
        [sys.executable, "-P", "-m", "coterie", "methods"],
        env=os.environ | {"COLUMNS": "400", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    body = listed.stdout.partition("─\n")[2].splitlines()
    return sorted(line.split()[0] for line in body if line[:1].strip())


def drive(source: Path, out: Path, rounds: int) -> None:
    """Run the cases that come in (JSON, a line each), and say of each when it is over and what went wrong."""
    import torch

    import coterie as ct

    assert ct.__file__ is not None
    if not Path(ct.__file__).is_relative_to(source):
        raise SystemExit(f"{ct.__file__} was imported, which is not in {source}")
    torch.set_num_threads(1)
    say({"methods": methods_of_this_tree()})
    with patch.object(torch.multiprocessing, "get_context", forking_context):
        for line in sys.stdin:
            case = Case(**json.loads(line))
            try:
                experiment(case, rounds).run(out=out / case.folder)
            except Exception as error:
                traceback.print_exc()
                say({"failed": f"{type(error).__name__}: {error}"})
            else:
                say({"failed": ""})


def experiment(case: Case, rounds: int) -> ct.Experiment:
    """A case as this tree's experiment: six clients that share the digits unevenly."""
    import coterie as ct

    return ct.Experiment(
        method=case.method,
        data="digits",
        partition=ct.Dirichlet(clients=6, alpha=0.5),
        model=case.model,
        rounds=rounds,
        join=case.join,
        epochs=1,
        validation=0.2,
        engine=case.engine,
        workers=2 if case.engine == "processes" else 0,
        threads=1,
        memory="contiguous",
    )


def forking_context(_: str | None = None) -> multiprocessing.context.BaseContext:
    """What starts worker processes: forks of one that has already imported what this process has.

    Spawned workers would import PyTorch anew for every run, which takes longer than the run.
    """
    multiprocessing.set_forkserver_preload([name for name in sys.modules if name.split(".")[0] in ("coterie", "torch")])
    return multiprocessing.get_context("forkserver")


def say(message: Mapping[str, Any]) -> None:
    """A message to the process that compares."""
    print(json.dumps(message), flush=True)


class Side:
    """One of the two trees at work."""

    def __init__(self, name: str, source: Path, out: Path, rounds: int) -> None:
        self.name, self.out = name, out
        self.failures: dict[Case, str] = {}
        self.done: set[Case] = set()
        self.lost = ""  # how the process ended, if it did too soon
        self._errors = out.parent / f"{name}.stderr"
        command = [sys.executable, "-P", __file__, "--drive", str(source), str(out), "--rounds", str(rounds)]
        # The order of sets of strings and the number of threads are no part of what is compared.
        env = os.environ | {"PYTHONPATH": str(source), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def methods(self) -> list[str]:
        """The methods of this tree."""
        message = self._heard()
        if message is None:
            raise SystemExit(f"the {self.name} tree cannot run: {self.last_words()}")
        names: list[str] = message["methods"]
        return names

    def run(self, cases: Sequence[Case], progress: Progress) -> None:
        """Have all cases run."""
        bar = progress.add_task(self.name, total=len(cases))
        for case in cases:
            progress.update(bar, description=f"{self.name} {case.method} {case.setting}")
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(asdict(case)) + "\n")
                self._process.stdin.flush()
                message = self._heard()
            except BrokenPipeError:
                message = None
            if message is None:
                self.lost = self.last_words()
                return
            self.done.add(case)
            if message["failed"]:
                self.failures[case] = message["failed"]
            progress.advance(bar)
        progress.update(bar, description=self.name)

    def _heard(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(json.JSONDecodeError):  # what the library prints is not for us
                message = json.loads(line)
                if isinstance(message, dict):
                    return message
        return None

    def last_words(self) -> str:
        """The end of what the process complained of."""
        self._process.wait()
        return (self._errors.read_text().strip().splitlines() or ["it said nothing"])[-1]

    def stop(self) -> None:
        """End the process: by itself once nothing more is asked of it, unless it is in the middle of a run."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# The side that compares.


def checked_out(tree: str, repository: Path, into: Path) -> Path:
    """A copy of a tree's `src` that nobody changes while it is used."""
    source = into / "src"
    folder = Path(tree)
    if (folder / "src" / "coterie").is_dir():
        shutil.copytree(folder / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        return source.resolve()
    into.mkdir(parents=True, exist_ok=True)
    found = subprocess.run(
        ["git", "-C", str(repository), "archive", "--format=tar", tree, "src"], capture_output=True, check=False
    )
    if found.returncode:
        raise SystemExit(f"{tree}: neither a directory with src/coterie nor a commit ({found.stderr.decode().strip()})")
    subprocess.run(["tar", "-x", "-C", str(into)], input=found.stdout, check=True)
    return source.resolve()


def differences_of(case: Case, old: Side, new: Side) -> list[Difference] | None:
    """What the sides do not agree on in a case; nothing if both refused it with the same words."""
    for side in (old, new):
        if case not in side.done:
            return [Difference("metrics", "run", f"{side.name} did not come to run it ({side.lost})")]
    if case in old.failures or case in new.failures:
        before, after = (side.failures.get(case, "ran") for side in (old, new))
        return None if before == after else [Difference("metrics", "run", f"{before} became {after}")]
    return compared(read_run(old.out / case.folder), read_run(new.out / case.folder))


def bytes_in_all(run: Run) -> dict[str, int]:
    """The bytes of all rounds together, by direction.

    >>> bytes_in_all({"bytes": {"round 1, up": np.array(3), "round 2, up": np.array(4)}})
    {'up': 7}
    """
    total: dict[str, int] = {}
    for name, value in run["bytes"].items():
        direction = name.partition(", ")[2]
        total[direction] = total.get(direction, 0) + int(value)
    return total


def report(
    console: Console,
    found: Mapping[Case, list[Difference]],
    bytes_of: Sequence[str],
    names: Sequence[str],
    outs: tuple[Path, Path],
) -> int:
    """Show what differs, method by method and kind by kind; how many of the cases differ in what was not allowed."""
    groups: dict[tuple[str, str, bool], dict[Case, list[Difference]]] = {}
    for case, differences in found.items():
        for one in differences:
            key = (case.method, one.kind, allowed(one, case.method, bytes_of, names))
            groups.setdefault(key, {}).setdefault(case, []).append(one)
    table = Table("method", "kind", "allowed", "cases", "what, in the first of them", title="Differences")
    money = Table("method", "case", "old bytes, all rounds", "new bytes, all rounds", title="Ledger")
    for (method, kind, excused), cases in groups.items():
        first, *others = next(iter(cases.values()))
        text = f"{first.name}: {first.text}" + (f"; {len(others)} more" if others else "")
        table.add_row(method, kind, "yes" if excused else "NO", ", ".join(case.setting for case in cases), text)
        for case in cases if kind == "bytes" else ():
            before, after = (bytes_in_all(read_run(out / case.folder)) for out in outs)
            money.add_row(method, case.setting, str(before), str(after))
    for shown in (table, money):
        if shown.row_count:
            console.print(shown)
    for kind in KINDS:
        unequal = sum(any(one.kind == kind for one in differences) for differences in found.values())
        console.print(f"{kind}: {len(found) - unequal} of {len(found)} cases bit-equal")
    return len({case for (_, _, excused), cases in groups.items() if not excused for case in cases})


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two trees."""
    options = _parser().parse_args(arguments)
    if options.drive:
        source, out = map(Path, options.drive)
        drive(source, out, options.rounds)
        return 0
    console = Console()
    # Paths must be resolved: the trees say where they were imported from.
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
        return _compare(options, Path(temporary).resolve(), console)


def _compare(options: argparse.Namespace, room: Path, console: Console) -> int:
    listed = subprocess.run(["git", "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=True)
    repository = Path(listed.stdout.strip())
    trees = (options.old, options.new or str(repository))
    sides: list[Side] = []
    try:
        for name, tree in zip(SIDES, trees, strict=True):
            source = checked_out(tree, repository, room / f"{name}-tree")
            sides.append(Side(name, source, room / name, options.rounds))
        known = [side.methods() for side in sides]
        common = [method for method in known[0] if method in known[1]]
        for method in sorted(set(known[0]) ^ set(known[1])):
            console.print(f"{method}: only in the {SIDES[method in known[1]]} tree")
        wanted = options.methods or common
        if unknown := [method for method in wanted if method not in common]:
            raise SystemExit(f"methods = {','.join(unknown)}: not in both trees (both have: {', '.join(common)})")
        cases = [Case(m, engine, join, "mlp") for engine in options.engines for m in wanted for join in JOINS]
        if "serial" in options.engines:
            cases += [Case(method, "serial", 1.0, "lenet5") for method in wanted]
        with Progress(console=console) as progress:
            threads = [threading.Thread(target=side.run, args=(cases, progress)) for side in sides]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        for side in sides:
            side.stop()
    old, new = sides
    outcomes = {case: differences_of(case, old, new) for case in cases}
    for case in (case for case, outcome in outcomes.items() if outcome is None):
        console.print(f"{case.method} {case.setting}: refused by both ({old.failures[case]})")
    found = {case: outcome for case, outcome in outcomes.items() if outcome is not None}
    unequal = report(console, found, options.allow_bytes, options.allow_names, (old.out, new.out))
    console.print(f"{unequal} of {len(found)} cases differ in what was not allowed to" if unequal else "all as before")
    return 1 if unequal or set(known[0]) - set(known[1]) else 0


def _parser() -> argparse.ArgumentParser:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser = argparse.ArgumentParser(prog="golden", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", nargs="?", default="HEAD", help="a commit or a directory with src/coterie")
    parser.add_argument("new", nargs="?", help="likewise; the working tree unless told otherwise")
    parser.add_argument("--methods", type=words, default=[], help="methods, by commas; all unless told otherwise")
    parser.add_argument("--engines", type=words, default=list(ENGINES), help="engines, by commas")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of every experiment")
    parser.add_argument("--allow-bytes", type=words, default=[], help="methods whose ledger may differ")
    parser.add_argument("--allow-names", type=words, default=[], help="names that may be on one side alone; * is any")
    parser.add_argument("--drive", nargs=2, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
