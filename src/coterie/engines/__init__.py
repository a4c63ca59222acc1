"""Engines: who executes local training."""

from __future__ import annotations

from coterie.client.problem import Problem
from coterie.devices import PROCESSOR, require_there
from coterie.engines.adaptive.engine import Adaptive
from coterie.engines.base import Engine, EngineOptions, Trained, Work
from coterie.engines.processes.engine import Processes
from coterie.engines.ray.engine import RayCluster
from coterie.engines.serial import Serial
from coterie.engines.stacked.engine import Stacked
from coterie.errors import require
from coterie.methods.base import Method
from coterie.registry import Registry, subclasses_of

NO_OPTIONS = EngineOptions()

_OWN: dict[str, type[Engine]] = {
    "adaptive": Adaptive,
    "processes": Processes,
    "ray": RayCluster,
    "serial": Serial,
    "stacked": Stacked,
}

ENGINES: Registry[type[Engine]] = Registry("engine", "coterie.engines", _OWN, subclasses_of(Engine))
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


__all__ = [
    "ENGINES",
    "Adaptive",
    "Engine",
    "EngineOptions",
    "Processes",
    "RayCluster",
    "Serial",
    "Stacked",
    "Trained",
    "Work",
    "make_engine",
]
