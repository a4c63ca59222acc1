"""A rehearsal before the first round: a client's model must be all in its row, and train there as it would by itself.

The model takes a few passes mounted on a row, each with a row and samples of its own, and every time must do just what
a fresh copy of the module does with the same. What one pass leaves behind outside the row (counters, whole-number
buffers, kept outputs, be they the module's own, its class's or global) would otherwise go from each client to the next,
unseen, and be lost when a run is resumed.
"""

from __future__ import annotations

import dis
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from coterie.client.model import MountedModel, outputs_of
from coterie.core.inventory import copied
from coterie.core.layout import Layout
from coterie.errors import CoterieError, described, require

SAMPLES = 4
"""How many samples a rehearsal takes, half of them a pass."""
DEEPEST = 8  # how far is looked into lists, and objects that are no modules
# Relative: rounding differs with where tensors lie in memory. Batch norm of few samples may magnify it a thousand
# times; what is kept outside the row, be it a temperature that falls by little, is compared as it is.
CLOSE, SAME = 2e-2, 1e-5
SEED = 0
# What PyTorch itself keeps with every module; parameters and buffers are looked at one by one.
_COMMON = frozenset(vars(nn.Module()))

# Packages whose classes and functions keep nothing that changes as a model runs.
_KNOWN = ("torch", "builtins", "coterie")

_FUNCTIONS = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)

BUFFER, ATTRIBUTE, VARIABLE = "buffer", "attribute", "variable"
Beside = dict[tuple[str, str], object]
"""What a module holds outside a row, by kind and name."""


@dataclass(frozen=True)
class Pass:
    """What a step without an update, and a test after it, came to."""

    trained: Tensor  # [B, C], in training mode
    tested: Tensor  # [B, C]
    gradient: Tensor  # [P]
    row: Tensor  # [P], with the buffers that training moved
    beside: Beside = field(default_factory=dict)


def rehearse(module: nn.Module, layout: Layout, samples: Tensor) -> None:
    """An error in a line if the model cannot be trained as a row `[P]`, with some `samples [n, ...]` of the data.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> rehearse(net, Layout(net, classifier="2"), torch.rand(8, 4))
    """
    require(bool(layout.trainable), "model: none of its parameters is trained (requires_grad); leave some unfrozen")
    samples = samples.repeat(SAMPLES, *[1] * (samples.ndim - 1))[: max(SAMPLES, len(samples))]
    half = len(samples) // 2
    inputs = samples[:half], samples[half : 2 * half]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        row = layout.row(module)
        rows = (row, _another(row, layout))
        plain = [_by_itself(copied(module), layout, row, x) for row, x in zip(rows, inputs, strict=True)]
        seats = MountedModel(module, layout), MountedModel(module, layout)
        # Each seat has one client first, and then the other: there is nothing that both orders would hide.
        fresh = [_mounted(seat, row, x) for seat, row, x in zip(seats, rows, inputs, strict=True)]
        later = [_mounted(seat, row, x) for seat, row, x in zip(reversed(seats), rows, inputs, strict=True)]
        for first, second, alone in zip(fresh, later, plain, strict=True):
            _require_nothing_left(first.beside, second.beside)
            _compare(first, alone, layout)
            _compare(second, alone, layout)


def _another(row: Tensor, layout: Layout) -> Tensor:
    """A row with parameters that differ a little, as another client's do."""
    stream = torch.Generator().manual_seed(SEED)
    shift = torch.rand(len(row), generator=stream)
    other, trained = row.clone(), layout.trainable
    trained.put(other, trained.take(row * (1 + 0.01 * shift) + 0.001 * shift))
    return other


def _by_itself(plain: nn.Module, layout: Layout, row: Tensor, x: Tensor) -> Pass:
    """A pass of a module that nobody has cut or mounted."""
    layout.load(plain, row).train()
    trained = _step(lambda: plain(x))
    parameters = dict(plain.named_parameters())
    gradient = torch.zeros_like(row)
    for entry in layout.entries:
        own_gradient = None if entry.is_buffer else parameters[entry.name].grad
        if own_gradient is not None:
            require(
                not own_gradient.is_sparse,
                f"parameter '{entry.name}' has sparse gradients; leave out sparse=True: rows are dense",
            )
            gradient[entry.start : entry.stop] = entry.flat(own_gradient)
    moved = layout.row(plain)
    plain.eval()
    tested = _test(lambda: plain(x), lambda: plain(x[:1]))
    _require_untouched(layout, moved, layout.row(plain))
    return Pass(trained, tested, gradient, moved)


