"""What clients' optimisers remember is kept from round to round: against a plain oracle, and the same everywhere."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deployment.test_same_as_serial import assert_same
from tests.engines.test_effort import reports
from torch import nn

from coterie.client.optimiser import ONE_FOR_ALL, torch_optimiser
from coterie.client.recipe import Phase
from coterie.client.trainer import train, tune
from coterie.core.federation import memory_slot
from coterie.core.training import OPTIMISERS, Training
from coterie.engines.stacked.engine import Stacked
from coterie.errors import CoterieError
from coterie.methods.fedavg_ft import FedAvgFT
from coterie.rng import torch_stream
from coterie.rounds.listeners import StopAfter
from coterie.runs.resume import resume
from coterie.testing.together import agreed
from support import final_rows, rows_of, seat, stepwise, tiny, trained_row

SGD = {"optimizer": "sgd", "momentum": 0.5, "keep_optimizer": True}
TOGETHER = {"join": 0.5, "rounds": 4}


@pytest.mark.parametrize("name", [name for name in OPTIMISERS if name != "sgd"])
def test_memories_are_what_pytorch_keeps(name: str) -> None:
    settings = Training(optimizer=name, momentum=0.5 if name == "rmsprop" else 0.0)
    leaf = nn.Parameter(torch.ones(3))
    leaf.grad = torch.ones(3)
    optimiser = torch_optimiser([[leaf]], settings)
    optimiser.step()
    state = {key: value for key, value in optimiser.state[leaf].items() if value is not None}
    assert set(state) == set(settings.remembered)
    assert {key for key, value in state.items() if value.shape != leaf.shape} == set(state) & set(ONE_FOR_ALL)


def as_anybody_would(experiment: Any) -> torch.Tensor:
    """Rounds of FedAvg in plain PyTorch, an optimiser a client that lives as long as the run does: all final rows."""
    rounds, engine = stepwise(experiment)
    problem, federation, settings = engine.worker.problem, rounds.federation, experiment.training
    model, states = copy.deepcopy(problem.module), dict[int, Any]()
    current = copy.deepcopy(model.state_dict())
    for number in range(1, experiment.rounds + 1):
        cohort = rounds.sampler.draw(federation, number)[1].tolist()
        trained = []
        for client in cohort:
            model.load_state_dict(current)
            if settings.optimizer == "sgd":
                optimiser: Any = torch.optim.SGD(model.parameters(), settings.lr, settings.momentum)
            else:
                optimiser = torch_optimiser([list(model.parameters())], settings)
            if client in states:
                optimiser.load_state_dict(states[client])
            own, key = problem.train[client], int(federation.keys[client])
            stream = torch_stream(0, "batches:0", number, key)
            for batch in own[torch.randperm(len(own), generator=stream)].split(settings.batch):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(problem.inputs[batch]), problem.labels[batch]).backward()
                optimiser.step()
            states[client] = copy.deepcopy(optimiser.state_dict())
            trained.append((len(own), copy.deepcopy(model.state_dict())))
        total = sum(size for size, _ in trained)
        current = {name: sum(size / total * state[name] for size, state in trained) for name in current}
    model.load_state_dict(current)
    return problem.layout.row(model)


@pytest.mark.parametrize("name", ["sgd", "adam", "nadam", "rmsprop"])
def test_rounds_are_those_of_an_optimiser_that_lives_on(name: str) -> None:
    """Half of the clients a round: whoever sits out goes on from what it remembered when it last took part."""
    more = SGD if name == "sgd" else {"optimizer": name, "keep_optimizer": True, "lr": 0.01}
    ours = final_rows(tiny(**TOGETHER, **more).run())
    torch.testing.assert_close(ours[0], as_anybody_would(tiny(**TOGETHER, **more)), atol=2e-5, rtol=1e-4)
    forgetful = final_rows(tiny(**TOGETHER, **more | {"keep_optimizer": False}).run())
    assert (forgetful - ours).abs().max() > 1e-3


def test_a_step_worked_out_by_hand() -> None:
    """v = 0.5 · 4 + 1 = 3 and w = 0 − 0.1 · 3: with a gradient of 1 everywhere, and a velocity of 4 from before."""

    class Slope:
        def gradient(self, rows: torch.Tensor, anchors: Any) -> torch.Tensor:
            return torch.ones_like(rows)

    prepared = tiny(clients=1, batch=1000, **SGD).prepare()
    worker = seat(prepared, 0)
    worker.model("model").row.zero_()
    worker.model("sgd.velocity.model").row.fill_(4.0)
    train(worker, (Phase(terms=(), row_terms=(Slope(),)),))
    assert worker.model("model").row.unique().tolist() == pytest.approx([-0.3])
    assert worker.model("sgd.velocity.model").row.unique().tolist() == pytest.approx([3.0])


def test_a_later_phase_goes_on_from_an_earlier_one_that_trained_the_same() -> None:
    """With all samples in a batch, two phases of an epoch are then one of two."""
    once, twice = (Phase(epochs=2),), (Phase(epochs=1), Phase(epochs=1))
    forgetful, keeping = tiny(batch=1000, momentum=0.9).prepare(), tiny(batch=1000, **SGD | {"momentum": 0.9}).prepare()
    torch.testing.assert_close(trained_row(keeping, twice), trained_row(forgetful, once), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(trained_row(forgetful, twice), trained_row(forgetful, once), atol=1e-5)


def test_phases_that_train_other_columns_remember_apart() -> None:
    """FedRep's head and body: what is remembered lies in the columns that it is of, and all of them move."""
    run = tiny("fedrep", **SGD).run()
    assert bool((rows_of(run.federation, "sgd.velocity.model") != 0).any(0).all())
    assert run.federation["sgd.velocity.model"].held_by == "client"


