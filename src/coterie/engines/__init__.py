"""Engines: who executes local training."""

from __future__ import annotations

import torch

from coterie.client.problem import Problem
from coterie.engines.base import Engine, Trained, Work
from coterie.engines.processes.engine import Processes
from coterie.engines.ray.engine import RayCluster
from coterie.engines.serial import Serial
from coterie.engines.stacked.engine import Stacked
from coterie.errors import CoterieError, require, unknown
from coterie.methods.base import Method

ENGINES: dict[str, type[Engine]] = {"processes": Processes, "ray": RayCluster, "serial": Serial, "stacked": Stacked}


def make_engine(
    name: str,
    problem: Problem,
    method: Method,
    seed: int,
    workers: int = 0,
    ray_address: str = "",
    ray_gpus: float = 0.0,
    device: str = "cpu",
) -> Engine:
    """The engine of that name; `workers` (0: one per core) matters to those that have any, `device` to `stacked`."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if name == "processes":
        return Processes(problem, method, seed, workers)
    if name == "ray":
        return RayCluster(problem, method, seed, workers, ray_address, ray_gpus)
    if name == "stacked":
        return Stacked(problem, method, seed, device)
    return Serial(problem, method, seed)


def require_device(device: str, engine: str) -> None:
    """An error unless the device is here and the engine can train on it.

    >>> require_device("cuda", "processes")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: device = cuda: engine 'processes' trains on the processor; use engine='stacked'
    """
    if device == "cpu":
        return
    require(
        engine in ("stacked", "auto"),
        f"device = {device}: engine '{engine}' trains on the processor; use engine='stacked'",
    )
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise CoterieError(
            f"device = {device}: cannot be used here ({reason}); leave it out, or install a PyTorch that has it"
        ) from None


__all__ = ["ENGINES", "Engine", "Processes", "RayCluster", "Serial", "Stacked", "Trained", "Work", "make_engine"]
