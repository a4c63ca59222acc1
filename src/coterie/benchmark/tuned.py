"""Tuned settings as files that run: one a set with a table for each contestant, as contests write and Coterie ships."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from coterie.benchmark.contest import SetResults
from coterie.benchmark.protocol import CONTESTANTS, NAME, SAME
from coterie.errors import CoterieError, unknown
from coterie.files import write_whole
from coterie.setup.config import Config, read_toml

SHARED = "run"
"""The table of what all contestants of a set have in common; every other one is a contestant's."""


def write_tuned(results: SetResults) -> None:
    """Write the settings of everybody who has been tuned on a set, beside its results."""
    tables: dict[str, Any] = {}
    for name, record in results.records.items():
        if "chosen" not in record:
            continue
        of = record["of"]
        tables.setdefault(SHARED, {"data": of["data"], "batch": of["batch"], **SAME})
        fixed = CONTESTANTS[name].fixed if name in CONTESTANTS else {}
        own = {option: str(value) for option, value in {**fixed, **record["chosen"]}.items() if option != "lr"}
        lr = float(record["chosen"]["lr"])
        tables[name] = {"method": of["method"], "lr": lr, "own_epochs": record["epochs"], "set": own}
    if tables:
        write_whole(results.path.with_suffix(".toml"), tomli_w.dumps(tables).encode())


def tuned_sets() -> list[str]:
    """The names of the sets whose settings are shipped."""
    folder = files("coterie.benchmark") / NAME
    return sorted(f"{NAME}/{entry.name.removesuffix('.toml')}" for entry in folder.iterdir()) if folder.is_dir() else []


def read_tuned(name: str) -> dict[str, Any]:
    """The tables of a set by name (`natural-1/vowel`, or `vowel`), or those in a file that a benchmark has written."""
    if name.endswith(".toml"):
        return read_toml(Path(name))
    full = name if "/" in name else f"{NAME}/{name}"
    known = tuned_sets()
    if full not in known:
        raise unknown("tuned settings", name, known, also="FILE.toml")
    tables: dict[str, Any] = tomllib.loads((files("coterie.benchmark") / f"{full}.toml").read_text("utf-8"))
    return tables


def tuned_config(name: str, method: str | None) -> tuple[Config, list[str]]:
    """The configuration of a method's run with tuned settings, and its own options as `NAME=VALUE`."""
    tables = read_tuned(name)
    contestants = [key for key in tables if key != SHARED]
    if method is None:
        raise CoterieError(f"tuned = {name}: name the method too (it has: {', '.join(contestants)})")
    if method.lower() not in contestants:
        raise unknown(f"method with tuned settings of {name}", method, contestants)
    own = tables[method.lower()]
    return {**tables[SHARED], "lr": own["lr"]}, [f"{option}={value}" for option, value in own["set"].items()]
