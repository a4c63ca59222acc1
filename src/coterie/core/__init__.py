"""Rows and how they mix: columns, layout, slots, the federation's state, the exchange. No client code, no methods."""

from __future__ import annotations

from typing import Any

from coterie.registry import Registry

TASKS: Registry[Any] = Registry("task", "coterie.tasks", {}, lambda name, found: found)
"""What models are trained for, by name. An entry is a class whose instances are tasks: what a label is, the loss, the
prediction and the metrics. It is made with the options that a run gives."""
