"""A search for settings: validation chooses, hopeless ones are given up, nothing runs twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compare.test_cells import Watch

from coterie.cli.tuning import candidates, read_grid
from coterie.compare.pool import Run
from coterie.compare.sweep import Sweep, grid_of, rungs, sweep
from coterie.errors import CoterieError
from coterie.experiment.config import read_toml
from coterie.experiment.directory import RunDirectory
from coterie.experiment.experiment import Experiment, experiment_from
from coterie.partition import Iid, Partition
from coterie.testing.toys import toy_data, toy_partition, with_validation
from support import tiny

pytestmark = pytest.mark.thorough

RATES = ("0.0001", "0.01", "0.1", "0.3")


def rates(**options: Any) -> dict[str, Experiment]:
    settings = {"partition": Iid(clients=3), "rounds": 4, "epochs": 1, "threads": 1, **options}
    return {f"fedavg:lr={rate}": Experiment("fedavg", lr=float(rate), **settings) for rate in RATES}


class Sweeping:
    """A search that takes note of the rounds that ran."""

    def __init__(self) -> None:
        self.rounds: list[tuple[str, int]] = []

    def __call__(self, out: Path, experiments: dict[str, Experiment], **options: Any) -> Sweep:
        self.rounds = []
        return sweep(experiments, options.pop("seeds", [0]), out, self._watch, **{"jobs": 1, **options})

    @contextmanager
    def _watch(self, runs: Sequence[Run]) -> Iterator[Watch]:
        watch = Watch()
        yield watch
        self.rounds += watch.rounds


def test_the_better_half_goes_on(tmp_path: Path) -> None:
    search = Sweeping()
    found = search(tmp_path, rates())
    assert sorted(one.rounds for one in found.candidates) == [1, 1, 2, 4]
    assert len(search.rounds) == 1 + 1 + 2 + 4  # each round once: survivors are carried on
    full = search(tmp_path / "full", rates(), full=True)
    assert [one.rounds for one in full.candidates] == [4] * 4
    scores = [one.score for one in full.candidates]
    assert scores == sorted(scores, reverse=True)
    assert full.best.name != "fedavg:lr=0.0001"
    # Up to the round where it was given up, a run is that of the full search.
    for one in found.candidates:
        folder = f"{one.name.replace(':', '-')}-s0"
        ours, theirs = (RunDirectory(place / folder).lines() for place in (tmp_path, tmp_path / "full"))
        assert [line["received"] for line in ours] == [line["received"] for line in theirs[: one.rounds]]
        validated = [line["validation"]["received"]["mean"] for line in theirs[: one.rounds]]
        assert one.score == pytest.approx(max(validated))


def test_the_same_again_runs_nothing_and_chooses_the_same(tmp_path: Path) -> None:
    search = Sweeping()
    first = search(tmp_path, rates())
    assert search(tmp_path, rates()) == first
    assert not search.rounds
    # Runs that have come farther than others change no choice: a full search is read up to each round.
    search(tmp_path, rates(), full=True)
    assert search(tmp_path, rates()).candidates == first.candidates
    assert not search.rounds


@pytest.mark.processes
def test_in_parallel_it_is_the_same_search(tmp_path: Path) -> None:
    alone, together = Sweeping()(tmp_path / "1", rates()), Sweeping()(tmp_path / "2", rates(), jobs=2)
    assert alone == together


def scrambled(experiments: dict[str, Experiment]) -> dict[str, Experiment]:
    """The same experiments with nonsense in place of all test samples."""
    changed = {}
    for name, experiment in experiments.items():
        data, partition = toy_data(), experiment.partition
        inputs, labels = data.inputs.clone(), data.labels.clone()
        assert isinstance(partition, Partition)
        for test in partition.test:
            index = torch.from_numpy(test)
            inputs[index] = torch.randn(inputs[index].shape, generator=torch.Generator().manual_seed(7)) * 9
            labels[index] = (labels[index] + 1) % 3
        changed[name] = replace(experiment, data=replace(data, inputs=inputs, labels=labels))
    return changed


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_test_samples_have_no_say(tmp_path: Path, method: str, full: bool) -> None:
    data = toy_data()
    partition = with_validation(toy_partition(data, 4))
    ours = {f"{rate}": tiny(method, data=data, partition=partition, rounds=4, lr=float(rate)) for rate in RATES}
    first = Sweeping()(tmp_path / "ours", ours, full=full)
    other = Sweeping()(tmp_path / "other", scrambled(ours), full=full)
    assert first.candidates == other.candidates
    name = first.best.name
    tested = [RunDirectory(tmp_path / place / f"{name}-s0").lines()[-1]["received"] for place in ("ours", "other")]
    assert tested[0]["accuracy"] != tested[1]["accuracy"]


def test_the_best_can_be_run_from_its_file(tmp_path: Path) -> None:
    found = Sweeping()(tmp_path, rates())
    best = experiment_from(read_toml(tmp_path / "best.toml"))
    assert best == found.winner == rates()[found.best.name]
    assert best.validation is None  # whoever runs it trains with all samples
    told = json.loads((tmp_path / "sweep.json").read_text())
    assert told["best"] == found.best.name
    assert len(told["candidates"]) == 4


def test_scores_are_means_over_seeds(tmp_path: Path) -> None:
    both = Sweeping()(tmp_path, rates(), seeds=[0, 1], full=True)
    each = [Sweeping()(tmp_path, rates(), seeds=[seed], full=True) for seed in (0, 1)]
    for one in both.candidates:
        own = [other.score for found in each for other in found.candidates if other.name == one.name]
        assert one.score == pytest.approx(sum(own) / 2)


def test_rounds_at_which_half_is_given_up_are_evaluated() -> None:
    assert rungs(4, 20, every=4) == [8, 12, 20]
    assert rungs(16, 100)[0] == 7
    assert rungs(5, 100) == [25, 50, 100]


def test_some_of_a_grid_are_drawn_by_chance_but_always_the_same() -> None:
    grid = read_grid("grid", ["lr=0.1,0.2,0.3", "mu=0,1"])
    drawn = grid_of(grid, 3)
    assert drawn == grid_of(grid, 3)
    assert len(drawn) == 3
    assert all(one in grid_of(grid) for one in drawn)
    assert grid_of(grid, 3, seed=1) != drawn
    assert grid_of(grid, 99) == grid_of(grid)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["lr"], "grid = 'lr': must be NAME=VALUE,VALUE"),
        (["lr=0.1", "lr=0.2"], "lr is given twice"),
        (["betta=1,2"], "did you mean 'beta'?"),
        (["alpha=0.1,0.2"], "share the data and the partition"),
        (["lr=0.1,0.10"], "are the same run"),
        ([], "grid: name at least one option"),
    ],
)
def test_grids_that_cannot_be_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(CoterieError, match=said):
        candidates("pfedcs", read_grid("grid", texts), None, {}, [])


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all I have")
    with pytest.raises(CoterieError, match=r"is not empty \(it holds thesis.txt\)"):
        Sweeping()(tmp_path, rates())
