"""A run as a report reads it: whatever is whole in it, and in words what is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from coterie.core.exchange import Applied
from coterie.core.numbers import ACCURACY, Scale, judged_scale
from coterie.core.task import TASKS, Classification
from coterie.core.task.base import LOSS
from coterie.errors import CoterieError, require
from coterie.partition import Partition
from coterie.rounds.evaluate import MOMENTS, Floats, Moment
from coterie.runs.history import History, by_client, numbers
from coterie.runs.reader import Record, record_of
from coterie.runs.record import Line, Scores, Skipped
from coterie.runs.store import CONFIG, ROUNDS, runs_in
from coterie.setup.config import Config

T = TypeVar("T")

WARNING = re.compile(r"^\S+ \S+ (?:WARNING|ERROR|CRITICAL) (.*)$")
# What the lines of the rounds tell better.
TOLD_BY_ROUNDS = re.compile(r"^round \d+: client ")


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """What a run left: its configuration, its rounds, its partition; `skipped` says what could not be read.

    `participants` are the clients of the partition that are not held out, `names` and `sizes` theirs. Without the
    partition, names are numbers and there are no sizes.
    """

    record: Record
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
        return self.record.path.resolve().name

    @property
    def seed(self) -> int:
        """The seed of all that is drawn in it."""
        return int(self.config["seed"])

    @property
    def lines(self) -> list[Line]:
        """What every round left, as far as that is whole."""
        return self.history.lines

    def rounds(self, moment: Moment) -> list[int]:
        """The rounds in which clients were tested at a moment."""
        return [round for round, _ in self._tested(moment)]

    def tests(self, moment: Moment) -> list[Scores]:
        """What was written down of a moment, round by round."""
        return [scores for _, scores in self._tested(moment)]

    def _tested(self, moment: Moment) -> list[tuple[int, Scores]]:
        return [(line.round, scores) for line in self.lines if (scores := line.told(moment)) is not None]

    def last_scores(self, moment: Moment) -> Floats:
        """What the run is judged by, at a moment of the last round that tells of it: `[K]`; NaN for the untested."""
        return by_client(self.tests(moment)[-1], self.scale.name, len(self.names))

    def training_losses(self) -> list[tuple[int, Floats, Floats]]:
        """By round: the cohort's losses on the samples it trained on, and those on its test samples right after."""
        losses = []
        for line in self.lines:
            if line.training is not None:
                # Where some rest, `trained` is of everybody.
                everybody = {} if line.trained is None else line.trained.values
                tested = everybody if line.cohort_trained is None else line.cohort_trained
                losses.append((line.round, numbers(line.training.get(LOSS, [])), numbers(tested.get(LOSS, []))))
        return losses

    def mixes(self) -> Iterator[tuple[int, list[Applied] | str]]:
        """Who learned from whom, by round; in words why not, where a record cannot be read."""
        for round in self.record.recorded_rounds():
            try:
                yield round, self.record.mixes(round)
            except (SafetensorError, KeyError, TypeError, ValueError) as error:
                yield round, f"{self.name}: who learned from whom in round {round} cannot be read ({error})"

    def warnings(self) -> list[str]:
        """What the log warns of, each once, without what the rounds tell."""
        said = (match[1] for line in self.record.log().splitlines() if (match := WARNING.match(line)))
        return list(dict.fromkeys(line for line in said if not TOLD_BY_ROUNDS.match(line)))


def run_folders(path: Path) -> list[Path]:
    """The runs that a path means: itself, or those right below it, such as a comparison's, or those in a .zip."""
    if path.is_file():
        return [path / name for name in runs_in(path)]
    if (path / CONFIG).is_file() or not path.is_dir():
        return [path]
    return sorted(folder for folder in path.iterdir() if (folder / CONFIG).is_file()) or [path]


