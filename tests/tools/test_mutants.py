"""The tool that changes the code, to see whether any test notices."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tools.mutants.__main__ import FOLDERS, PACKAGE, explained, files, selected
from tools.mutants.operators import Mutant, mutants_of, sample
from tools.mutants.reached import Reach, read_map, write_map

ROOT = Path(__file__).parents[2]


def changed(source: str, operator: str) -> list[str]:
    """What an operator makes of a line."""
    return [mutant.applied(source) for mutant in mutants_of(source, "a.py") if mutant.operator == operator]


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("arithmetic", "a + (b * c)", ["a - (b * c)", "a + (b / c)"]),
        ("arithmetic", "x += y", ["x -= y"]),
        ("arithmetic", "mask & other", ["mask | other"]),
        ("operand", "a / (b + c)", ["a"]),
        ("operand", "rate * factor", ["rate", "factor"]),
        ("operand", "(a - b) / c - d", ["(a - b) - d"]),
        ("comparison", "a < b", ["a <= b", "a >= b"]),
        ("comparison", "0 <= x <= 1", ["0 < x <= 1", "0 > x <= 1", "0 <= x < 1", "0 <= x > 1"]),
        ("comparison", "a is not b", ["a is b"]),
        ("comparison", "a not in b", ["a in b"]),
        ("constant", "x = 3", ["x = 4", "x = 2"]),
        ("constant", "x = 0.5", ["x = 1.5", "x = 0.25"]),
        ("constant", "x.sum(dim=0, keepdim=True)",
         ["x.sum(dim=1, keepdim=True)", "x.sum(dim=(-1), keepdim=True)", "x.sum(dim=0, keepdim=False)"]),
        ("index", "x[0]", ["x[1]"]),
        ("reduction", "gaps.mean()", ["gaps.sum()", "gaps.amax()"]),
        ("reduction", "norms.max()", ["norms.min()", "norms.mean()"]),
        ("reduction", "min(a, b)", ["max(a, b)"]),
        ("sign", "-x", ["x"]),
        ("sign", "softmax(x)", ["softmax((-(x)))"]),
        ("sign", "x.softmax(1)", ["(-(x)).softmax(1)"]),
        ("not", "not (a in b)", ["(a in b)"]),
        ("condition", "a and b", ["(a)", "(b)", "((a) or (b))"]),
        ("condition", "x = 1 if ready else 2", ["x = 1 if (not (ready)) else 2"]),
        ("step", "(a - b).abs().sum()", ["(a - b).sum()"]),
        ("arguments", "torch.where(ready, 1, 2)", ["torch.where(ready, 2, 1)"]),
        ("arguments", "cosine(mine, theirs)", ["cosine(theirs, mine)"]),
        ("keyword", "Mix(w, source='old', to=new)", ["Mix(w, to=new)", "Mix(w, source='old')"]),
        ("statement", "rows.add_(change)", ["pass"]),
        ("round", "round > self.round", ["(round + 1) > self.round", "round > (self.round + 1)"]),
    ],
)  # fmt: skip
def test_an_operator_changes_one_thing(operator: str, before: str, after: list[str]) -> None:
    assert sorted(changed(before, operator)) == sorted(after)


def test_what_says_nothing_about_numbers_stays() -> None:
    source = '''
"""3 < 4"""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    x = 1
def f(x: "tuple[int, 3]") -> "1 < 2":
    """1 + 1"""
    raise ValueError(f"{x + 1}")
'''
    assert mutants_of(source, "a.py") == []


def test_positions_are_those_of_bytes_and_lines_those_of_statements() -> None:
    source = "def f(δ):\n    return g(\n        'ä', δ < 1,\n    )\n"
    mutant = next(one for one in mutants_of(source, "a.py") if one.new == "<=")
    assert (mutant.line, mutant.statement, mutant.in_function) == (3, 2, True)
    assert mutant.applied(source) == source.replace("<", "<=")
    assert mutant.difference(source) == ("'ä', δ < 1,", "'ä', δ <= 1,")


def test_a_sample_is_its_seeds() -> None:
    path = f"{PACKAGE}/methods/fedrema.py"
    sources = {path: (ROOT / path).read_text(encoding="utf-8")}
    assert sample(sources, 20, 3) == sample(sources, 20, 3) != sample(sources, 20, 4)
    assert set(sample(sources, 10**6, 0)) == set(mutants_of(sources[path], path))


@pytest.mark.parametrize(
    ("module", "after"),
    [
        ("methods/fedrema.py", "gap, largest = float(gaps.amax()), max(largest, float(gaps.mean()))"),
        (
            "methods/cfl.py",
            "most = float(torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64).mean())",
        ),
        ("methods/pfedme.py", "rate = self.inner_lr"),
    ],
)
def test_it_makes_the_mistakes_that_no_test_noticed_once(module: str, after: str) -> None:
    path = f"{PACKAGE}/{module}"
    source = (ROOT / path).read_text(encoding="utf-8")
    assert after in [mutant.difference(source)[1] for mutant in mutants_of(source, path)]


def mutant_at(line: int, in_function: bool = True) -> Mutant:
    return Mutant(f"{PACKAGE}/methods/cfl.py", line, line, "constant", 0, 1, "2", in_function)


def test_tests_are_those_that_ran_the_line_its_own_first_then_the_cheapest() -> None:
    path = f"{PACKAGE}/methods/cfl.py"
    reaches = {
        "tests/core/test_slots.py::dear": Reach(5.0, 10, {path: [7]}),
        "tests/core/test_slots.py::cheap": Reach(1.0, 10, {path: [7, 8]}),
        "tests/methods/test_cfl.py::own": Reach(4.0, 10, {path: [7]}),
        "tests/methods/test_cfl.py::elsewhere": Reach(0.1, 10, {path: [9]}),
        "tests/core/test_slots.py::other": Reach(0.1, 10, {"other.py": [7]}),
    }
    own, cheap, dear = (
        "tests/methods/test_cfl.py::own",
        "tests/core/test_slots.py::cheap",
        "tests/core/test_slots.py::dear",
    )
    assert selected(mutant_at(7), reaches, 60.0) == ([own, cheap, dear], 0)
    assert selected(mutant_at(7), reaches, 6.0) == ([own, cheap], 1)
    assert selected(mutant_at(7), reaches, 0.0) == ([own], 2)  # never none
    assert selected(mutant_at(10), reaches, 60.0) == ([], 0)
    assert len(selected(mutant_at(10, in_function=False), reaches, 60.0)[0]) == 4  # at import: all of the module's


def test_a_map_counts_as_long_as_its_files_stay(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "test_a.py").write_text("1")
    reaches = {"test_a.py::test": Reach(1.0, 3, {"a.py": [1]})}
    file = tmp_path / "map.json"
    write_map(file, tmp_path, reaches, ["test_a.py"])
    assert read_map(file, tmp_path) == reaches
    (tmp_path / "a.py").write_text("2")
    assert read_map(file, tmp_path) is None
    file.write_text('{"depends": ')
    assert read_map(file, tmp_path) is None


def test_every_explanation_is_of_a_mutant_that_exists() -> None:
    """Otherwise it would excuse what nobody has looked at."""
    made = set()
    for path in {path for path, _, _ in explained()}:
        source = (ROOT / path).read_text(encoding="utf-8")
        made |= {(path, *mutant.difference(source)) for mutant in mutants_of(source, path)}
    assert not explained().keys() - made
    assert all(len(why) > 20 for why in explained().values())


def hashes() -> dict[str, str]:
    return {path: hashlib.sha256((ROOT / path).read_bytes()).hexdigest() for path in files(FOLDERS)}


def heads(tests: list[str]) -> set[str]:
    """The names of tests, and what those of their files begin with."""
    return {name for test in tests for name in (test, f"{test.partition('::')[0]}::")}


COMMAND = (sys.executable, "-m", "tools.mutants", "--only", "methods/fedrema.py", "--only", "maths/clusters.py")
TESTS = ("--tests", "tests/methods/test_fedrema.py", "--tests", "tests/maths/test_clusters.py")


@pytest.mark.slow
def test_a_small_sample_is_noticed_from_end_to_end(tmp_path: Path) -> None:
    before = hashes()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*COMMAND, *TESTS, "--sample", "12", "--seed", "1", "--jobs", "1", "--record", str(tmp_path / "record")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 mutants" in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "record" / "log.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["killed"] * 12
    # A file of tests that a mutant keeps from being imported has noticed it as a whole.
    assert all({line["test"], f"{line['test']}::"} & heads(line["tests"]) and line["why"] for line in lines)
    # Nothing is tried twice, the sources are as they were, and no copy is left.
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert len((tmp_path / "record" / "log.jsonl").read_text().splitlines()) == 12
    assert hashes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


@pytest.mark.slow
def test_an_interrupted_call_leaves_neither_copies_nor_changes(tmp_path: Path) -> None:
    before = hashes()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*COMMAND, *TESTS, "--jobs", "2", "--record", str(tmp_path / "record")]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        while not list(tmp_path.glob("coterie-mutants-*/0/output.txt")) and run.poll() is None:
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        assert run.wait(300) != 0
    assert hashes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["record"]
