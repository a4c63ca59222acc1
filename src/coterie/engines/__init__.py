"""Engines: who executes local training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.client.problem import Problem
from coterie.devices import PROCESSOR, require_there
from coterie.engines.base import Engine as Engine
from coterie.engines.base import EngineOptions as EngineOptions
from coterie.engines.base import Trained as Trained
from coterie.engines.base import Work as Work
from coterie.errors import require
from coterie.methods.base import Method
from coterie.registry import Registry, deferred, on_first_use, subclasses_of

if TYPE_CHECKING:  # the engines: each has the name of its file or folder
    from coterie.engines.adaptive import Adaptive as Adaptive
    from coterie.engines.processes import Processes as Processes
    from coterie.engines.ray.engine import RayCluster as RayCluster
    from coterie.engines.serial import Serial as Serial
    from coterie.engines.stacked.engine import Stacked as Stacked

__getattr__ = on_first_use(__name__, __file__)

NO_OPTIONS = EngineOptions()

ENGINES: Registry[type[Engine]] = Registry(
    "engine",
    "coterie.engines",
    {text.partition(":")[0].split(".")[2]: text for text in deferred(__file__).values()},
    subclasses_of(Engine),
)
"""Every engine by name: a class that extends `Engine`."""


def make_engine(name: str, problem: Problem, method: Method, seed: int, options: EngineOptions = NO_OPTIONS) -> Engine:
    """The engine of that name, or in that file, for a problem."""
    return ENGINES.find(name).create(problem, method, seed, options)


def require_device(device: str, engine: str) -> None:
    """An error unless the device is here and the engine can train on it.

    >>> require_device("cuda", "processes")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: device = cuda: engine 'processes' trains on the processor; use engine='stacked'
    """
    if device == PROCESSOR:
        return
    require(
        engine == "auto" or ENGINES.find(engine).uses_device,
        f"device = {device}: engine '{engine}' trains on the processor; use engine='stacked'",
    )
    if engine != "ray":  # whose actors may have what this machine has not
        require_there(device)
