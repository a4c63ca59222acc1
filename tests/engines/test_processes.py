"""The `processes` engine: the serial engine's results bit for bit, whatever happens to its workers."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.client.batch import Batch
from coterie.client.recipe import Phase, Recipe, plain_steps
from coterie.client.trainer import Trainer
from coterie.core.federation import Federation
from coterie.engines import Engine, Processes, Serial, Work, remote
from coterie.engines.processes import ProcessPool
from coterie.engines.remote import Pace, TaskQueue, position_names, raised_here
from coterie.engines.worker import Call, Done, Failed
from coterie.errors import CoterieError
from coterie.methods import METHODS, FedAvg, FedPer, Method
from coterie.partition import Partition
from coterie.rounds.listeners import RoundReport
from coterie.runs.experiment import Experiment
from coterie.setup.prepared import Prepared
from coterie.testing.toys import seeded, toy_data, toy_partition
from listening import EachRound
from support import MODELS, PATIENCE, alive, eventually, tiny

# Workers have one thread each: bits are promised to whoever has one as well.
pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("one_thread")]


@dataclass(frozen=True)
class Incident(FedPer):
    """FedPer with an incident at one client: a bug in round 2, or as many deaths as the file has bytes."""

    what: str = "none"
    client: int = 2
    left: str = ""

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(rule=self.steps),)

    def steps(self, trainer: Trainer, batches: Iterator[Batch]) -> None:
        plain_steps(trainer, iter([next(batches)]))
        if trainer.worker.client == self.client and self.what != "none":
            self.strike(trainer.worker.federation.round)
        plain_steps(trainer, batches)

    def strike(self, round: int) -> None:
        if self.what == "bug":
            if round == 1:
                return
            raise ZeroDivisionError("a bug")
        content = Path(self.left).read_bytes()
        if content:
            Path(self.left).write_bytes(content[1:])
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    """Two workers for all tests of this file: starting some takes seconds."""
    both = ProcessPool(2)
    yield both
    both.stop()


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client is a task of its own, however fast this machine happens to be."""
    for shortest in ("TASK_SECONDS", "SHORTEST"):
        monkeypatch.setattr(remote, shortest, 0.0)


def experiment(method: Method | str, model: str = "norm", **options: Any) -> Experiment:
    data = toy_data(180)
    whole = toy_partition(data, 5)
    cuts = [len(train) // 5 for train in whole.train]
    partition = Partition(
        train=tuple(train[cut:] for train, cut in zip(whole.train, cuts, strict=True)),
        validation=tuple(train[:cut] for train, cut in zip(whole.train, cuts, strict=True)),
        test=whole.test,
    )
    return tiny(method, seeded(MODELS[model]), data=data, partition=partition, **{"join": 0.6, **options})


def rounds_with(engine: Engine, prepared: Prepared) -> tuple[dict[str, Tensor], list[Any]]:
    """The state after all rounds, and what the rounds reported (all but the times)."""
    federation = prepared.federation()
    rounds = prepared.rounds(engine, federation)
    reports = [rounds.judge.evaluate_received(), *(rounds.run_round() for _ in range(prepared.experiment.rounds))]
    last = rounds.judge.scores_received(keep_scores=True)
    told = [[repr(plain(report)) for report in reports], [str(score.kept) for score in last]]
    return {name: tensor.clone() for name, tensor in federation.state()}, told


def plain(report: Any) -> Any:
    return replace(report, seconds={}) if isinstance(report, RoundReport) else report


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return list(ours) == list(theirs) and all(
        torch.equal(ours[name].nan_to_num(7.5), theirs[name].nan_to_num(7.5)) for name in ours
    )


def serially(prepared: Prepared) -> tuple[dict[str, Tensor], list[Any]]:
    return rounds_with(Serial(prepared.problem(), prepared.method, prepared.experiment.seed), prepared)


def by_processes(prepared: Prepared, pool: ProcessPool) -> tuple[dict[str, Tensor], list[Any]]:
    return rounds_with(Processes(prepared.problem(), prepared.method, prepared.experiment.seed, pool=pool), prepared)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_ends_bit_identical_to_serial(name: str, pool: ProcessPool) -> None:
    prepared = experiment(name).prepare()
    ours, told = by_processes(prepared, pool)
    theirs, told_serially = serially(prepared)
    assert same(ours, theirs)
    assert told == told_serially
    assert len(pool.pids) == 2


def test_dropout_momentum_and_clipping_are_bit_identical_too(pool: ProcessPool) -> None:
    prepared = experiment("fedavg", "dropout", momentum=0.9, clip=1.0, join=1.0, epochs=2).prepare()
    ours, theirs = by_processes(prepared, pool), serially(prepared)
    assert same(ours[0], theirs[0])
    assert ours[1] == theirs[1]


def test_a_model_shared_by_all_is_tested_in_the_same_batches(pool: ProcessPool) -> None:
    data = toy_data(3000)
    prepared = tiny("fedavg", data=data, partition=toy_partition(data, 7)).prepare()
    federation = prepared.federation()
    assert federation.is_uniform
    engine = Processes(prepared.problem(), prepared.method, 0, pool=pool)
    for clients in (federation.everyone, torch.tensor([5, 1])):
        ours = engine.test(federation, clients, keep_scores=True)
        theirs = Serial(prepared.problem(), prepared.method, 0).test(federation, clients, keep_scores=True)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.losses, other.losses)
            assert torch.equal(one.quantities["correct"], other.quantities["correct"])
            assert one.kept is not None
            assert other.kept is not None
            assert torch.equal(one.kept, other.kept)


