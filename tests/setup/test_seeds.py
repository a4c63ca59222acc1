"""Seeds of their own for the partition and for the first weights: varying one changes that, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie import resume
from coterie.compare.table import compare
from coterie.data import load
from coterie.errors import CoterieError
from coterie.partition import Dirichlet, Iid, Partition
from coterie.rounds.listeners import RoundReport
from coterie.runs.experiment import Experiment
from listening import EachRound, power_cut
from support import final_rows, tiny

pytestmark = pytest.mark.thorough

BASE = Experiment(partition=Dirichlet(clients=6), held_out=1, validation=0.1, join=0.5, rounds=2, epochs=1, threads=1)


def partition_of(experiment: Experiment) -> Partition:
    return experiment.prepare().partition


def weights_of(experiment: Experiment) -> torch.Tensor:
    return experiment.prepare().federation().initial


def cohorts_of(experiment: Experiment) -> list[list[int]]:
    reports: list[RoundReport] = []
    experiment.run(listeners=[EachRound(reports.append)])
    return [report.cohort for report in reports]


def test_left_out_they_are_the_run_s() -> None:
    given = replace(BASE, partition_seed=0, model_seed=0)
    assert partition_of(given) == partition_of(BASE)
    assert torch.equal(weights_of(given), weights_of(BASE))
    assert torch.equal(final_rows(given.run()), final_rows(BASE.run()))


def test_the_partition_seed_changes_the_partition_alone() -> None:
    other = replace(BASE, partition_seed=7)
    assert partition_of(other) == partition_of(replace(BASE, seed=7))
    assert partition_of(other) != partition_of(BASE)
    assert torch.equal(weights_of(other), weights_of(BASE))
    assert cohorts_of(other) == cohorts_of(BASE)


def test_the_partition_seed_is_for_split_and_newcomers_too() -> None:
    """A rule that draws nothing: what differs is the split, and who is held out."""
    owners = Experiment(partition="by_client", held_out=3)
    one, other = partition_of(owners), partition_of(replace(owners, partition_seed=5))
    assert one.names == other.names
    assert any(not np.array_equal(a, b) for a, b in zip(one.test, other.test, strict=True))
    assert one.held_out != other.held_out
    assert other.parameters["seed"] == other.parameters["held_out_seed"] == 5


def test_the_model_seed_changes_the_first_weights_alone() -> None:
    other = replace(BASE, model_seed=7)
    assert torch.equal(weights_of(other), weights_of(replace(BASE, seed=7)))
    assert not torch.equal(weights_of(other), weights_of(BASE))
    assert partition_of(other) == partition_of(BASE)
    assert cohorts_of(other) == cohorts_of(BASE)


def test_the_seed_changes_the_rest() -> None:
    fixed = replace(BASE, partition_seed=3, model_seed=4, held_out=0, rounds=6)
    other = replace(fixed, seed=1)
    assert partition_of(other) == partition_of(fixed)
    assert torch.equal(weights_of(other), weights_of(fixed))
    assert cohorts_of(other) != cohorts_of(fixed)
    assert not torch.equal(final_rows(other.run()), final_rows(fixed.run()))


def test_a_model_that_has_its_weights_takes_no_seed() -> None:
    with pytest.raises(CoterieError, match="model_seed = 3: the model is given with its weights; give its class"):
        tiny("fedavg", model_seed=3).prepare()


def test_a_comparison_over_seeds_shares_the_partition_of_a_given_seed() -> None:
    fixed = Experiment(partition=Dirichlet(clients=4), rounds=1, epochs=1, threads=1, partition_seed=9)
    compared = compare({"fedavg": fixed, "local": replace(fixed, method="local")}, [0, 1], jobs=1)
    expected = Dirichlet(clients=4)(load("digits"), 9).hash
    assert compared.partitions() == {0: expected, 1: expected}
    values = compared.values("fedavg", "received_mean_last")
    assert values[0] != values[1]
    with pytest.raises(CoterieError, match="seed 0: 'local' has another partition"):
        compare({"fedavg": fixed, "local": replace(fixed, method="local", partition_seed=8)}, [0, 1], jobs=1)


def test_a_resumed_run_keeps_them(tmp_path: Path) -> None:
    experiment = Experiment(
        partition=Iid(clients=4), rounds=3, epochs=1, threads=1, checkpoint_every=1, partition_seed=5, model_seed=6
    )
    whole = replace(experiment, checkpoint_every=0).run()
    with power_cut(tmp_path / "run", round=2) as listeners:
        experiment.run(tmp_path / "run", listeners)
    again = resume(tmp_path / "run")
    assert again.summary["config"]["partition_seed"] == 5
    assert again.summary["config"]["model_seed"] == 6
    assert torch.equal(final_rows(again), final_rows(whole))
