"""A model's belongings: all that its layers, their classes, and the code that they run hold beside the row.

Whatever of that changes as a model runs goes from each client to the next, and is lost when a run is resumed. It is
looked for from the layers on: in attributes, in hooks, in what classes keep for all their objects, and in what
functions name outside of themselves, be they methods, helpers that these call, or helpers of such helpers.
"""

from __future__ import annotations

import dis
import gc
import math
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cache
from itertools import chain
from numbers import Number
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.layout import Layout

BUFFER, ATTRIBUTE, VARIABLE, DRAWS = "buffer", "attribute", "variable", "draws"
Belongings = dict[tuple[str, str], list[object]]
"""By kind and name what can be compared later; one name may stand for several things."""

# Packages whose classes and functions keep nothing that changes as a model runs.
_KNOWN = {"torch", "numpy", "coterie", "builtins", *sys.stdlib_module_names}
_INSTALLED = ("site-packages", "dist-packages")
# What PyTorch keeps with every module, but for its mode, and its hooks, which are somebody's own functions.
_COMMON = {name for name in vars(nn.Module()) if name != "training" and not name.endswith("_hooks")}
_NAMING = {
    "variables": ("LOAD_GLOBAL", "STORE_GLOBAL"),
    "attributes": ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "IMPORT_FROM"),
    "imports": ("IMPORT_NAME",),
}
_DEEPEST = 16  # how far is looked into lists, and objects that are no modules
_HUGE = 1 << 22  # numbers in a tensor of which no copy is kept


def belongings(parts: Mapping[str, nn.Module], layout: Layout) -> Belongings:
    """What the parts of a model, by their paths in it, hold beside the row.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> before = belongings({"": net}, Layout(net, "1"))
    >>> net[0].calls = 1
    >>> changed(before, before), changed(before, belongings({"": net}, Layout(net, "1")))
    (None, ('attribute', '0.calls'))
    """
    layers = [(joined(root, path), layer) for root, part in parts.items() for path, layer in part.named_modules()]
    in_row = {name for entry in layout.entries for name in entry.names}
    tensors = [
        (layer, name, tensor, joined(path, name) in in_row)
        for path, layer in layers
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items())
        if tensor is not None
    ]
    search = _Search([*(layer for _, layer in layers), *(tensor for *_, tensor, is_held in tensors if is_held)], layers)
    paths = {id(layer): path for path, layer in layers}
    for layer, name, tensor, is_held in tensors:
        if not is_held and not _only_counts(layer, name):
            search.keep(BUFFER, joined(paths[id(layer)], name), tensor)
    for path, layer in layers:
        for name, value in vars(layer).items():
            if name not in _COMMON:
                search.keep(ATTRIBUTE, joined(path, name), value)
        search.look_into_class(type(layer))
    search.keep(DRAWS, "random", random.getstate())
    search.keep(DRAWS, "numpy.random", np.random.get_state(legacy=False))
    return search.belongings


def changed(before: Belongings, after: Belongings, share: float = 0.0) -> tuple[str, str] | None:
    """The first kind and name of what is not the same any more, by more than a share of itself if it is a number."""
    return next(
        (key for key in dict.fromkeys((*before, *after)) if not _alike(before.get(key), after.get(key), share)), None
    )


def joined(path: str, name: str) -> str:
    """The name of something in a module.

    >>> joined("body.0", "weight"), joined("", "weight")
    ('body.0.weight', 'weight')
    """
    return f"{path}.{name}" if path and name else path or name


def close(value: Tensor, other: Tensor, share: float, floor: float = 0.0) -> bool:
    """Whether numbers are the same but for a share of the largest.

    >>> close(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.001]), 0.01)
    True
    """
    if value.shape != other.shape or value.dtype != other.dtype:
        return False
    if not value.is_floating_point():
        return torch.equal(value, other)
    known = other[other.isfinite()]
    largest = float(known.abs().max()) if known.numel() else 0.0
    return torch.allclose(value, other, rtol=share, atol=share * largest + floor, equal_nan=True)


