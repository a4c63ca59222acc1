"""A round: who takes part, what is delivered, collected, exchanged, evaluated and counted."""

from __future__ import annotations

from typing import Any

from coterie.registry import Registry

LISTENERS: Registry[Any] = Registry("listener", "coterie.listeners", {}, lambda name, found: found)
"""Who is told of rounds besides the run itself (loggers, progress), by name. An entry is a class whose instances have
the listeners' methods. It is made with the options that a run gives."""
