"""What the lines of the metrics must be: each that of a round, and all of them those that a checkpoint knows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from coterie.runs.history import ACTIVITIES, COHORT, ERRORS, EVERYBODY, TRAINING, VALIDATION, Line
from coterie.rounds.evaluate import MOMENTS

MEANS = ("mean", "weighted", "std", "worst_decile")
DIRECTIONS = ("up", "down")


class LinesDigest:
    """A text that differs if any line does, whatever the time that a round took.

    A last round is tested though it would not be its turn. More rounds may be planned later, and it is then a round
    like others; so what it was tested for does not count.

    >>> one = LinesDigest(1, [{"round": 1, "seconds": {"train": 1.0}, "cohort": [0]}])
    >>> one.text == LinesDigest(1, [{"round": 1, "seconds": {"train": 2.0}, "cohort": [0]}]).text
    True
    >>> one.text == LinesDigest(1, [{"round": 1, "seconds": {"train": 1.0}, "cohort": [1]}]).text
    False
    """

    def __init__(self, evaluate_every: int, lines: Iterable[Line] = ()) -> None:
        self._every, self._digest = evaluate_every, hashlib.sha256()
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Go on with the line of the next round."""
        counted = {key: value for key, value in untested(line, self._every).items() if key != "seconds"}
        self._digest.update(json.dumps(counted, sort_keys=True).encode() + b"\n")

    @property
    def text(self) -> str:
        """The digest of all lines so far."""
        return self._digest.hexdigest()


def untested(line: Line, evaluate_every: int) -> Line:
    """A line as that of any round but the last: without scores if it is not its turn to be tested, or not everybody's.

    >>> untested({"round": 3, "received": {}}, 2), untested({"round": 4, "received": {}}, 2)
    ({'round': 3}, {'round': 4, 'received': {}})
    """
    tested = line["round"] % evaluate_every == 0
    if tested and EVERYBODY not in line:
        return line
    left_out = (EVERYBODY,) if tested else (EVERYBODY, *MOMENTS)
    kept, validated = (
        {key: value for key, value in part.items() if key not in left_out} for part in (line, line.get(VALIDATION, {}))
    )
    kept.pop(VALIDATION, None)
    return {**kept, VALIDATION: validated} if validated else kept


def fault_of_line(line: Line) -> str:
    """What is wrong with a line, in words; empty if it tells all that every line tells, as it should.

    >>> seconds = {"train": 1.0, "exchange": 0.1, "evaluate": 0.2}
    >>> fault_of_line({"round": 1, "cohort": [0], "seconds": seconds, "bytes": {"up": 8, "down": 8}})
    ''
    >>> fault_of_line({"round": 1, "cohort": [0], "seconds": seconds, "bytes": {"up": 8}})
    'lacks bytes down'
    """
    lacking = [key for key in ("cohort", "seconds", "bytes") if key not in line]
    if lacking:
        return f"lacks {', '.join(lacking)}"
    whole = isinstance(line["cohort"], list) and all(type(client) is int for client in line["cohort"])
    timed = isinstance(line["seconds"], dict) and all(map(_is_number, line["seconds"].values()))
    sent = isinstance(line["bytes"], dict) and all(type(count) is int for count in line["bytes"].values())
    for right, key in ((whole, "cohort"), (timed, "seconds"), (sent, "bytes")):
        if not right:
            return f"tells of other {key} than there are"
    for key, wanted in (("seconds", ACTIVITIES), ("bytes", DIRECTIONS)):
        lacking = [name for name in wanted if name not in line[key]]
        if lacking:
            return f"lacks {key} {', '.join(lacking)}"
    validated = line.get(VALIDATION, {})
    parts = [line, line.get(EVERYBODY, {}), validated]
    if isinstance(validated, Mapping):
        parts.append(validated.get(EVERYBODY, {}))
    return next(filter(None, map(_fault_of_scores, parts)), "")


def _fault_of_scores(part: Any) -> str:
    if not isinstance(part, Mapping):
        return f"tells of no {VALIDATION}"
    for name in (*MOMENTS, TRAINING, COHORT):
        if name not in part:
            continue
        scores, means = part[name], MEANS if name in MOMENTS else ()
        single = (*means, *ERRORS)
        lists: list[Any] = [scores[key] for key in scores if key not in single] if isinstance(scores, dict) else [None]
        right = (
            isinstance(scores, dict)
            and all(_is_number(scores.get(mean, "")) for mean in means)
            and all(_is_number(scores.get(error)) for error in ERRORS)
            and all(isinstance(one, list) and all(map(_is_number, one)) for one in lists)
            and len({len(one) for one in lists}) <= 1
        )
        if not right:
            return f"tells of other scores ('{name}') than there are"
    return ""


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or none where that was not finite."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