def test_tuning_for_a_test_begins_anew() -> None:
    rows = []
    for velocity in (0.0, 100.0):
        worker = seat(tiny(FedAvgFT(), **SGD).prepare(), 0)
        worker.model("sgd.velocity.model").row.fill_(velocity)
        assert tune(worker)
        rows.append(worker.model("model").row.clone())
    assert torch.equal(*rows)


def test_nothing_else_changes() -> None:
    """In the first round nobody has anything to remember; what is sent is the same in all."""
    kept, plain = (tiny(rounds=1, **SGD | {"keep_optimizer": keep}).run() for keep in (True, False))
    assert torch.equal(final_rows(kept), final_rows(plain))
    kept, plain = (tiny(**SGD | {"keep_optimizer": keep}).run() for keep in (True, False))
    assert [line.bytes for line in kept.lines] == [line.bytes for line in plain.lines]
    assert tiny(**SGD).prepare().federation().is_uniform


def test_whoever_diverges_keeps_what_it_remembered() -> None:
    rounds, engine = stepwise(tiny(clients=2, **SGD))
    rounds.run_round()
    slot = memory_slot(rounds.federation.training, "velocity", "model")
    before = rows_of(rounds.federation, slot)
    engine.worker.problem.inputs[engine.worker.problem.train[0]] = torch.nan
    assert rounds.run_round().diverged == [0]
    after = rows_of(rounds.federation, slot)
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


@pytest.mark.processes
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_worker_processes_keep_the_same_to_the_bit(optimizer: str) -> None:
    settings = SGD if optimizer == "sgd" else {"optimizer": "adam", "keep_optimizer": True, "lr": 0.01}
    ours, theirs = (
        tiny("ditto", engine=engine, workers=2 if engine == "processes" else 0, join=0.5, threads=1, **settings).run()
        for engine in ("processes", "serial")
    )
    for name in theirs.federation.slots:
        assert torch.equal(rows_of(ours.federation, name), rows_of(theirs.federation, name)), name


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_stacked_keeps_the_same(model: str) -> None:
    ours, theirs = (tiny("fedrep", model, engine=engine, **TOGETHER, **SGD).run() for engine in ("stacked", "serial"))
    for name in theirs.federation.slots:
        close = {"atol": 1e-4, "rtol": 1e-3}
        torch.testing.assert_close(rows_of(ours.federation, name), rows_of(theirs.federation, name), **close)


def test_stacked_says_why_it_leaves_others_to_serial(caplog: pytest.LogCaptureFixture) -> None:
    ours = reports(Stacked, tiny(rounds=1, optimizer="adam", keep_optimizer=True))
    assert "clients keep what adam remembers, each its own count of steps" in caplog.text
    assert ours


def test_a_resumed_run_ends_bit_equal(tmp_path: Path) -> None:
    whole = tiny(checkpoint_every=2, **TOGETHER, **SGD)
    expected = whole.run(out=tmp_path / "whole")
    tiny(checkpoint_every=2, **TOGETHER, **SGD).run(out=tmp_path / "parts", listeners=[StopAfter(3)])
    assert torch.equal(final_rows(resume(tmp_path / "parts", experiment=whole)), final_rows(expected))


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [SGD, {"optimizer": "adam", "keep_optimizer": True, "lr": 0.01}])
def test_sites_keep_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    assert_same(agreed("fedper", join=0.67, rounds=4, **settings), tmp_path)


def test_an_optimiser_that_remembers_nothing_is_refused() -> None:
    with pytest.raises(CoterieError, match="keep_optimizer = True: optimizer 'sgd' without momentum remembers nothing"):
        tiny(keep_optimizer=True)
