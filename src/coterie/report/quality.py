"""What a report says of finished models beyond their score: classes recognised, ranking, calibration, by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.task.quality import BINS, calibration_errors, fits, recalls, reliability
from coterie.errors import CoterieError, require
from coterie.report.reading import ReportedRun
from coterie.report.rounding import Content, rounded

Counts = Mapping[str, npt.NDArray[Any]]
WIDTHS = {"bin_samples": BINS, "bin_hits": BINS, "bin_confidence": BINS}


def run_quality(run: ReportedRun) -> Counts | None:
    """What the run kept of its clients' finished models; nothing if it kept none, an error if that cannot be read."""
    found = {name: values.numpy() for name, values in run.record.quality().items()}
    if not {"hits", "support", "auc", "macro_f1", *WIDTHS} <= found.keys():
        return None  # a task of one's own may keep other things
    classes = (*found["support"].shape, 0)[1]
    require(fits(found, len(run.names), classes), "what the run says of its finished models does not fit its clients")
    return found


def quality_content(
    run: ReportedRun, classes: Sequence[str] | None, most_clients: int, drawn: Sequence[int]
) -> Content:
    """One run's part of a page: per-class recall, AUC and calibration by client; or in words why there is none.

    Up to `most_clients` each has its recalls and its curve; AUC and calibration are those of the clients `drawn`.
    """
    try:
        found = run_quality(run)
    except CoterieError as error:
        return {"why": str(error)}
    if found is None:
        return {"why": "the run kept nothing of its finished models: it has not ended, or its task has no classes"}
    each = len(run.names) <= most_clients
    return {
        "why": "",
        "classes": _names(classes, found),
        "recall": [rounded(row, 4) for row in recalls(found)] if each else None,
        "support": found["support"].tolist() if each else None,
        "auc": rounded(found["auc"][drawn], 4),
        "ece": rounded(calibration_errors(found)[drawn], 4),
        "together": _curve(merged([found])),
        "clients": [_curve({name: found[name][k] for name in WIDTHS}) for k in range(len(run.names))] if each else None,
    }


def methods_quality(runs: Mapping[str, Sequence[ReportedRun]], classes: Sequence[str] | None) -> Content:
    """The same of several methods side by side, each with its runs: clients of all seeds are counted together."""
    methods, width = [], 0
    for title, own in runs.items():
        there = [(run, found) for run in own if (found := _readable(run)) is not None]
        if not there or width not in (0, there[0][1]["support"].shape[-1]):
            continue
        together = merged([found for _, found in there])
        width = len(together["support"])
        dots = [
            {"client": name, "seed": int(run.config["seed"]), "auc": auc, "ece": ece}
            for run, found in there
            for name, auc, ece in zip(
                run.names, rounded(found["auc"], 4), rounded(calibration_errors(found), 4), strict=True
            )
        ]
        methods.append({"title": title, "recall": rounded(recalls(together), 4), "dots": dots, **_curve(together)})
    if not methods:
        return {"why": "no run kept anything of its finished models", "methods": []}
    names = classes if classes is not None and len(classes) == width else [*map(str, range(width))]
    return {"why": "", "classes": list(names), "methods": methods}


def _readable(run: ReportedRun) -> Counts | None:
    try:
        return run_quality(run)
    except CoterieError:
        return None  # the run's own part of the page says so


def merged(parts: Sequence[Counts]) -> dict[str, npt.NDArray[Any]]:
    """Counts and sums over all clients of several runs, as if their test samples were one client's.

    >>> bins = {name: np.ones((2, BINS)) for name in WIDTHS}
    >>> one = {"hits": np.array([[1, 0], [2, 1]]), "support": np.array([[1, 1], [2, 2]]), **bins}
    >>> merged([one])["hits"]
    array([3, 1])
    """
    return {name: np.sum([part[name].sum(0) for part in parts], axis=0) for name in ("hits", "support", *WIDTHS)}


def _curve(counts: Counts) -> Content:
    confidence, accuracy = reliability(counts)
    return {
        "samples": counts["bin_samples"].tolist(),
        "confidence": rounded(confidence, 4),
        "accuracy": rounded(accuracy, 4),
        "error": rounded([float(calibration_errors(counts))], 4)[0],
    }


def _names(classes: Sequence[str] | None, found: Counts) -> list[str]:
    width = found["support"].shape[-1]
    return list(classes) if classes is not None and len(classes) == width else [*map(str, range(width))]
