"""What of single clients a method's server has to see: read off what its exchanges look at and mix.

A server that only ever takes the same weighted mean for everybody, with weights that it knows beforehand, could do with
sums over clients (`means`). Whatever it compares, mixes differently for different clients or computes with, it has to
see client by client.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.exchange import Action, Mix, Peers, Uploads
from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.core.slots import Slot


class Sight:
    """Takes note of what a server looks at."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.measured: dict[str, bool] = {}  # name -> whether it is a mask
        self.sent = False

    def of_uploads(self, uploads: Uploads) -> Uploads:
        """The same uploads; what is read from them is noted."""
        self.sent = self.sent or any(uploads.declared.values()) or bool(uploads.measured)
        return _WatchedUploads(
            self.of_federation(uploads.federation),
            uploads.cohort,
            uploads.trained,
            uploads.declared,
            _WatchedMeasured(self, uploads.measured),
            self,
        )

    def of_federation(self, federation: Federation) -> Federation:
        """The same state; rows of clients that are read from it are noted."""
        view = copy.copy(federation)
        view.slots = {name: _WatchedSlot(slot, self) for name, slot in federation.slots.items()}
        return view

    def mixes(self, actions: Iterable[Action | Peers], layout: Layout) -> None:
        """Note what mixes take of single clients; what is delivered of peers is seen before."""
        for action in actions:
            if isinstance(action, Mix) and not _is_mean(action):
                self.columns = self.columns | layout.columns(action.group)
            elif isinstance(action, Peers):
                self.columns = self.columns | layout.columns("parameters")

    def spoken(self, layout: Layout) -> str:
        """In words: `means`, or what is seen of single clients.

        >>> from torch import nn
        >>> Sight().spoken(Layout(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), classifier="1"))
        'nothing'
        """
        words = []
        if self.columns - layout.columns("classifier"):
            words.append("models")
        elif self.columns:
            words.append("classifiers")
        masks = [name for name, is_mask in self.measured.items() if is_mask]
        words += (["masks"] if masks else []) + [name for name in self.measured if name not in masks]
        return ", ".join(words).replace("_", " ") or ("means" if self.sent else "nothing")


def _is_mean(mix: Mix) -> bool:
    """Whether a mix is one mean for everybody; of rows of earlier rounds it follows from sums of their changes."""
    return mix.gate is None and len(mix.weights) == 1


@dataclass(frozen=True)
class _WatchedUploads(Uploads):
    sight: Sight = field(default_factory=Sight)

    def rows(self, group: str | Columns = "all", slot: str = "model") -> Tensor:
        self.sight.columns = self.sight.columns | self.federation.layout.columns(group)
        return super().rows(group, slot)


class _WatchedMeasured(Mapping[str, Tensor]):
    def __init__(self, sight: Sight, measured: Mapping[str, Tensor]) -> None:
        self._sight, self._measured = sight, measured

    def __getitem__(self, name: str) -> Tensor:
        found = self._measured[name]
        self._sight.measured[name] = found.dtype == torch.bool
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._measured)

    def __len__(self) -> int:
        return len(self._measured)


class _WatchedSlot(Slot):
    """The same slot; rows of clients are noted when they are read."""

    def __init__(self, slot: Slot, sight: Sight) -> None:
        self.__dict__.update(slot.__dict__)
        self._slot, self._sight = slot, sight

    def rows(self, clients: Tensor, columns: Columns | None = None) -> Tensor:
        read = self.columns if columns is None else columns
        self._sight.columns = self._sight.columns | (read & self.own_columns)
        return self._slot.rows(clients, columns)
