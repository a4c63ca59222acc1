"""A pretend device: PyTorch's own slot for devices of others (PrivateUse1), filled in with Python.

Its tensors are computed on the processor, with the processor's values, but PyTorch takes them for tensors of another
device: an operation that mixes them with the processor's is an error, as on a real device, and so is an index that lies
elsewhere, which a real one would fetch in silence. What goes there and back is counted, and memory may be short.

PyTorch can be given one such device in a process, under one name, for good: hence a module.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from coterie import devices

NAME = "pretend"
PROCESSOR_KIND, OTHER_KIND = 1, 12  # DLPack's words for the processor and for devices of others
EVERYTHING = 1 << 62


@dataclass
class Traffic:
    """What went to the device and back: how often, and whether single numbers were asked for."""

    there: int = 0
    back: int = 0
    numbers: int = 0


traffic = Traffic()


class _Memory(_DummyBackendModule):
    """The device's module, as `torch.cuda` is one: here, how much it can take."""

    free = EVERYTHING
    float64 = True

    def mem_get_info(self, _device: object = None) -> tuple[int, int]:
        return self.free, EVERYTHING

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)


memory = _Memory()
_setup_privateuseone_for_python_backend(NAME, backend_module=memory)


class _DLTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32))


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _relabelled(tensor: Tensor, kind: int) -> Tensor:
    """The same memory, of another device: passed on with the address, the label changed on the way."""
    capsule = torch._C._to_dlpack(tensor)
    ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents.kind = kind
    found: Tensor = torch._C._from_dlpack(capsule)
    return found


def _here(tensor: Tensor) -> Tensor:
    return _relabelled(tensor, PROCESSOR_KIND)


def _there(tensor: Tensor) -> Tensor:
    return _relabelled(tensor, OTHER_KIND)


def is_there(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def _computed(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operation: on the processor, with tensors of the device alone and numbers."""
    given: dict[int, tuple[Tensor, Tensor]] = {}

    def taken(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, Tensor):
            return value
        if not is_there(value):
            if value.ndim:
                raise RuntimeError(f"{operation}: expected all tensors on the same device, but one is on the processor")
            return value
        # What is to be filled may be empty at first, and grow: memory under another label cannot.
        here = _here(value) if value.numel() else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        given[id(here)] = (here, value)
        return here

    def put(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return given[id(value)][1] if id(value) in given else _there(value)

    found = operation(*tree_map(taken, list(args)), **tree_map(taken, kwargs))
    for here, value in given.values():
        if here.shape != value.shape:
            value.data = _there(here)
    return tree_map(put, found)


def _empty(size: list[int], *, dtype: torch.dtype | None = None, memory_format: Any = None, **_: Any) -> Tensor:
    _require_room(size, dtype)
    return _there(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size: list[int], stride: list[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    _require_room(size, dtype)
    return _there(torch.empty_strided(size, stride, dtype=dtype))


def _require_room(size: list[int], dtype: torch.dtype | None) -> None:
    wanted = torch.Size(size).numel() * (dtype or torch.get_default_dtype()).itemsize
    if wanted > memory.free:
        raise torch.OutOfMemoryError(f"tried to take {wanted} bytes, {memory.free} are free")
    if dtype == torch.float64 and not memory.float64:
        raise TypeError("this device has no float64")


def _copied(source: Tensor, target: Tensor, _non_blocking: bool = False) -> Tensor:
    traffic.there += not is_there(source)
    traffic.back += not is_there(target)
    (_here(target) if is_there(target) else target).copy_(_here(source) if is_there(source) else source)
    return target


def _number(tensor: Tensor) -> Any:
    traffic.numbers += 1
    return _here(tensor).item()


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *geometry: Any) -> Any:
    outputs = [weight.shape[0] * (1 if not geometry[3] else geometry[5])]
    return _computed(torch.ops.aten.convolution_backward.default, grad, x, weight, outputs, *geometry)


_all = torch.library.Library("_", "IMPL")
_all.fallback(_computed, "PrivateUse1")
_some = torch.library.Library("aten", "IMPL")
_OWN: dict[str, Callable[..., Any]] = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "_copy_from": _copied,
    "_local_scalar_dense": _number,
    "convolution_overrideable": partial(_computed, torch.ops.aten.convolution.default),
    "convolution_backward_overrideable": _convolution_backward,
}
for _name, _kernel in _OWN.items():
    _some.impl(_name, _kernel, "PrivateUse1")


@contextmanager
def counted() -> Iterator[Traffic]:
    """What goes there and back while inside."""
    before = Traffic(traffic.there, traffic.back, traffic.numbers)
    found = Traffic()
    try:
        yield found
    finally:
        found.there, found.back = traffic.there - before.there, traffic.back - before.back
        found.numbers = traffic.numbers - before.numbers


@contextmanager
def without_float64() -> Iterator[None]:
    """A device that has no double precision, as Apple's."""
    memory.float64 = False
    devices._has_float64.cache_clear()
    try:
        yield
    finally:
        memory.float64 = True
        devices._has_float64.cache_clear()


@contextmanager
def short_of_memory(free: int) -> Iterator[None]:
    """A device that can take no more than so many bytes."""
    memory.free = free
    try:
        yield
    finally:
        memory.free = EVERYTHING
