"""The benchmarks run: at a size that says nothing about speed, but everything about their not being broken."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.auto import main, repetition, verdict
from benchmarks.bare import bare_round, bare_test
from benchmarks.bare_pool import BareCrew
from benchmarks.cases import prepared
from benchmarks.dataloader_design import Server
from benchmarks.engines import CASES, Case, case_figures, chosen, contenders, fastest, on_digits, speedup
from benchmarks.growth import exponent, growth
from benchmarks.harness import Figure, in_turns, ratio
from benchmarks.whole import relu_first, whole_rounds

from benchmarks import __main__ as command
from benchmarks import baselines, core, dataloader_design, deployment, methods
from benchmarks import growth as growing

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _nothing_is_measured() -> None:
    """Here it is: what is chosen does not matter."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small work for several threads takes for ever where other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_ratios_are_of_medians_and_bars_are_judged() -> None:
    figure = ratio("x", [2.0, 4.0, 6.0], [1.0, 2.0, 3.0], ("a", "b"), bar=1.5)
    assert figure.value == 2.0
    assert (figure.low, figure.high) == (2.0, 2.0)
    assert not figure.met
    assert Figure("x", "a", "b", 2.0, 2.0, 2.0, bar=1.5, at_most=False).met


def test_cases_run_in_turns() -> None:
    calls: list[str] = []
    seconds = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, warmup=0)
    assert calls == ["a", "b", "b", "a"]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("figures", "count"),
    [
        (lambda: core.serial_against_bare(repeats=2, scale=0.1), 3),
        (lambda: methods.rounds_against_plain(repeats=2, samples=10, epochs=1), 5),
        (lambda: baselines.against_bare_work(repeats=2, samples=10, epochs=1), 4),
        (lambda: deployment.our_side(repeats=2, methods=("fedcac",)), 1),
        (
            lambda: case_figures(
                Case("digits", on_digits(2), stacked=2.0, processes=1.8, bare=0.97), repeats=3, scale=0.1
            ),
            4,
        ),
        (lambda: whole_rounds(Case("digits", on_digits(2, model="tiny")), repeats=2, scale=0.1), 1),
        (lambda: dataloader_design.against_dataloaders(repeats=3, clients=2, trained=15), 1),
        (lambda: growing.server_seconds((20, 80), repeats=3, methods=("fedcac",)), 1),
        (lambda: growing.server_memory((100, 200), methods=("fedcac",)), 1),
        (lambda: growing.round_seconds(2, repeats=3, methods=("fedavg",)), 3),
    ],
)
def test_benchmarks_run(figures: Callable[[], Iterator[Figure]], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.engines.HOPELESS", 0.0)  # what is measured whatever the trials say is enough
    found = list(figures())
    assert len(found) == count
    for one in found:
        assert one.low <= one.high
        # The exponent of a time may have any sign where other programs run; a ratio of times has none.
        assert math.isfinite(one.value) if one.what == "log amount" else min(one.low, one.value) > 0


def test_loops_by_hand_train_and_test_what_the_library_does() -> None:
    """A bare test counts the loss and the hits of a plain computation, and the order of ReLU and pooling is free."""
    problem = prepared("fedavg", "lenet5", 10, 1, 2, 20).problem()
    module, index = problem.module.eval(), torch.cat(problem.test)
    with torch.no_grad():
        scores = module(problem.inputs[index])
    loss, correct = bare_test(problem, module, index)
    expected = torch.nn.functional.cross_entropy(scores, problem.labels[index], reduction="sum")
    assert loss == pytest.approx(float(expected), rel=1e-5)
    assert correct == int((scores.argmax(1) == problem.labels[index]).sum())
    swapped = relu_first(copy.deepcopy(module))
    kinds = [type(layer).__name__ for layer in swapped.get_submodule("features")]
    assert kinds[:4] == ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    with torch.no_grad():
        assert torch.equal(swapped(problem.inputs[index]), scores)


def test_speedups_are_to_be_at_least_the_bar() -> None:
    figure = speedup("x", [4.0, 4.0], [2.0, 2.0], ("slow", "fast"), bar=2.0)
    assert figure.value == 2.0
    assert figure.met
    assert not replace(figure, bar=2.1).met


def test_what_is_hopeless_is_left_out_unless_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"fast": [1.0], "fair": [3.9], "slow": [4.1], "wanted": [50.0]}
    monkeypatch.setattr("benchmarks.engines.in_turns", lambda cases, repeats, warmup: {n: seconds[n] for n in cases})
    kept = contenders(dict.fromkeys(seconds, lambda: None), {"wanted"})
    assert list(kept) == ["fast", "fair", "wanted"]
    assert fastest({"b": [2.0, 1.0, 3.0], "c": [9.0]}, dict.fromkeys("abc", lambda: None)) == "b"


