"""`python tools/numerics.py`: do the numerical tests pass on any processor?

PyTorch, oneDNN and MKL pick their kernels by the processor's instruction sets, and kernels round differently. All
three can be told to make do with less, so one processor stands in for its predecessors: the numerical tests run with
several sets, on one thread and on two. What the processor lacks is skipped with a message. The column "rounding" is a
fingerprint of some products, sums, exponentials and convolutions: sets that share it have not been told apart by this
processor, and prove nothing twice.

The exit code is 1 if a test fails anywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
# Tests of what is computed, not of what is said, stored or sent.
TESTS = (
    "tests/maths",
    "tests/core/test_exchange.py",
    "tests/core/test_layout.py",
    "tests/client/test_trainer.py",
    "tests/engines/test_stacked.py",
    "tests/engines/test_stacked_backward.py",
    *(
        f"tests/engines/test_processes.py::{agreement}"
        for agreement in (
            "test_every_method_ends_bit_identical_to_serial",
            "test_dropout_momentum_and_clipping_are_bit_identical_too",
            "test_a_model_shared_by_all_is_tested_in_the_same_batches",
            "test_one_engine_serves_several_federations_and_sees_what_changes",
        )
    ),
    "tests/methods/test_against_oracles.py",
)


@dataclass(frozen=True)
class InstructionSet:
    """What the libraries are told to make do with, and the flags that the processor needs for it."""

    name: str
    environment: dict[str, str]
    needs: frozenset[str] = frozenset()


SETS = (
    InstructionSet("own", {}),
    InstructionSet(
        "sse4.2",
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    ),
    InstructionSet(
        "avx2",
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
        frozenset({"avx2", "fma"}),
    ),
    InstructionSet(
        "avx512",
        {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
        frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    ),
    # Processors that are not Intel's ignore MKL_ENABLE_INSTRUCTIONS, but not this.
    InstructionSet("mkl-compatible", {"MKL_CBWR": "COMPATIBLE"}),
)


@dataclass
class Outcome:
    """What came of the tests: how many there were, and the first line of why each failure failed."""

    tests: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)


def outcome_of(report: str) -> Outcome:
    """The outcome that a JUnit report tells of.

    >>> outcome_of('<t><testcase classname="a" name="b"><failure message="no&#10;way"/></testcase></t>')
    Outcome(tests=1, skipped=0, failures={'a::b': 'no'})
    """
    found = Outcome()
    for case in ElementTree.fromstring(report).iter("testcase"):
        found.tests += 1
        found.skipped += case.find("skipped") is not None
        for trouble in (*case.findall("failure"), *case.findall("error")):
            first = (trouble.get("message") or "").strip().partition("\n")[0]
            found.failures[f"{case.get('classname')}::{case.get('name')}"] = first
    return found


def flags_of_processor() -> frozenset[str]:
    """The names of the processor's instruction sets, as Linux lists them; none where that is not known."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.is_file() else []
    return frozenset(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())


def lacking(wanted: InstructionSet, flags: frozenset[str]) -> frozenset[str]:
    """What a set needs and the processor does not have."""
    return wanted.needs - flags


def rounding() -> str:
    """A fingerprint of how this process rounds."""
    import torch

    stream = torch.Generator().manual_seed(0)
    matrix = torch.randn(64, 300, generator=stream)
    images, kernels = (torch.randn(8, 3, size, size, generator=stream) for size in (16, 5))
    results = [
        matrix @ matrix.T,
        matrix.double() @ matrix.double().T,
        matrix.sum(1),
        matrix.exp(),
        torch.nn.functional.conv2d(images, kernels),
    ]
    bits = b"".join(result.numpy().tobytes() for result in results)
    return hashlib.sha256(bits).hexdigest()[:8]


def environment(wanted: InstructionSet, threads: int) -> dict[str, str]:
    """The variables of a process that is to use a set and so many threads."""
    inherited = {name: value for name, value in os.environ.items() if name not in _all_variables()}
    told = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "COTERIE_TEST_THREADS")}
    # Threads that spin while they wait take for ever where other programs run.
    return inherited | wanted.environment | told | {"OMP_WAIT_POLICY": "passive"}


def _all_variables() -> set[str]:
    return {name for one in SETS for name in one.environment}


def rounding_with(wanted: InstructionSet, threads: int) -> str:
    """The fingerprint of a process that uses a set and so many threads."""
    command = [sys.executable, __file__, "--rounding"]
    env = environment(wanted, threads)
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


def run_tests(wanted: InstructionSet, threads: int, tests: Sequence[str]) -> Outcome:
    """Run the tests in a process of their own."""
    env = environment(wanted, threads)
    with tempfile.TemporaryDirectory(prefix="numerics-") as room:
        report = Path(room) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
        ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        outcome = outcome_of(report.read_text()) if report.is_file() else Outcome()
    if ended.returncode and not outcome.failures:  # it crashed, or there are no such tests
        last = (ended.stdout + ended.stderr).strip().splitlines()[-1:]
        outcome.failures["pytest"] = f"exit code {ended.returncode}: {' '.join(last)}"
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the numerical tests with every set and number of threads."""
    options = _parser().parse_args(arguments)
    if options.rounding:
        print(rounding())
        return 0
    console = Console()
    table = Table("set", "threads", "rounding", "tests", "failed", "seconds", title=f"On {platform.machine()}")
    failures: dict[str, dict[str, list[str]]] = {}
    wanted = [one for one in SETS if one.name in options.sets]
    for one in _possible(wanted, console):
        for threads in options.threads:
            with console.status(f"{one.name}, {threads} threads"):
                fingerprint, begin = rounding_with(one, threads), time.perf_counter()
                outcome = run_tests(one, threads, options.tests)
            seconds = time.perf_counter() - begin
            bad = len(outcome.failures)
            console.print(f"{one.name}, {threads} threads: {outcome.tests} tests, {bad} failed, {seconds:.0f} s")
            table.add_row(one.name, str(threads), fingerprint, str(outcome.tests), str(bad), f"{seconds:.0f}")
            for name, why in outcome.failures.items():
                failures.setdefault(name, {}).setdefault(why, []).append(f"{one.name} ({threads})")
    console.print(table)
    for name, reasons in failures.items():
        for why, where in reasons.items():
            console.print(f"FAILED {name} with {', '.join(where)}: {why}", markup=False, highlight=False)
    return 1 if failures else 0


def _possible(wanted: Sequence[InstructionSet], console: Console) -> Iterator[InstructionSet]:
    flags = flags_of_processor()
    for one in wanted:
        if missing := lacking(one, flags):
            console.print(f"{one.name}: skipped, this processor has no {', '.join(sorted(missing))}")
        else:
            yield one


def _parser() -> argparse.ArgumentParser:
    names = [one.name for one in SETS]
    parser = argparse.ArgumentParser(prog="numerics", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", default=list(TESTS), help="what pytest is given; the numerical tests")
    parser.add_argument("--sets", nargs="+", choices=names, default=names, help="instruction sets")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="numbers of threads")
    parser.add_argument("--rounding", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
