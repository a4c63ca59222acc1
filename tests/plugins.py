"""Somebody's own method, model, rule, data and engine: in a file, and in an installed package."""

from __future__ import annotations

from pathlib import Path

METHOD = '''
"""FedAvg with momentum at the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.mixing import by_size
from coterie.methods import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    """Plain averaging, with an option that is told but not used."""

    beta: float = 0.5

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        yield Mix(by_size(uploads))
'''

MODEL = '''
"""A small network."""

import math

from torch import Tensor, nn


class Net(nn.Module):
    """Two linear layers."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 8), nn.ReLU())
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def digits_net() -> nn.Module:
    """The same for digits."""
    return Net((1, 8, 8), 10)


READY = digits_net()


def clumsy(width: int) -> nn.Module:
    return Net((1, 8, width), 10)


def no_module() -> int:
    return 3
'''

ENGINE = '''
"""An engine that says that it was used."""

from coterie.engines import Engine, EngineOptions, Serial
from coterie.methods import Method


class Loud(Serial):
    """The serial engine, aloud."""

    name = "loud"

    @classmethod
    def create(cls, problem, method, seed, options):
        print(f"loud engine with {options.workers} workers")
        return cls(problem, method, seed)
'''

RULE = '''
"""A partition rule."""

from dataclasses import dataclass
from typing import ClassVar

from coterie.partition import Iid


@dataclass(frozen=True)
class Evenly(Iid):
    """Everybody gets the same."""

    name: ClassVar[str] = "evenly"
'''

DATA = '''
"""A data set."""

import torch

from coterie.data import Dataset


def toy() -> Dataset:
    """Points on a line."""
    return Dataset("toy", torch.arange(200.0).view(200, 1) / 100 - 1, torch.arange(200) // 100, classes=2)
'''


def write_files(folder: Path) -> None:
    """All of it as files."""
    sources = {"my.py": METHOD, "net.py": MODEL, "engine.py": ENGINE, "rule.py": RULE, "points.py": DATA}
    for name, source in sources.items():
        (folder / name).write_text(source)


def install(folder: Path, name: str, entry_points: str, version: str = "1.0", **sources: str) -> Path:
    """A package as an installer leaves it; `folder` then has to be on Python's path."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    for module, source in sources.items():
        (folder / f"{module}.py").write_text(source)
    return folder
