"""The `ray` engine on a cluster whose machines come and go: the same bits, whatever happens to them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from test_processes import experiment, same

from coterie.client.batch import Batch
from coterie.client.recipe import Phase, Recipe, plain_steps
from coterie.client.trainer import Trainer
from coterie.core.federation import Federation
from coterie.data import from_arrays
from coterie.engines import RayCluster, Serial, Work
from coterie.engines.ray.pool import ActorPool
from coterie.methods import FedPer
from coterie.partition import Iid
from coterie.rounds.round import Rounds
from coterie.runs.experiment import Experiment
from support import PATIENCE, eventually

if find_spec("ray") is None:
    pytest.skip("the extra coterie[ray] is not installed", allow_module_level=True)
from clusters import NodesHere, nodes_here

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def cluster() -> Iterator[NodesHere]:
    with nodes_here() as started:
        yield started


@dataclass(frozen=True)
class Signs(FedPer):
    """FedPer that notes in a folder which node trained in which round; there, one may be held until it is killed."""

    folder: str = ""

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(rule=self.steps),)

    def steps(self, trainer: Trainer, batches: Iterator[Batch]) -> None:
        plain_steps(trainer, iter([next(batches)]))
        if self.folder:
            self.sign(trainer.worker.federation.round)
        plain_steps(trainer, batches)

    def sign(self, round: int) -> None:
        import ray

        here = ray.get_runtime_context().get_node_id()
        (Path(self.folder) / f"{round}-{here}").touch()
        time.sleep(0.1)
        while (Path(self.folder) / f"hold-{here}").exists():
            time.sleep(0.1)


def actors_of(engine: RayCluster) -> int:
    assert engine.pool is not None
    return len(engine.pool.handles)


@pytest.mark.slow
def test_a_node_may_be_killed_in_mid_round_and_another_come_in_mid_run(
    cluster: NodesHere, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add()
    victim = cluster.add()
    prepared = experiment(Signs(folder=str(tmp_path)), join=1.0).prepare()
    engine = RayCluster(prepared.problem(), prepared.method, prepared.experiment.seed, address=cluster.address)
    federation = prepared.federation()
    ours = Rounds(prepared.method, federation, engine)

    def in_the_middle() -> None:
        if eventually(lambda: (tmp_path / f"2-{victim.node_id}").exists()):
            cluster.kill(victim)
        (tmp_path / f"hold-{victim.node_id}").unlink()

    try:
        while not (tmp_path / f"1-{victim.node_id}").exists():  # until both of its machines have an actor
            federation.round = 0
            engine.train(federation, Work(prepared.method.recipe(federation)), federation.everyone)
            federation.round = 1
            engine.train(federation, Work(prepared.method.recipe(federation)), federation.everyone)
        federation.round = 0
        assert actors_of(engine) == 2
        ours.run_round()
        (tmp_path / f"hold-{victim.node_id}").touch()
        killer = threading.Thread(target=in_the_middle)
        killer.start()
        with caplog.at_level("WARNING", logger="coterie"):
            ours.run_round()
        killer.join()
        assert re.search(r"round 2, client \d: Ray actor \d \(.*\) was lost", caplog.text)
        assert eventually(lambda: not _alive(engine, victim.node_id))
        ours.run_round()
        assert actors_of(engine) == 1
        newcomer = cluster.add()
        end = time.monotonic() + PATIENCE
        while not (tmp_path / f"{federation.round}-{newcomer.node_id}").exists():
            assert time.monotonic() < end
            ours.run_round()
            assert actors_of(engine) == 2
    finally:
        engine.close()
    plain = experiment(Signs(), join=1.0).prepare()
    expected = plain.federation()
    theirs = Rounds(plain.method, expected, Serial(plain.problem(), plain.method, plain.experiment.seed))
    for _ in range(federation.round):
        theirs.run_round()
    assert same(dict(federation.state()), dict(expected.state()))


def _alive(engine: RayCluster, node: str) -> bool:
    assert engine.pool is not None
    return any(one["NodeID"] == node and one["Alive"] for one in engine.pool.session.ray.nodes())


@pytest.mark.slow
def test_data_are_placed_once_a_node(cluster: NodesHere) -> None:
    """Two actors on a node beside the head read the same copy: its store holds the data once."""
    cluster.add(cpus=0)
    cluster.add(cpus=2)
    many = torch.randn(20_000, 100)
    data = from_arrays(many, torch.arange(20_000) % 2, name="much")
    prepared = Experiment("fedavg", data, Iid(clients=4), rounds=1, threads=1).prepare()
    engine = RayCluster(prepared.problem(), prepared.method, 0, address=cluster.address)
    federation = prepared.federation()
    try:
        engine.test(federation, federation.everyone)
        assert engine.pool is not None
        assert eventually(lambda: _arrived(engine.pool) == 2 or engine.test(federation, federation.everyone) == [])
        used = _store_use(engine)
    finally:
        engine.close()
    assert len(used) == 2
    for size in used:
        assert many.nbytes <= size < 1.5 * many.nbytes


def _arrived(pool: ActorPool | None) -> int:
    assert pool is not None
    return sum(member.stage == "idle" for member in pool.members)


def _store_use(engine: RayCluster) -> list[int]:
    """The bytes in each node's object store."""
    from ray._private.internal_api import node_stats

    assert engine.pool is not None
    nodes: list[Any] = engine.pool.session.ray.nodes()
    stats = [node_stats(one["NodeManagerAddress"], one["NodeManagerPort"], False) for one in nodes if one["Alive"]]
    return [int(one.store_stats.object_store_bytes_used) for one in stats]
