"""`coterie run` and `coterie resume`: one run, from the command line into a directory."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from coterie.cli.errors import InterruptionError, exit_code, terminable
from coterie.cli.options import (
    OUTPUT,
    RUNNING,
    AsJson,
    ConfigFile,
    GivenSettings,
    Listeners,
    Seed,
    Sets,
    file,
    option,
)
from coterie.errors import CoterieError, said

if TYPE_CHECKING:
    from coterie.runs.experiment import Experiment

RUNS = Path("runs")


def run(
    method: Annotated[str | None, Parameter(help="The method (see 'coterie methods').", show_default=False)] = None,
    /,
    *,
    set: Sets = None,
    config: ConfigFile = None,
    out: Annotated[
        Path | None, file("The directory to keep the run in; it must be new.", "runs/METHOD-DATA-N", OUTPUT)
    ] = None,
    listener: Listeners = None,
    json: AsJson = False,
    tuned: Annotated[
        str | None,
        option("The benchmark's settings for the method on a set, such as natural-1/vowel.", "none", OUTPUT),
    ] = None,
    settings: GivenSettings = GivenSettings(),
    seed: Seed = None,
) -> None:
    """Run one method and keep everything about the run in a directory."""
    from coterie.cli.experiments import one_experiment
    from coterie.runs.directory import refuse_existing
    from coterie.runs.running import made_listeners
    from coterie.setup.config import overridden

    given, sets = settings.given(seed=seed), set or []
    if tuned is not None:
        from coterie.benchmark.tuned import tuned_config

        start, options = tuned_config(tuned, method)
        given, sets = overridden(start, given), [*options, *sets]
    experiment = one_experiment(method, config, given, sets)
    listening = made_listeners(listener or [])
    if out is not None:
        refuse_existing(out)
    with _run_directory(out, experiment) as directory, _resumable(directory):
        summary = experiment.run(directory, listening, progress=True).summary
    _print_summary(summary, directory, json)


def resume(
    run: Annotated[Path, Parameter(help="The directory of a run that was stopped, or that is to have more rounds.")],
    /,
    *,
    rounds: Annotated[int | None, option("Go on until there are so many rounds in all.", "as planned", RUNNING)] = None,
    engine: Annotated[
        str | None, option("Go on without a Ray cluster ('processes'), which computes the same.", "as begun", RUNNING)
    ] = None,
    listener: Listeners = None,
    json: AsJson = False,
) -> None:
    """Carry a stopped run on from its last checkpoint; it ends as if it had never been stopped."""
    from coterie.runs.resume import resume

    with _resumable(run):
        summary = resume(run, listener or [], progress=True, rounds=rounds, engine=engine or "").summary
    _print_summary(summary, run, json)


def _print_summary(summary: Mapping[str, Any], directory: Path, json: bool) -> None:
    if json:
        print(json_format.dumps(summary, indent=2))
        print(f"coterie: the run is kept in {directory}", file=sys.stderr)
        return
    from coterie.report.terminal import metric_table, print_result, summary_lines

    carry_on = f"; {said('coterie', 'resume', directory)} carries it on" if "stopped" in summary else ""
    print_result(metric_table(summary), "", *summary_lines(summary), f"The run is kept in {directory}{carry_on}")


@contextmanager
def _run_directory(out: Path | None, experiment: Experiment) -> Iterator[Path]:
    """The directory of a run: the wished one, or `runs/<method>-<data>-<n>` with the next free n.

    The latter is made at once, so that runs started at the same time do not meet, and taken away again
    if nothing was written there.
    """
    if out is not None:
        yield out
        return
    from coterie.methods import Method
    from coterie.registry import short_name
    from coterie.setup.config import method_name

    assert isinstance(experiment.method, Method)
    assert isinstance(experiment.data, str)
    data = Path(short_name(experiment.data))
    stem = f"{method_name(experiment.method)}-{data.stem or data.resolve().stem}"
    is_first = not RUNS.exists()
    path = next_free(RUNS, stem)
    try:
        yield path
    finally:
        with suppress(OSError):
            path.rmdir()
            if is_first:
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
        raise InterruptionError(how_to_carry_on(directory), exit_code(stop)) from None


def how_to_carry_on(directory: Path) -> str:
    """What to say of a run that was interrupted."""
    from coterie.runs.directory import RunDirectory

    try:
        checkpoint = RunDirectory.open(directory).checkpointed_round()
    except CoterieError:
        return "interrupted before the first round"
    command = said("coterie", "resume", directory)
    if checkpoint:
        return f"interrupted; {command} carries on after round {checkpoint}"
    return f"interrupted; {command} starts again from round 1 (there is no checkpoint: see --checkpoint-every)"