def test_auto_is_timed_beside_every_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.engines.BEGINNING", (1, 0.0))
    found = repetition(Case("digits", on_digits(2)), busy=True, rounds=2, scale=0.2)
    assert found.busy
    assert min(found.ratio, found.round, found.trials) > 0
    assert found.control >= 1
    good, bad = (replace(found, ratio=ratio, control=1.02, trials=2.0) for ratio in (1.05, 1.4))
    assert "1 of 2 within 1.1 of the best engine" in verdict([good, bad])
    assert "largest 1.40 (bar 1.3); A/A largest 1.02; trials within their bar 2 of 2" in verdict([good, bad])
    assert replace(found, trials=4.0, round=5.0).cheap
    assert not replace(found, trials=4.0, round=1.0).cheap
    file = tmp_path / "found.jsonl"
    file.write_text(json.dumps(asdict(good)) + "\n", encoding="utf-8")
    assert main(["--summary", "--out", str(file)]) == 0
    assert "all: 1 of 1 within" in capsys.readouterr().out
    assert main(["--shapes", "nothing"]) == 2


def test_exponents_are_slopes_on_logarithmic_scales() -> None:
    assert exponent([10, 20, 40], [1.0, 4.0, 16.0]) == pytest.approx(2.0)
    figure = growth("x", "clients", [1, 2], [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], bar=1.15)
    assert figure.value == pytest.approx(1.0)
    assert figure.met
    assert not growth("x", "clients", [1, 2], [[1.0], [2.5]], bar=1.15).met


@pytest.mark.slow
def test_bare_processes_do_the_work_of_the_bare_loop() -> None:
    """A single batch a client: what is computed does not depend on the order of samples."""
    problem = prepared("fedavg", "mlp", 1000, 2, 3, 0).problem()
    expected = bare_round(problem, [0, 1, 2], lr=0.1)
    with BareCrew(problem, [0, 1, 2], lr=0.1) as pool:
        found = pool.round()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    assert not torch.equal(found[0], next(problem.module.parameters()))


def test_the_dataloader_design_computes_fedavg(tmp_path: Path) -> None:
    """With one batch a client it ends where one round of ours does."""
    case = prepared("fedavg", "mlp", 1000, 1, 3, 0)
    server = Server(case, tmp_path)
    accuracy = server.round()
    assert set(accuracy) == {"train", "test"}
    problem = case.problem()
    parts = [bare_round(problem, [client], 0.01) for client in range(3)]
    weights = [len(index) / sum(map(len, problem.train)) for index in problem.train]
    for number, parameter in enumerate(server.module.parameters()):
        mean = sum(weight * part[number] for weight, part in zip(weights, parts, strict=True))
        torch.testing.assert_close(parameter.data, mean, atol=1e-6, rtol=1e-4)


def test_auto_is_asked_anew_and_the_users_memory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    chosen(on_digits(2)(0.2).prepare())
    assert list(tmp_path.iterdir()) == []


def test_every_case_can_be_prepared() -> None:
    for case in CASES:
        sizes = np.array([len(index) for index in case.experiment(0.1).prepare().problem().train])
        assert sizes.min() >= 1
        if "equal" in case.name:
            assert np.ptp(sizes) <= 1
        if "Dirichlet" in case.name:
            assert sizes.max() > 2 * sizes.min()


def test_the_command_scales_down_and_writes_nothing_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[dict[str, int]] = []

    def benchmark(**arguments: int) -> Iterator[Figure]:
        calls.append(arguments)
        yield Figure("x", "a", "b", 1.0, 1.0, 1.0, bar=2.0)

    monkeypatch.setattr(command, "GROUPS", {"one": [(benchmark, {"repeats": 2})]})
    assert command.main(["--quick", "one"]) == 0
    assert not Path("benchmarks.json").exists()
    assert command.main(["one"]) == 0
    assert Path("benchmarks.json").exists()
    assert calls == [{"repeats": 2}, {}]
    assert command.main(["two"]) == 2
    assert "unknown group 'two'" in capsys.readouterr().err
