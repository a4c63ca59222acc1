"""How a module's tensors become the columns of a row, and which columns form which group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coterie.core.columns import Columns
from coterie.core.inventory import held_tensors
from coterie.core.training import MemoryFormat as MemoryFormat
from coterie.core.training import StatsPolicy as StatsPolicy
from coterie.errors import CoterieError, require, unknown

# The class that every batch-norm layer derives from; layers are found by type, never by name.
BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Entry:
    """One tensor of the module and its place in the row; a tied one has several `names`, the first of which is its."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    is_buffer: bool
    names: tuple[str, ...]
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

    Groups (see `columns`): `classifier`, the parameters of the named module; `extractor`, all others; `norm`,
    everything that belongs to batch-norm layers; `stats`, the running statistics; `parameters`; `all`, what methods
    share. The policy for running statistics is explicit: with `stats="mean"` they travel with the parameters of their
    part of the model (and so with `all`), with `"local"` they belong to no group but `stats` and `norm`, and stay with
    their client. Any path of a module or tensor is a group too,
    and `classifier.PATH` one within the classifier. A tensor that is tied, so that it belongs to two
    modules, has one place; a group that parts it from one of them is refused. Whole numbers, and buffers that are not
    finite from the start, are constants: no row has them. With `memory="channels_last"` the weights of convolutions lie
    in that order in the row, which is faster for some models; it is a matter of speed alone.

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
        head = require_classifier(module, classifier)
        self.entries: tuple[Entry, ...] = tuple(_entries(module, memory == "channels_last"))
        self.width = self.entries[-1].stop if self.entries else 0
        norm_names = {
            f"{path}.{name}" if path else name
            for path, layer in module.named_modules(remove_duplicate=False)
            if isinstance(layer, BatchNorm)
            for name, _ in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
        }
        heads = tuple(f"{path}." for path in paths_of(module, head))
        # What tensors are called in the classifier by itself, and in the model without it: tied ones are in both.
        self.head_names, self.trunk_names = dict[str, str](), dict[str, str]()
        for entry in self.entries:
            for name in reversed(entry.names):
                if name.startswith(heads):
                    prefix = next(prefix for prefix in heads if name.startswith(prefix))
                    self.head_names[entry.name] = name.removeprefix(prefix)
                else:
                    self.trunk_names[entry.name] = name
        every = frozenset(name for entry in self.entries for name in entry.names)
        buffers = frozenset(name for entry in self.entries if entry.is_buffer for name in entry.names)
        travelling = every if stats == "mean" else every - buffers
        in_head = frozenset(name for name in travelling if name.startswith(heads))
        # Groups are sets of names: of a tied tensor, some may lie in a group and others not.
        self.groups: dict[str, frozenset[str]] = {
            "all": travelling,
            "parameters": every - buffers,
            "extractor": travelling - in_head,
            "classifier": in_head,
            "norm": every & norm_names,
            "stats": buffers,
        }
        self.everything = Columns.of((0, self.width))
        frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
        # Parameters that their author froze stay as they are, whatever a phase trains.
        self.trainable = _union(e for e in self.entries if not e.is_buffer and e.name not in frozen)
        self._parsed: dict[str, Columns] = {}
        self._insides: dict[str, Columns] = {}
        self.has_batch_norm = bool(norm_names)

    @property
    def tied(self) -> str | None:
        """In words, a tensor that the model has under several names; none if there is none."""
        return next((_spoken(entry) for entry in self.entries if len(entry.names) > 1), None)

    def _module(self, path: str) -> frozenset[str]:
        every = {name for entry in self.entries for name in entry.names}
        # A part of the classifier is called so wherever that lies.
        within = f"{self.classifier}.{path.removeprefix('classifier.')}" if path.startswith("classifier.") else path
        paths = (path, within)
        under = frozenset(name for name in every if name in paths or name.startswith(tuple(f"{one}." for one in paths)))
        if not under:
            raise unknown("group", path, self.groups)
        return under & self.groups["all"]

    def columns(self, group: str | Columns) -> Columns:
        """The columns of a group, of a module path, or of an expression such as `"all - norm"`."""
        if isinstance(group, Columns):
            return group
        if group not in self._parsed:
            names = self._parse(group)
            for entry in self.entries:
                require(
                    names.isdisjoint(entry.names) or names.issuperset(entry.names),
                    f"group '{group}' parts {_spoken(entry)}, which are one tensor; use a method that treats both "
                    "alike, such as fedavg, or name with classifier= a module that holds both",
                )
            self._parsed[group] = self.inside(group)
        return self._parsed[group]

    def inside(self, group: str) -> Columns:
        """The columns of a group but for tensors that it would part: what it has for itself."""
        if group not in self._insides:
            names = self._parse(group)
            self._insides[group] = _union(entry for entry in self.entries if names.issuperset(entry.names))
        return self._insides[group]

    def _parse(self, group: str) -> frozenset[str]:
        total, sign = frozenset[str](), "+"
        for part in re.split(r"\s+([+-])\s+", group.strip()):
            if part in ("+", "-"):
                sign = part
            elif part:
                names = self.groups[part] if part in self.groups else self._module(part)
                total = total | names if sign == "+" else total - names
        return total

    @property
    def classifier_weights(self) -> tuple[Entry, ...]:
        """The weight matrices of the classifier, in order: tensors with one row per output."""
        group = self.columns("classifier")
        return tuple(entry for entry in self.entries if entry.columns <= group and len(entry.shape) == 2)

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Every tensor by name, as a view of `row [P]`: nothing is copied."""
        return {entry.name: entry.view(row[entry.start : entry.stop]) for entry in self.entries}

    def mount(self, module: nn.Module, row: Tensor) -> None:
        """Make the module's parameters and float buffers views of `row [P]`, without copies."""
        views = self.views(row)
        for entry in self.entries:
            for owner, name in (_owner(module, name) for name in entry.names):
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
    every = module.named_modules(remove_duplicate=False)
    modules = {name: sub for name, sub in every if name and list(sub.parameters())}
    if path not in modules:
        raise unknown("classifier module", path, modules)
    return module.get_submodule(path)


