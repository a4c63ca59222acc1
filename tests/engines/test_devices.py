"""Every engine on another device: the processor's results, with next to nothing sent there and back.

The device is a pretend one (`pretend.py`) unless COTERIE_TEST_DEVICE names a real one: `make test-gpu` runs all of this
on it. A pretend device computes what the processor computes, so that runs agree to the bit; others round otherwise.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import pretend
from torch import Tensor

from coterie import devices
from coterie.client.model import RepeatableDropout
from coterie.client.scores import Score
from coterie.core.pixels import Pixels, PixelScale
from coterie.errors import CoterieError
from coterie.rounds.listeners import Listener, RoundReport
from coterie.runs.experiment import Experiment
from coterie.runs.resume import resume
from coterie.runs.run import Run
from coterie.setup.memory import memory_needs
from coterie.testing.toys import toy_data, toy_partition, with_validation
from support import every_method, rows_of, tiny, warnings_in

DEVICE = os.environ.get("COTERIE_TEST_DEVICE", pretend.NAME)
PRETENDED = DEVICE == pretend.NAME
TOLERANCE = 0.0 if PRETENDED else 2e-4
ENGINES = ("serial", "stacked")
CLIENTS, ROUNDS = 4, 3

pytestmark = pytest.mark.usefixtures("one_thread")

counted_only = pytest.mark.skipif(not PRETENDED, reason="transfers are counted on the pretend device")


def run(method: Any, engine: str, device: str = DEVICE, model: Any = "plain", **options: Any) -> Run:
    if method == "fedfomo":
        options["partition"] = with_validation(toy_partition(toy_data(), CLIENTS))
    return tiny(method, model, CLIENTS, engine=engine, device=device, **options).run()


def state_of(result: Run) -> dict[str, Tensor]:
    return dict(result.federation.state())


def assert_alike(ours: Run, theirs: Run, tolerance: float = TOLERANCE) -> None:
    """The same state, and the same numbers in every line of the history."""
    found, expected = state_of(ours), state_of(theirs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].device.type == "cpu"
        torch.testing.assert_close(found[name], value, atol=tolerance, rtol=tolerance, equal_nan=True, msg=name)
    for one, other in zip(ours.lines, theirs.lines, strict=True):
        assert (one.training is None) == (other.training is None)
        for moment, mine, their in (
            ("received", one.values("received", "loss"), other.values("received", "loss")),
            ("trained", one.values("trained", "loss"), other.values("trained", "loss")),
            ("training", (one.training or {}).get("loss", []), (other.training or {}).get("loss", [])),
        ):
            assert mine == pytest.approx(their, abs=tolerance, nan_ok=True), moment


# What a round sends, besides what follows from its clients: weights of mixes and ids of those they are for.
MOST_THERE = {"serial": 24, "stacked": 40}
# Three moments of two quantities each, whether rows are finite, distances, measurements.
MOST_BACK = 16
# Before the first round two clients show that they may be stacked: their rows and outputs come back to be compared.
BACK_AT_FIRST = {"serial": 0, "stacked": 30}
# FedALA looks at its losses pass by pass, and who is tuned is asked whether that went well. pFedSim's similarities
# come class by class. APFL's shares and the choice among IFCA's centres come for every client, when it trains and when
# it is tested.
MORE_BACK = {"apfl": 40, "fedala": 400, "ifca": 25, "pfedsim": 30}


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", every_method())
def test_every_method_gives_the_processors_results(name: str, engine: str) -> None:
    with pretend.counted() as traffic:
        ours = run(name, engine)
    assert_alike(ours, run(name, engine, device="cpu"))
    slot = ours.federation["model"]
    assert {slot.shared.device.type, slot.own.device.type} == {torch.device(DEVICE).type}
    a_round = MORE_BACK.get(name, MOST_BACK + CLIENTS)
    assert traffic.back + traffic.numbers <= BACK_AT_FIRST[engine] + a_round * (ROUNDS + 1)
    assert traffic.there <= (MOST_THERE[engine] + 12 * CLIENTS) * (ROUNDS + 1)


@counted_only
@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name",
    [
        "fedavg",
        "pfedcs",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("fedper", "fedtc", "fedcac", "moon", "ditto", "scaffold")
        ),
    ],
)
def test_nothing_comes_back_within_a_phase(name: str, engine: str) -> None:
    """Longer phases of more batches fetch no more; of them, the order of an epoch's samples alone is sent."""

    def moved(**options: Any) -> pretend.Traffic:
        with pretend.counted() as traffic:
            run(name, engine, evaluate_every=ROUNDS, **options)
        return traffic

    short, long, fine = moved(), moved(epochs=3), moved(batch=3)
    assert (short.back, short.numbers) == (long.back, long.numbers) == (fine.back, fine.numbers)
    assert short.there == fine.there
    # Two epochs more of every phase: PFedCS tunes a teacher besides from the second round on, Ditto trains two models.
    phases = {"pfedcs": 2 * ROUNDS - 1, "ditto": 2 * ROUNDS}.get(name, ROUNDS)
    assert long.there - short.there == (2 * CLIENTS * phases if engine == "serial" else 0)