class _Search:
    """A search through objects and code, each of which it looks into once; `known` ones change as they should."""

    def __init__(self, known: list[object], layers: list[tuple[str, nn.Module]]) -> None:
        self.belongings: Belongings = {}
        self._known = {id(one) for one in known}
        self._visited: dict[object, object] = {}  # kept, so that no other object comes by its identity
        self._own = {_package(type(layer)) for _, layer in layers} - _KNOWN

    def keep(self, kind: str, name: str, value: object) -> None:
        """Take down something that is held, and go on to what it leads to."""
        self.belongings.setdefault((kind, name), []).append(self._remembered(value, {}, _DEEPEST, kind))

    def look_into_class(self, kind: type) -> None:
        """Take down what a class and those above it keep for all their objects."""
        for base in (*kind.__mro__, type(kind)):
            if self._is_new(base):
                for name, value in list(vars(base).items()):
                    if isinstance(value, FunctionType) or not (name.startswith("__") and name.endswith("__")):
                        self.keep(VARIABLE, f"{base.__name__}.{name}", value)

    def _look_into_function(self, function: FunctionType) -> None:
        """Take down the variables of modules, and of functions around it, that a function names; and what it keeps."""
        if not self._is_new(function):
            return
        around, names = function.__globals__, names_in(function.__code__)
        modules = {name: sys.modules.get(name) for name in names.imports}
        for name in sorted(names.variables & around.keys()):
            if isinstance(around[name], ModuleType):
                modules[name] = around[name]
            else:
                self._keep_variable(around, name, name)
        for name, module in modules.items():
            if module is not None and self._is_own(module.__name__):
                for inner in sorted(names.attributes & vars(module).keys()):
                    self._keep_variable(vars(module), inner, f"{name}.{inner}")
        own_name = function.__qualname__
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing stands there yet
                continue
            self.keep(VARIABLE, f"{own_name}'s {name}", value)
        self.keep(VARIABLE, f"{own_name}'s defaults", (function.__defaults__, function.__kwdefaults__))
        for name, value in vars(function).items():
            self.keep(VARIABLE, f"{own_name}.{name}", value)

    def _keep_variable(self, around: dict[str, object], name: str, shown: str) -> None:
        if (id(around), name) not in self._visited:
            self._visited[id(around), name] = around
            self.keep(VARIABLE, shown, around[name])

    def _is_new(self, code: type | FunctionType) -> bool:
        """Whether a class or a function is somebody's own, and nobody has looked into it."""
        if id(code) in self._visited or not self._is_own(code.__module__):
            return False
        self._visited[id(code)] = code
        return True

    def _is_own(self, module: str | None) -> bool:
        package = (module or "builtins").partition(".")[0]
        if package in _KNOWN or package in self._own:
            return package in self._own
        return not any(part in str(getattr(sys.modules.get(package), "__file__", "")) for part in _INSTALLED)

    def _remembered(self, value: object, seen: dict[int, object], depth: int, kind: str) -> object:
        """What of a value can be compared later: numbers and texts, alone or in what holds them."""
        if value is None or isinstance(value, (Number, str, bytes)):
            return value
        if id(value) in self._known or id(value) in seen or not depth or isinstance(value, ModuleType):
            return None
        seen[id(value)] = value
        if isinstance(value, Tensor):
            return _numbers(value, kind)
        if isinstance(value, torch.Generator):
            return value.get_state()
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            return torch.from_numpy(value.copy())
        if isinstance(value, type):
            self.look_into_class(value)
            return value.__qualname__
        if isinstance(value, FunctionType):
            self._look_into_function(value)
            return value.__qualname__
        if isinstance(value, _lru_cache_wrapper):  # which leads to its function, too
            results = ((id(one), _grown(one)) for one in gc.get_referents(value))
            return _Results({name: self._remembered(one, seen, depth - 1, kind) for name, one in results})
        if isinstance(value, Mapping):
            keys = (_key(key, place) for place, key in enumerate(value))
            items = zip(keys, value.values(), strict=True)
            kept = {name: self._remembered(item, seen, depth - 1, kind) for name, item in items}
            return _Results(kept) if isinstance(value, _Results) else kept
        if isinstance(value, (set, frozenset)):
            return sorted(_key(item, 0) for item in value)
        inner: Iterable[object]
        if isinstance(value, (list, tuple, deque)):
            inner = value
        elif isinstance(value, (MethodType, BuiltinFunctionType, staticmethod, classmethod)):
            inner = getattr(value, "__func__", None), getattr(value, "__self__", None)
        elif isinstance(value, property):
            inner = value.fget, value.fset
        else:
            inner = chain((type(value),), _held_by(value))
        return [self._remembered(item, seen, depth - 1, kind) for item in inner]


class _Results(dict[object, object]):
    """What a function with a memory (functools.cache) has returned; more of it is no change."""


def _grown(held: object) -> object:
    """Something that such a function holds, among it its memory, a mapping to results."""
    return _Results({_key(key, id(item)): item for key, item in held.items()}) if isinstance(held, dict) else held


def _held_by(value: object) -> Iterator[object]:
    """The parts of any other object: the way in which it is copied tells them."""
    try:
        held = value.__reduce_ex__(4)
    except Exception:  # some objects cannot be copied
        yield getattr(value, "__dict__", None)
        return
    if not isinstance(held, str):
        yield from (list(item) if isinstance(item, Iterator) else item for item in held[1:])


def _key(key: object, place: int) -> str:
    """A key as text, without the addresses of objects, which copies do not have in common."""
    plain = key is None or isinstance(key, (Number, str, bytes, tuple))
    return repr(key) if plain else f"{type(key).__qualname__} {place}"


def _numbers(value: Tensor, kind: str) -> object:
    if kind == VARIABLE and value.numel() > _HUGE:
        return id(value), value._version
    return value.detach().clone()


@dataclass(frozen=True)
class Names:
    """What a function's code, and that of functions within it, names outside of itself."""

    variables: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]


@cache
def names_in(code: CodeType) -> Names:
    """The names in a function's code.

    >>> names_in((lambda: sys.path).__code__)
    Names(variables=frozenset({'sys'}), attributes=frozenset({'path'}), imports=frozenset())
    """
    named = [(step.opname, step.argval) for step in dis.get_instructions(code)]
    inside = [names_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    return Names(
        *(
            frozenset(name for does, name in named if does in kinds).union(*(getattr(one, field) for one in inside))
            for field, kinds in _NAMING.items()
        )
    )


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _only_counts(layer: nn.Module, name: str) -> bool:
    """Whether a buffer is batch norm's count of batches, which its own forward does not read (see `Layout`)."""
    norm = isinstance(layer, nn.modules.batchnorm._NormBase)
    return norm and name == "num_batches_tracked" and type(layer).forward.__module__.startswith("torch.nn.modules.")


def _alike(value: object, other: object, share: float) -> bool:
    if type(value) is not type(other):
        return False
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return close(value, other, share)
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=share) or (math.isnan(value) and math.isnan(other))
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(_alike(*both, share) for both in zip(value, other, strict=True))
    if isinstance(value, dict) and isinstance(other, dict):
        in_both = value.keys() & other.keys()
        same_names = isinstance(value, _Results) or value.keys() == other.keys()
        return same_names and all(_alike(value[name], other[name], share) for name in in_both)
    return bool(value == other)
