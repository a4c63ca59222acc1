"""Engines: who executes local training."""

from __future__ import annotations

from coterie.engines.engine import Engine, Trained, Work
from coterie.engines.processes import Processes
from coterie.engines.ray_cluster import RayCluster
from coterie.engines.serial import Serial
from coterie.engines.stacked import Stacked
from coterie.errors import unknown
from coterie.local import Problem
from coterie.methods.method import Method

ENGINES: dict[str, type[Engine]] = {"processes": Processes, "ray": RayCluster, "serial": Serial, "stacked": Stacked}


def make_engine(
    name: str,
    problem: Problem,
    method: Method,
    seed: int,
    workers: int = 0,
    ray_address: str = "",
    ray_gpus: float = 0.0,
) -> Engine:
    """The engine of that name; `workers` (0: one per core) matters to those that have any."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if name == "processes":
        return Processes(problem, method, seed, workers)
    if name == "ray":
        return RayCluster(problem, method, seed, workers, ray_address, ray_gpus)
    if name == "stacked":
        return Stacked(problem, method, seed)
    return Serial(problem, method, seed)


__all__ = ["ENGINES", "Engine", "Processes", "RayCluster", "Serial", "Stacked", "Trained", "Work", "make_engine"]
