"""What people see: the progress of a comparison on stderr, tables on stdout."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import TaskID
from rich.table import Table
from rich.text import Text

from coterie.client.effort import FORWARD
from coterie.compare.remarks import clients_remark, effort_text
from coterie.core.numbers import judged_scale, number_text, spoken_bytes
from coterie.errors import printable
from coterie.rounds.progress import ProgressDisplay, received_mean
from coterie.runs.history import EFFORT

if TYPE_CHECKING:
    from coterie.compare.workers import PlannedRun

# Files and pipes have no width; lines are as long as they need to be.
UNLIMITED_WIDTH = 10_000
QUOTED = re.compile(r"'[^']*'")
NO_BREAK = "\N{NO-BREAK SPACE}"


def result_console() -> Console:
    """Where results go: a terminal has a width, files and pipes have none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else UNLIMITED_WIDTH)


def print_result(*parts: Table | str) -> None:
    """Tables and lines on stdout; on a terminal they keep to its width, elsewhere lines end where their text does."""
    console = result_console()
    for part in parts:
        if isinstance(part, str):
            plain = printable(part)
            print(wrapped(plain, console.width) if console.is_terminal else plain)
        elif console.is_terminal:
            console.print(part)
        else:
            with console.capture() as text:
                console.print(part)
            print("\n".join(line.rstrip() for line in text.get().splitlines()))


def wrapped(text: str, width: int) -> str:
    """Lines that end between words; what stands in quotes, such as a command, stays in one piece to be copied.

    >>> print(wrapped("a long story about 'coterie resume here'", 20))
    a long story about
    'coterie resume here'
    """
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        whole = QUOTED.sub(lambda quoted: quoted[0].replace(" ", NO_BREAK), line)
        pieces = wrap(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        lines += [piece.replace(NO_BREAK, " ") for piece in pieces] or [""]
    return "\n".join(lines)


@dataclass
class RunLine:
    """How far a run of a comparison is, as its line on the terminal says."""

    label: str
    task: TaskID
    received: str
    round: int = 0


class ComparisonProgress(ProgressDisplay):
    """Shows how far a comparison is: a bar for each run under way and one for all; fits `compare` as its watcher."""

    def __init__(self, runs: int, rounds: int) -> None:
        super().__init__(rounds)
        self.runs, self.finished = runs, 0
        self.under_way: dict[str, PlannedRun] = {}
        self._lines: dict[str, RunLine] = {}
        self._all = self._bar.add_task("all rounds", total=rounds, received="")

    @classmethod
    def of(cls, runs: Sequence[PlannedRun]) -> ComparisonProgress:
        """How far these runs are."""
        return cls(len(runs), sum(run.rounds for run in runs))

    def begun(self, run: PlannedRun) -> None:
        """A run begins."""
        name, received = str(run), received_mean(None)
        self.under_way[name] = run
        label = f"{name} ({len(self._lines) + 1}/{self.runs})"
        self._lines[name] = RunLine(label, self._bar.add_task(label, total=run.rounds, received=received), received)

    def round_done(self, run: PlannedRun, round: int, received: float | None) -> None:
        """A round is over."""
        line = self._lines[str(run)]
        if received is not None:
            line.received = received_mean(received)
        self._bar.update(line.task, completed=round, received=line.received)
        self._come_to(line, round, f"{line.label}: round {round}/{run.rounds}, {line.received}")

    def _come_to(self, line: RunLine, round: int, text: str) -> None:
        """A run that is carried on begins in the middle, so rounds are not counted one by one."""
        done = self._done + round - line.round
        line.round = round
        self._bar.update(self._all, completed=done)
        self._came_to(done, text)

    def ended(self, run: PlannedRun, summary: object) -> None:
        """A run is over."""
        self.finished += 1
        self._leave(run, "finished")

    def failed(self, run: PlannedRun, error: Exception) -> None:
        """A run broke off."""
        self._leave(run, "failed")

    def _leave(self, run: PlannedRun, how: str) -> None:
        line = self._lines[str(run)]
        if line.round < run.rounds:  # it was there already, or broke off
            self._come_to(line, run.rounds, f"{line.label}: {how}")
        del self.under_way[str(run)]
        self._bar.remove_task(line.task)


class _PlainTable(Table):
    """A table of texts in which nothing is an order to a terminal."""

    def add_row(self, *cells: Any, **style: Any) -> None:
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **style)


def plain_table(*headers: str, right: Sequence[int] = ()) -> Table:
    """A table with a line under its header and no further frame; columns in `right` are numbers."""
    table = _PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for place, header in enumerate(headers):
        table.add_column(Text(printable(header)), justify="right" if place in right else "left", overflow="fold")
    return table


def metric_table(summary: Mapping[str, Any]) -> Table | str:
    """What a run is judged by: a line for each moment and mean, a column for each way to choose the round.

    A run that was stopped, or is shown, before its first test has no numbers yet.
    """
    scale = judged_scale(summary)
    moments, readings = summary[scale.name], ["best", "last", "last5"]
    if not moments:
        return "no round has been tested yet"
    titles = ["best round", "last round", "last five"]
    if "validation" in summary:
        readings, titles = [*readings, "by_validation"], [*titles, "best by validation"]
    table = plain_table(scale.name, "mean over", *titles, right=range(2, 2 + len(titles)))
    over = {"mean": "clients", "weighted": "test samples"}
    for moment, means in moments.items():
        if moment == "stored" and means == moments["trained"]:
            continue  # everybody took part in every round
        for mean, rounds in means.items():
            table.add_row(moment, over[mean], *(number_text(rounds[at]) for at in readings))
    return table