@counted_only
@pytest.mark.parametrize("name", ["fedavg", "fedper", "pfedcs"])
def test_a_round_of_stacked_clients_costs_the_same_however_many_there_are(name: str) -> None:
    def moved(clients: int) -> tuple[int, int, int]:
        with pretend.counted() as traffic:
            tiny(name, "plain", clients, engine="stacked", device=DEVICE, join=1.0).run()
        return traffic.there, traffic.back, traffic.numbers

    assert moved(3) == moved(6)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("norm", {"momentum": 0.5, "batch": 7}),
        ("dropout", {}),
        ("norm", {"optimizer": "adam", "lr": 0.01}),
        ("plain", {"optimizer": "adamw", "lr": 0.01, "clip": 0.1}),
        ("plain", {"schedule": "exponential", "decay": 0.5, "join": 0.5}),
    ],
    ids=str,
)
def test_layers_and_optimisers(model: str, options: dict[str, Any], engine: str) -> None:
    ours, theirs = run("fedper", engine, model=model, **options), run("fedper", engine, "cpu", model, **options)
    if model == "dropout" and not PRETENDED:  # a device of its own draws other numbers
        return
    assert_alike(ours, theirs)


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
def test_both_engines_agree_on_the_device(model: str) -> None:
    serial, stacked = (run("fedper", engine, model=model, momentum=0.5) for engine in ENGINES)
    torch.testing.assert_close(rows_of(stacked.federation).cpu(), rows_of(serial.federation).cpu(), atol=2e-5, rtol=0)


class StopAfter(Listener):
    def __init__(self, round: int) -> None:
        self._round = round

    def round(self, report: RoundReport) -> None:
        if report.round == self._round:
            report.stop("enough")


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedper", "pfedcs", "scaffold", "fedala"])
def test_a_run_that_is_carried_on_ends_as_if_it_had_not_stopped(name: str, engine: str, tmp_path: Path) -> None:
    experiment = tiny(name, "norm", CLIENTS, engine=engine, device=DEVICE, join=0.5, checkpoint_every=1)
    whole = experiment.run(out=tmp_path / "whole")
    experiment.run(out=tmp_path / "run", listeners=[StopAfter(1)])
    carried = resume(tmp_path / "run", experiment=experiment)
    assert len(carried.lines) == ROUNDS
    assert carried.federation["model"].own.device.type == torch.device(DEVICE).type
    assert_alike(carried, whole)


def test_what_a_run_gives_is_on_the_processor() -> None:
    ours, theirs = run("fedper", "serial"), run("fedper", "serial", device="cpu")
    inputs = torch.randn(5, 6)
    torch.testing.assert_close(ours.scores(1, inputs), theirs.scores(1, inputs), atol=TOLERANCE, rtol=TOLERANCE)
    assert {one.device.type for one in ours.model(1).parameters()} == {"cpu"}
    assert {mix.weights.device.type for mix in ours.mixes(ROUNDS)} == {"cpu"}


