"""FedAvgFT: FedAvg, of which every client is tested with a copy that it has trained on its own data."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_training import Plain, assert_bytes, assert_near, assert_relabelling_permutes, copy_into, play
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.client.recipe import Phase
from coterie.errors import CoterieError
from coterie.methods import FedAvg
from coterie.methods.fedavg_ft import FedAvgFT
from coterie.runs.run import Run
from support import final_rows, tiny

ENGINES = ("serial", "stacked")


def scores(result: Run) -> list[list[float]]:
    return [line.values(moment, "loss") for line in result.lines for moment in ("received", "trained")]


@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize("step", [1.0, 0.3])
def test_plain_loops_give_the_same_tested_models(join: float, step: float) -> None:
    """Also at clients that sat out, which get the newest model; their training is the same as everybody's."""
    ours = play(FedAvgFT(tune_epochs=2, tune_lr=0.07, step=step), join=join)
    plain = Plain(ours.prepared)
    shared = copy.deepcopy(plain.initial)
    for round, cohort in plain.rounds():
        models = plain.models()
        for k in cohort:
            copy_into(models[k], shared)

            def loss(x: Tensor, y: Tensor, model: Any = models[k]) -> Tensor:
                return cross_entropy(model(x), y)

            plain.descend(k, round, models[k].parameters(), loss)
        copy_into(shared, plain.mean(models, cohort))
        tested = [copy.deepcopy(shared) for _ in range(plain.clients)]
        for k, model in enumerate(tested):

            def tuning_loss(x: Tensor, y: Tensor, model: Any = model) -> Tensor:
                return cross_entropy(model(x), y)

            plain.descend(k, round, model.parameters(), tuning_loss, epochs=2, number=1, lr=0.07)
            with torch.no_grad():
                for tuned, received in zip(model.parameters(), shared.parameters(), strict=True):
                    tuned.copy_(received + step * (tuned - received))
        received = ours.reports[round - 1].received
        assert received is not None
        assert_near(received.loss, plain.test_losses(lambda k, x, tested=tested: tested[k](x)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
@pytest.mark.parametrize("none", [{"step": 0.0}, {"tune_epochs": 0}])
def test_none_of_the_way_is_fedavg_bit_for_bit(engine: str, model: str, none: dict[str, Any]) -> None:
    ours, theirs = (tiny(method, model, engine=engine, join=0.6).run() for method in (FedAvgFT(**none), FedAvg()))
    assert torch.equal(final_rows(ours), final_rows(theirs))
    assert scores(ours) == scores(theirs)
    assert "tuning" not in ours.summary["effort"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("step", [1.0, 0.5])
def test_what_travels_is_fedavg_s_whatever_is_tuned(engine: str, step: float) -> None:
    ours, theirs = (tiny(method, "norm", engine=engine).run() for method in (FedAvgFT(step=step), FedAvg()))
    assert torch.equal(final_rows(ours), final_rows(theirs))
    assert scores(ours) != scores(theirs)
    assert_bytes(played := play(FedAvgFT(step=step)), up=played.bytes_of("all"), down=played.bytes_of("all"))


class TunedFedAvg(FedAvg):
    def tune(self, federation: Any) -> Any:
        return (Phase(stream=1),)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
def test_all_of_the_way_is_fedavg_and_tuning(engine: str, model: str) -> None:
    ours, theirs = (tiny(method, model, engine=engine, epochs=2).run() for method in (FedAvgFT(), TunedFedAvg()))
    assert scores(ours) == scores(theirs)


@pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
def test_engines_go_as_far(model: str) -> None:
    serial, stacked = (
        tiny(FedAvgFT(step=0.4), model, engine=engine, epochs=2, join=0.6).run() for engine in ("serial", "stacked")
    )
    torch.testing.assert_close(torch.tensor(scores(stacked)), torch.tensor(scores(serial)), atol=1e-3, rtol=1e-3)
    assert stacked.summary["effort"] == serial.summary["effort"]


def test_a_client_that_rests_keeps_what_it_stored(tmp_path: Path) -> None:
    result = tiny(FedAvgFT(), join=0.5, rounds=3).run(tmp_path / "run")
    lines = result.lines
    for before, line in pairwise(lines):
        resting = [k for k in range(4) if k not in line.cohort]
        assert resting
        for k in resting:
            assert line.stored.values["loss"][k] == before.stored.values["loss"][k]
            assert line.received.values["loss"][k] != before.received.values["loss"][k]


def test_it_says_what_it_takes() -> None:
    told = tiny(FedAvgFT(tune_epochs=3), epochs=2).run().summary["effort"]
    assert told["tuning"] == pytest.approx(3 / 2 * told["steps"]["model"])


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(FedAvgFT(step=0.5), join=join)


@pytest.mark.parametrize("options", [{"tune_epochs": -1}, {"tune_lr": 0.0}, {"step": -0.1}, {"step": 1.1}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        FedAvgFT(**options)


def test_a_phase_goes_no_farther_than_its_end() -> None:
    with pytest.raises(CoterieError, match=r"^reach = 1.5: must lie in \[0, 1\]$"):
        Phase(reach=1.5)
