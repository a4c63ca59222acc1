"""A run directory as a report reads it: whatever is whole in it, and in words what is not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from coterie.client.effort import FORWARD
from coterie.core.exchange import Applied
from coterie.core.numbers import ACCURACY, Scale, judged_scale
from coterie.core.task import TASKS, Classification
from coterie.core.task.base import LOSS
from coterie.errors import CoterieError, require
from coterie.partition import Partition
from coterie.rounds.evaluate import MOMENTS, Evaluation, Floats, Moment
from coterie.runs.directory import LOG
from coterie.runs.history import (
    COHORT,
    EFFORT,
    EVERYBODY,
    TESTED,
    TRAINING,
    TUNED,
    TUNING,
    History,
    Line,
    by_client,
    numbers,
    tested_sample,
)
from coterie.runs.kept import CONFIG, ROUNDS, KeptRun
from coterie.runs.opened import kept_run
from coterie.runs.packed import runs_in
from coterie.setup.config import Config

WARNING = re.compile(r"^\S+ \S+ (?:WARNING|ERROR|CRITICAL) (.*)$")
# What the lines of the rounds tell better.
TOLD_BY_ROUNDS = re.compile(r"^round \d+: client ")


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What a run left: its configuration, its rounds, its partition; `skipped` says what could not be read.

    `participants` are the clients of the partition that are not held out, `names` and `sizes` theirs. Without the
    partition, names are numbers and there are no sizes.
    """

    directory: KeptRun
    config: Config
    partition: Partition | None
    participants: tuple[int, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    scale: Scale
    history: History
    state: str
    skipped: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.directory.path.resolve().name

    def rounds(self, moment: Moment) -> list[int]:
        """The rounds in which clients were tested at a moment."""
        return [line["round"] for line, _ in self._told(moment)]

    def _told(self, moment: Moment) -> list[tuple[Line, Line]]:
        """The lines that tell of a moment, and what they tell of it."""
        found = ((line, line.get(EVERYBODY, {}).get(moment) or line.get(moment)) for line in self.history.lines)
        return [(line, told) for line, told in found if told is not None]

    def last_scores(self, moment: Moment) -> Floats:
        """What the run is judged by, at a moment of the last round that tells of it: `[K]`; NaN for the untested."""
        return by_client(self._told(moment)[-1][1], self.scale.name, len(self.names))

    def evaluations(self, moment: Moment) -> list[Evaluation]:
        """What the run is judged by, at a moment, round by round."""
        sizes, found = np.array(self.history.test_sizes, np.int64), []
        for _, told in self._told(moment):
            sample = tested_sample(told, len(self.names))
            own = sizes if sample is None else sizes[sample.clients]
            found.append(Evaluation(self.scale, {self.scale.name: numbers(told[self.scale.name])}, own, sample=sample))
        return found

    def training_losses(self) -> list[tuple[int, Floats, Floats]]:
        """By round: the cohort's losses on the samples it trained on, and those on its test samples right after."""
        found = []
        for line in self.history.lines:
            if TRAINING in line:
                # Where some rest, `trained` is of everybody.
                tested = line.get(COHORT) or line.get("trained") or {}
                found.append((line["round"], numbers(line[TRAINING][LOSS]), numbers(tested.get(LOSS, []))))
        return found

    def mixes(self) -> Iterator[tuple[int, list[Applied] | str]]:
        """Who learned from whom, by round; in words why not, where a record cannot be read."""
        for round in self.directory.recorded_rounds():
            try:
                yield round, self.directory.mixes(round)
            except (SafetensorError, KeyError, TypeError, ValueError) as error:
                yield round, f"{self.name}: who learned from whom in round {round} cannot be read ({error})"

    def warnings(self) -> list[str]:
        """What the log warns of, each once, without what the rounds tell."""
        text = self.directory.content(LOG).decode(errors="replace") if self.directory.has(LOG) else ""
        said = (match[1] for line in text.splitlines() if (match := WARNING.match(line)))
        return list(dict.fromkeys(line for line in said if not TOLD_BY_ROUNDS.match(line)))


def run_folders(path: Path) -> list[Path]:
    """The runs that a path means: itself, or those right below it, such as a comparison's, or those in a .zip."""
    if path.is_file():
        return [path / name for name in runs_in(path)]
    if (path / CONFIG).is_file() or not path.is_dir():
        return [path]
    return sorted(folder for folder in path.iterdir() if (folder / CONFIG).is_file()) or [path]


def read_run(run: Path | KeptRun) -> RunRecord:
    """Read a run, finished or not, in a directory or packed; an error if there is none."""
    directory = kept_run(run) if isinstance(run, Path) else run
    path, config, skipped = directory.path, directory.config(), list[str]()
    name = path.resolve().name
    missing = [key for key in ("method", "data", "rounds", "seed") if key not in config]
    require(not missing, f"run = {path}: its {CONFIG} lacks {', '.join(missing)}")
    kinds = {"rounds": int, "seed": int, "set": dict}
    wrong = [key for key, kind in kinds.items() if not isinstance(config.setdefault(key, kind()), kind)]
    require(not wrong, f"run = {path}: in its {CONFIG}, {', '.join(wrong)} cannot be read")
    try:
        partition = directory.partition()
    except CoterieError as error:
        partition = None
        skipped.append(f"{name}: its partition cannot be read ({error}); clients have numbers for names")
    try:
        about = directory.about()
    except CoterieError as error:
        skipped.append(
            f"{name}: what describes it cannot be read ({error}); it may have been begun with other settings"
        )
    else:
        directory.require_as_begun(about)
    summary = _summary(directory, name, skipped)
    lines = _lines(directory, name, skipped)
    scale = _scale(summary, lines)
    everybody, held_out = (partition.clients, partition.held_out) if partition else (_clients(lines), ())
    participants = tuple(client for client in range(everybody) if client not in held_out)
    whole = list(_whole(lines, scale, len(participants), name, skipped))
    return RunRecord(
        directory,
        config,
        partition,
        participants,
        names=tuple(partition.names[client] if partition else str(client) for client in participants),
        sizes=tuple(int(partition.sizes[client]) for client in participants) if partition else (),
        scale=scale,
        # Sums of bytes and seconds alone are asked of it, which are the same for every task.
        history=History(Classification(), [len(partition.test[k]) if partition else 1 for k in participants], whole),
        state=_state(directory, config, summary, len(whole)),
        skipped=tuple(skipped),
    )


def _summary(directory: KeptRun, name: str, skipped: list[str]) -> dict[str, Any]:
    try:
        return directory.summary() or {}
    except CoterieError as error:
        skipped.append(f"{name}: its summary cannot be read ({error}); the numbers are those of its rounds")
        return {}


def _lines(directory: KeptRun, name: str, skipped: list[str]) -> list[tuple[int, Line]]:
    """The lines of the rounds that are JSON, each with its number in the file."""
    if not directory.has(ROUNDS):
        skipped.append(f"{name}: {ROUNDS} is missing; there are no rounds to show")
        return []
    texts = directory.content(ROUNDS).split(b"\n")
    found: list[tuple[int, Line]] = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict):
            found.append((number, line))
        elif number == len(texts):
            skipped.append(f"{name}: {ROUNDS} ends within line {number}: the run was killed while it wrote")
        else:
            skipped.append(f"{name}: line {number} of {ROUNDS} is damaged and was skipped")
    return found


