"""The `ray` engine: the serial engine's results bit for bit, on two actors, whatever happens to them."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_processes import Incident, alone, experiment, rounds_with, same, serially
from torch import Tensor

from coterie.cli import main
from coterie.client.batch import Batch
from coterie.client.recipe import Phase, Recipe, plain_steps
from coterie.client.trainer import Trainer
from coterie.compare.workers import obstacle
from coterie.core.federation import Federation
from coterie.engines import RayCluster, Serial, Work, remote
from coterie.engines.ray import pool as pools
from coterie.engines.ray import session as sessions
from coterie.engines.ray.actor import Arrived, arrays_of, with_arrays
from coterie.engines.ray.engine import homes_by_size
from coterie.engines.ray.pool import ActorPool, Cargo
from coterie.engines.ray.session import LOCAL_ONLY, LOOPBACK, RaySession, import_ray
from coterie.engines.remote import Pace, TaskQueue
from coterie.engines.worker import Call, Positions
from coterie.errors import CoterieError, PassingError
from coterie.methods import FedAvg, FedPer
from coterie.partition import Iid
from coterie.rounds.listeners import StopAfter
from coterie.runs.experiment import Experiment
from coterie.runs.resume import resume
from coterie.runs.store import CONFIG
from coterie.setup.prepared import Prepared
from coterie.testing.toys import toy_data, toy_partition
from support import PATIENCE, eventually, every_method, reserved_port, tiny

if find_spec("ray") is None:
    pytest.skip("the extra coterie[ray] is not installed", allow_module_level=True)
ray = import_ray(local=True)
# Actors have one thread each: bits are promised to whoever has one as well.
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def session() -> Iterator[RaySession]:
    """A local Ray for all tests of this file. Its actors find what the tests import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        started = RaySession("", cpus=2, store=0)
    yield started
    started.close()
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def pool(session: RaySession) -> Iterator[ActorPool]:
    """Two actors: starting some takes seconds."""
    both = ActorPool(session, 2)
    yield both
    both.stop()


def engine_for(prepared: Prepared, pool: ActorPool) -> RayCluster:
    return RayCluster(prepared.problem(), prepared.method, prepared.experiment.seed, pool=pool)


def by_ray(prepared: Prepared, pool: ActorPool) -> tuple[dict[str, Tensor], list[Any]]:
    return rounds_with(engine_for(prepared, pool), prepared)


@pytest.mark.parametrize("name", every_method())
def test_every_method_ends_bit_identical_to_serial(name: str, pool: ActorPool) -> None:
    """Three of five clients a round; everybody is tested as received and as trained."""
    prepared = experiment(name, rounds=2).prepare()
    ours, told = by_ray(prepared, pool)
    theirs, told_serially = serially(prepared)
    assert same(ours, theirs)
    assert told == told_serially
    assert len(pool.handles) == 2


def test_actors_on_a_device_train_their_clients_together(session: RaySession, pool: ActorPool) -> None:
    """The first processor counts as a device of its own here: the path is that of a GPU."""
    pool.stop()  # Ray counts two processors; the actors come back when they are needed
    stacked = ActorPool(session, 2, device="cpu:0")
    try:
        for name in ("fedper", "fedcac", "fedfomo"):  # the last has a step rule that is not stacked
            prepared = experiment(name, rounds=2).prepare()
            ours, theirs = by_ray(prepared, stacked)[0], serially(prepared)[0]
            assert ours.keys() == theirs.keys()
            for key, tensor in theirs.items():
                torch.testing.assert_close(ours[key], tensor, atol=2e-5, rtol=1e-3)
    finally:
        stacked.stop()


def test_a_gpu_that_pytorch_cannot_use_is_named(session: RaySession, pool: ActorPool) -> None:
    if torch.cuda.is_available():
        pytest.skip("PyTorch can use a GPU here")
    pool.stop()
    without = ActorPool(session, 1, device="cuda")
    with pytest.raises(CoterieError, match="engine = 'ray': an actor's PyTorch cannot use its GPU"):
        by_ray(experiment("fedavg").prepare(), without)


