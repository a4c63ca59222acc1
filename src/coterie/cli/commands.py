"""What the commands that train do: `run`, `compare`, `resume`."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie.cli.entries import MethodEntry, apart
from coterie.cli.merge import experiments, one_experiment, protocol_of
from coterie.cli.problems import InterruptionError
from coterie.cli.signals import exit_code, terminable
from coterie.cli.tuning import tuned
from coterie.compare.grid import Grid
from coterie.compare.table import COMPARISON, Comparison, compare
from coterie.errors import CoterieError, said
from coterie.methods import METHODS, Method
from coterie.registry import short_name
from coterie.report.grids import print_grid
from coterie.report.terminal import (
    ComparisonProgress,
    metric_table,
    print_result,
    summary_lines,
)
from coterie.rounds.listeners import made_listeners
from coterie.runs.directory import RunDirectory, refuse_existing
from coterie.runs.experiment import Experiment
from coterie.runs.protocols import find
from coterie.runs.resume import resume
from coterie.setup.config import Config, method_name

RUNS = Path("runs")


def run_command(
    method: str | None,
    file: Path | None,
    given: Config,
    sets: Sequence[str],
    out: Path | None,
    json: bool,
    listeners: Sequence[str] = (),
) -> None:
    """Run one experiment and print its summary; `listeners` are names, or stand in files."""
    experiment = one_experiment(method, file, given, sets)
    listening = made_listeners(listeners)
    if out is not None:
        refuse_existing(out)
    with _run_directory(out, experiment) as directory, _resumable(directory):
        summary = experiment.run(directory, listening, progress=True).summary
    _print_summary(summary, directory, json)


def resume_command(path: Path, rounds: int | None, json: bool, listeners: Sequence[str] = (), engine: str = "") -> None:
    """Carry a run on, to more rounds if wished, and print its summary."""
    with _resumable(path):
        summary = resume(path, listeners, progress=True, rounds=rounds, engine=engine).summary
    _print_summary(summary, path, json)


def compare_command(
    methods: Sequence[str],
    seeds: Sequence[int],
    file: Path | None,
    given: Config,
    sets: Sequence[str],
    out: Path | None,
    jobs: int,
    json: bool,
    columns: Sequence[str] = (),
    tune: Sequence[str] = (),
    listeners: Sequence[str] = (),
    cluster: str = "",
) -> None:
    """Compare methods, tuned before if wished, and print the table."""
    methods, seeds = with_kept(apart(methods), seeds, out)
    chosen = experiments(methods, file, given, sets)
    told = ""
    if tune:
        chosen, told = tuned(methods, tune, seeds[0], file, given, sets, out, jobs, cluster)
    rounds = len(seeds) * sum(experiment.rounds for experiment in chosen.values())
    with ComparisonProgress(len(chosen) * len(seeds), rounds) as progress, terminable():
        try:
            comparison = compare(chosen, seeds, out, progress, jobs, columns, listeners, cluster)
        except KeyboardInterrupt as stop:
            raise InterruptionError(_ways_on(progress), exit_code(stop)) from None
    print_comparison(comparison, out, json, protocol_of(file, given))
    if told and not json:
        print_result(told)


def with_kept(texts: Sequence[str], seeds: Sequence[int], out: Path | None) -> tuple[list[str], list[int]]:
    """The entries and seeds of a comparison that is kept in a directory, and besides them the given ones.

    Methods in files go by their names there, so that they have to be given again.
    """
    if out is None or not (out / COMPARISON).is_file():
        return list(texts), list(seeds)
    kept, given = Comparison.load(out), {MethodEntry.read(text).name for text in texts}
    others = [name for name in kept.methods if name not in given and name.partition(":")[0] in METHODS]
    return [*others, *texts], [*kept.seeds, *(seed for seed in seeds if seed not in kept.seeds)]


def _ways_on(progress: ComparisonProgress) -> str:
    """How to carry on with the runs of a comparison that were under way."""
    begun = [run.directory for run in progress.under_way.values() if run.directory is not None]
    way = _way_on(begun[0]) if begun else "interrupted"
    others = f"; {len(begun) - 1} more likewise" if len(begun) > 1 else ""
    return f"{way}{others} ({progress.finished} of {progress.runs} runs were finished)"


def print_comparison(comparison: Comparison, out: Path | None, json: bool, protocol: str = "") -> None:
    """The table (or JSON) on stdout; after a paper's protocol, also which column shows the paper's number."""
    if json:
        print(json_format.dumps(comparison.as_dict(), indent=2))
        return
    paper = paper_line(protocol, comparison.grid) if protocol else ""
    print_grid(comparison.grid, paper, comparison.settings_note(), "" if out is None else f"The runs are kept in {out}")


def paper_line(protocol: str, grid: Grid) -> str:
    """Which column shows what the tables of a protocol's paper show."""
    reports = find(protocol).reports
    shown = next((column for column in grid.columns.values() if column.name == reports.column), None)
    where = f"not shown here; --columns {reports.column} does" if shown is None else f"the column '{shown.title}'"
    return f"The paper of protocol {protocol} reports {reports}: {where}."


def _print_summary(summary: Mapping[str, Any], directory: Path, json: bool) -> None:
    if json:
        print(json_format.dumps(summary, indent=2))
        print(f"coterie: the run is kept in {directory}", file=sys.stderr)
        return
    way_on = f"; {said('coterie', 'resume', directory)} carries it on" if "stopped" in summary else ""
    print_result(metric_table(summary), "", *summary_lines(summary), f"The run is kept in {directory}{way_on}")


@contextmanager
def _run_directory(out: Path | None, experiment: Experiment) -> Iterator[Path]:
    """The directory of a run: the wished one, or `runs/<method>-<data>-<n>` with the next free n.

    The latter is made at once, so that runs started at the same time do not meet, and taken away again
    if nothing was written there.
    """
    if out is not None:
        yield out
        return
    assert isinstance(experiment.method, Method)
    assert isinstance(experiment.data, str)
    data = Path(short_name(experiment.data))
    stem = f"{method_name(experiment.method)}-{data.stem or data.resolve().stem}"
    made = not RUNS.exists()
    path = next_free(RUNS, stem)
    try:
        yield path
    finally:
        with suppress(OSError):
            path.rmdir()
            if made:
                RUNS.rmdir()


def next_free(parent: Path, stem: str) -> Path:
    """A new directory `parent/stem-n` with the smallest n above those there are."""
    parent.mkdir(parents=True, exist_ok=True)
    numbers = [path.name.removeprefix(f"{stem}-") for path in parent.glob(f"{stem}-*")]
    number = max((int(text) for text in numbers if text.isdecimal()), default=0)
    while True:
        number += 1
        with suppress(FileExistsError):
            path = parent / f"{stem}-{number}"
            path.mkdir()
            return path


@contextmanager
def _resumable(directory: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end in one line that says how to carry on."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt as stop:
        raise InterruptionError(_way_on(directory), exit_code(stop)) from None


def _way_on(directory: Path) -> str:
    try:
        run = RunDirectory.open(directory)
        checkpoint = run.checkpointed_round()
    except CoterieError:
        return "interrupted before the first round"
    command = said("coterie", "resume", directory)
    if checkpoint:
        return f"interrupted; {command} carries on after round {checkpoint}"
    return f"interrupted; {command} starts again from round 1 (there is no checkpoint: see --checkpoint-every)"