def _scale(summary: dict[str, Any], lines: Sequence[tuple[int, Line]]) -> Scale:
    """The metric that the run is judged by: the summary's, or that of the first task whose metric was measured."""
    if summary:
        with suppress(KeyError, TypeError):  # a damaged one
            return judged_scale(summary)
    measured: Line = next(
        (line[moment] for _, line in lines for moment in MOMENTS if isinstance(line.get(moment), dict)), {}
    )
    usual = (TASKS[name]().primary.scale for name in ("classification", "regression"))
    return next((scale for scale in usual if scale.name in measured), ACCURACY)


def _clients(lines: Sequence[tuple[int, Line]]) -> int:
    """The number of clients that the first test counts."""
    found = (line.get("received") for _, line in lines)
    tested = next((measured for measured in found if isinstance(measured, dict)), {})
    return max((len(values) for values in tested.values() if isinstance(values, list)), default=0)


def _whole(
    lines: Sequence[tuple[int, Line]], scale: Scale, clients: int, name: str, skipped: list[str]
) -> Iterator[Line]:
    """The lines that hold what a line must."""
    last = 0
    for number, line in lines:
        fault = _fault(line, scale, clients, last)
        if fault:
            skipped.append(f"{name}: line {number} of {ROUNDS} was skipped ({fault})")
        else:
            last = line["round"]
            yield line


