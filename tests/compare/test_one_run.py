"""Runs that are kept together: begun, carried on or read; never run twice, and alone at their directory."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
from tests.listening import EachRound, power_cut

from coterie.compare.one_run import perform
from coterie.compare.table import compare
from coterie.compare.workers import PlannedRun, run_in_parallel, run_one_by_one
from coterie.errors import CoterieError
from coterie.files import LockedError, locked
from coterie.partition import Iid
from coterie.runs.experiment import Experiment
from coterie.runs.store import CONFIG, SUMMARY

pytestmark = pytest.mark.thorough


def small(method: str = "fedavg", **options: object) -> Experiment:
    settings = {"rounds": 3, "epochs": 1, "threads": 1, "partition": Iid(clients=4), "checkpoint_every": 1, **options}
    return Experiment(method=method, **settings)


class Watch:
    """Takes note of what a watcher is told."""

    def __init__(self) -> None:
        self.rounds: list[tuple[str, int]] = []
        self.summaries: dict[str, dict[str, object]] = {}
        self.failures: dict[str, str] = {}

    def begun(self, run: PlannedRun) -> None:
        pass

    def round_done(self, run: PlannedRun, round: int, received: float | None) -> None:
        self.rounds.append((run.name, round))

    def ended(self, run: PlannedRun, summary: dict[str, object]) -> None:
        self.summaries[run.name] = summary

    def failed(self, run: PlannedRun, error: Exception) -> None:
        self.failures[run.name] = str(error)


def scores(summary: dict[str, object]) -> object:
    return summary["accuracy"], summary["partition"]


def test_a_finished_run_is_read_and_a_killed_one_carried_on(tmp_path: Path) -> None:
    rounds: list[int] = []
    listener = EachRound(lambda report: rounds.append(report.round))
    whole = perform(small(), tmp_path / "whole", [listener])
    assert rounds == [1, 2, 3]
    assert perform(small(), tmp_path / "whole", [listener]) == whole
    assert rounds == [1, 2, 3]
    with power_cut(tmp_path / "cut", round=2) as listeners:
        perform(small(), tmp_path / "cut", listeners)
    assert scores(perform(small(), tmp_path / "cut", [listener])) == scores(whole)
    assert rounds == [1, 2, 3, 3]


def test_a_directory_of_another_run_is_refused_but_how_a_run_is_done_may_differ(tmp_path: Path) -> None:
    summary = perform(small(), tmp_path / "run")
    assert perform(small(threads=2, engine="stacked", record_every=2), tmp_path / "run") == summary
    with pytest.raises(CoterieError, match=r"holds a run with other settings \(lr, seed\); name another"):
        perform(small(lr=0.3, seed=2), tmp_path / "run")


def test_a_partition_file_is_the_same_wherever_it_lies(tmp_path: Path) -> None:
    """What stands in it decides: another checkout has it elsewhere, and a file may be written anew in its place."""
    here, there, run = tmp_path / "here.npz", tmp_path / "other" / "there.npz", tmp_path / "run"
    there.parent.mkdir()
    part = small().prepare().partition
    part.save(here)
    part.save(there)
    first = perform(small(partition=here), run)
    assert perform(small(partition=there), run) == first
    small(seed=1).prepare().partition.save(here)
    with pytest.raises(CoterieError, match=r"other settings \(partition\)"):
        perform(small(partition=here), run)
    here.unlink()
    assert perform(small(partition=here), run) == first, "the run has it"


def test_a_run_that_was_killed_before_it_began_begins_anew(tmp_path: Path) -> None:
    whole = perform(small(), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for name in (CONFIG, SUMMARY, "rows.safetensors", "quality.safetensors", "checkpoint.safetensors", "log.txt"):
        (tmp_path / "cut" / name).unlink()
    assert scores(perform(small(), tmp_path / "cut")) == scores(whole)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all I have")
    with pytest.raises(CoterieError, match="is not empty and holds no run"):
        perform(small(), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all I have"


def test_one_process_at_a_time_is_at_a_run(tmp_path: Path) -> None:
    found: list[object] = []
    with locked(tmp_path / ".run.lock"):
        with pytest.raises(LockedError), locked(tmp_path / ".run.lock"):
            pass
        waiting = threading.Thread(target=lambda: found.append(perform(small(), tmp_path / "run")))
        waiting.start()
        time.sleep(0.3)
        assert not (tmp_path / "run").exists()
    waiting.join()
    assert len(found) == 1


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.processes
def test_others_go_on_when_a_run_fails_and_the_watcher_lets_them(tmp_path: Path, jobs: int) -> None:
    runs = [PlannedRun(name, small(name), tmp_path / name) for name in ("fedavg", "local", "fedper")]
    (tmp_path / "fedavg").mkdir()
    (tmp_path / "fedavg" / "thesis.txt").write_text("all I have")
    watch = Watch()
    if jobs == 1:
        run_one_by_one(runs, watch)
    else:
        run_in_parallel(runs, jobs, watch)
    assert set(watch.summaries) == {"local", "fedper"}
    assert "is not empty and holds no run" in watch.failures["fedavg"]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.processes
def test_an_interrupted_comparison_is_carried_on(tmp_path: Path, jobs: int) -> None:
    methods = {name: small(name) for name in ("fedavg", "local")}
    whole = compare(methods, [0, 1], tmp_path / "whole", jobs=1)
    perform(small("fedavg", seed=0), tmp_path / "cut" / "fedavg-s0")
    with power_cut(tmp_path / "cut" / "local-s0", round=1) as listeners:
        perform(small("local", seed=0), tmp_path / "cut" / "local-s0", listeners)
    watch = Watch()
    carried_on = compare(methods, [0, 1], tmp_path / "cut", watch, jobs)
    done = sorted(watch.rounds)
    assert done == sorted(
        [("local", 2), ("local", 3), *(("local", n) for n in (1, 2, 3)), *(("fedavg", n) for n in (1, 2, 3))]
    )
    for name in methods:
        for key in ("received_mean_last", "trained_mean_best"):
            assert carried_on.values(name, key) == whole.values(name, key)
    again = Watch()
    assert compare(methods, [0, 1], tmp_path / "cut", again, jobs=1) == carried_on
    assert not again.rounds
    (tmp_path / "other" / "notes").mkdir(parents=True)
    with pytest.raises(CoterieError, match="is not empty"):
        compare(methods, [0, 1], tmp_path / "other")
