"""The tool that runs the numerical tests with several instruction sets."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from tools.numerics import ROOT, SETS, TESTS, environment, lacking, outcome_of, rounding_with, run_tests

BY_NAME = {one.name: one for one in SETS}


def test_a_processor_without_an_instruction_set_is_found_out() -> None:
    old, new = frozenset({"sse4_2", "avx2", "fma"}), frozenset({"avx2", "fma", *BY_NAME["avx512"].needs})
    assert lacking(BY_NAME["sse4.2"], old) == frozenset()
    assert lacking(BY_NAME["avx2"], old) == frozenset()
    assert "avx512f" in lacking(BY_NAME["avx512"], old)
    assert lacking(BY_NAME["avx512"], new) == frozenset()


def test_a_set_replaces_what_the_caller_had_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx512")
    found = environment(BY_NAME["sse4.2"], threads=2)
    assert "MKL_CBWR" not in found
    assert found["ATEN_CPU_CAPABILITY"] == "default"
    assert found["OMP_NUM_THREADS"] == found["COTERIE_TEST_THREADS"] == "2"


def test_failures_errors_and_skipped_tests_are_told_apart() -> None:
    report = """<testsuites><testsuite>
        <testcase classname="a" name="fine"/>
        <testcase classname="a" name="left out"><skipped message="no"/></testcase>
        <testcase classname="a" name="wrong"><failure message="1 is not 2&#10;indeed"/></testcase>
        <testcase classname="a" name="broken"><error message="no fixture"/></testcase>
    </testsuite></testsuites>"""
    found = outcome_of(report)
    assert (found.tests, found.skipped) == (4, 1)
    assert found.failures == {"a::wrong": "1 is not 2", "a::broken": "no fixture"}


def test_the_tests_that_it_runs_exist() -> None:
    for test in TESTS:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists()
        assert not name or f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.thorough
def test_tests_run_in_a_process_that_was_told(tmp_path: Path) -> None:
    trial = tmp_path / "test_trial.py"
    trial.write_text(
        "import os\n"
        "def test_told(): assert os.environ['ATEN_CPU_CAPABILITY'] == 'default'\n"
        "def test_wrong(): assert os.environ['COTERIE_TEST_THREADS'] == '7'\n"
    )
    outcome = run_tests(BY_NAME["sse4.2"], 1, [str(trial)])
    assert outcome.tests == 2
    # Where the trial lies may stand before its name.
    assert [name.rpartition(".")[2] for name in outcome.failures] == ["test_trial::test_wrong"]


@pytest.mark.slow
def test_tests_that_do_not_exist_count_as_a_failure(tmp_path: Path) -> None:
    missing = run_tests(BY_NAME["own"], 1, [str(tmp_path / "nowhere.py")])
    assert "exit code 4" in missing.failures["pytest"]


@pytest.mark.slow
def test_two_sets_round_differently() -> None:
    """Otherwise the tool would prove nothing."""
    if platform.machine() != "x86_64":
        pytest.skip("the sets are those of x86-64")
    assert rounding_with(BY_NAME["own"], 1) != rounding_with(BY_NAME["sse4.2"], 1)
