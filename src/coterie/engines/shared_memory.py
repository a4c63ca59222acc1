"""What the main process and its workers both see: data, slots and trained rows in shared memory."""

from __future__ import annotations

import copy
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.core.federation import Federation
from coterie.core.pixels import Inputs
from coterie.engines.remote import WorkersFailError, cannot_import
from coterie.engines.worker import Job, without_tensors
from coterie.errors import described
from coterie.methods.base import Method


class Buffer:
    """Shared memory for trained rows, lent to one call at a time."""

    def __init__(self, rows: int, width: int) -> None:
        self.base = _shared_empty(rows, width)
        self._borrower: weakref.ref[Any] | None = None

    @property
    def free(self) -> bool:
        """Whether nobody holds what was last lent, or a view of it."""
        return self._borrower is None or self._borrower() is None

    def fits(self, rows: int, width: int) -> bool:
        """Whether so many rows fit in without wasting more than as much again."""
        return self.base.shape[1] == width and rows <= len(self.base) <= 2 * rows

    def lend(self, rows: int) -> Tensor:
        """The first rows. The array stands between, since it lives exactly as long as the tensor's memory is used."""
        array = self.base[:rows].numpy()
        self._borrower = weakref.ref(array)
        return torch.from_numpy(array)


class Changes:
    """Which tensors have changed since they were last looked at.

    >>> changes, tensor = Changes(), torch.zeros(2)
    >>> list(changes.of({"a": tensor})), list(changes.of({"a": tensor}))
    (['a'], [])
    >>> tensor.add_(1)
    tensor([1., 1.])
    >>> list(changes.of({"a": tensor}))
    ['a']
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Tensor, int]] = {}

    def of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those that are new, replaced, or written to since the last call."""
        changed = {
            name: tensor
            for name, tensor in tensors.items()
            if (seen := self._seen.get(name)) is None or seen[0] is not tensor or seen[1] != tensor._version
        }
        self._seen = {name: (tensor, tensor._version) for name, tensor in tensors.items()}
        return changed


class Bound:
    """A federation in shared memory, the job that tells workers of it, and which values they know."""

    def __init__(self, federation: Federation, base: Job) -> None:
        self.federation = federation
        with _shared_memory():
            mapped = [slot.own for slot in federation.slots.values() if slot.mapped is not None]
            for tensor in self._tensors():
                if not any(tensor is rows for rows in mapped):  # workers map the file for themselves
                    tensor.share_memory_()
        self._places = self._now()
        view = copy.copy(federation)
        view.values, view.slots = {}, {name: slot.rows_alone() for name, slot in federation.slots.items()}
        self.job = replace(base, federation=view)
        self._changes = Changes()

    def still(self, federation: Federation) -> bool:
        """Whether this is the federation, and its rows are where they were."""
        return federation is self.federation and self._places == self._now()

    def _tensors(self) -> list[Tensor]:
        slots = self.federation.slots.values()
        return [self.federation.rounds_taken, *(tensor for slot in slots for tensor in (slot.shared, slot.own))]

    def _now(self) -> list[tuple[str, int]]:
        names = ["rounds_taken", *(name for name in self.federation.slots for _ in range(2))]
        return [(name, tensor.data_ptr()) for name, tensor in zip(names, self._tensors(), strict=True)]

    def changed_values(self) -> dict[str, Tensor]:
        """The values that workers have not been sent as they are now."""
        return self._changes.of(self.federation.values)


def shared_memory_lacks(problem: Problem, federation: Federation) -> str:
    """Why there is too little shared memory for a federation and its data; empty if there is enough, or who knows."""
    held = [slot for slot in federation.slots.values() if slot.mapped is None]
    slots = [tensor for slot in held for tensor in (slot.shared, slot.own)]
    tensors: list[Inputs] = [problem.inputs, problem.labels, *problem.train, *problem.validation, *problem.test, *slots]
    needed = sum(tensor.nbytes for tensor in tensors if not tensor.is_shared())
    needed += sum(slot.width for slot in federation.slots.values()) * federation.clients * torch.float32.itemsize
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return ""
    return "" if needed < free else f"shared memory has room for {free / 2**20:.0f} MB of {needed / 2**20:.0f}"


@contextmanager
def _shared_memory() -> Iterator[None]:
    """Says what to do when shared memory runs out."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise WorkersFailError(
            f"engine = 'processes': there is too little shared memory ({reason}); enlarge /dev/shm (docker run "
            "--shm-size), or use engine='serial'"
        ) from error


def _shared_empty(rows: int, width: int) -> Tensor:
    """Uninitialised shared memory `[rows, width]`."""
    if not rows * width:
        return torch.empty(rows, width)
    with _shared_memory():
        storage = torch.UntypedStorage._new_shared(rows * width * torch.float32.itemsize)
    empty = torch.empty(0)
    empty.set_(storage, 0, (rows, width), (width, 1))
    return empty


def shared_job(problem: Problem, method: Method, seed: int, federation: Federation) -> Job:
    """The job with all data in shared memory; the federation it is for comes later."""
    parts = (problem.train, problem.validation, problem.test)
    module, weights = without_tensors(problem.module)
    try:
        ForkingPickler.dumps((method, module, problem.task))
    except Exception as error:  # whatever pickling the user's classes may raise
        raise cannot_import(described(error)) from error
    with _shared_memory():
        train, validation, test = (torch.cat(part).share_memory_() for part in parts)
        problem.inputs.share_memory_()
        problem.labels.share_memory_()
    shared = replace(problem, module=module, train=(train,), validation=(validation,), test=(test,))
    counts = torch.tensor([[len(index) for index in part] for part in parts])
    return Job(shared, weights, counts, method, seed, federation)
