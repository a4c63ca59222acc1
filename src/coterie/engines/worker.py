"""The worker's side of the `processes` engine: what it is told, what it answers, and the loop in between.

The actors of the `ray` engine take the same seat, but are told and answer in their own way.

Tensors that both sides read (data, slots, buffers of trained rows) lie in shared memory and travel as
handles, once. What is measured (and scores) and values that changed travel as safetensors bytes.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Literal

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from coterie.client.effort import EffortColumns
from coterie.client.problem import Problem
from coterie.client.scores import Score, TrainingSums
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.engines.base import PeersOf, Work, do_all, do_test, empty_rows
from coterie.engines.stacked.engine import Stacked
from coterie.errors import CoterieError, described
from coterie.methods.base import Method
from coterie.processes import depend_on_parent, use_one_core
from coterie.registry import PluginFile


@dataclass(frozen=True)
class Job:
    """All that stays the same from call to call.

    The problem's index vectors are concatenated, `counts [3, K]` says how long each client's are (train,
    validation, test), and its module is without its tensors, which are in `weights`. The federation's
    slots are in shared memory; its values come with every call.
    """

    problem: Problem
    weights: bytes
    counts: Tensor
    method: Method
    seed: int
    federation: Federation


@dataclass(frozen=True)
class Call:
    """What the tasks of one `train` or `test` have in common.

    A task is a tuple of positions: in `clients` for `train` and `test`; for `batches` (a test of a model
    that all clients share) each is the number of a batch of their concatenated test data.
    """

    action: Literal["train", "test", "batches"]
    round: int
    clients: tuple[int, ...]
    peers: PeersOf = field(default_factory=dict)
    test_trained: bool = False
    keep_scores: bool = False
    rows: Mapping[str, int] = field(default_factory=dict)  # slot -> number of its buffer
    buffers: frozenset[int] = frozenset()  # those in use; others may be forgotten
    new_buffers: Mapping[int, Tensor] = field(default_factory=dict)
    values: frozenset[str] = frozenset()  # those there are
    new_values: bytes = b""


Positions = tuple[int, ...]
MEASURED, TRAINING, EFFORT = "measured.", "training.", "effort."
"""Begin the names of what was measured, of sums over training samples, and of counts, among a task's tensors."""


@dataclass(frozen=True)
class Ready:
    """The worker has started (or, after a job, has taken it on)."""


@dataclass(frozen=True)
class Done:
    """A task's result: seconds in all and for testing, and its positions' tensors, joined by name."""

    seconds: float
    test_seconds: float
    tensors: bytes


@dataclass(frozen=True)
class Refused:
    """The worker cannot take on the job: something in it cannot be imported here."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """An error in a task. `expected` ones are the user's to mend and need no traceback."""

    position: int
    message: str
    details: str
    expected: bool


Answer = Ready | Done | Refused | Failed


def serve(connection: Connection) -> None:
    """A worker process: takes on jobs and does tasks until the main process hangs up or is gone."""
    depend_on_parent()
    use_one_core()
    seat: TaskWorker | None = None
    try:
        connection.send(Ready())
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                return
            except Exception as error:  # whatever importing the user's modules may raise
                connection.send(Refused(described(error)))
                continue
            if isinstance(message, PluginFile):
                try:
                    message.load()
                except Exception as error:  # what the file needs may be missing here
                    connection.send(Refused(described(error)))
            elif isinstance(message, Job):
                seat = TaskWorker(message)
                connection.send(Ready())
            elif isinstance(message, Call):
                assert seat is not None
                seat.begin(message)
            else:
                assert seat is not None
                connection.send(seat.perform(message))
    except BrokenPipeError:
        return


