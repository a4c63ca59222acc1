"""So many steps in place of epochs, and parts of epochs: counted where they are computed, the same everywhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deployment.test_same_as_serial import assert_same
from tests.engines.test_effort import by_client, reports, sizes_and_batches

from coterie.cli import main
from coterie.client.recipe import Phase
from coterie.client.trainer import Trainer
from coterie.core.training import Training, epoch_batches
from coterie.engines.processes import Processes
from coterie.engines.serial import Serial
from coterie.engines.stacked.engine import Stacked
from coterie.errors import CoterieError
from coterie.methods.ditto import Ditto
from coterie.methods.fedrep import FedRep
from coterie.testing.together import agreed
from support import final_rows, seat, tiny

LENGTHS: list[dict[str, Any]] = [{"epochs": 5, "steps": 7}, {"epochs": 0.5}, {"epochs": 1.4}]


def expected(length: dict[str, Any], an_epoch: int) -> int:
    return int(length.get("steps") or math.ceil(length["epochs"] * an_epoch))


@pytest.mark.parametrize("make", [Serial, Stacked])
@pytest.mark.parametrize("length", LENGTHS)
def test_efforts_count_so_many_steps(make: Any, length: dict[str, Any]) -> None:
    experiment = tiny(rounds=1, batch=10, **length)
    (report,) = reports(make, experiment)
    for effort, (size, an_epoch) in zip(by_client(report.efforts), sizes_and_batches(experiment), strict=True):
        steps = expected(length, an_epoch)
        assert effort.steps == {"model": steps}
        whole, rest = divmod(steps, an_epoch)
        assert effort.forward == whole * size + min(rest * 10, size)


def test_phases_that_say_their_epochs_keep_to_them() -> None:
    """FedRep's head for two epochs, its body for the run's steps; Ditto's two models for the run's steps each."""
    experiment = tiny(FedRep(head_epochs=2), rounds=1, batch=10, epochs=5, steps=3)
    (report,) = reports(Serial, experiment)
    for effort, (_, an_epoch) in zip(by_client(report.efforts), sizes_and_batches(experiment), strict=True):
        assert effort.steps == {"classifier": 2 * an_epoch, "extractor": 3}
    (report,) = reports(Serial, tiny(Ditto(), rounds=1, batch=10, epochs=5, steps=3))
    assert all(effort.steps == {"model": 3, "personal": 3} for effort in by_client(report.efforts))


def test_what_a_method_leaves_to_the_run_is_recorded_as_no_epochs_where_it_has_steps() -> None:
    assert tiny(FedRep(head_epochs=2), epochs=5, steps=3).prepare().resolved == {"head_epochs": 2}
    assert tiny(FedRep(head_epochs=2), epochs=3).prepare().resolved == {"head_epochs": 2, "body_epochs": 3}


def test_the_batches_are_the_first_ones_of_whole_epochs() -> None:
    """Two and a half epochs of client 0 are the first batches of three."""
    whole, part = (tiny(clients=1, epochs=epochs, rounds=1).prepare() for epochs in (3, 2.5))
    an_epoch = epoch_batches(len(whole.problem().train[0]), 10)
    assert math.ceil(2.5 * an_epoch) == part.federation().steps(torch.tensor([0])).item()
    worker = seat(part, 0)
    taken = [batch.labels.tolist() for batch in Trainer(worker, Phase(), 0).batches()]
    everything = [batch.labels.tolist() for batch in Trainer(seat(whole, 0), Phase(), 0).batches()]
    assert taken == everything[: math.ceil(2.5 * an_epoch)]
    assert len(everything) == 3 * an_epoch


def test_whole_epochs_as_a_number_with_a_point_are_the_same_to_the_bit() -> None:
    assert torch.equal(final_rows(tiny(epochs=2.0).run()), final_rows(tiny(epochs=2).run()))


def test_as_many_steps_as_an_epoch_has_are_an_epoch_to_the_bit() -> None:
    an_epoch = epoch_batches(len(tiny(clients=1).prepare().problem().train[0]), 10)
    assert torch.equal(final_rows(tiny(clients=1, epochs=5, steps=an_epoch).run()), final_rows(tiny(clients=1).run()))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("method", ["fedavg", "fedtc"])
def test_stacked_takes_the_same_steps(method: str, model: str, length: dict[str, Any]) -> None:
    experiment = tiny(method, model, rounds=2, **length)
    serial, stacked = (reports(make, experiment) for make in (Serial, Stacked))
    for ours, theirs in zip(stacked, serial, strict=True):
        assert ours.efforts == theirs.efforts
        assert ours.training is not None
        assert theirs.training is not None
        for metric, values in ours.training.values.items():
            assert values == pytest.approx(theirs.training.values[metric], abs=1e-3)


@pytest.mark.processes
def test_worker_processes_take_the_same_steps_to_the_bit() -> None:
    experiment = tiny("fedper", steps=7, rounds=2, epochs=5)
    ours, theirs = reports(lambda *given: Processes(*given, workers=2), experiment), reports(Serial, experiment)
    assert [one.efforts for one in ours] == [one.efforts for one in theirs]


@pytest.mark.thorough
@pytest.mark.parametrize("length", LENGTHS[:2])
def test_sites_take_the_same_steps(length: dict[str, Any], tmp_path: Path) -> None:
    assert_same(agreed("scaffold", join=0.67, **length), tmp_path)


def test_steps_are_counted_for_methods_too() -> None:
    """A batch of one sample is none where batch norm forbids it; who has no other takes no step."""
    federation = tiny(steps=20, epochs=5).prepare().federation()
    assert federation.steps(federation.everyone).tolist() == [20] * 4
    federation.skip_single_samples = True
    federation.sizes = torch.tensor([1, 11, 20, 35])
    assert federation.steps(federation.everyone).tolist() == [0, 20, 20, 20]
    federation.training = Training(epochs=0.5, batch=10)
    assert federation.steps(federation.everyone).tolist() == [0, 1, 1, 2]
    assert Training(epochs=0.1, batch=10).steps_of(None, 30) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 5, "steps": -1}, "steps = -1: must not be negative (0: as epochs say)"),
        ({"epochs": 0}, "epochs = 0: must be greater than 0"),
        ({"epochs": -0.5}, "epochs = -0.5: must be greater than 0"),
        ({"epochs": 2, "steps": 20}, "epochs = 2: steps = 20 says how long clients train; leave one of the two out"),
        ({"epochs": 5, "steps": 2, "privacy": "example"}, "steps = 2: privacy = example is accounted for by whole"),
        ({"epochs": 0.5, "privacy": "example"}, "epochs = 0.5: privacy = example is accounted for by whole epochs"),
    ],
)
def test_wrong_lengths_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError) as caught:
        tiny(**options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_both_stand_on_the_command_line_and_in_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--clients", "3", "--rounds", "1", "--share", "0.2", "--threads", "1"]
    for option, value in (("steps", "2"), ("epochs", "0.5"), ("epochs", "2")):
        out = tmp_path / f"{option}-{value}"
        assert main(["run", "fedavg", *few, f"--{option}", value, "--out", str(out)]) == 0
        assert f"\n{option} = {value}\n" in (out / "config.toml").read_text()
    capsys.readouterr()
    assert main(["run", "fedavg", *few, "--steps", "2.5", "--out", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == "coterie: error: steps = '2.5': must be a whole number\n"
