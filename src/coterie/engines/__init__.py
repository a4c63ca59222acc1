"""Engines: who executes local training."""

from __future__ import annotations

from coterie.engines.engine import Engine, Trained, Work
from coterie.engines.serial import Serial
from coterie.engines.stacked import Stacked
from coterie.errors import unknown
from coterie.local import Problem
from coterie.methods.method import Method

ENGINES: dict[str, type[Serial] | type[Stacked]] = {"serial": Serial, "stacked": Stacked}


def make_engine(name: str, problem: Problem, method: Method, seed: int) -> Engine:
    """The engine of that name."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    return ENGINES[name](problem, method, seed)


__all__ = ["ENGINES", "Engine", "Serial", "Stacked", "Trained", "Work", "make_engine"]