def _fault(line: Line, scale: Scale, clients: int, last: int) -> str:
    """What is wrong with a line; empty if nothing is.

    >>> seconds, sums = {"train": 1, "exchange": 0, "evaluate": 0}, {"up": 0, "down": 0}
    >>> line = {"round": 2, "cohort": [0], "diverged": [], "seconds": seconds, "bytes": sums}
    >>> _fault(line, ACCURACY, clients=1, last=1)
    ''
    >>> _fault(line | {"received": {"accuracy": [0.5, 0.5]}}, ACCURACY, clients=1, last=1)
    'received: not a number for each of the 1 clients'
    """
    if not isinstance(line.get("round"), int) or line["round"] <= last:
        return f"its round is {line.get('round')!r}, after round {last}"
    for part, keys in (("seconds", ("train", "exchange", "evaluate")), ("bytes", ("up", "down"))):
        held = line.get(part)
        if not isinstance(held, dict) or not all(_is_number(held.get(key)) for key in keys):
            return f"{part}: not a number for each of {', '.join(keys)}"
    # Lines of older runs do not tell of tuning.
    for part in ("cohort", "diverged", "quarantined", "missing", "tuning_diverged"):
        held = line.get(part, None if part in ("cohort", "diverged") else [])
        if not isinstance(held, list) or not all(client in range(clients) for client in held):
            return f"{part}: not a list of clients"
    if EFFORT in line and not _is_effort(line[EFFORT], len(line["cohort"])):
        return f"{EFFORT}: not a whole number for each of the {len(line['cohort'])} clients of the round"
    if TUNING in line and not (isinstance(line[TUNING], dict) and _are_counts([*map(line[TUNING].get, TUNED)])):
        return f"{TUNING}: not whole numbers"
    everybody = line.get(EVERYBODY, {})
    if not isinstance(everybody, dict):
        return f"{EVERYBODY}: not a number for each of the {clients} clients"
    told = [(where, moment, scale.name, clients) for where in (line, everybody) for moment in MOMENTS]
    for where, part, name, count in (*told, (line, TRAINING, LOSS, len(line["cohort"]))):
        if part in where:
            values = where[part].get(name) if isinstance(where[part], dict) else None
            known = isinstance(values, list) and all(one is None or isinstance(one, int | float) for one in values)
            asked = where[part].get(TESTED, range(count)) if known else ()
            if not known or not isinstance(asked, list | range) or len(values or ()) != len(asked):
                return f"{part}: not a number for each of the {count} clients"
            if not all(client in range(clients) for client in asked):
                return f"{part}: not a list of clients"
    return ""


def _is_effort(held: object, clients: int) -> bool:
    """Whether something holds counts, each for so many clients."""
    columns = list(held.values()) if isinstance(held, dict) and FORWARD in held else [None]
    return all(isinstance(one, list) and len(one) == clients and _are_counts(one) for one in columns)


def _are_counts(values: Sequence[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _state(directory: KeptRun, config: Config, summary: dict[str, Any], done: int) -> str:
    if directory.finished:
        return f"finished: {done} rounds"
    if directory.stopped:
        return f"stopped after round {done} of {config['rounds']}: {summary.get('stopped', 'no reason is known')}"
    return f"not finished: {done} of {config['rounds']} rounds"