def test_dropout_momentum_and_everybody_taking_part_are_bit_identical_too(pool: ActorPool) -> None:
    prepared = experiment("fedavg", "dropout", momentum=0.9, clip=1.0, join=1.0, epochs=2).prepare()
    ours, theirs = by_ray(prepared, pool), serially(prepared)
    assert same(ours[0], theirs[0])
    assert ours[1] == theirs[1]


def test_convolutions_in_both_memory_formats_are_bit_identical_too(pool: ActorPool) -> None:
    for memory in ("contiguous", "channels_last"):
        options: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 64, "memory": memory}
        prepared = Experiment("fedper", "digits", Iid(clients=3), "lenet5", **options).prepare()
        assert same(by_ray(prepared, pool)[0], serially(prepared)[0])
        problem = prepared.problem()
        assert with_arrays(problem, arrays_of(problem)).inputs.stride() == problem.inputs.stride()


def test_one_engine_serves_several_federations_and_sees_what_changes(pool: ActorPool) -> None:
    prepared = experiment("fedper", rounds=5).prepare()
    ours, serial = engine_for(prepared, pool), Serial(prepared.problem(), prepared.method, 0)
    first, second = prepared.federation(), prepared.federation()
    second["model"].own.mul_(1.5)
    work = Work(prepared.method.recipe(first))
    for federation in (first, second, first):
        for _ in range(2):
            federation.round += 1
            rows = ours.train(federation, work, federation.everyone).rows["model"]
            assert torch.equal(rows, serial.train(federation, work, federation.everyone).rows["model"])
            federation["model"].own.add_(0.1)
            federation["model"].shared.mul_(0.9)
    first["model"].own = first["model"].own * 2
    scores = ours.test(first, first.everyone), serial.test(first, first.everyone)
    assert all(torch.equal(a.losses, b.losses) for a, b in zip(*scores, strict=True))


def test_a_model_shared_by_all_is_tested_in_the_same_batches(pool: ActorPool) -> None:
    data = toy_data(1500)
    prepared = tiny("fedavg", data=data, partition=toy_partition(data, 7)).prepare()
    federation = prepared.federation()
    assert federation.is_uniform
    for clients in (federation.everyone, torch.tensor([5, 1])):
        ours = engine_for(prepared, pool).test(federation, clients, keep_scores=True)
        theirs = Serial(prepared.problem(), prepared.method, 0).test(federation, clients, keep_scores=True)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.losses, other.losses)
            assert one.kept is not None
            assert other.kept is not None
            assert torch.equal(one.kept, other.kept)


def test_rows_travel_again_only_after_something_was_written(session: RaySession) -> None:
    prepared = experiment("fedper").prepare()
    federation = prepared.federation()
    cargo = Cargo(session, prepared.problem(), prepared.method, 0, federation, data=None)
    held: dict[str, tuple[int, set[int]]] = {}
    call = replace(_call(federation), action="test")
    cargo.begin(call)
    assert list(cargo.blocks((0, 3), held)["model"].clients) == [0, 3]
    assert list(cargo.blocks((3, 4), held)["model"].clients) == [4]
    cargo.begin(call)
    assert cargo.blocks((0, 3, 4), held) == {}
    federation["model"].own[1] += 1
    cargo.begin(call)
    assert list(cargo.blocks((0,), held)["model"].clients) == [0]


def _call(federation: Federation) -> Call:
    return Call("train", 1, tuple(federation.everyone.tolist()))


class Nosy(FedPer):
    """Trains from another client's row without having declared it."""

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(rule=peek),)


def peek(trainer: Trainer, batches: Iterator[Batch]) -> None:
    worker = trainer.worker
    stranger = worker.federation["model"].own[(worker.client + 1) % worker.federation.clients]
    plain_steps(trainer, batches)
    worker.federation["model"].own_columns.put(worker.model("model").row, stranger)