def _mounted(model: MountedModel, row: Tensor, x: Tensor) -> Pass:
    """A pass as a client in its seat takes it."""
    layout = model.layout
    model.row.copy_(row)
    model.grad.zero_()
    model.train_only(layout.trainable)
    model.mode(True)
    trained = _step(lambda: model.head(model.trunk(x)))
    _require_in_place(model)
    moved = model.row.clone()
    model.mode(False)
    tested = _test(lambda: model.head(model.trunk(x)), lambda: model.head(model.trunk(x[:1])))
    _require_in_place(model)
    beside = _beside(model.trunk, "", layout) | _beside(model.head, f"{layout.classifier}.", layout)
    return Pass(trained, tested, model.grad.clone(), moved, beside)


def _step(run: Callable[[], object]) -> Tensor:
    """The outputs of a pass in training, whose gradients are where they belong then."""
    torch.manual_seed(SEED)
    try:
        outputs = outputs_of(run())
        # Weights that differ: of outputs that always sum to one, a plain sum has no gradient.
        (outputs * torch.linspace(0.5, 1.5, outputs.numel()).view_as(outputs)).sum().backward()
    except CoterieError:
        raise
    except Exception as error:  # whatever a user's model may raise
        raise CoterieError(f"model: a training step on samples of the data fails ({described(error)})") from error
    return outputs.detach()


def _test(run: Callable[[], object], run_on_one: Callable[[], object]) -> Tensor:
    """The outputs of a pass in evaluation, which a single sample must have too."""
    try:
        with torch.no_grad():
            outputs, alone = run(), run_on_one()
    except Exception as error:
        raise CoterieError(f"model: a test on samples of the data fails ({described(error)})") from error
    outputs = outputs_of(outputs)
    require(
        isinstance(alone, Tensor) and alone.shape == (1, outputs.shape[1]),
        f"model: puts out {tuple(getattr(alone, 'shape', ()))} for a single sample in place of "
        f"(1, {outputs.shape[1]}); squeeze() without a dimension drops that of the batch",
    )
    return outputs


def _require_untouched(layout: Layout, before: Tensor, after: Tensor) -> None:
    for entry in layout.entries:
        require(
            torch.equal(before[entry.start : entry.stop], after[entry.start : entry.stop]),
            f"tensor '{entry.name}': a test changes it; let forward and train() change tensors in training mode only",
        )


def _require_in_place(model: MountedModel) -> None:
    """Refuse a model whose tensors are not the row's any more: it put others in their places."""
    views = model.layout.views(model.row)
    for part, names in ((model.trunk, model.layout.trunk_names), (model.head, model.layout.head_names)):
        here = dict(part.named_parameters(remove_duplicate=False)) | dict(part.named_buffers(remove_duplicate=False))
        for name, local in names.items():
            require(
                local in here and here[local].data_ptr() == views[name].data_ptr(),
                f"tensor '{name}' is replaced in forward, and the row left behind; change it in place (copy_, mul_)",
            )


def _require_nothing_left(fresh: Beside, later: Beside) -> None:
    """Refuse a model that holds something else outside its row when somebody else was there before."""
    for (kind, name), value in fresh.items():
        if not _alike(value, later.get((kind, name))):
            raise CoterieError(_changed(kind, name))


def _compare(mounted: Pass, plain: Pass, layout: Layout) -> None:
    """Refuse a model that does something else when mounted, for what an earlier pass left or for how it is made."""
    pairs = [
        ("its outputs in training", mounted.trained, plain.trained),
        ("its outputs in tests", mounted.tested, plain.tested),
        *_by_entry("the gradient of", layout, mounted.gradient, plain.gradient),
        *_by_entry("what training makes of", layout, mounted.row, plain.row),
    ]
    steepest = _largest(plain.gradient)
    for what, ours, theirs in pairs:
        floor = CLOSE * steepest if what.startswith("the gradient") else 0.0
        require(
            _close(ours, theirs, floor=floor),
            f"model: {what} differ with what happened before; keep everything that forward reads in parameters and "
            "floating-point buffers, draw random numbers from PyTorch alone, and nothing after the classifier",
        )


