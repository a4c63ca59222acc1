"""The engine of many machines: Ray actors train the clients, the main process holds all state."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.core.federation import Federation
from coterie.devices import PROCESSOR
from coterie.engines.base import EngineOptions, Work, empty_rows
from coterie.engines.ray.actor import Rows, arrays_of
from coterie.engines.ray.pool import ActorPool, Cargo
from coterie.engines.ray.session import RaySession
from coterie.engines.remote import Pace, RemoteEngine, TaskQueue, position_names
from coterie.engines.worker import Call, Done, Positions
from coterie.errors import require
from coterie.methods.base import Method
from coterie.processes import cores

log = logging.getLogger("coterie")


class RayCluster(RemoteEngine):
    """Clients train at `workers` Ray actors (0: one per CPU of the cluster), each with a CPU and a share of a GPU.

    An actor that has (part of) a GPU trains there, the clients of a task together; a `device` names another place, or
    asks every actor for the best one that it has (`auto`). Rows travel, so that they are kept on the processor.

    Without an `address` a local Ray is started, which listens on this machine only; a Ray that this process
    already uses is used and left running. Everything starts with the first call and ends with `close`.

    Data and shared rows lie in Ray's object store, once a machine. Every client has a home, the actor that holds its
    own rows; sizes are balanced. An actor trains its own clients first, the largest ahead, and then helps out where
    most is left. A lost actor is replaced, and its unfinished clients are trained again: the federation's rows stay
    as they are until a round's training is over. Results are bit-identical to the serial engine's with one thread
    where all machines have the same processor and PyTorch.

    A cluster may change while a run goes on. Before each round it is looked how many actors find room: a machine that
    has come is used from then on, and the work of one that is gone is done by the others.

    A `pool` of actors can be shared by engines that are used one after the other; it is theirs to stop then.

    Of other clients' rows an actor knows those that it downloaded as `Peers`; whoever reads others gets NaN.
    """

    name = "ray"
    uses_device = True

    def __init__(
        self,
        problem: Problem,
        method: Method,
        seed: int,
        workers: int = 0,
        address: str = "",
        gpus: float = 0.0,
        pool: ActorPool | None = None,
        device: str = PROCESSOR,
    ) -> None:
        require(workers >= 0, f"workers = {workers}: must not be negative (0: one per CPU of the cluster)")
        require(gpus >= 0, f"ray_gpus = {gpus}: must not be negative")
        super().__init__(problem, method, seed)
        self._workers, self._address, self._gpus = workers, address, gpus
        self._device = "cuda" if gpus and device == PROCESSOR else device
        self._session: RaySession | None = None  # unless the pool is somebody else's
        self.pool = pool
        self._data: Any = None
        self._cargo: Cargo | None = None
        self._homes: list[int] = []

    @classmethod
    def create(cls, problem: Problem, method: Method, seed: int, options: EngineOptions) -> RayCluster:
        """The engine with what the run says about it."""
        about = (options.workers, options.ray_address, options.ray_gpus)
        return cls(problem, method, seed, *about, device=options.device)

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        self._cargo = self._data = None
        if self._session is None:
            return
        if self.pool is not None:
            self.pool.stop()
        self.pool = None
        self._session.close()
        self._session = None

    def _room(self, federation: Federation, work: Work, count: int) -> dict[str, Tensor]:
        return empty_rows(federation, work, count)

    def _perform(
        self, federation: Federation, call: Call, samples: Sequence[int], pace: Pace, rows: dict[str, Tensor]
    ) -> list[tuple[Positions, Done]]:
        pool, cargo = self._ready(federation)
        if call.action == "train":
            self._fit(pool)
        cargo.begin(call)

        def collect(task: Positions, trained: Rows) -> None:
            for slot, matrix in trained.items():
                rows[slot].numpy()[list(task)] = matrix

        personal = any(slot.own_columns for slot in federation.slots.values()) and call.action != "batches"
        homes = [self._homes[client] for client in call.clients] if personal else None
        tell = self.tell if call.action == "train" else None
        queue = TaskQueue(samples, position_names(call), pace, pool.size, homes, tell)
        pool.perform(cargo, queue, collect)
        return queue.results

    def _ready(self, federation: Federation) -> tuple[ActorPool, Cargo]:
        """Ray, the actors and what they are sent: started or made where missing."""
        pool = self.pool or self._start(federation)
        if self._data is None:
            self._data = pool.session.ray.put(arrays_of(self._problem))
            self._homes = homes_by_size([len(index) for index in self._problem.train], pool.size)
        if self._cargo is None or self._cargo.federation is not federation:
            self._cargo = Cargo(pool.session, self._problem, self._method, self._seed, federation, self._data)
        return pool, self._cargo

    def _start(self, federation: Federation) -> ActorPool:
        """Connect to Ray and gather actors."""
        if self._session is None:
            cpus = max(self._workers, cores())
            store = _store_bytes(self._problem, self._method, federation, self._workers or cpus)
            self._session = RaySession(self._address, cpus, store)
        size = min(self._actors(self._session), len(self._problem.train))
        self.pool = ActorPool(self._session, size, self._gpus, self._device)
        return self.pool

    def _fit(self, pool: ActorPool) -> None:
        """Have as many actors as the cluster has room for now, if they are ours."""
        if self._session is None:
            return
        room = max(self._room_for_actors(self._session), 1)
        size = min(self._workers or room, room, len(self._problem.train))
        if size != pool.size:
            log.info("engine = 'ray': %d actors instead of %d, since the cluster has changed", size, pool.size)
            pool.resize(size)
            self._homes = homes_by_size([len(index) for index in self._problem.train], size)

    def _actors(self, session: RaySession) -> int:
        """How many actors there are to be, at most as many as the cluster has room for."""
        cpus, gpus = int(session.total("CPU")), session.total("GPU")
        require(cpus >= 1, "engine = 'ray': the cluster has no CPUs")
        room = self._room_for_actors(session)
        require(room >= 1, f"ray_gpus = {self._gpus:g}: the cluster has {gpus:g} GPUs")
        actors = self._workers or room
        require(actors <= room, f"workers = {actors}: the cluster has room for {room} (CPUs: {cpus}, GPUs: {gpus:g})")
        return actors

    def _room_for_actors(self, session: RaySession) -> int:
        cpus = int(session.total("CPU"))
        if not self._gpus:
            return cpus
        # Several actors may share a GPU, an actor of several GPUs has them for itself.
        gpus = session.total("GPU")
        return min(cpus, int(gpus) * int(1 / self._gpus) if self._gpus <= 1 else int(gpus / self._gpus))


def homes_by_size(sizes: Sequence[int], actors: int) -> list[int]:
    """Each client's actor: the largest clients first, always to whom has least.

    >>> homes_by_size([9, 5, 4, 1], actors=2)
    [0, 1, 1, 0]
    """
    homes, loads = [0] * len(sizes), [0] * actors
    for client in sorted(range(len(sizes)), key=lambda client_id: -sizes[client_id]):
        homes[client] = loads.index(min(loads))
        loads[homes[client]] += sizes[client]
    return homes


def _store_bytes(problem: Problem, method: Method, federation: Federation, actors: int) -> int:
    """What a local object store has to hold: the data, shared rows in use, rows on their way, downloaded models."""
    width = torch.float32.itemsize
    data = problem.inputs.nbytes + problem.labels.nbytes + sum(map(_bytes_of, (problem.train, problem.test)))
    shared = sum(slot.shared.nbytes for slot in federation.slots.values())
    row = width * federation.layout.width * len(federation.slots)
    # Whoever delivers may have clients download each other's models.
    exchanged = 0 if type(method).deliver is Method.deliver else federation["model"].own.nbytes
    return int(1.2 * data) + 4 * shared + 4 * (actors + 1) * row + 2 * exchanged + 64 * 2**20


def _bytes_of(part: Sequence[Tensor]) -> int:
    return sum(index.nbytes for index in part)
