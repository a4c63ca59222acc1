"""What a model keeps beside its row: a count of its calls, a generator of its own, something that it saw last.

Such a thing changes as the model runs. Trained together, clients run a model once where each alone would run it once
more, so that what it holds would be different.
"""

from __future__ import annotations

import dis
import hashlib
import random
from collections.abc import Iterator, Mapping, Set
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.layout import BatchNorm, Layout

# What a module holds for its tensors and its parts, which are looked at one by one.
_PARTS = ("_parameters", "_buffers", "_modules")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Packages whose classes and functions keep nothing that changes as a model runs.
_KNOWN = ("torch", "builtins", "coterie")


def hidden_state(parts: Mapping[str, nn.Module], layout: Layout) -> dict[str, object]:
    """Everything that modules (by path) keep beside their rows, by name, as something that can be compared.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> before = hidden_state({"": net}, Layout(net, "1"))
    >>> net[0].calls = 1
    >>> change({"0": 1}, {"0": 1}), change(before, hidden_state({"": net}, Layout(net, "1")))
    (None, '0.calls')
    """
    in_row = {entry.name for entry in layout.entries}
    layers = [(_joined(root, path), layer) for root, part in parts.items() for path, layer in part.named_modules()]
    # The row's tensors change as they should, wherever else a layer mentions them.
    known = {id(layer) for _, layer in layers}
    for _, layer in layers:
        known |= {id(one) for one in (*layer._parameters.values(), *layer._buffers.values())}
    found: dict[str, object] = {}
    for path, layer in layers:
        kept = {name: value for name, value in vars(layer).items() if name not in _PARTS}
        kept |= {
            name: buffer
            for name, buffer in layer._buffers.items()
            if _joined(path, name) not in in_row
            and not (isinstance(layer, BatchNorm) and name == "num_batches_tracked")
        }
        for name, value in (*kept.items(), *_around(type(layer))):
            beside = known - {id(value)} if name in layer._buffers else known
            found[_joined(path, name)] = _comparable(value, beside, {})
    return found


def change(before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    """The first name under which something has changed."""
    names = dict.fromkeys((*before, *after))
    return next((name for name in names if name not in before or before.get(name) != after.get(name)), None)


def global_draws() -> object:
    """Where Python's and NumPy's generators stand that everybody shares, as something that can be compared."""
    return _comparable((random.getstate(), np.random.get_state(legacy=False)), set(), {})


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _around(kind: type) -> Iterator[tuple[str, object]]:
    """What a class keeps for all its objects, and what its functions name outside of themselves."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in _KNOWN:
            continue
        for name, value in vars(base).items():
            if isinstance(value, FunctionType):
                for one, inner in _outside(value):
                    if not isinstance(inner, (ModuleType, type)) and not callable(inner):
                        yield one, inner
            elif not name.startswith("__") and not callable(value):
                yield name, value


def _outside(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The variables of its module, and of functions around it, that a function names."""
    code, around = function.__code__, function.__globals__
    names = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    yield from ((name, around[name]) for name in sorted(names & around.keys()))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing stands there yet
            continue


def _comparable(value: Any, known: Set[int], seen: dict[int, int]) -> object:
    """A value as nested tuples that are equal as long as nothing within it has changed."""
    if isinstance(value, _PLAIN):
        return type(value).__name__, repr(value)
    if id(value) in known or isinstance(value, (type, ModuleType, FunctionType)):
        return "known", id(value)
    if id(value) in seen:
        return "seen", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, Tensor):
        return _content(value)
    if isinstance(value, torch.Generator):
        return "generator", bytes(value.get_state().tolist())
    if isinstance(value, np.ndarray) and value.dtype != object:
        return "array", value.shape, str(value.dtype), hashlib.blake2b(value.tobytes()).digest()
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(_comparable(one, known, seen) for one in value)
    if isinstance(value, dict):
        return "dict", tuple((repr(name), _comparable(one, known, seen)) for name, one in value.items())
    try:
        # The way in which any object is copied tells all that it holds.
        held = value.__reduce_ex__(4)
    except Exception:  # some objects cannot be copied
        return "object", id(value)
    if isinstance(held, str):
        return "named", held
    insides = [list(one) if isinstance(one, Iterator) else one for one in held]
    return type(value).__name__, tuple(_comparable(one, known, seen) for one in insides)


def _content(value: Tensor) -> object:
    if value.layout is not torch.strided or value.is_quantized:
        return "tensor", id(value), value._version
    numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    return "tensor", tuple(value.shape), str(value.dtype), hashlib.blake2b(numbers.numpy().tobytes()).digest()
