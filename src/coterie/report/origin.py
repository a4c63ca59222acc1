"""Where a run comes from, in words: when and by what it was run, on which data."""

from __future__ import annotations

from coterie.errors import CoterieError
from coterie.report.reading import ReportedRun
from coterie.runs.record import Session

SHOWN = 16
"""Digits of a checksum that are shown: enough to tell two apart."""


def origin(run: ReportedRun) -> list[list[str]]:
    """What the run says about itself, a line each with a title; nothing where it says nothing that can be read."""
    try:
        about = run.record.about()
        told = [["session", _session(one)] for one in about.sessions]
        data, model = about.data, about.model
        marks = "; ".join(f"{part} {str(mark)[:SHOWN]}…" for part, mark in (data.fingerprint or {}).items())
        told.append(["data", f"{data.name}, {data.samples} samples of shape {tuple(data.shape)}; {marks}"])
        told.append(["model", f"{run.config['model']}, {model.parameters} parameters"])
        if about.protocol:
            told.append(["protocol", about.protocol])
    except CoterieError:
        return []
    if run.partition is not None:
        told.append(["partition", f"{run.config['partition']}; {run.partition.hash[:SHOWN]}…"])
    return told


def _session(one: Session) -> str:
    """
    >>> _session(Session("2026-01-02T03:04:05Z", 0, "1", "2", "3", "P", "AVX2", cores=2, threads=1))
    '2026-01-02 03:04:05 UTC, from the start: Coterie 1, PyTorch 2, Python 3, P (AVX2), 2 cores, 1 thread'
    """
    begun = one.begun.replace("T", " ").replace("Z", " UTC")
    since = f"after round {one.after_round}" if one.after_round else "from the start"
    counts = {"cores": one.cores, "threads": one.threads}
    counted = ", ".join(f"{count} {what if count != 1 else what[:-1]}" for what, count in counts.items())
    made = f"Coterie {one.coterie}, PyTorch {one.torch}, Python {one.python}"
    return f"{begun}, {since}: {made}, {one.processor} ({one.capability}), {counted}"
