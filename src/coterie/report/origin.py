"""Where a run comes from, in words: when and by what it was run, on which data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.errors import CoterieError
from coterie.report.reading import RunRecord

SHOWN = 16
"""Digits of a checksum that are shown: enough to tell two apart."""


def origin(run: RunRecord) -> list[list[str]]:
    """What the run says about itself, a line each with a title; nothing where it says nothing that can be read."""
    try:
        about = run.directory.about()
        told = [["session", _session(one)] for one in about["sessions"]]
        data, model = about["data"], about["model"]
        marks = "; ".join(f"{part} {str(mark)[:SHOWN]}…" for part, mark in data["fingerprint"].items())
        told.append(["data", f"{data['name']}, {data['samples']} samples of shape {tuple(data['shape'])}; {marks}"])
        told.append(["model", f"{run.config['model']}, {model['parameters']} parameters"])
        if about["protocol"]:
            told.append(["protocol", str(about["protocol"])])
    except (CoterieError, KeyError, TypeError, AttributeError):
        return []
    if run.partition is not None:
        told.append(["partition", f"{run.config['partition']}; {run.partition.hash[:SHOWN]}…"])
    return told


def _session(one: Mapping[str, Any]) -> str:
    """
    >>> one = {"begun": "2026-01-02T03:04:05Z", "after_round": 0, "coterie": "1", "torch": "2", "python": "3"}
    >>> _session({**one, "processor": "P", "capability": "AVX2", "cores": 2, "threads": 1})
    '2026-01-02 03:04:05 UTC, from the start: Coterie 1, PyTorch 2, Python 3, P (AVX2), 2 cores, 1 thread'
    """
    begun = str(one["begun"]).replace("T", " ").replace("Z", " UTC")
    since = f"after round {one['after_round']}" if one["after_round"] else "from the start"
    counted = ", ".join(f"{one[what]} {what if one[what] != 1 else what[:-1]}" for what in ("cores", "threads"))
    made = f"Coterie {one['coterie']}, PyTorch {one['torch']}, Python {one['python']}"
    return f"{begun}, {since}: {made}, {one['processor']} ({one['capability']}), {counted}"