def read_run(run: Path | Record) -> ReportedRun:
    """Read a run, finished or not, in a directory, packed or in memory; an error if there is none."""
    record = record_of(run) if isinstance(run, Path) else run
    path, config, skipped = record.path, record.config(), list[str]()
    name = path.resolve().name
    missing = [key for key in ("method", "data", "rounds", "seed") if key not in config]
    require(not missing, f"run = {path}: its {CONFIG} lacks {', '.join(missing)}")
    kinds = {"rounds": int, "seed": int, "set": dict}
    wrong = [key for key, kind in kinds.items() if not isinstance(config.setdefault(key, kind()), kind)]
    require(not wrong, f"run = {path}: in its {CONFIG}, {', '.join(wrong)} cannot be read")

    def if_whole(read: Callable[[], T | None], skip: str) -> T | None:
        try:
            return read()
        except CoterieError as error:
            skipped.append(f"{name}: {skip.format(error)}")
            return None

    partition = if_whole(record.partition, "its partition cannot be read ({}); clients have numbers for names")
    about = if_whole(record.about, "what describes it cannot be read ({}); it may have been begun with other settings")
    if about is not None:
        record.require_as_begun(about)
    summary: dict[str, Any] = {}
    if record.finished or record.stopped:
        summary = if_whole(record.summary, "its summary cannot be read ({}); the numbers are those of its rounds") or {}
    lines: dict[int, Line] = {}
    for number, line in if_whole(record.readable_lines, "there are no rounds to show ({})") or ():
        if not isinstance(line, Skipped):
            lines[number] = line
        elif line.cut_off:
            skipped.append(f"{name}: {ROUNDS} ends within line {number}: the run was killed while it wrote")
        else:
            skipped.append(f"{name}: line {number} of {ROUNDS} was skipped ({line.why})")
    scale = _scale(summary, list(lines.values()))
    everybody, held_out = (partition.clients, partition.held_out) if partition else (_clients(lines.values()), ())
    participants = tuple(client for client in range(everybody) if client not in held_out)
    whole: list[Line] = []
    for number, line in lines.items():
        last = whole[-1].round if whole else 0
        order = f"its round is {line.round}, after round {last}" if line.round <= last else ""
        if fault := order or line.fault_among(len(participants), scale.name):
            skipped.append(f"{name}: line {number} of {ROUNDS} was skipped ({fault})")
        else:
            whole.append(line)
    return ReportedRun(
        record,
        config,
        partition,
        participants,
        names=tuple(partition.names[client] if partition else str(client) for client in participants),
        sizes=tuple(int(partition.sizes[client]) for client in participants) if partition else (),
        scale=scale,
        # Sums of bytes and seconds alone are asked of it, which are the same for every task.
        history=History(Classification(), [len(partition.test[k]) if partition else 1 for k in participants], whole),
        state=_state(record, config, summary, len(whole)),
        skipped=tuple(skipped),
    )


def _scale(summary: dict[str, Any], lines: list[Line]) -> Scale:
    """The metric that the run is judged by: the summary's, or that of the first task whose metric was measured."""
    if summary:
        with suppress(KeyError, TypeError):  # a damaged one
            return judged_scale(summary)
    tests = (scores for line in lines for moment in MOMENTS if (scores := line.told(moment)) is not None)
    measured = next((scores.values for scores in tests), {})
    usual = (TASKS[name]().primary.scale for name in ("classification", "regression"))
    return next((scale for scale in usual if scale.name in measured), ACCURACY)


def _clients(lines: Iterable[Line]) -> int:
    """The number of clients that the first test counts."""
    first = next((line.received for line in lines if line.received is not None), None)
    return 0 if first is None else max(map(len, first.values.values()), default=0)


def _state(record: Record, config: Config, summary: dict[str, Any], done: int) -> str:
    if record.finished:
        return f"finished: {done} rounds"
    if record.stopped:
        return f"stopped after round {done} of {config['rounds']}: {summary.get('stopped', 'no reason is known')}"
    return f"not finished: {done} of {config['rounds']} rounds"
