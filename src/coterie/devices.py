"""Devices: where tensors are trained, be it the processor or something beside it.

PyTorch knows the devices; what it does not know is which of them is wanted, and how to say that one is not there. All
that differs from one device to another stands in this module.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from coterie.errors import CoterieError

PROCESSOR = "cpu"
# What `auto` looks for, best first.
KNOWN = ("cuda", "mps")


def named(device: str) -> str:
    """The device that is meant: `auto` is the best one here.

    >>> named("cpu")
    'cpu'
    """
    if device != "auto":
        return device
    return next((name for name in KNOWN if torch.get_device_module(name).is_available()), PROCESSOR)


def require_there(device: str) -> None:
    """An error in a line unless tensors can be put on the device.

    >>> require_there("cpu")
    >>> require_there("gpu")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: device = gpu: PyTorch knows no such device; use cpu, cuda, mps or auto
    """
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = "meta"  # which computes shapes alone: nothing to train on either
    if kind == "meta":
        known = ", ".join((PROCESSOR, *KNOWN))
        raise CoterieError(f"device = {device}: PyTorch knows no such device; use {known} or auto")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise CoterieError(
            f"device = {device}: cannot be used here ({reason}); leave it out, or install a PyTorch that has it"
        ) from None


def has_float64(device: str | torch.device) -> bool:
    """Whether a device computes in double precision, as server steps do; Apple's does not.

    >>> has_float64("cpu")
    True
    """
    return _has_float64(torch.device(device).type)


@lru_cache
def _has_float64(kind: str) -> bool:
    try:
        torch.empty(1, dtype=torch.float64, device=kind)
    except TypeError:
        return False
    return True


def exact(tensor: Tensor) -> Tensor:
    """The same numbers in double precision: where they are, or on the processor if their device has none.

    >>> exact(torch.ones(1)).dtype
    torch.float64
    """
    return tensor.double() if has_float64(tensor.device) else tensor.cpu().double()


def seed_everything_drawn(device: torch.device, seed: int) -> None:
    """Begin the random numbers anew that layers draw by themselves, such as dropout's."""
    torch.default_generator.manual_seed(seed)
    if device.type != PROCESSOR:
        _module(device).manual_seed(seed)


def drawn_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Where the random numbers stand that layers draw by themselves: the processor's, and the device's own."""
    has_its_own = device.type in KNOWN and _module(device).is_available()
    return torch.get_rng_state(), _module(device).get_rng_state() if has_its_own else None


def draw_again(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    """Let layers draw once more what they have drawn since.

    >>> place = torch.device("cpu")
    >>> state = drawn_state(place)
    >>> first = torch.rand(1)
    >>> draw_again(place, state)
    >>> bool(torch.rand(1) == first)
    True
    """
    here, there = state
    torch.set_rng_state(here)
    if there is not None:
        _module(device).set_rng_state(there)


def stream_on(device: torch.device, seed: int) -> torch.Generator:
    """A stream of random numbers as layers on that device draw them; on the processor where it has none of its own."""
    place = device if device.type in KNOWN else PROCESSOR
    return torch.Generator(place).manual_seed(seed)


def free_bytes(device: str | torch.device) -> int | None:
    """How many bytes a device can still take, where it says so.

    >>> free_bytes("cpu") is None
    True
    """
    place = torch.device(device)
    if place.type == PROCESSOR:
        return None
    module = _module(place)
    if place.type == "mps":
        return int(module.recommended_max_memory() - module.driver_allocated_memory())
    return int(module.mem_get_info(place)[0]) if hasattr(module, "mem_get_info") else None


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