def test_rows_that_were_not_sent_are_no_numbers(pool: ActorPool) -> None:
    prepared = experiment(Nosy(), join=1.0).prepare()
    federation = prepared.federation()
    federation.round = 1
    engine = engine_for(prepared, pool)
    trained = engine.train(federation, Work(prepared.method.recipe(federation)), torch.tensor([1]))
    assert not bool(trained.rows["model"].isfinite().all())


def test_an_actor_killed_in_mid_round_is_replaced_and_its_clients_trained_again(
    pool: ActorPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = tmp_path / "left"
    left.write_bytes(b"x")
    before = pool.handles
    struck = experiment(Incident("death", left=str(left)), join=1.0).prepare()
    with caplog.at_level("WARNING", logger="coterie"):
        ours, told = by_ray(struck, pool)
    assert left.read_bytes() == b""
    theirs, told_serially = serially(experiment(FedPer(), join=1.0).prepare())
    assert same(ours, theirs)
    assert told == told_serially
    # Ray says the second where it has not heard within a second why there is no answer.
    ending = r"\((ActorDiedError|ActorUnavailableError)\)"
    assert re.search(rf"round 1, client 2: Ray actor [01] \(.*, process \d+\) was lost {ending}", caplog.text)
    assert len(pool.handles) == 2
    assert sum(handle in before for handle in pool.handles) == 1


class Doomed:
    """Ray with actors that are lost when they are first asked for an answer.

    `begun` is how many of its tasks an actor had then begun: with 2, the first one's answer was on its way.
    """

    exceptions = SimpleNamespace(RayTaskError=ZeroDivisionError, RayError=ConnectionError)

    def __init__(self, begun: int) -> None:
        self.ray, self._begun, self._notes = self, begun, dict[str, int]()

    def remote(self, **_: Any) -> Any:
        return lambda _: SimpleNamespace(remote=self._actor)

    def _actor(self, _device: str) -> Any:
        tasks: list[Positions] = []

        def perform(task: Positions, _news: None, _blocks: Any, mark: tuple[str, int] | None = None) -> Positions:
            tasks.append(task)
            if mark is not None and len(tasks) <= self._begun:
                self._notes |= [mark]
            return task

        arrive = SimpleNamespace(remote=lambda *_: Arrived("here", 1))
        known = SimpleNamespace(remote=lambda *_: None)
        return SimpleNamespace(know=known, take_on=arrive, perform=SimpleNamespace(remote=perform))

    def wait(self, waiting: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return waiting[:1], waiting[1:]

    def get(self, answer: Any) -> Any:
        if isinstance(answer, Arrived):
            return answer
        raise ConnectionError

    def kill(self, _: Any) -> None:
        pass

    def asked(self, question: Callable[[], Any]) -> Any:
        return question()

    def require_head(self) -> None: ...

    def noted(self, key: str) -> int:
        return self._notes.get(key, 0)

    def forget(self, key: str) -> None:
        self._notes.pop(key, None)


@pytest.mark.parametrize("begun", [1, 2])
def test_the_client_that_a_lost_actor_was_at_is_blamed(begun: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "DEATHS", 1)
    book = TaskQueue([30, 20, 10], lambda task: f"client {task[0]}", Pace(), workers=1)
    cargo: Any = SimpleNamespace(job=None, data=None, number=1, news=lambda *_: None, blocks=lambda *_: {})
    doomed: Any = Doomed(begun)
    with pytest.raises(CoterieError, match=f"^client {begun - 1}: 1 worker processes died at it"):
        ActorPool(doomed, 1).perform(cargo, book, lambda *_: None)


def test_what_an_actor_has_noted_outlives_it_until_it_is_forgotten(session: RaySession) -> None:
    def last_words(key: str) -> None:
        importlib.import_module("coterie.engines.ray.session").note(key, 7)
        os.kill(os.getpid(), signal.SIGKILL)

    assert session.noted("coterie.test") == 0
    dying = ray.remote(num_cpus=0, max_retries=0)(last_words)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(dying.remote("coterie.test"))
    assert session.noted("coterie.test") == 7
    session.forget("coterie.test")
    assert session.noted("coterie.test") == 0


def test_an_actor_killed_between_rounds_is_replaced(pool: ActorPool) -> None:
    prepared = experiment("fedcac", join=1.0).prepare()
    victim = pool.handles[0]
    ray.kill(victim)  # which does not wait for its end
    assert eventually(lambda: is_dead(victim))
    ours, theirs = by_ray(prepared, pool), serially(prepared)
    assert same(ours[0], theirs[0])
    assert victim not in pool.handles


def is_dead(actor: Any) -> bool:
    try:
        ray.get(actor.__ray_ready__.remote())
    except ray.exceptions.RayActorError as error:
        return isinstance(error, ray.exceptions.ActorDiedError)
    return False


def test_errors_of_the_work_are_raised_here_and_end_the_actors(
    pool: ActorPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "DEATHS", 1)  # each further death would cost the start of an actor
    alone(monkeypatch)
    left = tmp_path / "left"
    left.write_bytes(b"xxx")
    with pytest.raises(CoterieError, match="round 1, client 2: 1 worker processes died at it"):
        by_ray(experiment(Incident("death", left=str(left)), join=1.0).prepare(), pool)
    assert pool.handles == []
    with pytest.raises(RuntimeError, match="round 2, client 2: ZeroDivisionError: a bug") as caught:
        by_ray(experiment(Incident("bug"), join=1.0).prepare(), pool)
    assert "in strike" in caught.value.__notes__[0]
    assert pool.handles == []


def test_classes_that_actors_cannot_import_are_refused_with_a_way_out(
    pool: ActorPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from coterie.methods import FedAvg\n\n\nclass Elsewhere(FedAvg):\n    pass\n"
    (tmp_path / "only_here.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    prepared = experiment(importlib.import_module("only_here").Elsewhere()).prepare()
    federation = prepared.federation()
    with pytest.raises(CoterieError, match=r"engine = 'ray': the workers cannot import .*only_here.*engine='serial'"):
        engine_for(prepared, pool).test(federation, federation.everyone)
    locked = FedAvg()
    object.__setattr__(locked, "lock", threading.Lock())
    with pytest.raises(CoterieError, match=r"engine = 'ray': the workers cannot import .*lock"):
        engine_for(experiment(locked).prepare(), pool).test(federation, federation.everyone)


def test_a_ray_that_runs_already_is_used_and_left_running(session: RaySession, pool: ActorPool) -> None:
    pool.stop()  # its actors hold the CPUs
    result = tiny("fedper", engine="ray", workers=1, rounds=1).run()
    assert result.summary["engine"] == "ray"
    assert ray.is_initialized()
    expected = tiny("fedper", threads=1, rounds=1).run()
    assert all(
        torch.equal(ours, theirs)
        for (_, ours), (_, theirs) in zip(result.federation.state(), expected.federation.state(), strict=True)
    )


@pytest.mark.slow
def test_the_command_joins_an_existing_cluster(session: RaySession, pool: ActorPool, tmp_path: Path) -> None:
    """Another process's cluster: the local one of this file, which has to be addressed as what it is."""
    pool.stop()  # its actors hold the CPUs
    address = ray.get_runtime_context().gcs_address
    options = ["fedper", "--clients", "3", "--rounds", "1", "--epochs", "1", "--json"]
    ours, theirs = (
        subprocess.run(
            [sys.executable, "-m", "coterie", "run", *options, *more, "--out", str(tmp_path / more[1])],
            env=os.environ | {LOCAL_ONLY: "0"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        for more in (["--engine", "ray", "--ray-address", address, "--workers", "2"], ["--engine", "serial"])
    )
    assert ours.returncode == 0, ours.stderr
    found, expected = json.loads(ours.stdout), json.loads(theirs.stdout)
    assert found["config"]["ray_address"] == address
    assert found["accuracy"] == expected["accuracy"]
    assert session.total("CPU") == 2


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="needs Linux")
def test_a_local_ray_listens_on_this_machine_only_and_keeps_its_files_to_itself(pool: ActorPool) -> None:
    prepared = experiment("fedavg").prepare()
    federation = prepared.federation()
    engine_for(prepared, pool).test(federation, federation.everyone)
    addresses = [address for pid in descendants(os.getpid()) for address in listening(pid)]
    assert len(addresses) >= 5  # server, node, two actors, this process
    assert set(addresses) == {"127.0.0.1"}
    folder = Path(ray._private.worker._global_node.get_session_dir_path()).parents[1]
    assert folder.name.startswith("coterie-")
    assert folder.stat().st_mode & 0o077 == 0
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


def descendants(pid: int) -> list[int]:
    """A process and all that came from it."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def listening(pid: int) -> list[str]:
    """The addresses on which a process accepts TCP connections; it may end while it is looked at."""
    links = []
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                links.append(str(descriptor.readlink()))
    found = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.is_file() else []:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                found.append(readable(fields[1].partition(":")[0]))
    return found


def readable(address: str) -> str:
    """An address of /proc/net: words of four bytes, each in the machine's order; IPv4 within IPv6 as IPv4."""
    raw = b"".join(int(address[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(address), 8))
    if raw[:12] == bytes(10) + b"\xff\xff":
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def test_addresses_are_checked_before_ray_tries_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was asked"))
    for address in ("nonsense", "host:port", "host:99999"):
        with pytest.raises(CoterieError, match=f"ray_address = '{address}': must be HOST:PORT"):
            RaySession(address)
    with reserved_port() as free:
        address = f"127.0.0.1:{free}"
        with pytest.raises(CoterieError, match=f"ray_address = '{address}': no Ray cluster can be reached there"):
            RaySession(address)


def greet(server: socket.socket, answer: bytes, over: threading.Event) -> None:
    """Answer one caller, whatever they say, and stay on the line until all is over."""
    connection, _ = server.accept()
    with connection:
        connection.sendall(answer)
        over.wait()


@pytest.mark.parametrize(("answer", "reason"), [(b"", "timed out"), (b"HTTP/1.1 400 Bad Request\r\n", "is not Ray")])
def test_what_is_not_ray_is_noticed_within_seconds(answer: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was asked"))
    # Of who says something the answer is waited for, however late a busy machine sends it.
    monkeypatch.setattr(sessions, "CONNECT_SECONDS", PATIENCE if answer else 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=greet, args=(server, answer, over), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(
            CoterieError, match=rf"'{address}': no Ray cluster .*{reason}.*'ray start --head' starts one"
        ):
            RaySession(address)
        over.set()


def test_what_ray_says_about_a_cluster_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        assert options["address"] == "auto"
        raise ConnectionError("no\n  cluster")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    with pytest.raises(CoterieError, match=r"ray_address = 'auto': no Ray cluster can be reached there \(no cluster\)"):
        RaySession("auto")

    def ailing(words: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, words, stderr=b"Traceback\nRuntimeError: wrong  token\n\n")

    monkeypatch.setattr(subprocess, "run", ailing)
    with pytest.raises(CoterieError, match=r"there \(RuntimeError: wrong token\); 'ray status'"):
        RaySession("auto")


@pytest.mark.parametrize("address", ["", "auto"])
def test_who_handles_sigterm_keeps_doing_so(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.init` has it end the process, so that a run would not say how to carry on."""
    heard: list[int] = []

    def init(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: pytest.fail("Ray's own"))

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: LOOPBACK)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        session = RaySession(address)
        signal.raise_signal(signal.SIGTERM)
        session.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_token_is_shown_where_the_cluster_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster asks for one if Ray has left one in the home directory, and who connects is not told."""
    right = True

    def asks_for_a_token(words: list[str], env: dict[str, str], **_: object) -> None:
        if not right or env.get("RAY_AUTH_MODE") != "token":
            raise subprocess.CalledProcessError(1, words, stderr=b"AuthenticationError: missing or incorrect")

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(subprocess, "run", asks_for_a_token)
    with pytest.raises(CoterieError, match="asks for a token, and Ray was imported without; export RAY_AUTH_MODE=to"):
        RaySession("auto")
    joined: list[str | None] = []
    monkeypatch.setattr(sessions, "import_ray", lambda *_: ray)
    monkeypatch.setattr(ray, "init", lambda **_: joined.append(os.environ.get("RAY_AUTH_MODE")))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "ray")
        RaySession("auto").close()
        assert joined == ["token"]
        assert "RAY_AUTH_MODE" not in os.environ
        right = False
        with pytest.raises(CoterieError, match=r"\(it asks for a token; export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"):
            RaySession("auto")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(CoterieError, match=r"\(AuthenticationError: missing or incorrect\)"):
        RaySession("auto")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CoterieError, match=r"engine = 'ray': Ray is not installed .*pip install 'coterie\[ray\]'"):
        tiny(engine="ray").run()


class Room:
    """Stands for a cluster with so much room."""

    def __init__(self, cpus: float, gpus: float) -> None:
        self._resources = {"CPU": cpus, "GPU": gpus}

    def total(self, resource: str) -> float:
        return self._resources[resource]


@pytest.mark.parametrize(
    ("workers", "fraction", "cpus", "gpus", "expected"),
    [(0, 0.0, 8, 0, 8), (3, 0.0, 8, 0, 3), (0, 0.25, 8, 1, 4), (0, 0.4, 8, 2, 4), (0, 2.0, 8, 5, 2), (0, 0.1, 4, 1, 4)],
)
def test_there_are_as_many_actors_as_find_room(
    workers: int, fraction: float, cpus: int, gpus: int, expected: int
) -> None:
    prepared = tiny().prepare()
    engine = RayCluster(prepared.problem(), prepared.method, 0, workers, gpus=fraction)
    room: Any = Room(cpus, gpus)
    assert engine._actors(room) == expected


def test_room_that_is_not_there_is_named(session: RaySession) -> None:
    with pytest.raises(CoterieError, match=r"workers = 5: the cluster has room for 2 \(CPUs: 2, GPUs: 0\)"):
        tiny(engine="ray", workers=5).run()
    with pytest.raises(CoterieError, match=r"ray_gpus = 0.5: the cluster has 0 GPUs"):
        tiny(engine="ray", ray_gpus=0.5).run()


def test_options_are_for_this_engine_and_comparisons_do_not_multiply_it() -> None:
    with pytest.raises(CoterieError, match="ray_address = auto: is for engine='ray'"):
        tiny(ray_address="auto")
    with pytest.raises(CoterieError, match=r"ray_gpus = -1.0: must not be negative"):
        tiny(engine="ray", ray_gpus=-1)
    assert obstacle(Experiment(engine="ray")) == "engine 'ray' shares the cores out by itself"


def test_homes_are_balanced_and_idle_actors_help_out() -> None:
    sizes = [50, 40, 30, 20, 10, 10]
    homes = homes_by_size(sizes, 2)
    assert sorted(sum(size for size, home in zip(sizes, homes, strict=True) if home == one) for one in (0, 1)) == [
        80,
        80,
    ]
    book = TaskQueue(sizes, str, Pace(), workers=2, homes=homes)
    first = [book.next_task(0) for _ in range(6)]
    own = [position for position in range(6) if homes[position] == 0]
    assert first[: len(own)] == [(position,) for position in sorted(own, key=lambda one: -sizes[one])]
    assert sorted(first) == [(position,) for position in range(6)]
    assert book.next_task(1) is None
    book.put_back((2, 3))
    assert book.undealt == 2
    assert book.next_task(1) == (3,)


def test_a_local_ray_that_cannot_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise Exception("The current node timed out\n  during startup.")  # Ray's own class for it

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    reason = r"\(The current node timed out during startup\.\); engine = 'processes' computes the same without"
    with pytest.raises(PassingError, match=f"^engine = 'ray': no local Ray could be started {reason}$"):
        RaySession("")


def test_a_head_that_is_lost_is_told_though_ray_itself_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends the process after a minute, in the middle of whatever asks the head."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(sessions, "KNOCK_AGAIN", 0.01)
    never = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        context = SimpleNamespace(address_info={"gcs_address": f"127.0.0.1:{port}"})
        monkeypatch.setattr(ray, "init", lambda **_: context)
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 3.0})
        session = RaySession("auto")
        assert session.total("CPU") == 3
        session.require_head()
        monkeypatch.setattr(ray, "cluster_resources", never.wait)
    try:
        lost = "^ray_address = 'auto': the head of the Ray cluster is lost, nobody answers there any more$"
        with pytest.raises(PassingError, match=lost):
            session.total("CPU")
        with pytest.raises(PassingError, match=lost):
            session.require_head()
    finally:
        never.set()
        session.close()


def test_who_asks_the_head_gets_its_errors(session: RaySession) -> None:
    def refuse() -> None:
        raise KeyError("nothing")

    with pytest.raises(KeyError, match="nothing"):
        session.asked(refuse)


def test_actors_that_find_no_room_are_waited_for_aloud(
    session: RaySession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, seconds in (("LOOK_SECONDS", 0.01), ("TOLD_SECONDS", 0.02), ("START_SECONDS", 0.5)):
        monkeypatch.setattr(pools, name, seconds)
    pool = ActorPool(session, 1)
    member = pools._ActorState(0, handle=None)
    member.answers.append(ray.put(None))
    pool._members.append(member)
    monkeypatch.setattr(ray, "wait", lambda references, **_: (time.sleep(0.01) or [], references))
    with caplog.at_level("WARNING", logger="coterie"), pytest.raises(PassingError, match=r"no actor could start withi"):
        pool._heard()
    (line,) = caplog.messages
    assert line.startswith("engine = 'ray': no actor has started yet (")
    assert line.endswith("CPUs are free); given up after 0.5 s")


def test_a_run_whose_cluster_is_gone_goes_on_in_processes_with_the_same_bits(
    session: RaySession, pool: ActorPool, tmp_path: Path
) -> None:
    pool.stop()  # its actors hold the CPUs
    settings = {"partition": Iid(clients=3), "rounds": 3, "epochs": 1, "join": 0.7, "checkpoint_every": 1}
    whole = Experiment("fedper", engine="serial", threads=1, **{**settings, "checkpoint_every": 0}).run()
    begun = Experiment("fedper", engine="ray", workers=2, **settings).run(tmp_path / "run", [StopAfter(1)])
    assert begun.summary["stopped"]
    with pytest.raises(
        CoterieError, match="engine = 'stacked': the run was begun with 'ray', and only processes and r"
    ):
        resume(tmp_path / "run", engine="stacked")
    assert 'engine = "ray"' in (tmp_path / "run" / CONFIG).read_text()
    moved = resume(tmp_path / "run", engine="processes")
    assert moved.summary["accuracy"] == whole.summary["accuracy"]
    config = (tmp_path / "run" / CONFIG).read_text()
    assert 'engine = "processes"' in config
    assert "workers = 0" in config


def test_a_run_that_a_cluster_leaves_alone_says_how_it_goes_on(
    session: RaySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(self: ActorPool) -> None:
        raise PassingError("ray_address = 'x': the head of the Ray cluster is lost")

    monkeypatch.setattr(ActorPool, "_heard", lost)
    words = ["run", "fedavg", "--engine", "ray", "--clients", "3", "--rounds", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "is lost" in line]
    assert f"or 'coterie resume {tmp_path / 'run'} --engine processes', without Ray, starts again from round 1" in line
