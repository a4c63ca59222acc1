"""What a site finds out about its models, round by round, for its own eyes. Nothing of it is ever sent.

Whether taking part pays is told by a baseline: a model that trains beside the federation's, alone, with equal steps.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.scores import Score
from coterie.core.task.quality import calibration_errors, recalls, reliability
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.journal import Entry, Journal
from coterie.deployment.workplace import SiteWorker, Workplace, workplace
from coterie.devices import PROCESSOR
from coterie.engines.base import Trained, Work, do_work, empty_rows, tuned_score
from coterie.methods import Local
from coterie.methods.base import Method
from coterie.rounds.collect import collect
from coterie.runs.history import plain_number, plain_numbers
from coterie.setup.config import method_name
from coterie.setup.features import usual_settings

NORMAL = 1.959964  # standard deviations around the mean within which 95 % of a normal distribution lie


@dataclass(frozen=True)
class Gain:
    """The difference of two shares of right answers in points, and where it lies with 95 % confidence.

    The confidence is about the held-out samples, of which there are so many; not about chance in training.
    """

    points: float
    low: float
    high: float
    samples: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0

    @property
    def sentence(self) -> str:
        """What that means, in words.

        >>> print(paired_gain(60, 20, 412).sentence)
        Taking part gains you +9.7 points of accuracy (95 % interval +5.5 to +13.8, 412 held-out samples).
        >>> print(paired_gain(1, 0, 9).sentence)
        It is not clear yet whether taking part pays: +11.1 points of accuracy (95 % interval −21.3 to +39.5, 9 \
held-out samples).
        """
        difference = f"{_signed(self.points)} points of accuracy"
        around = f"(95 % interval {_signed(self.low)} to {_signed(self.high)}, {self.samples} held-out samples)"
        if not self.clear:
            return f"It is not clear yet whether taking part pays: {difference} {around}."
        return f"Taking part {'gains' if self.points > 0 else 'costs'} you {difference} {around}."


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def paired_gain(better: int, worse: int, samples: int) -> Gain | None:
    """The gain where one model alone is right on `better` of the samples and the other alone on `worse`; none without.

    The interval is Bonett and Price's for the difference of paired proportions (2012): one sample more is counted each
    way, so that it holds for few samples too, and is not empty where both models are right on the same ones.
    """
    if not samples:
        return None
    total = samples + 2
    ours, theirs = (better + 1) / total, (worse + 1) / total
    spread = NORMAL * math.sqrt((ours + theirs - (ours - theirs) ** 2) / total)
    low, high = max(-1.0, ours - theirs - spread), min(1.0, ours - theirs + spread)
    return Gain(100 * (better - worse) / samples, 100 * low, 100 * high, samples)


ROW = "baseline.model"
"""The name of its row among what a site keeps after a round."""


class Baseline:
    """The model of a client that trains alone: in the rounds in which the client trains, and just as `Local` would.

    The first weights, the samples, the batches and their order are those of a simulation of `Local` in which the client
    takes part in the same rounds, and so are the weights after each of them, bit for bit.
    """

    def __init__(self, agreement: Agreement, client: int, data: Dataset, device: str = PROCESSOR) -> None:
        # It never leaves its site, and needs no noise.
        alone = replace(agreement, method=Local(), **usual_settings())
        self._place = workplace(alone, client, data, device=device)
        self._first = self._row.clone()

    @property
    def _row(self) -> Tensor:
        return self._place.federation["model"].own  # [1, P]

    def put_inputs(self, inputs: Tensor) -> None:
        """Work on other inputs of the same samples from now on."""
        self._place.put_inputs(inputs)

    def restore(self, kept: Mapping[str, Tensor] | None) -> bool:
        """Go on from what was kept after a round (none: from the first weights); False if it was not among that."""
        if kept is not None and ROW not in kept:
            return False
        self._row.copy_(self._first if kept is None else kept[ROW])
        return True

    def state(self) -> dict[str, Tensor]:
        """What outlives a round."""
        return {ROW: self._row}

    def train(self, round: int, rounds_taken: int) -> bool:
        """Do a round's local work; False if that diverged, and the model is as it was."""
        federation, client = self._place.federation, self._place.client
        federation.round = round
        federation.rounds_taken[client] = rounds_taken
        work = Work(Local().recipe(federation))
        rows = empty_rows(federation, work, 1)
        do_work(self._place.worker, federation, client, work, [(slot, matrix[0]) for slot, matrix in rows.items()])
        return not collect(federation, work.recipe, {}, torch.tensor([client]), Trained(rows)).diverged

    def score(self) -> Score:
        """How good it is on the site's test samples."""
        self._place.worker.seat(self._place.federation, self._place.client)
        return tuned_score(self._place.worker, keep_scores=True).on_processor()


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

    def put_inputs(self, inputs: Tensor) -> None:
        """Have a baseline that is there already work on other inputs of the same samples."""
        if "_baseline" in vars(self):
            self._baseline.put_inputs(inputs)

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
                self._without = next((entry["no_baseline"] for entry in self._before() if "no_baseline" in entry), LATE)
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
        numbers: dict[str, Any] = {metric.scale.name: plain_number(metric.value(sums)) for metric in task.metrics}
        if score.kept is None or not len(score.kept):
            return numbers
        quality = task.quality([score.kept], [self._place.problem.labels[self._place.test]])
        counts = {name: values[0].numpy() for name, values in quality.items()}
        shares = recalls(counts)
        confidence, accuracy = reliability(counts)
        return numbers | {
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
