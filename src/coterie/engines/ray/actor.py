"""The actor's side of the `ray` engine: what it is told, what it answers.

Arrays are NumPy's: Ray keeps large ones in its object store, where every actor of a machine reads them in place.
"""

from __future__ import annotations

import copy
import os
import socket
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.client.problem import Problem
from coterie.core.federation import Federation
from coterie.core.pixels import Inputs, Pixels, some
from coterie.core.slots import Slot
from coterie.devices import named
from coterie.engines.ray.session import note
from coterie.engines.worker import (
    Call,
    Done,
    Failed,
    Job,
    Positions,
    Refused,
    TaskWorker,
    without_tensors,
)
from coterie.errors import described
from coterie.methods.base import Method
from coterie.processes import use_one_core
from coterie.registry import PluginFile

Array = NDArray[Any]
Rows = dict[str, Array]
"""Trained rows by slot, `[len(task), slot width]`."""


@dataclass(frozen=True)
class Block:
    """Some clients' own rows `[n, ·]` of a slot."""

    clients: Sequence[int]
    rows: Array


@dataclass(frozen=True)
class News:
    """A call, and what has changed of the things that all clients see."""

    call: Call
    shared: Mapping[str, Array]  # slot -> [1, ·]
    rounds_taken: Array  # [K]
    own: Mapping[str, Block]  # the models that several clients download


@dataclass(frozen=True)
class Arrived:
    """The actor has taken on the job; where it runs."""

    host: str
    process: int


class Actor:
    """An actor: a seat, and the federation as its clients see it. Rows stay until newer ones come."""

    def __init__(self, device: str = "cpu") -> None:
        use_one_core()
        self._device = named(device)
        self._seat: TaskWorker | None = None

    def know(self, files: Sequence[PluginFile]) -> None:
        """Load the files that the next job needs: before it comes, since nothing of it could be read without them."""
        for file in files:
            file.load()

    def take_on(self, job: Job, data: Mapping[str, Array]) -> Arrived | Refused:
        """Begin a job; `data` is what `arrays_of` made of its problem."""
        try:
            torch.empty(1, device=self._device)
        except (RuntimeError, AssertionError) as error:
            return Refused(f"an actor's PyTorch cannot use its GPU: {described(error)}")
        self._federation = job.federation
        _make_room(job.federation)
        self._seat = TaskWorker(replace(job, problem=with_arrays(job.problem, data)), self._device)
        return Arrived(socket.gethostname(), os.getpid())

    def perform(
        self, task: Positions, news: News | None, blocks: Mapping[str, Block], mark: tuple[str, int] | None = None
    ) -> tuple[Done | Failed, Rows]:
        """Do a task of the last call there was news of; `blocks` are rows that have not been sent as they are now.

        With a `mark`, a key and a number, it is noted first that the task was begun.
        """
        assert self._seat is not None
        if mark is not None:
            note(*mark)
        if news is not None:
            for slot, row in news.shared.items():
                self._federation[slot].shared.copy_(_tensor(row))
            self._federation.rounds_taken.copy_(_tensor(news.rounds_taken))
            self._write(news.own)
            self._seat.begin(news.call)
        self._write(blocks)
        rows: dict[str, Tensor] = {}
        answer = self._seat.perform(task, rows)
        return answer, {slot: matrix.numpy() for slot, matrix in rows.items()}

    def _write(self, blocks: Mapping[str, Block]) -> None:
        for slot, block in blocks.items():
            self._federation[slot].own[torch.tensor(block.clients)] = _tensor(block.rows)


def job_without_data(problem: Problem, method: Method, seed: int, federation: Federation) -> Job:
    """The job without data, rows and values: what is left is small."""
    module, weights = without_tensors(problem.module)
    nothing = torch.empty(0)
    inputs = some(problem.inputs, nothing.long())
    bare = replace(problem, module=module, inputs=inputs, labels=nothing, train=(), validation=(), test=())
    parts = (problem.train, problem.validation, problem.test)
    counts = torch.tensor([[len(index) for index in part] for part in parts])
    view = copy.copy(federation)
    view.values, view.rounds_taken = {}, federation.rounds_taken.clone()
    view.slots = {name: _emptied(slot) for name, slot in federation.slots.items()}
    return Job(bare, weights, counts, method, seed, view)


def arrays_of(problem: Problem) -> dict[str, Array]:
    """A problem's data, the index vectors of all clients concatenated.

    Images in channels-last order travel in that order: what is not contiguous would be copied by every actor.
    """
    inputs = problem.inputs
    if isinstance(inputs, Pixels):
        inputs = inputs.kept
    elif problem.layout.memory == "channels_last" and inputs.ndim == 4:
        inputs = inputs.permute(0, 2, 3, 1)
    parts = {"train": problem.train, "validation": problem.validation, "test": problem.test}
    return {
        "inputs": inputs.contiguous().numpy(),
        "labels": problem.labels.numpy(),
        **{name: torch.cat(part).numpy() for name, part in parts.items()},
    }


def with_arrays(problem: Problem, data: Mapping[str, Array]) -> Problem:
    """The problem with its data, which is read where it lies; index vectors are still concatenated."""
    kept = _tensor(data["inputs"])
    inputs: Inputs = kept
    if isinstance(problem.inputs, Pixels):
        inputs = replace(problem.inputs, kept=kept)
    elif problem.layout.memory == "channels_last" and kept.ndim == 4:
        inputs = kept.permute(0, 3, 1, 2)
    train, validation, test = ((_tensor(data[name]).clone(),) for name in ("train", "validation", "test"))
    return replace(
        problem, inputs=inputs, labels=_tensor(data["labels"]), train=train, validation=validation, test=test
    )


def _emptied(slot: Slot) -> Slot:
    empty = slot.rows_alone()
    empty.shared = empty.own = torch.empty(0)
    return empty


def _make_room(federation: Federation) -> None:
    """Room for the rows of all clients; those that never arrive cost a page of memory each."""
    for slot in federation.slots.values():
        slot.shared = torch.zeros(1, slot.shared_columns.size)
        slot.own = torch.empty(federation.clients, slot.own_columns.size)
        # Who computes with a row that was not sent gets no number, and so is noticed.
        slot.own[:, :1] = torch.nan


def _tensor(array: Array) -> Tensor:
    """An array of the object store as a tensor, in place: nobody writes to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it is read-only
        return torch.from_numpy(np.asarray(array))