class TaskWorker:
    """A worker that has taken on a job."""

    def __init__(self, job: Job, device: str = "cpu") -> None:
        parts = (job.problem.train, job.problem.validation, job.problem.test)
        train, validation, test = (
            flat.split(counts) for (flat,), counts in zip(parts, job.counts.tolist(), strict=True)
        )
        self._all_tests = job.problem.test[0]
        restore_tensors(job.problem.module, job.weights)
        self._problem = replace(job.problem, train=train, validation=validation, test=test)
        self._worker = Worker(self._problem, job.method, job.seed)
        # On another device than the processor, the clients of a task are trained and tested together.
        self._together = None if device == "cpu" else Stacked(self._problem, job.method, job.seed, device)
        self._method, self._federation = job.method, job.federation
        self._buffers: dict[int, Tensor] = {}

    def begin(self, call: Call) -> None:
        """Take note of a call, to which the next tasks belong."""
        self._call = call
        self._buffers |= call.new_buffers
        self._buffers = {number: self._buffers[number] for number in call.buffers}
        values = self._federation.values
        if call.new_values:
            # Cloned, since tensors within a message are not aligned and kernels may round differently then.
            values |= {name: value.clone() for name, value in load(call.new_values).items()}
        for name in values.keys() - call.values:
            del values[name]
        self._federation.round = call.round
        self._work: Work | None = None
        self._tests: Tensor | None = None

    def perform(self, task: Positions, rows: dict[str, Tensor] | None = None) -> Done | Failed:
        """Do a task of the present call.

        Trained rows go into the call's buffers, or, if given, into the empty `rows` (slot -> `[len(task), width]`).
        """
        begin = time.perf_counter()
        self._position = task[0]
        try:
            if self._call.action == "train":
                tensors, test_seconds = self._train(task, rows)
            else:
                tensors, test_seconds = self._test(task), 0.0
            packed = save(tensors) if tensors else b""
        except Exception as error:
            expected = isinstance(error, CoterieError)
            message = str(error) if expected else described(error)
            return Failed(self._position, message, traceback.format_exc(), expected)
        return Done(time.perf_counter() - begin, test_seconds, packed)

    def _train(self, task: Positions, own_room: dict[str, Tensor] | None) -> tuple[dict[str, Tensor], float]:
        call, method, federation = self._call, self._method, self._federation
        if self._work is None:
            self._work = Work(method.recipe(federation), call.test_trained, call.peers)
        clients = self._clients(task)
        if self._together is not None and own_room is not None:
            trained = self._together.train(federation, self._work, clients)
            own_room |= trained.rows
        else:
            rows: Mapping[str, Tensor] = {slot: self._buffers[number] for slot, number in call.rows.items()}
            places: Sequence[int] = task
            if own_room is not None:
                own_room |= empty_rows(federation, self._work, len(task))
                rows, places = own_room, range(len(task))

            def turn_to_next(done: int) -> None:
                self._position = task[min(done, len(task) - 1)]

            trained = do_all(self._worker, federation, self._work, clients.tolist(), rows, places, turn_to_next)
        sums = _as_columns(trained.training) | _counted(trained.efforts)
        return _named(trained.measured) | _joined(trained.scores) | sums, trained.test_seconds

    def _test(self, task: Positions) -> dict[str, Tensor]:
        call, scores = self._call, []
        if self._together is not None and call.action == "test":
            return _joined(self._together.test(self._federation, self._clients(task), call.keep_scores, call.peers))
        if call.action == "batches":
            self._worker.seat(self._federation, call.clients[0])
        for position in task:
            self._position = position
            if call.action == "batches":
                size = self._problem.test_batch
                batch = self._test_samples()[position * size : (position + 1) * size]
                scores.append(self._worker.test(batch, call.keep_scores))
            else:
                scores += do_test(
                    self._worker, self._federation, [call.clients[position]], call.keep_scores, call.peers
                )
        return _joined(scores)

    def _clients(self, task: Positions) -> Tensor:
        return torch.tensor([self._call.clients[position] for position in task])

    def _test_samples(self) -> Tensor:
        """The test data of the call's clients, one after the other."""
        if self._tests is None:
            clients = self._call.clients
            everybody = clients == tuple(range(len(self._problem.test)))
            self._tests = self._all_tests if everybody else torch.cat([self._problem.test[k] for k in clients])
        return self._tests


def _named(measured: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{MEASURED}{name}": values for name, values in measured.items()}


def _as_columns(training: Sequence[TrainingSums]) -> dict[str, Tensor]:
    """Sums over training samples, each quantity's of all clients of a task together: `[len(task)]`."""
    columns = {name: [sums[name] for sums in training] for name in training[0]}
    return {f"{TRAINING}{name}": torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}


def _counted(efforts: EffortColumns) -> dict[str, Tensor]:
    return {f"{EFFORT}{name}": torch.tensor(values) for name, values in efforts.items()}


def _joined(scores: Sequence[Score]) -> dict[str, Tensor]:
    if not scores:
        return {}
    whole = Score.joined(scores)
    named = {f"score.{name}": values for name, values in whole.quantities.items()}
    named["untuned"] = torch.tensor([score.untuned for score in scores])
    named["tuning"] = torch.tensor([score.tuning for score in scores])
    return named | ({"kept": whole.kept} if whole.kept is not None else {})


def without_tensors(module: nn.Module) -> tuple[nn.Module, bytes]:
    """A copy of a module whose parameters and buffers are empty, and what was in them.

    Sent as it is, a module costs a shared-memory file per tensor.

    >>> empty, weights = without_tensors(nn.Linear(3, 2))
    >>> empty.weight.shape
    torch.Size([0])
    >>> restore_tensors(empty, weights)
    >>> empty.weight.shape
    torch.Size([2, 3])
    """
    emptied = copy.deepcopy(module)
    tensors = dict(emptied.named_parameters()) | dict(emptied.named_buffers())
    packed = save({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()})
    for tensor in tensors.values():
        tensor.data = tensor.data.new_empty(0)
        tensor.grad = None
    return emptied, packed


def restore_tensors(module: nn.Module, packed: bytes) -> None:
    """Give a module the tensors back that `without_tensors` took out."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, value in load(packed).items():
        tensors[name].data = value.clone()
