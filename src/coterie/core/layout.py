"""How a module's tensors become the columns of a row, and which columns form which group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coterie.core.columns import Columns
from coterie.core.training import MemoryFormat as MemoryFormat
from coterie.core.training import StatsPolicy as StatsPolicy
from coterie.errors import CoterieError, require, unknown

# The class that every batch-norm layer derives from; layers are found by type, never by name.
BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Entry:
    """One tensor of the module and its place in the row."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    is_buffer: bool
    channels_last: bool = False

    @cached_property
    def columns(self) -> Columns:
        """The tensor's columns."""
        return Columns.of((self.start, self.stop))

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in which the columns lie in the row; `order` gives the tensor's dimensions among it."""
        if not self.channels_last:
            return self.shape
        outputs, inputs, height, width = self.shape
        return outputs, height, width, inputs

    @property
    def order(self) -> tuple[int, ...]:
        """Which dimension of `stored` is which of the tensor: `columns.view(stored).permute(order)` is the tensor."""
        return (0, 3, 1, 2) if self.channels_last else tuple(range(len(self.shape)))

    def view(self, columns: Tensor) -> Tensor:
        """The tensor in its shape, as a view of its columns `[..., n]`."""
        stored = columns.view((*columns.shape[:-1], *self.stored))
        return stored.movedim(-1, -3) if self.channels_last else stored

    def flat(self, tensor: Tensor) -> Tensor:
        """The columns `[n]` of the tensor: the inverse of `view`."""
        return (tensor.permute(0, 2, 3, 1) if self.channels_last else tensor).reshape(-1)


class Layout:
    """The columns of every tensor of a module: first the parameters, then the float buffers.

    Groups (see `columns`): `classifier`, the parameters of the named module; `extractor`, all others;
    `norm`, everything that belongs to batch-norm layers; `stats`, the running statistics; `parameters`;
    `all`, what methods share. The policy for running statistics is explicit: with `stats="mean"` they
    travel with the parameters of their part of the model (and so with `all`), with `"local"` they
    belong to no group but `stats` and `norm`, and stay with their client. Any module path is a group too.
    With `memory="channels_last"` the weights of convolutions lie in that order in the row, which is faster for
    some models; it is a matter of speed alone.

    >>> layout = Layout(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), classifier="2")
    >>> layout.width, layout.columns("extractor").size, layout.columns("all - classifier").size
    (23, 15, 15)
    """

    def __init__(
        self,
        module: nn.Module,
        classifier: str,
        stats: StatsPolicy = "mean",
        memory: MemoryFormat = "contiguous",
    ) -> None:
        self.classifier, self.stats, self.memory = classifier, stats, memory
        require_classifier(module, classifier)
        self.entries: tuple[Entry, ...] = tuple(_entries(module, memory == "channels_last"))
        self.width = self.entries[-1].stop if self.entries else 0
        parameters = _union(entry for entry in self.entries if not entry.is_buffer)
        buffers = _union(entry for entry in self.entries if entry.is_buffer)
        norm_names = {
            f"{path}.{name}" if path else name
            for path, layer in module.named_modules()
            if isinstance(layer, BatchNorm)
            for name, _ in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
        }
        travelling = parameters | buffers if stats == "mean" else parameters
        head = self._under(classifier) & travelling
        self.groups: dict[str, Columns] = {
            "all": travelling,
            "parameters": parameters,
            "extractor": travelling - head,
            "classifier": head,
            "norm": _union(entry for entry in self.entries if entry.name in norm_names),
            "stats": buffers,
        }
        self.everything = parameters | buffers
        frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
        # Parameters that their author froze stay as they are, whatever a phase trains.
        self.trainable = _union(e for e in self.entries if not e.is_buffer and e.name not in frozen)
        self._parsed: dict[str, Columns] = {}
        self.has_batch_norm = bool(norm_names)

    def _under(self, path: str) -> Columns:
        return _union(entry for entry in self.entries if entry.name.startswith(f"{path}."))

    def _module(self, path: str) -> Columns:
        found = self._under(path)
        if not found:
            raise unknown("group", path, self.groups)
        return found & self.groups["all"]

    def columns(self, group: str | Columns) -> Columns:
        """The columns of a group, of a module path, or of an expression such as `"all - norm"`."""
        if isinstance(group, Columns):
            return group
        if group not in self._parsed:
            self._parsed[group] = self._parse(group)
        return self._parsed[group]

    def _parse(self, group: str) -> Columns:
        total, sign = Columns(), "+"
        for part in re.split(r"\s+([+-])\s+", group.strip()):
            if part in ("+", "-"):
                sign = part
            elif part:
                found = self.groups[part] if part in self.groups else self._module(part)
                total = total | found if sign == "+" else total - found
        return total

    @property
    def classifier_weights(self) -> tuple[Entry, ...]:
        """The weight matrices of the classifier, in order: tensors with one row per output."""
        group = self.groups["classifier"]
        return tuple(entry for entry in self.entries if entry.columns <= group and len(entry.shape) == 2)

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Every tensor by name, as a view of `row [P]`: nothing is copied."""
        return {entry.name: entry.view(row[entry.start : entry.stop]) for entry in self.entries}

    def mount(self, module: nn.Module, row: Tensor) -> None:
        """Make the module's parameters and float buffers views of `row [P]`, without copies."""
        views = self.views(row)
        for entry in self.entries:
            owner, name = _owner(module, entry.name)
            if entry.is_buffer:
                owner._buffers[name] = views[entry.name]
            else:
                parameter = owner._parameters[name]
                assert parameter is not None
                parameter.data = views[entry.name]

    def row(self, module: nn.Module) -> Tensor:
        """The module's tensors as one new row `[P]`."""
        tensors: Mapping[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([entry.flat(tensors[entry.name].detach()).float() for entry in self.entries])

    def load(self, module: nn.Module, row: Tensor) -> nn.Module:
        """Copy `row [P]` into the module, which stays an ordinary module with tensors of its own."""
        for name, view in self.views(row).items():
            owner, local = _owner(module, name)
            target = owner._parameters.get(local)
            (target if target is not None else getattr(owner, local)).data.copy_(view)
        return module


def require_classifier(module: nn.Module, path: str) -> nn.Module:
    """The module's classifier, or an error that lists the modules that could be one."""
    modules = {name: sub for name, sub in module.named_modules() if name and list(sub.parameters())}
    if path not in modules:
        raise unknown("classifier module", path, modules)
    return module.get_submodule(path)


def _entries(module: nn.Module, channels_last: bool) -> Iterator[Entry]:
    position = 0
    tensors: list[tuple[str, Tensor, bool]] = [(name, p, False) for name, p in module.named_parameters()]
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            tensors.append((name, buffer, True))
    for path, layer in module.named_modules():
        require(
            not (isinstance(layer, BatchNorm) and layer.momentum is None),
            f"module '{path}': batch norm with momentum=None counts batches outside its row; set a momentum",
        )
    for name, tensor, is_buffer in tensors:
        if tensor.dtype != torch.float32:
            raise CoterieError(f"tensor '{name}' is {tensor.dtype}; rows hold float32: call module.float() first")
        shape, stop = tuple(tensor.shape), position + tensor.numel()
        yield Entry(name, shape, position, stop, is_buffer, channels_last and len(shape) == 4)
        position += tensor.numel()


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, local = name.rpartition(".")
    return module.get_submodule(path), local


def _union(entries: Iterator[Entry]) -> Columns:
    return Columns.of(*((entry.start, entry.stop) for entry in entries))
