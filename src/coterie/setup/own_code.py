"""What code of somebody's own is made of: a digest that changes when what it computes may change.

Classes of a notebook or a script stand in no file that could be hashed, or in one that was edited since it was loaded.
So what is digested is what Python runs: the compiled code of functions with their defaults and closures, and all they
name in their module. Code of Coterie and of installed packages is told by its name alone.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.metadata
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.registry import FILES

# What a class has besides its author's work.
_NOT_WRITTEN = {
    "_autograd_function_id",  # PyTorch counts them
    "__abstractmethods__",
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__classcell__",
    "__conditional_annotations__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__match_args__",
    "__module__",
    "__orig_bases__",
    "__parameters__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), Path, torch.dtype, torch.device)
_OF_MODULES = frozenset(vars(nn.Module())) | {"training"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
COTERIE = __name__.partition(".")[0]


def digest_of(thing: object) -> str:
    """The digest of a class, a function or a value, and of everything of one's own that it uses.

    >>> digest_of({"rate": 0.1}) == digest_of({"rate": 0.1}), digest_of({"rate": 0.1}) == digest_of({"rate": 0.2})
    (True, False)
    """
    return _Walk().over(thing)


def marks_of(module: nn.Module) -> tuple[str, str]:
    """The digests of a model's structure, without any code, and of all its numbers.

    >>> first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> [mine == other for mine, other in zip(marks_of(first), marks_of(second), strict=True)]
    [True, False]
    """
    return _Walk(numbers=False).over_module(module), _Walk().over_module(module)


def is_own(thing: object) -> bool:
    """Whether a class or function is neither Coterie's nor that of an installed package or of a plug-in's file.

    >>> is_own(dict), is_own(nn.Linear), is_own(digest_of)
    (False, False, False)
    """
    name = str(getattr(thing, "__module__", None) or "")
    return name not in FILES and name.partition(".")[0] != COTERIE and not is_installed(name)


def is_installed(module: str) -> bool:
    """Whether a module comes with Python or was installed.

    >>> is_installed("json"), is_installed("torch.nn"), is_installed("__main__")
    (True, True, False)
    """
    if module == "__main__":
        return False
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    loaded = sys.modules.get(module, sys.modules.get(top))
    file = getattr(loaded, "__file__", None)
    return file is not None and _is_among_installed(file)


def adds_to_a_list(package: str) -> bool:
    """Whether an installed package adds to any list with an entry point."""
    return package in _adding_packages(tuple(sys.path))


@functools.cache
def _adding_packages(_path: tuple[str, ...]) -> frozenset[str]:
    points = (point for package in importlib.metadata.distributions() for point in package.entry_points)
    return frozenset(point.module.partition(".")[0] for point in points if point.group.startswith("coterie."))


@functools.cache
def _is_among_installed(file: str) -> bool:
    place = Path(file).resolve()
    folders = {sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return bool({"site-packages", "dist-packages"} & set(place.parts)) or any(
        place.is_relative_to(Path(folder).resolve()) for folder in folders
    )


def attributes_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What the author of a module keeps in it besides parameters, buffers and modules, and its hooks."""
    for name, value in sorted(vars(module).items()):
        if name not in _OF_MODULES:
            yield name, value
        elif name in _HOOKS:
            yield from ((name, hook) for hook in value.values())


