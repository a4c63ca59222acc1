"""More rounds for a run: it ends like a run that planned them, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import open_run, resume
from coterie.errors import CoterieError
from coterie.methods import METHODS, FedBABU, Method, PFedCS, PFedSim
from coterie.partition import Iid
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from listening import power_cut
from support import tiny, without_times

pytestmark = pytest.mark.thorough

# What they do depends on how many rounds there are to be.
COUNT_ROUNDS = {"apple", "fedap", "fedbabu", "pfedcs", "pfedsim"}


def named(method: str | Method = "fedper", **options: Any) -> Experiment:
    settings: dict[str, Any] = {"rounds": 3, "epochs": 1, "batch": 64, "seed": 2, **options}
    return Experiment(method, "digits", Iid(clients=4), "mlp", **settings)


def assert_same_run(one: Path, other: Path) -> None:
    assert (one / "rows.safetensors").read_bytes() == (other / "rows.safetensors").read_bytes()
    mine, theirs = RunDirectory.open(one), RunDirectory.open(other)
    assert without_times(mine.lines()) == without_times(theirs.lines())
    assert mine.config() == theirs.config()
    assert mine.recorded_rounds() == theirs.recorded_rounds()
    assert mine.about().settings == theirs.about().settings
    assert without_times(mine.summary()) == without_times(theirs.summary())


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_ends_like_a_longer_run_or_is_refused(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"validation": 0.2} if name == "fedfomo" else {}
    short, longer = (named(name, join=0.5, rounds=rounds, **options) for rounds in (2, 4))
    short.run(tmp_path / "run")
    if name in COUNT_ROUNDS:
        before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
        with pytest.raises(CoterieError, match=rf"rounds = 4: it would not end like a run of 4 rounds: {name}'s \w+"):
            resume(tmp_path / "run", rounds=4)
        assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
        return
    resume(tmp_path / "run", rounds=4)
    longer.run(tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("method", [PFedCS(beta=2), PFedSim(rho=0.0), FedBABU(tune_epochs=0)])
def test_options_that_fix_the_rounds_make_it_possible(method: Method, tmp_path: Path) -> None:
    named(method, rounds=3).run(tmp_path / "run")
    resume(tmp_path / "run", rounds=5)
    named(method, rounds=5).run(tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("validation", [None, 0.2])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_what_was_done_for_the_last_round_alone_is_taken_back(
    join: float, validation: float | None, tmp_path: Path
) -> None:
    every = {"evaluate_every": 2, "record_every": 2, "join": join, "schedule": "exponential", "decay": 0.9}
    every |= {} if validation is None else {"validation": validation}
    named(rounds=3, **every).run(tmp_path / "run")
    assert open_run(tmp_path / "run").rounds == [2, 3]
    resume(tmp_path / "run", rounds=6)
    named(rounds=6, **every).run(tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert open_run(tmp_path / "run").rounds == [2, 4, 6]
    assert [one.after_round for one in open_run(tmp_path / "run").about.sessions] == [0, 3]


def test_a_killed_run_is_extended_from_its_checkpoint(tmp_path: Path) -> None:
    with power_cut(tmp_path / "run", 3) as listeners:
        named(rounds=4, checkpoint_every=2).run(tmp_path / "run", listeners)
    resume(tmp_path / "run", rounds=5)
    named(rounds=5, checkpoint_every=2).run(tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_without_a_checkpoint_nothing_stands_in_the_way(tmp_path: Path) -> None:
    with power_cut(tmp_path / "run", 1) as listeners:
        named("pfedsim", rounds=4, schedule="cosine").run(tmp_path / "run", listeners)
    resume(tmp_path / "run", rounds=5)
    named("pfedsim", rounds=5, schedule="cosine").run(tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_an_extended_run_that_is_killed_is_resumed_to_its_new_end(tmp_path: Path) -> None:
    named(checkpoint_every=1).run(tmp_path / "run")
    with power_cut(tmp_path / "run", 4) as listeners:
        resume(tmp_path / "run", listeners, rounds=6)
    assert open_run(tmp_path / "run").status == "unfinished"
    resume(tmp_path / "run")
    named(rounds=6, checkpoint_every=1).run(tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_an_experiment_that_is_given_again_keeps_to_the_new_plan(tmp_path: Path) -> None:
    experiment = tiny(checkpoint_every=1)
    experiment.run(tmp_path / "run")
    with power_cut(tmp_path / "run", 4) as listeners:
        resume(tmp_path / "run", listeners, experiment=experiment, rounds=5)
    result = resume(tmp_path / "run", experiment=experiment)
    assert result.summary["rounds"] == 5
    assert torch.equal(
        open_run(tmp_path / "run", experiment=experiment).model(1).state_dict()["classifier.weight"],
        result.model(1).state_dict()["classifier.weight"],
    )


def test_refusals(tmp_path: Path) -> None:
    named(schedule="cosine").run(tmp_path / "run")
    for rounds, why in [
        (3, "rounds = 3: the run plans 3 already; name more"),
        (
            5,
            "rounds = 5: it would not end like a run of 5 rounds: the rates of schedule 'cosine' depend on the number "
            "of rounds; run it anew",
        ),
    ]:
        with pytest.raises(CoterieError) as caught:
            resume(tmp_path / "run", rounds=rounds)
        assert str(caught.value) == why
    assert open_run(tmp_path / "run").status == "finished"