def last_classifier(module: nn.Module, outputs: int) -> str:
    """The path of the one fully connected layer that has as many outputs as the model; an error unless there is one.

    >>> last_classifier(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), outputs=2)
    '2'
    >>> last_classifier(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)), outputs=2)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: classifier = 'last': name the module of your model that is its classifier: '0' or '2' \
may be it
    """
    layers = {name: part for name, part in module.named_modules() if name and isinstance(part, nn.Linear)}
    fitting: list[str] = [name for name, part in layers.items() if part.out_features == outputs]
    if len(fitting) == 1:
        return fitting[0]
    candidates = fitting or [name for name, part in module.named_children() if list(part.parameters())]
    listed = " or ".join(f"'{name}'" for name in candidates) or "no module"
    raise CoterieError(f"classifier = 'last': name the module of your model that is its classifier: {listed} may be it")


def paths_of(module: nn.Module, part: nn.Module) -> list[str]:
    """Under which paths a module has a part: several where it is registered more than once.

    >>> layer = nn.Linear(2, 2)
    >>> paths_of(nn.Sequential(layer, nn.ReLU(), layer), layer)
    ['0', '2']
    """
    return [path for path, layer in module.named_modules(remove_duplicate=False) if layer is part]


def _entries(module: nn.Module, channels_last: bool) -> Iterator[Entry]:
    for path, layer in module.named_modules():
        counts = isinstance(layer, BatchNorm) and layer.momentum is None and layer.track_running_stats
        require(
            not counts, f"module '{path}': batch norm with momentum=None counts batches outside its row; set a momentum"
        )
    position = 0
    for held in held_tensors(module):
        shape, stop = tuple(held.tensor.shape), position + held.tensor.numel()
        last = channels_last and len(shape) == 4
        yield Entry(held.names[0], shape, position, stop, held.is_buffer, held.names, last)
        position = stop


def _spoken(entry: Entry) -> str:
    return " and ".join(f"'{name}'" for name in entry.names)


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, local = name.rpartition(".")
    return module.get_submodule(path), local


def _union(entries: Iterator[Entry]) -> Columns:
    return Columns.of(*((entry.start, entry.stop) for entry in entries))
