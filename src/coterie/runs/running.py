"""Running an experiment from start or checkpoint to the end, with everything recorded on the way."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from coterie.devices import PROCESSOR, draw_again, drawn_state
from coterie.engines import ENGINES, Engine
from coterie.errors import CoterieError, PassingError, require, said
from coterie.files import log_to
from coterie.methods import METHODS
from coterie.processes import keep_freed_memory
from coterie.registry import Registry, subclasses_of
from coterie.rounds.evaluate import Evaluation
from coterie.rounds.listeners import Listener, Listeners, Outcome, Start
from coterie.runs.about import about_run, effective, session
from coterie.runs.directory import RunDirectory, alone, refuse_existing
from coterie.runs.history import History, plain_number, plain_numbers
from coterie.runs.models import Models
from coterie.runs.newcomers import onboard
from coterie.runs.record import Line, untested
from coterie.runs.recorder import Recorder, Remembered
from coterie.runs.run import Run
from coterie.runs.store import LOG, ROUNDS
from coterie.runs.summary import summary_of
from coterie.setup.config import PLUGINS, Config, complete, method_name
from coterie.setup.engine_choice import Reconsider, with_choice
from coterie.setup.memory import ran_out, require_room
from coterie.setup.prepared import Prepared, prepare
from coterie.setup.settings import Settings
from coterie.setup.workload import fitting_threads
from coterie.typed import fitting


def run(
    experiment: Settings, out: Path | None = None, listeners: Sequence[GivenListener] = (), progress: bool = False
) -> Run:
    """Run an experiment; with `out`, record it in a new run directory."""
    if out is not None:
        refuse_existing(out)
    require(
        out is not None or not experiment.checkpoint_every,
        f"checkpoint_every = {experiment.checkpoint_every}: a checkpoint needs an output directory (out)",
    )
    keep_freed_memory()  # already now: trials of engines are to find what rounds will
    with watched(listeners, progress) as watchers:
        prepared = with_choice(prepare(experiment))
        if out is None:
            return finish(prepared, None, watchers)
        with alone(out):
            config = complete(prepared.experiment)
            directory = RunDirectory.create(out, config, prepared.partition, about_run(prepared))
            return finish(prepared, directory, watchers, new=True)


@contextmanager
def watched(listeners: Sequence[GivenListener], progress: bool) -> Iterator[tuple[Listener, ...]]:
    """The listeners and, if wished, the display of progress, which is open from here: preparing may warn, too."""
    made = made_listeners(listeners)
    if not progress:
        yield made
        return
    from coterie.rounds.progress import RoundProgress  # what draws bars takes a while to load

    with RoundProgress() as shown:
        yield shown, *made


def finish(prepared: Prepared, directory: RunDirectory | None, listeners: Sequence[Listener], new: bool = False) -> Run:
    """Run the rounds that are left, in a quiet PyTorch, and log to the run's own file.

    A `new` run that breaks off in its first round is taken away if it may be its author's code that has to be mended:
    it could not be carried on with other code, and would only stand in the way.
    """
    keep_freed_memory()
    experiment = prepared.experiment
    threads = experiment.threads or ENGINES.find(experiment.engine).main_threads or fitting_threads(prepared)
    logged = nullcontext() if directory is None else log_to(directory.path / LOG)
    try:
        with _quiet_state(threads, experiment.device), logged:
            return _run_rounds(prepared, directory, listeners)
    except BaseException as error:
        if directory is not None and not directory.finished:
            surroundings = isinstance(error, PassingError | OSError) or not isinstance(error, Exception)
            if new and not surroundings and not directory.lines() and _has_own_code(complete(experiment)):
                shutil.rmtree(directory.path, ignore_errors=True)
            else:
                error.add_note(_way_on(directory, experiment))
        raise


def _run_rounds(prepared: Prepared, directory: RunDirectory | None, listeners: Sequence[Listener]) -> Run:
    experiment, method, identity = prepared.experiment, prepared.method, prepared.identity
    federation, problem = prepared.federation(), prepared.problem()
    require_room(prepared, federation)
    validated = problem.has_validation
    history = History(
        problem.task,
        [len(index) for index in problem.test],
        validation_sizes=[len(index) for index in problem.validation],
    )
    if directory is not None:
        directory.restore(federation)
        history.lines = _lines_until(directory, federation.round, experiment)
        directory.carry_on()
        directory.add_session(session(after=federation.round), effective(prepared), identity)
    names = tuple(prepared.partition.names[client] for client in prepared.participants)
    kept_in = None if directory is None else directory.path
    start = Start(
        method_name(method),
        names,
        experiment.rounds,
        first_round=federation.round + 1,
        federation=federation,
        prepared=prepared,
        directory=kept_in,
        moved=history.bytes()["total"],
    )
    recorder = Recorder(prepared, history, directory)
    watching = () if prepared.forecast is None else (Reconsider(*prepared.forecast),)
    tell = Listeners((recorder, *watching, *listeners))
    if experiment.optimizer != "sgd":
        _load_optimisers()
    try:
        with closing(prepared.engine(problem.scored_with_validation() if validated else problem)) as engine:
            rounds = prepared.rounds(engine, federation, (tell,), validated)
            judge = rounds.judge
            if federation.round:
                judge.latest = history.last("received") if judge.tests_everybody else None
                if rounds.sampler.rests(federation.clients):
                    judge.stored = history.stored(_first(prepared, engine, validated))
            elif judge.tests_everybody:
                judge.latest = judge.evaluate_received()
            tell.begin(start)
            stopped = rounds.run()
            if stopped is not None:
                recorder.save()  # at once: the last tests may take long
            labels = [problem.labels[index] for index in problem.test]
            finished = judge.finished(labels)
        config = complete(experiment)
        at_the_end = {**finished.metrics, **_validation(prepared, history)}
        summary = summary_of(history, prepared.partition, prepared.participants, config, at_the_end)
        summary["identity"] = {part: value for part, value in identity.items() if part != "settings"}
        summary |= {} if stopped is None else {"stopped": stopped}
        if prepared.partition.held_out:
            summary["newcomers"] = {
                moment: {
                    "mean": plain_number(scores.mean),
                    "weighted": plain_number(scores.weighted),
                    scores.scale.name: plain_numbers(scores.judged),
                }
                for moment, scores in onboard(prepared, federation).items()
            }
        tell.end(Outcome(len(history.lines), summary, stopped, quality=finished.quality))
    except torch.OutOfMemoryError:
        trouble = ran_out(prepared, federation)
        tell.end(Outcome(len(history.lines), error=trouble))
        raise trouble from None
    except BaseException as error:
        tell.end(Outcome(len(history.lines), error=error))
        raise
    record = Remembered(prepared, history, summary, recorder.recorded, kept_in, finished.quality)
    return Run(record, experiment, Models(prepared, federation), history)


def _lines_until(directory: RunDirectory, round: int, experiment: Settings) -> list[Line]:
    """The lines of all rounds that a checkpoint knows; those of later ones, which will be run again, are forgotten.

    So is what a round was tested or recorded for as the last one, if more have been planned since.
    """
    lines = directory.lines()
    require(
        len(lines) >= round,
        f"run = {directory.path}: {ROUNDS} is damaged (the checkpoint is of round {round}, but it tells of "
        f"{len(lines)} rounds); bring the file back, or run it again in another directory",
    )
    last, every = experiment.rounds, experiment.evaluate_every
    done = [line if line.round == last else untested(line, every) for line in lines[:round]]
    directory.write_lines(done)
    directory.keep_mixes(experiment.records)
    return done


def _first(prepared: Prepared, engine: Engine, validated: bool) -> Evaluation:
    """Everybody's score before the first round."""
    return prepared.rounds(engine, validated=validated).judge.first_stored()