def test_one_engine_serves_several_federations_and_sees_what_changes(pool: ProcessPool) -> None:
    prepared = experiment("fedper", rounds=5).prepare()
    ours = Processes(prepared.problem(), prepared.method, 0, pool=pool)
    serial = Serial(prepared.problem(), prepared.method, 0)
    first, second = prepared.federation(), prepared.federation()
    second["model"].own.mul_(1.5)
    work = Work(prepared.method.recipe(first))
    for federation in (first, second, first):
        for _ in range(2):
            federation.round += 1
            rows = ours.train(federation, work, federation.everyone).rows["model"]
            assert torch.equal(rows, serial.train(federation, work, federation.everyone).rows["model"])
            federation["model"].own.add_(0.1)
    # A slot whose tensor was replaced is found again.
    first["model"].own = first["model"].own * 2
    scores = ours.test(first, first.everyone), serial.test(first, first.everyone)
    assert all(torch.equal(a.losses, b.losses) for a, b in zip(*scores, strict=True))


@pytest.mark.parametrize("name", ["fedcac", "pfedcs"])
def test_newcomers_train_and_measure_alike(name: str, pool: ProcessPool) -> None:
    prepared = experiment(name, held_out=2).prepare()
    guests = list(prepared.partition.held_out)
    ours = Processes(prepared.problem(guests), prepared.method, 0, pool=pool)
    serial = Serial(prepared.problem(guests), prepared.method, 0)
    federation = prepared.federation(guests)
    work = Work(prepared.method.recipe(federation), test=True)
    one, other = (engine.train(federation, work, federation.everyone) for engine in (ours, serial))
    assert list(one.measured) == list(other.measured) == list(work.measured)
    assert all(torch.equal(one.measured[measured], other.measured[measured]) for measured in work.measured)
    assert torch.equal(one.rows["model"], other.rows["model"])
    assert all(torch.equal(a.losses, b.losses) for a, b in zip(one.scores, other.scores, strict=True))
    assert one.test_seconds > 0


def test_rows_belong_to_the_caller(pool: ProcessPool) -> None:
    prepared = experiment("fedper").prepare()
    engine, federation = Processes(prepared.problem(), prepared.method, 0, pool=pool), prepared.federation()
    work = Work(prepared.method.recipe(federation))
    kept = engine.train(federation, work, federation.everyone).rows["model"][1:2]
    before = kept.clone()
    for _ in range(3):
        federation.round += 1
        engine.train(federation, work, federation.everyone)
    assert torch.equal(kept, before)
    assert len(engine._buffers) == 2  # the one that is kept, and one that was used three times


def test_work_that_is_not_the_methods_is_refused(pool: ProcessPool) -> None:
    prepared = experiment("fedper").prepare()
    federation = prepared.federation()
    engine = Processes(prepared.problem(), prepared.method, 0, pool=pool)
    with pytest.raises(CoterieError, match="FedPer"):
        engine.train(federation, Work((Phase(train="classifier"),)), federation.everyone)