def clients_table(summary: Mapping[str, Any], limit: int) -> Table:
    """The clients of a run, the first ones up to a limit, with what each is judged by after the last round."""
    rested = any(client.get("stored") != client.get("trained") for client in summary["clients"])
    moments = ("received", "trained", "stored") if rested else ("received", "trained")
    titles = (f"{moment}, last" for moment in moments)
    table = plain_table("client", "training samples", *titles, right=range(1, len(moments) + 2))
    for client in summary["clients"][:limit]:
        # A run that was stopped before its first evaluation has none.
        numbers = (number_text(client.get(moment)) for moment in moments)
        table.add_row(Text(client["client"]), str(client["size"]), *numbers)
    return table


def missing_lines(missing: Mapping[str, Sequence[int]], rounds: int) -> Iterator[str]:
    """How often clients that were asked did not answer, in a line; nothing if all did.

    >>> list(missing_lines({"a": [1, 3], "b": [2]}, rounds=4))
    ['clients that were asked did not answer 3 times in 4 rounds (2 clients; most often a: 2)']
    """
    if missing:
        most = max(missing, key=lambda client: len(missing[client]))
        times = sum(map(len, missing.values()))
        whose = f"{len(missing)} clients; most often {most}: {len(missing[most])}"
        yield f"clients that were asked did not answer {times} times in {rounds} rounds ({whose})"


def sampled_lines(sample: Mapping[str, Any]) -> Iterator[str]:
    """That a sample of the clients was tested, and how far off its means may be.

    >>> sample = {"clients": 50, "of": 9000, "at_the_end": True, "received": {"error": 0.0123, "weighted_error": 0.01}}
    >>> print("\\n".join(sampled_lines(sample)))
    each round tests a sample, 50 of 9,000 clients; standard error of the last one's mean: received 0.0123
      as received (and as stored) in the last round, the numbers are everybody's
    """
    moments = (moment for moment in ("received", "trained") if moment in sample)
    errors = ", ".join(f"{moment} {number_text(sample[moment]['error'])}" for moment in moments)
    many = f"{sample['clients']:,} of {sample['of']:,} clients"
    yield f"each round tests a sample, {many}; standard error of the last one's mean: {errors}"
    if sample["at_the_end"]:
        yield "  as received (and as stored) in the last round, the numbers are everybody's"


def summary_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """What a run's table leaves out, a line each."""
    each = summary["bytes"]["per_client_round"]
    if whose := clients_remark(summary["config"]):
        yield whose
    worst = {moment: number_text(value) for moment, value in summary["worst_decile"].items()}
    if "stopped" in summary:
        yield f"stopped after round {summary['rounds']} of {summary['config']['rounds']}: {summary['stopped']}"
    if worst:
        yield f"worst tenth of the clients, last round: received {worst['received']}, trained {worst['trained']}"
    if "sampled" in summary:
        yield from sampled_lines(summary["sampled"])
    if "honest" in summary:
        yield f"hostile: {', '.join(summary['hostile'])}; the numbers of the others alone, last round:"
        for moment, scores in summary["honest"].items():
            mean, tenth = number_text(scores["mean"]["last"]), number_text(scores["worst_decile"])
            if moment != "stored" or scores != summary["honest"].get("trained"):
                yield f"  {moment}: mean {mean}, worst tenth {tenth}"
    if "training" in summary:
        fit = ", ".join(f"{name} {number_text(value)}" for name, value in summary["training"].items())
        yield f"training samples, last round, mean over clients: {fit}"
    if summary.get("validation", {}).get("used_by_method"):
        yield f"{summary['method']} learns from the validation samples itself: they do not choose a round independently"
    if "newcomers" in summary:
        means = {moment: number_text(scores["mean"]) for moment, scores in summary["newcomers"].items()}
        yield f"newcomers, mean: received {means['received']}, after local training {means['trained']}"
    if "privacy" in summary:
        yield from privacy_lines(summary["privacy"])
    yield from missing_lines(summary.get("missing", {}), summary["rounds"])
    for client, rounds in summary["diverged"].items():
        yield f"client {client} diverged in {len(rounds)} of {summary['rounds']} rounds"
    for client, rounds in summary.get("quarantined", {}).items():
        yield f"client {client} was in quarantine in {len(rounds)} of {summary['rounds']} rounds"
    for client, rounds in summary.get("tuning_diverged", {}).items():
        yield f"client {client} was tested untuned in {len(rounds)} of {summary['rounds']} rounds: its tuning diverged"
    yield f"per client and round: {spoken_bytes(each['up'])} up, {spoken_bytes(each['down'])} down"
    if EFFORT in summary:
        passed = f"{summary[EFFORT][FORWARD]:,.0f} samples forward"
        yield f"per client and round: gradients {effort_text(summary[EFFORT])}; {passed}"
    seconds = sum(summary["seconds"]["per_round"].values())
    yield f"{summary['rounds']} rounds, {seconds:.2f} s each (engine {summary['engine']})"


def privacy_lines(spent: Mapping[str, Any]) -> Iterator[str]:
    """What has been spent of privacy, and what that means.

    >>> spent = {"epsilon": None, "delta": 1e-5, "unit": "a client", "neighbours": "", "adversary": "the server"}
    >>> print("\\n".join(privacy_lines(spent)))
    privacy: no bound, since there is no noise
      of a client, against the server
    """
    if spent["epsilon"] is None:
        yield "privacy: no bound, since there is no noise"
    else:
        yield f"privacy: ε = {spent['epsilon']:.4g} at most, with δ = {spent['delta']:g} ({spent['neighbours']})"
    yield f"  of {spent['unit']}, against {spent['adversary']}"