def _by_entry(what: str, layout: Layout, ours: Tensor, theirs: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    for entry in layout.entries:
        place = slice(entry.start, entry.stop)
        yield f"{what} '{entry.name}'", ours[place], theirs[place]


def _changed(kind: str, name: str) -> str:
    if name.rpartition(".")[2] == "num_batches_tracked":
        return (
            f"buffer '{name}' counts batches outside the row, and the layer's own forward may read it; set it to None "
            "in the layer's __init__"
        )
    if kind == BUFFER:
        return (
            f"buffer '{name}' changes in training, but is no part of a row: it would go from client to client; start "
            "it as a finite floating-point tensor, such as torch.tensor(0.0)"
        )
    if kind == VARIABLE:
        return (
            f"'{name}', which the model's class or module keeps for everybody, changes in training: it would go from "
            "client to client; keep it as a buffer, such as self.register_buffer('steps', torch.tensor(0.0))"
        )
    return (
        f"attribute '{name}' changes in training: it would go from client to client, and be lost when a run is "
        "resumed; keep it as a buffer, such as self.register_buffer('steps', torch.tensor(0.0))"
    )


def _beside(part: nn.Module, prefix: str, layout: Layout) -> Beside:
    """What a part of the model holds outside the row."""
    held = {name for entry in layout.entries for name in entry.names}
    registered = {id(layer) for layer in part.modules()}
    beside: Beside = {}
    for path, layer in part.named_modules():
        start = f"{prefix}{path}." if path else prefix
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None and start + name not in held and not _only_counts(layer, name):
                beside[BUFFER, start + name] = tensor.detach().clone()
        for name, value in vars(layer).items():
            if name not in _COMMON:
                beside[ATTRIBUTE, start + name] = _remembered(value, set(registered), DEEPEST)
        for name, value in kept_around(type(layer)):
            beside[VARIABLE, name] = _remembered(value, set(registered), DEEPEST)
    return beside


def kept_around(kind: type) -> Iterator[tuple[str, object]]:
    """What a class keeps for all its objects, and what its functions name outside of themselves.

    >>> Counter = type("Counter", (nn.Module,), {"__module__": "mine", "calls": 0})
    >>> list(kept_around(Counter)), list(kept_around(nn.Linear))
    ([('Counter.calls', 0)], [])
    """
    visited: set[FunctionType] = set()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in _KNOWN:
            continue
        for name, value in vars(base).items():
            value = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if isinstance(value, FunctionType):
                yield from _named_in(value, visited)
            elif not name.startswith("__") and not callable(value):
                yield f"{base.__name__}.{name}", value


def _named_in(function: FunctionType, visited: set[FunctionType]) -> Iterator[tuple[str, object]]:
    """What a function, and those of its module that it calls, name outside of themselves."""
    if function in visited:
        return
    visited.add(function)
    for name, value in _outside(function):
        if isinstance(value, FunctionType):
            if value.__module__ == function.__module__:
                yield from _named_in(value, visited)
        elif not isinstance(value, (ModuleType, type)) and not callable(value):
            yield name, value


def _outside(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The variables of its module and of functions around it that a function names, and what it keeps itself."""
    around = function.__globals__
    yield from ((name, around[name]) for name in sorted(_global_names(function.__code__) & around.keys()))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing stands there yet
            continue
    yield f"{function.__qualname__}'s defaults", (function.__defaults__, function.__kwdefaults__)
    yield from ((f"{function.__qualname__}.{name}", value) for name, value in vars(function).items())


def _global_names(code: CodeType) -> set[str]:
    """The global variables that a function's code names, and the code of functions within it."""
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")
    }
    return names.union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _only_counts(layer: nn.Module, name: str) -> bool:
    """Whether a buffer is batch norm's count of batches, which its own forward does not read (see `Layout`)."""
    norm = isinstance(layer, nn.modules.batchnorm._NormBase)
    return norm and name == "num_batches_tracked" and type(layer).forward.__module__.startswith("torch.nn.modules.")


def _remembered(value: object, seen: set[int], depth: int) -> object:
    """What of a value can be compared later: numbers and texts, alone or in what holds them; nothing of the rest."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, (Number, str, bytes)):
        return value
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if not depth or id(value) in seen or isinstance(value, _FUNCTIONS):
        return None
    seen.add(id(value))
    if isinstance(value, (list, tuple, deque)):
        return [_remembered(item, seen, depth - 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, Mapping):
        return {repr(key): _remembered(item, seen, depth - 1) for key, item in value.items()}
    try:
        # The way in which any object is copied tells all that it holds.
        held = value.__reduce_ex__(4)
    except Exception:  # some objects cannot be copied
        return None
    return None if isinstance(held, str) else _remembered(held[1:3], seen, depth - 1)


def _alike(value: object, other: object) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return _close(value, other, SAME)
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=SAME) or (math.isnan(value) and math.isnan(other))
    if isinstance(value, Sequence) and isinstance(other, Sequence) and not isinstance(value, (str, bytes)):
        return len(value) == len(other) and all(map(_alike, value, other))
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(_alike(item, other[key]) for key, item in value.items())
    return bool(value == other)


def _close(value: Tensor, other: Tensor, share: float = CLOSE, floor: float = 0.0) -> bool:
    """Whether numbers are the same but for rounding."""
    if value.shape != other.shape or value.dtype != other.dtype:
        return False
    if not value.is_floating_point():
        return torch.equal(value, other)
    return torch.allclose(value, other, rtol=share, atol=share * _largest(other) + floor, equal_nan=True)


def _largest(tensor: Tensor) -> float:
    known = tensor[tensor.isfinite()]
    return float(known.abs().max()) if known.numel() else 0.0