def test_a_killed_worker_is_replaced_and_its_client_trained_again(
    pool: ProcessPool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(monkeypatch)
    left = tmp_path / "left"
    left.write_bytes(b"x")
    before = pool.pids
    struck = experiment(Incident("death", left=str(left)), join=1.0).prepare()
    with caplog.at_level("WARNING", logger="coterie"):
        ours, told = by_processes(struck, pool)
    assert left.read_bytes() == b""
    theirs, told_serially = serially(experiment(FedPer(), join=1.0).prepare())
    assert same(ours, theirs)
    assert told == told_serially
    assert "round 1, client 2: the worker process died (signal 9)" in caplog.text
    assert len(pool.pids) == 2
    assert len(set(pool.pids) & set(before)) == 1


def test_an_idle_worker_that_dies_is_replaced(pool: ProcessPool) -> None:
    prepared = experiment("fedcac", join=1.0).prepare()
    victim = pool.pids[0]  # the older one: its successor has to wait for the job, the buffers and the values
    os.kill(victim, signal.SIGKILL)
    assert eventually(lambda: not alive(victim))
    ours, theirs = by_processes(prepared, pool), serially(prepared)
    assert same(ours[0], theirs[0])
    assert victim not in pool.pids
    assert len(pool.pids) == 2


def test_mistakes_of_the_users_stay_such() -> None:
    book = TaskQueue([1], lambda task: f"client {task[0]}", Pace(), workers=1)
    error = raised_here(Failed(0, "lr is wrong", "", expected=True), book)
    assert isinstance(error, CoterieError)
    assert str(error) == "client 0: lr is wrong"


def test_a_client_that_kills_its_workers_is_given_up(
    pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "DEATHS", 1)  # each further death would cost the start of a worker
    alone(monkeypatch)
    left = tmp_path / "left"
    left.write_bytes(b"xxx")
    pids = pool.pids
    with pytest.raises(CoterieError, match="round 1, client 2: 1 worker processes died at it"):
        by_processes(experiment(Incident("death", left=str(left)), join=1.0).prepare(), pool)
    assert pool.pids == []
    assert not any(map(alive, pids))


def test_a_queue_gives_up_after_three_deaths_and_deals_largest_first() -> None:
    pace = Pace()
    book = TaskQueue([10, 30, 20, 5, 5], lambda task: f"client {task[0]}", pace, workers=2)
    task = book.next_task()
    assert task == (1,)
    for _ in range(2):
        book.lost(task, "signal 9")
        assert book.next_task() == task
    with pytest.raises(CoterieError, match=r"client 1: 3 worker processes died"):
        book.lost(task, "signal 9")
    pace.observe(10, 0.01)  # small clients: several make a task, yet no more than a quarter of what is left
    book = TaskQueue([1] * 40, str, pace, workers=2)
    tasks = []
    while (task := book.next_task()) is not None:
        tasks.append(task)
        book.done(task, Done(1e-3 * len(task), 0.0, b""))
    assert [len(task) for task in tasks[:3]] == [10, 7, 5]
    assert len(tasks[-1]) == 1
    assert sorted(position for task in tasks for position in task) == list(range(40))
    assert book.finished


def test_clients_lost_together_are_named_together_and_dealt_apart() -> None:
    call = Call("train", 3, (4, 7, 2))
    pace = Pace()
    pace.observe(1000, 0.01)
    book = TaskQueue([10, 10, 1000], position_names(call), pace, workers=1)
    assert book.next_task() == (2,)
    together = book.next_task()
    assert together is not None
    assert sorted(together) == [0, 1]
    assert book.named(together) == f"round 3, clients {', '.join(str(call.clients[one]) for one in together)}"
    assert book.named((2,)) == "round 3, client 2"
    book.lost(together, "signal 9")
    assert sorted([book.next_task(), book.next_task()]) == [(0,), (1,)]
    batches = position_names(Call("batches", 3, ()))
    assert (batches((1,)), batches((0, 1))) == ("round 3, test batch 1", "round 3, test batches 0, 1")


SCRIPT = """
import time
import torch
from coterie.data import Dataset
from coterie.engines.processes import ProcessPool
from coterie.runs.experiment import Experiment
from coterie.setup.settings import make_rule
from coterie.methods import FedAvg
from coterie.client.recipe import Phase

def sleep(trainer, batches):
    time.sleep(10**6)  # it is there when its test comes, however long the others take

class Sleepy(FedAvg):
    def recipe(self, federation):
        return (Phase(rule=sleep),)

deal = ProcessPool._deal

def tell(pool, queue):
    deal(pool, queue)
    print(*[member.process.pid for member in pool.members if member.stage == "busy"], flush=True)

def main():
    ProcessPool._deal = tell
    data = Dataset("noise", torch.randn(40, 3), torch.arange(40) % 2, classes=2)
    rule = make_rule("iid", {"clients": 2})
    Experiment(Sleepy(), data, rule, engine="processes", workers=1, rounds=1, evaluate_every=1).run()

"""


@pytest.fixture(scope="module", autouse=True)
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Scripts that run side by side, each with a process group of its own."""
    folder = tmp_path_factory.mktemp("scripts")

    def start(ending: str) -> subprocess.Popen[str]:
        file = folder / f"script_{len(ending)}.py"
        file.write_text(SCRIPT + ending)
        return subprocess.Popen(
            [sys.executable, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    guarded = "if __name__ == '__main__':\n    main()\n"
    started = {"unguarded": start("main()\n"), "interrupted": start(guarded), "killed": start(guarded)}
    yield started
    for script in started.values():
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)
        script.communicate()


def test_an_unguarded_script_is_told_what_to_do(scripts: dict[str, subprocess.Popen[str]]) -> None:
    script = scripts["unguarded"]
    _, errors = script.communicate(timeout=PATIENCE)
    assert script.returncode == 1
    assert "WorkersFailError: engine = 'processes': workers import the script; put what the script does under" in errors
    assert errors.count("Traceback") == 1


def test_classes_that_workers_cannot_import_are_refused_with_a_way_out() -> None:
    class Mine(FedAvg):
        pass

    prepared = experiment(Mine()).prepare()
    federation = prepared.federation()
    engine = Processes(prepared.problem(), prepared.method, 0, workers=1)
    way_out = "into a module of its own (a .py file) and import it, or use engine='serial'"
    with pytest.raises(CoterieError, match=re.escape(way_out)):
        engine.test(federation, federation.everyone)
    assert engine.pool.pids == []
    # As in a notebook: the main process finds the class in its main module, the worker does not in its own.
    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    main: Any = sys.modules["__main__"]
    main.Mine = Mine
    try:
        with pytest.raises(CoterieError, match=f"Mine.*{re.escape(way_out)}"):
            engine.test(federation, federation.everyone)
    finally:
        del main.Mine
    assert engine.pool.pids == []


@pytest.mark.parametrize(("name", "number"), [("interrupted", signal.SIGINT), ("killed", signal.SIGKILL)])
def test_workers_end_with_the_main_process(
    name: str, number: signal.Signals, scripts: dict[str, subprocess.Popen[str]]
) -> None:
    script = scripts[name]
    assert script.stdout is not None
    busy: list[str] = []
    for _ in range(2):  # the first task is a test, the second training
        while not (busy := script.stdout.readline().split()):
            assert script.poll() is None
    workers = [int(pid) for pid in busy]
    assert len(workers) == 1
    assert all(map(alive, workers))
    if number == signal.SIGINT:
        os.killpg(script.pid, signal.SIGINT)  # as Ctrl-C does: the workers are hit as well
    else:
        script.kill()
    _, errors = script.communicate(timeout=PATIENCE)
    assert eventually(lambda: not any(map(alive, workers)))
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0)


def test_runs_use_one_thread_and_end_with_a_workers_error_and_no_workers() -> None:
    threads: list[int] = []
    others = set(multiprocessing.active_children())
    run = experiment(Incident("bug"), join=1.0, rounds=3, engine="processes", workers=1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="round 2, client 2: ZeroDivisionError: a bug") as caught:
            run.run(listeners=[EachRound(lambda _: threads.append(torch.get_num_threads()))])
    finally:
        torch.set_num_threads(before)
    assert threads == [1]
    assert "in strike" in caught.value.__notes__[0]
    assert set(multiprocessing.active_children()) <= others
