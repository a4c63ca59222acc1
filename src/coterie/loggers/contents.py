"""What a logger can tell of a round: numbers, their spread over clients, and who learned from whom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from coterie.report.html import light_colours
from coterie.report.learning import MOST_CLIENTS, Floats, by_target, label_order, learning_matrix
from coterie.rounds.evaluate import MOMENTS, Evaluation, mean_over_clients
from coterie.rounds.listeners import RoundReport, Start

Pixels = npt.NDArray[np.uint8]
# An image has at least so many pixels on a side, as far as whole pixels a client allow.
SIDE = 240


def scalars(report: RoundReport) -> dict[str, float]:
    """The numbers of a round by name, such as `received/accuracy`: means over clients, their spread, and costs.

    What is not finite is left out, and so is what was not measured in this round.
    """
    numbers: dict[str, float] = {}
    for moment, at in _tested(report):
        for metric, values in at.values.items():
            numbers[f"{moment}/{metric}"] = mean_over_clients(values)
        judged = at.scale.name
        spread = {"weighted": at.weighted, "worst_decile": at.worst_decile, "std": at.std}
        numbers |= {f"{moment}/{judged}_{name}": number for name, number in spread.items()}
        if at.validation is not None:
            numbers[f"{moment}/validation_{judged}"] = at.validation.mean
    numbers |= {f"bytes/{way}": count for way, count in report.bytes.items()}
    numbers |= {f"seconds/{activity}": seconds for activity, seconds in report.seconds.items()}
    numbers["clients/diverged"] = len(report.diverged)
    return {name: float(number) for name, number in numbers.items() if math.isfinite(number)}


def over_clients(report: RoundReport) -> dict[str, Floats]:
    """What the run is judged by, of every client that has a number, by name: each `[K]`."""
    known = {f"{moment}/{at.scale.name}_of_clients": at.judged for moment, at in _tested(report)}
    finite = {name: values[np.isfinite(values)] for name, values in known.items()}
    return {name: values for name, values in finite.items() if len(values)}


def _tested(report: RoundReport) -> Iterator[tuple[str, Evaluation]]:
    for moment in MOMENTS:
        at: Evaluation | None = getattr(report, moment)
        if at is not None:
            yield moment, at


def matrices(report: RoundReport, clients: int) -> dict[str, Floats]:
    """Who learned from whom, `[K, K]` for each group and target, by name; none where there are too many to be seen."""
    if clients > MOST_CLIENTS:
        return {}
    return {
        f"mixing/{group}_into_{target}": learning_matrix(mixes, clients)
        for (group, target), mixes in by_target(report.mixes).items()
    }


def client_order(start: Start) -> list[int]:
    """The clients of a run, those with the same classes next to each other."""
    if start.prepared is None or len(start.clients) > MOST_CLIENTS:
        return [*range(len(start.clients))]
    counts = start.prepared.class_counts[start.prepared.participants]
    return label_order(counts) if counts.shape[1] else [*range(len(counts))]


def as_image(matrix: Floats, order: Sequence[int]) -> Pixels:
    """A matrix as reports colour it, its clients in an order, several pixels each: `[H, W, 3]`.

    >>> as_image(np.array([[1.0, 0.0], [np.nan, 0.5]]), [0, 1])[0, 0].tolist()
    [8, 48, 107]
    """
    shown = matrix[np.ix_(order, order)]
    top = float(np.nan_to_num(shown).max()) or 1.0
    place = np.sqrt(np.nan_to_num(shown / top))
    *ladder, absent = ([*bytes.fromhex(light_colours()[name][1:])] for name in ("w0", "w1", "w2", "absent"))
    channels = [np.interp(place, np.linspace(0, 1, len(ladder)), channel) for channel in zip(*ladder, strict=True)]
    colours = np.where(np.isnan(shown)[..., None], absent, np.stack(channels, axis=-1))
    pixels = max(-(-SIDE // len(shown)), 1)
    return np.round(colours).astype(np.uint8).repeat(pixels, axis=0).repeat(pixels, axis=1)