@counted_only
@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedavg", "fedpac", "fedap", "pfedcs", "fedcac", "fedfomo"])
def test_a_device_without_double_precision_leaves_server_steps_to_the_processor(name: str, engine: str) -> None:
    with pretend.without_float64():
        ours = run(name, engine)
    assert ours.federation["model"].own.device.type == "cpu"
    assert_alike(ours, run(name, engine, device="cpu"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"privacy": "client", "privacy_clip": 1.0, "privacy_noise": 1.0},
        {"privacy": "example", "privacy_clip": 1.0, "privacy_noise": 1.0},
        {"attack": "sign-flip:0.25", "defence": "median"},
        {"quarantine": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ENGINES)
def test_privacy_attacks_and_defences_are_the_processors(options: dict[str, Any], engine: str) -> None:
    ours, theirs = (run("fedavg", engine, device, **options) for device in (DEVICE, "cpu"))
    assert ours.federation["model"].shared.device.type == "cpu"
    assert_alike(ours, theirs)


def test_rows_that_would_crowd_a_device_stay_on_the_processor() -> None:
    prepared = tiny("local", "plain", CLIENTS, engine="serial", device=DEVICE).prepare()
    if not PRETENDED:
        pytest.skip("the pretend device can be short of memory at will")
    size = prepared.federation().row_bytes
    with pretend.short_of_memory(2 * size - 1):
        assert prepared.federation()["model"].own.device.type == "cpu"
    with pretend.short_of_memory(2 * size):
        assert prepared.federation()["model"].own.device.type == DEVICE


def test_rows_in_a_file_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = run("fedper", "serial", device="cpu")
    monkeypatch.setenv("COTERIE_ROWS_IN_MEMORY", "0")
    ours = run("fedper", "serial")
    assert ours.federation["model"].mapped is not None
    assert ours.federation["model"].own.device.type == "cpu"
    assert_alike(ours, theirs)


@counted_only
def test_what_scales_channels_is_sent_once() -> None:
    scale = PixelScale(means=(0.4, 0.5), deviations=(0.2, 0.3))
    pixels = torch.randint(256, (3, 2, 4, 4), dtype=torch.uint8)
    there = Pixels(pixels, scale).to(DEVICE)
    index = torch.tensor([2, 0]).to(DEVICE)
    with pretend.counted() as traffic:
        found = [there[index].cpu() for _ in range(3)]
    assert torch.equal(found[2], Pixels(pixels, scale)[torch.tensor([2, 0])])
    assert traffic.there <= 2


def test_a_device_that_is_not_here_is_named() -> None:
    with pytest.raises(CoterieError, match=r"^device = gpu: PyTorch knows no such device; use cpu, cuda, mps or auto$"):
        Experiment(device="gpu", engine="serial")
    with pytest.raises(CoterieError, match=r"^device = meta: PyTorch knows no such device"):
        Experiment(device="meta")
    with pytest.raises(CoterieError, match=r"^device = \w+: engine 'processes' trains on the processor"):
        Experiment(device=DEVICE, engine="processes")


@pytest.mark.parametrize("there", ["mps", "cuda"])
def test_auto_is_the_best_device_here(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in devices.KNOWN:
        monkeypatch.setattr(torch.get_device_module(name), "is_available", lambda name=name: name == there)
    assert devices.named("auto") == there
    monkeypatch.setattr(torch.get_device_module(there), "is_available", lambda: False)
    assert devices.named("auto") == "cpu"
    assert Experiment(device="auto").device == "cpu"


@counted_only
def test_too_little_memory_says_how_much_is_needed_and_what_would_fit() -> None:
    stacked = tiny("fedavg", "plain", 6, engine="stacked", device=DEVICE, batch=64)
    prepared = stacked.prepare()
    together, alone = (memory_needs(prepared, prepared.federation(), engine, 64) for engine in ("stacked", "serial"))
    assert together.training == 6 * alone.training
    with (
        pretend.short_of_memory(alone.total),
        pytest.raises(
            CoterieError,
            match=r"^device = pretend: [\d.]+ MB are free, but the run needs about [\d.]+ MB \(samples [\d.]+ MB, "
            r"rows [\d.]+ MB, 6 clients in training [\d.]+ MB\); engine = serial would need about [\d.]+ MB$",
        ),
    ):
        stacked.run()
    with pretend.short_of_memory(alone.total):
        replace(stacked, engine="serial").run()
    half = memory_needs(prepared, prepared.federation(), "serial", 32)
    with (
        pretend.short_of_memory(half.total),
        pytest.raises(CoterieError, match=r"a client in training .*; batch = 32 would need about"),
    ):
        replace(stacked, engine="serial").run()
    with (
        pretend.short_of_memory(1_000),
        pytest.raises(CoterieError, match=r"0\.001 MB are free.*; use device = cpu$"),
    ):
        stacked.run()


@counted_only
def test_memory_that_runs_out_on_the_way_is_an_error_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore words")

    for engine, at, way in (
        ("stacked", "coterie.engines.stacked.phase.StackedPhase.run", "engine = serial would need about"),
        ("serial", "coterie.client.worker.Worker.seat", "batch = 5 would need about"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(at, full)
            with pytest.raises(CoterieError, match=rf"^device = pretend: its memory ran out, .*; {way}") as caught:
                run("fedavg", engine)
        assert "\n" not in str(caught.value)


def test_scores_are_brought_back_together() -> None:
    parts = [
        Score({"correct": torch.tensor([True]), "loss": torch.tensor([0.5])}, torch.ones(1, 2), untuned=True),
        Score({"correct": torch.tensor([False, True]), "loss": torch.tensor([1.5, 2.5])}, torch.zeros(2, 2)),
    ]
    there = [
        Score({name: one.to(DEVICE) for name, one in part.quantities.items()}, part.kept.to(DEVICE), part.untuned)
        for part in parts
        if part.kept is not None
    ]
    with pretend.counted() as traffic:
        back = Score.brought_back(there)
    assert [score.sums() for score in back] == [score.sums() for score in parts]
    assert [score.untuned for score in back] == [True, False]
    assert not PRETENDED or traffic.back == 3


def test_dropout_on_a_device_is_drawn_by_an_operation_of_its_own() -> None:
    layer, x = RepeatableDropout(0.5), torch.ones(50, device=DEVICE)
    devices.seed_everything_drawn(x.device, 3)
    first = layer(x).cpu()
    devices.seed_everything_drawn(x.device, 3)
    again = layer(x).cpu()
    stream = devices.stream_on(x.device, 3)
    mask = torch.empty_like(x).bernoulli_(0.5, generator=stream).div_(0.5).cpu()
    assert torch.equal(first, again)
    assert torch.equal(first, mask)
    assert set(first.tolist()) == {0.0, 2.0}
    assert torch.equal(layer.eval()(x).cpu(), torch.ones(50))


def test_the_log_says_what_is_trained_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    run("pfedme", "stacked")
    assert [line for line in warnings_in(caplog) if "one by one" in line] == [
        "stacked engine: clients are trained one by one instead, since the method has a step rule of its own"
    ]
