"""Runs on a Ray cluster: the files and numbers of runs here, whatever happens to the cluster's machines."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
from test_cluster_node import same_rows
from test_one_run import Watch

from coterie.compare import cluster as cluster_module
from coterie.compare.cluster import run_on_cluster
from coterie.compare.joint_runs import require_jobs
from coterie.compare.table import compare
from coterie.compare.workers import PlannedRun
from coterie.engines.ray.session import RaySession
from coterie.errors import CoterieError, PassingError
from coterie.files import locked
from coterie.partition import Iid
from coterie.runs.experiment import Experiment
from coterie.runs.store import ROWS
from support import PATIENCE, eventually, reserved_port

if find_spec("ray") is None:
    pytest.skip("the extra coterie[ray] is not installed", allow_module_level=True)
from clusters import NodesHere, nodes_here

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodesHere]:
    """A head, which runs one at a time like the node beside it."""
    with nodes_here() as started:
        started.add()
        yield started


def small(method: str = "fedavg", **options: Any) -> Experiment:
    settings = {"rounds": 3, "epochs": 1, "threads": 1, "engine": "serial", "checkpoint_every": 1, **options}
    return Experiment(method=method, **{"partition": Iid(clients=4), **settings})


class KillsInTheMiddle(Watch):
    """Kills a node as soon as two runs are under way."""

    def __init__(self, cluster: NodesHere, victim: Any) -> None:
        super().__init__()
        self._cluster, self._victim = cluster, victim

    def round_done(self, run: PlannedRun, round: int, received: float | None) -> None:
        super().round_done(run, round, received)
        under_way = {name for name, done in self.rounds if done >= 2} - set(self.summaries)
        if self._victim is not None and len(under_way) == 2:
            self._cluster.kill(self._victim)
            self._victim = None

    @property
    def killed(self) -> bool:
        return self._victim is None


@pytest.mark.slow
def test_a_lost_node_costs_no_run_and_none_is_run_twice(
    cluster: NodesHere, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = {name: small(name, rounds=40) for name in ("fedavg", "fedper", "local")}
    watch = KillsInTheMiddle(cluster, cluster.add())
    runs = [PlannedRun(name, experiment, tmp_path / "far" / name) for name, experiment in many.items()]
    with caplog.at_level("WARNING", logger="coterie"):
        run_on_cluster(runs, cluster.address, 0, watch)
    assert watch.killed
    assert not watch.failures
    assert watch.summaries.keys() == many.keys()
    (line,) = [record.getMessage() for record in caplog.records if "carried on elsewhere" in record.getMessage()]
    lost = line.partition(",")[0]
    told = [round for name, round in watch.rounds if name == lost]
    assert sorted(set(told)) == list(range(1, 41))
    assert told.count(1) == 1  # it was carried on, not begun again
    for name, experiment in many.items():
        here = experiment.run(tmp_path / "here" / name).summary
        assert watch.summaries[name]["accuracy"] == here["accuracy"]
        assert same_rows(tmp_path / "far" / name, tmp_path / "here" / name)
    after = Watch()
    run_on_cluster(runs, cluster.address, 0, after)
    assert after.rounds == []
    assert after.summaries == watch.summaries


def test_a_comparison_on_a_cluster_is_the_one_made_here(cluster: NodesHere, tmp_path: Path) -> None:
    pair = {name: small(name, partition=Iid(clients=3)) for name in ("fedavg", "local")}
    here = compare(pair, [0, 1], tmp_path / "here", jobs=1)
    far = compare(pair, [0, 1], tmp_path / "far", cluster=cluster.address)
    for name in pair:
        assert far.values(name, "received_mean_last") == here.values(name, "received_mean_last")
    kept = {path.name for path in (tmp_path / "far").iterdir()}
    assert kept == {path.name for path in (tmp_path / "here").iterdir()}


def test_failures_and_runs_of_others(cluster: NodesHere, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A directory of something else fails alone; a run at which another process is waits until that has ended."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all I have")
    watch = Watch()
    runs = [
        PlannedRun("mine", small(), tmp_path / "mine"),
        PlannedRun("busy", small(), tmp_path / "busy"),
        PlannedRun("none", small(checkpoint_every=None)),
    ]
    ready = threading.Event()

    def hold() -> None:
        with locked(tmp_path / ".busy.lock"):
            ready.set()
            eventually(lambda: "none" in watch.summaries)

    other = threading.Thread(target=hold)
    other.start()
    ready.wait()
    run_on_cluster(runs, cluster.address, 1, watch)
    other.join()
    assert "is not empty and holds no run" in watch.failures["mine"]
    assert watch.summaries.keys() == {"busy", "none"}
    assert "another process is at this run" in caplog.text


def test_what_no_machine_has_is_not_waited_for(cluster: NodesHere) -> None:
    with pytest.raises(CoterieError, match="threads = 3: the cluster's machines have at most 1 CPUs"):
        run_on_cluster([PlannedRun("wide", small(threads=3))], cluster.address, 0, Watch())


@pytest.mark.slow
def test_the_commands_use_a_cluster_and_say_only_what_is_theirs(cluster: NodesHere, tmp_path: Path) -> None:
    few = ["--clients", "3", "--rounds", "2", "--epochs", "1", "--cluster", cluster.address, "--json"]
    for command in (
        ["compare", "fedavg", "local", "--seeds", "0", "--out", str(tmp_path / "table")],
        ["sweep", "fedavg", "--grid", "lr=0.01,0.1", "--out", str(tmp_path / "search")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "coterie", *command, *few],
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,  # Ray starts processes for each, and they take minutes where others have the cores
            env=dict(os.environ),
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("{")
    assert (tmp_path / "table" / "local-s0" / ROWS).is_file()
    assert (tmp_path / "search" / "best.toml").is_file()


def test_what_cannot_run_elsewhere_is_refused_before_anything_begins() -> None:
    with pytest.raises(
        CoterieError, match=r"cluster = 'auto': 'x' cannot run elsewhere, engine 'processes' .*'serial'"
    ):
        require_jobs({"x": small(engine="processes")}, 0, "auto")
    with pytest.raises(CoterieError, match="cluster = 'ray://a:1': must be HOST:PORT or 'auto'"):
        run_on_cluster([], "ray://a:1", 0, Watch())


def test_an_address_that_does_not_answer_is_one_line() -> None:
    with reserved_port() as free:  # noqa: SIM117
        with pytest.raises(CoterieError, match=rf"cluster = '127.0.0.1:{free}': no Ray cluster .*'ray start --head'"):
            run_on_cluster([], f"127.0.0.1:{free}", 0, Watch())


class Starved:
    """A cluster on which others have all CPUs."""

    where = "cluster = 'far'"
    lost = False

    def require_head(self) -> None:
        if self.lost:
            raise PassingError("the head is lost")

    def free(self, resource: str) -> float:
        return 0.0

    def total(self, resource: str) -> float:
        return 8.0


def test_who_finds_no_room_says_so_rarely_and_gives_up_as_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr(cluster_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setenv("COTERIE_CLUSTER_WAIT", "300")
    session = Starved()
    patience = cluster_module._Patience(cast(RaySession, session))
    told: list[float] = []
    with caplog.at_level("WARNING", logger="coterie"):
        for waited in range(0, 300, 5):
            clock[0] = 100.0 + waited
            patience.check(False, cpus=2)
            told += [waited] * (len(caplog.records) - len(told))
        assert told == [10, 50, 250]
        assert caplog.messages[0] == (
            "cluster = 'far': no run has begun for 10 s (0 of the cluster's 8 CPUs are free, a run needs 2); waiting, "
            "for 300 s at most (COTERIE_CLUSTER_WAIT says how long)"
        )
        clock[0] = 400.0
        with pytest.raises(PassingError, match=r"no run has begun for 300 s .*; COTERIE_CLUSTER_WAIT=SECONDS waits l"):
            patience.check(False, cpus=2)
        patience.check(True, cpus=2)  # one has begun: all is as at the beginning
        clock[0] = 405.0
        patience.check(False, cpus=2)
        assert len(caplog.records) == 3
    session.lost = True
    with pytest.raises(PassingError, match="the head is lost"):
        patience.check(True, cpus=2)
    monkeypatch.setenv("COTERIE_CLUSTER_WAIT", "soon")
    with pytest.raises(CoterieError, match="COTERIE_CLUSTER_WAIT = 'soon': must be a whole number of seconds"):
        cluster_module._Patience(cast(RaySession, session))


@pytest.mark.slow
def test_a_lost_head_ends_a_comparison_in_one_line_and_the_rest_is_done_here(tmp_path: Path) -> None:
    few = [
        "fedavg",
        "--clients",
        "3",
        "--rounds",
        "400",
        "--seeds",
        "0",
        "--out",
        str(tmp_path),
        "--checkpoint-every=1",
    ]
    words = [sys.executable, "-m", "coterie", "compare", *few]
    with nodes_here() as started:
        head, address = started.add(), started.address
        command = subprocess.Popen(
            [*words, "--cluster", address], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        try:
            eventually(lambda: (tmp_path / "fedavg-s0" / "rounds.jsonl").is_file())
            started.kill(head)
            _, said = command.communicate(timeout=3 * PATIENCE)
        finally:
            command.kill()
    assert command.returncode == 1
    assert said.splitlines()[-1].startswith(f"coterie: error: cluster = '{address}': the head of the Ray clus")
    assert "also without a cluster, on this machine" in said
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=3 * PATIENCE, check=True)
    assert done.stdout.startswith("{")
