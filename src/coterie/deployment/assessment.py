"""What a site finds out about its models, round by round, for its own eyes. Nothing of it is ever sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from coterie.client.scores import Score
from coterie.core.task.quality import calibration_errors, recalls, reliability
from coterie.data import Dataset
from coterie.deployment.baseline import Baseline
from coterie.deployment.gain import paired_gain
from coterie.deployment.journal import Entry, Journal
from coterie.deployment.workplace import SiteWorker, Workplace
from coterie.devices import PROCESSOR
from coterie.engines.base import tuned_score
from coterie.methods import Local
from coterie.methods.base import Method
from coterie.runs.history import plain_number, plain_numbers
from coterie.setup.config import method_name

log = logging.getLogger("coterie")

SHARE_OF_DEADLINE = 1 / 3
"""The baseline is trained as long as a round's own work takes no more than this of the deadline."""
OFF = "the agreement switches it off (baseline = false)"
ALONE = "the method is Local, whose model is trained alone anyway"
LATE = "it lacks rounds that this site has behind it: it was switched on later, or what was kept is lost"
SLOW = "a round's own work took {seconds:.0f} s; twice that would be too near to the deadline of {deadline:g} s"
FAILED = "an error happened, which is in this site's log"


class Assessment:
    """Scores of a site's models in the open round, and those of the baseline beside them.

    Whatever goes wrong here is logged and told in the journal; the site's answer to its server goes out all the same.
    """

    def __init__(self, place: Workplace, data: Dataset, journal: Journal, device: str = PROCESSOR) -> None:
        self._place, self._data, self.journal, self._device = place, data, journal, device
        self._entry: Entry = {}
        self._without = ""  # why there is no baseline in the open round

    @cached_property
    def _baseline(self) -> Baseline:
        return Baseline(self._place.agreement, self._place.client, self._data, self._device)

    def begin(self, round: int, since: int, kept: Mapping[str, Tensor] | None, received: Score | None) -> None:
        """A task came in. The site goes on from what it kept after round `since`; `received` is its model's score."""
        agreement = self._place.agreement
        self._entry = {
            "round": round,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "method": method_name(agreement.kind),
            "test_samples": len(self._place.test),
        }
        self._without = ALONE if isinstance(agreement.kind, Local) else "" if agreement.baseline else OFF
        with self._harmless():
            if not self._without and not self._resumed(since, kept):
                self._without = next((one["no_baseline"] for one in self._before() if "no_baseline" in one), LATE)
            if received is not None:
                self._judge(received)

    def _resumed(self, since: int, kept: Mapping[str, Tensor] | None) -> bool:
        """Whether the baseline has all rounds behind it that the site has, and is where it was after them."""
        return not (since and kept is None) and self._baseline.restore(kept if since else None)

    def _before(self) -> Iterator[Entry]:
        """The entries of earlier rounds, the newest first."""
        return (entry for entry in reversed(self.journal.entries()) if entry["round"] < self._entry["round"])

    def _judge(self, received: Score) -> None:
        federation, method = self._place.federation, self._place.agreement.kind
        self._entry["received"] = self._numbers(received)
        if federation.layout.columns("parameters") <= federation["model"].shared_columns:
            self._entry["shared"] = self._numbers(received if _tests_its_model(method) else self._shared())
        if self._without:
            return
        alone = self._baseline.score()
        self._entry["alone"] = self._numbers(alone)
        right = self._place.agreement.task.primary.quantity
        ours, theirs = received.quantities[right], alone.quantities[right]
        gain = paired_gain(int((ours & ~theirs).sum()), int((theirs & ~ours).sum()), len(ours))
        if gain is not None:
            self._entry["gain"] = {**vars(gain), "clear": gain.clear, "sentence": gain.sentence}

    def _shared(self) -> Score:
        """The score of the model that all sites share, where the method tests another one."""
        worker = SiteWorker(self._place.worker.problem, Local(), self._place.agreement.seed)
        worker.seat(self._place.federation, self._place.client)
        return tuned_score(worker, keep_scores=True).on_processor()

    def train(self, seconds: float, rounds_taken: int) -> dict[str, Tensor]:
        """Train the baseline too, if the round's own work left time for it; what the site is to keep of it."""
        deadline = self._place.agreement.deadline
        self._entry["seconds"] = {"own": round(seconds, 3)}
        if not self._without and seconds > SHARE_OF_DEADLINE * deadline:
            self._without = SLOW.format(seconds=seconds, deadline=deadline)
        with self._harmless():
            if not self._without:
                begin = time.perf_counter()
                if not self._baseline.train(self._entry["round"], rounds_taken):
                    log.warning("round %d: the baseline diverged; it keeps its last good model", self._entry["round"])
                self._entry["seconds"]["baseline"] = round(time.perf_counter() - begin, 3)
                return dict(self._baseline.state())
        return {}

    def end(self, down: int, up: int, trained: Score | None) -> None:
        """The answer is ready: write the round down."""
        with self._harmless():
            self._entry["bytes"] = {"down": down, "up": up}
            if trained is not None:
                self._entry["trained"] = self._numbers(trained)
            self._write()

    def diverge(self) -> None:
        """Training diverged, and the site keeps its last good model: write that down."""
        with self._harmless():
            self._entry["diverged"] = True
            self._write()

    def finish(self, down: int) -> None:
        """The federation has come to its end, and this was its model."""
        with self._harmless():
            self._entry |= {"finished": True, "bytes": {"down": down, "up": 0}}
            self._write()

    def _write(self) -> None:
        if self._without:
            self._entry["no_baseline"] = self._without
        self.journal.add(self._entry)
        gain = self._entry.get("gain")
        if gain is not None:
            log.info("round %d: %s", self._entry["round"], gain["sentence"])

    def _numbers(self, score: Score) -> dict[str, Any]:
        """A score as plain numbers: the task's metrics and, where outputs were kept, ranking, classes, calibration."""
        task, sums = self._place.agreement.task, score.sums()
        found: dict[str, Any] = {one.scale.name: plain_number(one.value(sums)) for one in task.metrics}
        if score.kept is None or not len(score.kept):
            return found
        quality = task.quality([score.kept], [self._place.problem.labels[self._place.test]])
        counts = {name: values[0].numpy() for name, values in quality.items()}
        shares = recalls(counts)
        confidence, accuracy = reliability(counts)
        return found | {
            "auc": plain_number(float(counts["auc"])),
            "sensitivity": plain_number(float(np.mean(shares[~np.isnan(shares)]))),
            "calibration_error": plain_number(float(calibration_errors(counts))),
            "recall": plain_numbers(shares),
            "support": counts["support"].tolist(),
            "reliability": {
                "samples": counts["bin_samples"].tolist(),
                "confidence": plain_numbers(confidence),
                "accuracy": plain_numbers(accuracy),
            },
        }

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            log.exception("what this site wants to know of its own models could not be found out")
            self._without = self._without or FAILED


def _tests_its_model(method: Method) -> bool:
    """Whether what is tested is the slot `model` itself, as it is."""
    plain = type(method).predict is Method.predict and type(method).tune is Method.tune
    return plain and method.tested == "model"