class _Walk:
    """Goes through things by what they consist of; whatever was met already is told by when that was.

    Without `numbers`, of tensors and arrays only type and shape count.
    """

    def __init__(self, numbers: bool = True) -> None:
        self._numbers = numbers
        self._digest = hashlib.sha256()
        self._met: dict[int, int] = {}
        self._kept: list[object] = []  # an address must not be used again meanwhile

    def over(self, thing: object) -> str:
        """Go through a thing."""
        self._take(thing)
        return self._digest.hexdigest()

    def over_module(self, module: nn.Module) -> str:
        """Go through a model, its parts by the names of their classes."""
        self._net(module)
        return self._digest.hexdigest()

    def _tell(self, *texts: object) -> None:
        self._digest.update("".join(f"{len(text)}:{text}" for text in map(str, texts)).encode(errors="replace"))

    def _take(self, thing: Any) -> None:
        if isinstance(thing, _PLAIN):
            self._tell(type(thing).__name__, repr(thing))
            return
        # Compiled constants are shared or not as Python likes; they hold nothing that could hold them.
        if not isinstance(thing, CodeType | tuple | frozenset):
            if id(thing) in self._met:
                self._tell("met", self._met[id(thing)])
                return
            self._met[id(thing)] = len(self._met)
            self._kept.append(thing)
        for kind, take in _TAKERS:
            if isinstance(thing, kind):
                take(self, thing)
                return
        self._object(thing)

    def _all(self, kind: str, things: Any) -> None:
        things = list(things)
        self._tell(kind, len(things))
        for thing in things:
            self._take(thing)

    def _named(self, kind: str, things: Mapping[Any, Any]) -> None:
        self._tell(kind, len(things))
        for name, thing in things.items():
            self._take(name)
            self._take(thing)

    def _set(self, things: Any) -> None:
        self._tell(type(things).__name__, *sorted(map(digest_of, things)))

    def _tensor(self, tensor: Tensor) -> None:
        self._tell("tensor", tensor.dtype, tuple(tensor.shape), tensor.requires_grad)
        if self._numbers:
            self._tell(content_of(tensor))

    def _array(self, array: np.ndarray) -> None:
        self._tell("array", array.dtype.str, array.shape)
        if array.dtype == object:
            self._all("objects", array.ravel().tolist())
        elif self._numbers:
            self._tell(hashlib.sha256(array.tobytes()).hexdigest())

    def _code(self, code: CodeType) -> None:
        self._tell("code", code.co_name, code.co_code.hex(), code.co_flags, code.co_exceptiontable.hex())
        self._tell(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self._tell(*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars)
        for constant in code.co_consts:
            self._take(constant)

    def _function(self, function: FunctionType) -> None:
        self._tell("function", _module_of(function), function.__qualname__)
        if not is_own(function):
            self._elsewhere(function.__module__)
            return
        self._take(function.__code__)
        self._take(function.__defaults__)
        self._take(function.__kwdefaults__)
        wrapped = vars(function)
        self._named("attributes", {name: wrapped[name] for name in sorted(wrapped)})
        for cell in function.__closure__ or ():
            try:
                self._take(cell.cell_contents)
            except ValueError:
                self._tell("empty")
        for name in sorted(set(_globals_in(function.__code__))):
            if name in function.__globals__:
                self._tell("global", name)
                self._take(function.__globals__[name])

    def _class(self, found: type) -> None:
        self._tell("class", _module_of(found), found.__qualname__)
        if not is_own(found):
            self._elsewhere(found.__module__)
            return
        self._all("bases", found.__bases__)
        self._all("kind", [type(found)])
        self._named("members", {name: value for name, value in vars(found).items() if name not in _NOT_WRITTEN})
        for item in getattr(found, "__dataclass_fields__", {}).values():
            self._tell("field", item.name, str(item.type))
            self._take(item.default_factory)

    def _elsewhere(self, module: str | None) -> None:
        """Code that is not gone through: of a plug-in's file, its content; of what is installed, nothing more."""
        if module in FILES:
            self._tell(FILES[module].sha256)

    def _module(self, module: ModuleType) -> None:
        self._tell("module", module.__name__)
        file = getattr(module, "__file__", None)
        if module.__name__.partition(".")[0] == COTERIE or is_installed(module.__name__) or file is None:
            return
        self._tell(hashlib.sha256(Path(file).read_bytes()).hexdigest() if Path(file).is_file() else "gone")

    def _net(self, module: nn.Module) -> None:
        for name, part in module.named_modules(remove_duplicate=False):
            self._tell("module", name, _module_of(type(part)), type(part).__qualname__)
            for key, value in attributes_of(part):
                self._tell(key)
                self._take(value)
        for name, tensor in module.named_parameters(remove_duplicate=False):
            self._tell("parameter", name)
            self._take(tensor)
        for name, buffer in module.named_buffers(remove_duplicate=False):
            self._tell("buffer", name)
            self._take(buffer)

    def _net_and_code(self, module: nn.Module) -> None:
        for part in module.modules():
            self._take(type(part))
        self._net(module)

    def _object(self, thing: object) -> None:
        """Any other object: its class and, where that is known, what it holds."""
        self._take(type(thing))
        self._take(getattr(thing, "__wrapped__", None))
        held = dict(getattr(thing, "__dict__", {}))
        for base in type(thing).__mro__:
            slots = vars(base).get("__slots__", ())
            held |= {
                name: getattr(thing, name)
                for name in ((slots,) if isinstance(slots, str) else slots)
                if hasattr(thing, name) and name not in ("__dict__", "__weakref__")
            }
        if is_own(type(thing)) or type(thing).__module__.partition(".")[0] == COTERIE:
            self._named("holds", held)


def _module_of(thing: Any) -> str:
    """The module of a class or function; a main script is called otherwise in workers that import it."""
    name = str(getattr(thing, "__module__", None))
    return "__main__" if name == "__mp_main__" else name


def _globals_in(code: CodeType) -> Iterator[str]:
    """The names that code, and all code within it, looks up in its module."""
    yield from (one.argval for one in dis.get_instructions(code) if one.opname in _GLOBALS)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_in(constant)


def content_of(tensor: Tensor) -> str:
    """The digest of a tensor: its type, its shape and every number in it.

    >>> content_of(torch.zeros(2)) == content_of(torch.zeros(1))
    False
    """
    plain = tensor.detach().cpu()
    plain = plain.to_dense() if plain.layout is not torch.strided else plain
    plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _partial(walk: _Walk, thing: functools.partial[Any]) -> None:
    walk._all("partial", [thing.func, thing.args, thing.keywords])


_TAKERS: tuple[tuple[Any, Callable[[_Walk, Any], None]], ...] = (
    (CodeType, _Walk._code),
    (FunctionType, _Walk._function),
    (MethodType, lambda walk, thing: walk._all("method", [thing.__func__, thing.__self__])),
    (BuiltinFunctionType, lambda walk, thing: walk._tell("built in", thing.__module__, thing.__qualname__)),
    (staticmethod | classmethod, lambda walk, thing: walk._all(type(thing).__name__, [thing.__func__])),
    (property, lambda walk, thing: walk._all("property", [thing.fget, thing.fset, thing.fdel])),
    (functools.cached_property, lambda walk, thing: walk._all("cached", [thing.func])),
    (functools.partial, _partial),
    (type, _Walk._class),
    (ModuleType, _Walk._module),
    (nn.Module, _Walk._net_and_code),
    (Tensor, _Walk._tensor),
    (np.ndarray, _Walk._array),
    (np.generic, lambda walk, thing: walk._tell(type(thing).__name__, repr(thing))),
    ((set, frozenset), _Walk._set),
    ((list, tuple), lambda walk, thing: walk._all(type(thing).__name__, thing)),
    (Mapping, lambda walk, thing: walk._named(type(thing).__name__, thing)),
)
"""How things are gone through, by what they are."""