def _has_own_code(config: Config) -> bool:
    """Whether a run is of somebody's files, or of what was made in Python."""
    given = any(str(config[key]).startswith("given (") for key in ("data", "model", "partition"))
    return bool(config.get(PLUGINS)) or given or config["method"] not in METHODS


def _way_on(directory: RunDirectory, experiment: Settings) -> str:
    """How to carry on with a run that an error broke off."""
    config, round, path = complete(experiment), directory.checkpointed_round(), str(directory.path)
    has_objects = config["method"] not in METHODS or any(
        str(config[key]).startswith("given (") for key in ("data", "model", "partition")
    )
    ways = [f"coterie.resume({path!r})", said("coterie", "resume", path)]
    if experiment.engine == "ray":
        ways.append(f"{said('coterie', 'resume', path, '--engine', 'processes')}, without Ray,")
    way = f"coterie.resume({path!r}, experiment=…) with the same experiment" if has_objects else " or ".join(ways)
    return f"{way} carries on after round {round}" if round else f"{way} starts again from round 1"


def _validation(prepared: Prepared, history: History) -> dict[str, Any]:
    """How many validation samples there are, whether the method uses them too, and the scores on them."""
    curves = history.validation_curves()
    if not curves:
        return {}
    return {
        "validation": {
            "samples": sum(history.validation_sizes),
            "used_by_method": prepared.method.learns_from_validation,
            history.task.judged_by: curves,
        }
    }


def _load_optimisers() -> None:
    """The first `torch.optim` optimiser of a process loads for a second: no part of the first round's time."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


@contextmanager
def _quiet_state(threads: int, device: str) -> Iterator[None]:
    """Use the wished number of threads, and leave PyTorch's global state as it was."""
    before, place = torch.get_num_threads(), torch.device(device if device != "auto" else PROCESSOR)
    if threads:
        torch.set_num_threads(threads)
    drawn = drawn_state(place)
    try:
        yield
    finally:
        draw_again(place, drawn)
        torch.set_num_threads(before)


GivenListener = Listener | type[Listener] | str
"""A listener as it is given: itself, its class, or its name (`LISTENERS`, or `./file.py:Name`)."""


def made_listeners(given: Sequence[GivenListener]) -> tuple[Listener, ...]:
    """The listeners that were given, by name, as classes or as they are.

    >>> class Quiet(Listener):
    ...     pass
    >>> [type(listener).__name__ for listener in made_listeners([Quiet, Quiet()])]
    ['Quiet', 'Quiet']
    """
    return tuple(_made(listener) for listener in fitting("listeners", given, Sequence[GivenListener]))


def _made(given: GivenListener) -> Listener:
    if isinstance(given, Listener):
        return given
    name, kind = (given, LISTENERS.find(given)) if isinstance(given, str) else (given.__name__, given)
    try:
        return kind()
    except TypeError as error:
        raise CoterieError(
            f"listener '{name}': cannot be made without options ({error}); give it as an object"
        ) from None


_OWN: dict[str, type[Listener] | str] = {
    "benchmark": "coterie.benchmark.deployed:Deployed",
    "benchmark-tuning": "coterie.benchmark.deployed:Validated",
    "tensorboard": "coterie.loggers.tensorboard:TensorBoard",
    "wandb": "coterie.loggers.wandb:WandB",
}

LISTENERS: Registry[type[Listener]] = Registry("listener", "coterie.listeners", _OWN, subclasses_of(Listener))
"""Listeners by name: classes that can be made without options."""
