"""A search for settings: validation chooses, hopeless ones are given up, nothing runs twice."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compare.test_one_run import Watch

from coterie.cli.experiments import candidates
from coterie.compare.space import grid_of, read_space
from coterie.compare.sweep import Proposals, Sweep, guided_sweep, rungs, sweep
from coterie.compare.workers import PlannedRun
from coterie.errors import CoterieError
from coterie.partition import Iid, Partition
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment, experiment_from
from coterie.setup.config import read_toml
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
    def _watch(self, runs: Sequence[PlannedRun]) -> Iterator[Watch]:
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
        assert [line.received for line in ours] == [line.received for line in theirs[: one.rounds]]
        validated = [line.validation.received.mean for line in theirs[: one.rounds]]
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
    tested = [RunDirectory(tmp_path / place / f"{name}-s0").lines()[-1].received for place in ("ours", "other")]
    assert tested[0].values["accuracy"] != tested[1].values["accuracy"]


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
    grid = read_space("grid", ["lr=0.1,0.2,0.3", "mu=0,1"])
    drawn = grid_of(grid, 3)
    assert drawn == grid_of(grid, 3)
    assert len(drawn) == 3
    assert all(one in grid_of(grid) for one in drawn)
    assert grid_of(grid, 3, seed=1) != drawn
    assert grid_of(grid, 99) == grid_of(grid)


def test_ranges_are_drawn_from_by_factors_or_evenly() -> None:
    space = read_space("grid", ["lr=0.001..0.1", "mu=0..1", "epochs=1..3", "batch=16,32"], fractions={"mu"})
    drawn = grid_of(space, 400)
    assert drawn == grid_of(space, 400)
    assert len({tuple(one.values()) for one in drawn}) == 400
    rates, pulls = ([float(one[name]) for one in drawn] for name in ("lr", "mu"))
    assert all(0.001 <= rate <= 0.1 for rate in rates)
    # Of 400 fair coins, 3 standard deviations either side of a half are 170 to 230.
    assert 170 <= sum(rate < 0.01 for rate in rates) <= 230
    assert 170 <= sum(pull < 0.5 for pull in pulls) <= 230
    assert len(set(pulls)) > 300
    assert {one["epochs"] for one in drawn} == {"1", "2", "3"}
    assert {one["batch"] for one in drawn} == {"16", "32"}
    assert len(grid_of(read_space("grid", ["epochs=1..3"]), 99)) == 3  # there are no more


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["lr=0.1..0.01"], "the first number of a range is the smaller one"),
        (["lr=0.1..many"], r"a range is LOW..HIGH, two numbers"),
        (["lr=0.1..inf"], "are finite"),
        (["lr=0.01..0.1,0.5"], "is a range or values, not both"),
        (["lr=0.01..0.1"], "lr: a range has no end of values; --random N or --optuna N"),
    ],
)
def test_ranges_that_cannot_be_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(CoterieError, match=said):
        candidates("fedavg", read_space("grid", texts), None, {}, [])


def test_a_path_with_dots_is_no_range() -> None:
    assert read_space("grid", ["model=../mine.py:Net"]) == {"model": ["../mine.py:Net"]}


class Guided(Sweeping):
    """A search whose settings are proposed, all of them learning rates of one experiment."""

    def __init__(self, experiment: Experiment, texts: Sequence[str] = ("lr=0.0001..0.5",)) -> None:
        super().__init__()
        self.experiment, self.space = experiment, read_space("grid", texts)

    def propose(self, out: Path, amount: int, seed: int = 0, **options: Any) -> Sweep:
        self.rounds = []

        def made(settings: Mapping[str, str]) -> tuple[str, Experiment]:
            return settings["lr"], replace(self.experiment, lr=float(settings["lr"]))

        return guided_sweep(self.space, made, amount, [seed], out, self._watch, **{"jobs": 1, **options})


@pytest.fixture(scope="module")
def small() -> Experiment:
    data = toy_data()
    return tiny("fedavg", data=data, partition=with_validation(toy_partition(data, 4)), rounds=4, threads=1)


def test_proposed_settings_are_tried_and_hopeless_ones_given_up(tmp_path: Path, small: Experiment) -> None:
    pytest.importorskip("optuna")
    search = Guided(small)
    found = search.propose(tmp_path, 10)
    assert len(found.candidates) == 10
    assert found.best.rounds == 4
    finished = [one.score for one in found.candidates if one.rounds == 4]
    assert found.best.score == max(finished)
    assert 0 < len(finished) < 10
    assert len(search.rounds) == sum(one.rounds for one in found.candidates) < 40  # no round twice
    # The same again asks the same, runs nothing and chooses the same; fewer jobs or another order change nothing.
    assert search.propose(tmp_path, 10) == found
    assert not search.rounds
    more = search.propose(tmp_path, 12)
    assert {one.name for one in found.candidates} <= {one.name for one in more.candidates}
    assert search.propose(tmp_path / "other", 4, seed=1).candidates != found.candidates[:4]


def test_proposals_learn_from_what_came_before() -> None:
    pytest.importorskip("optuna")
    space = read_space("grid", ["lr=0.0001..1"])
    proposals, places = Proposals(space, seed=0), []
    for _ in range(60):
        handle, settings = proposals.ask()
        place = math.log10(float(settings["lr"]))
        places.append(abs(place + 2))  # the best is 0.01
        proposals.tell(handle, {1: -places[-1]}, given_up=False)
    assert sum(places[-20:]) / 20 < 0.5 * sum(places[:8]) / 8


def test_there_may_be_fewer_settings_than_wanted(tmp_path: Path, small: Experiment) -> None:
    pytest.importorskip("optuna")
    found = Guided(small, ["lr=0.01,0.1,0.3"]).propose(tmp_path, 8)
    assert sorted(one.name for one in found.candidates) == ["0.01", "0.1", "0.3"]


@pytest.mark.parametrize("full", [False, True])
def test_test_samples_have_no_say_in_proposals(tmp_path: Path, small: Experiment, full: bool) -> None:
    pytest.importorskip("optuna")
    first = Guided(small).propose(tmp_path / "ours", 10, full=full)
    other = Guided(scrambled({"it": small})["it"]).propose(tmp_path / "other", 10, full=full)
    assert first.candidates == other.candidates
    name = f"{first.best.name}-s0"
    tested = [RunDirectory(tmp_path / place / name).lines()[-1].received for place in ("ours", "other")]
    assert tested[0].values["accuracy"] != tested[1].values["accuracy"]


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.compare.sweep.find_spec", lambda name: None)
    with pytest.raises(CoterieError, match=r'pip install "coterie\[optuna\]"'):
        Proposals(read_space("grid", ["lr=0.1,0.2"]), seed=0)


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
        candidates("pfedcs", read_space("grid", texts), None, {}, [])


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all I have")
    with pytest.raises(CoterieError, match=r"is not empty \(it holds thesis.txt\)"):
        Sweeping()(tmp_path, rates())
