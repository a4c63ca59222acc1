"""Running an experiment from start or checkpoint to the end, with everything recorded on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from coterie.core.task import Classification, Task
from coterie.core.task.base import LOSS
from coterie.engines import ENGINES
from coterie.errors import require
from coterie.experiment.choose_engine import with_choice
from coterie.experiment.config import complete
from coterie.experiment.directory import LOG, RunDirectory, refuse_existing
from coterie.experiment.history import History, as_line, plain_number, plain_numbers
from coterie.experiment.newcomers import onboard
from coterie.experiment.prepared import Prepared, prepare
from coterie.experiment.result import Result
from coterie.experiment.settings import Settings
from coterie.files import log_to
from coterie.rounds.evaluate import final_metrics
from coterie.rounds.round import RoundReport, Rounds

log = logging.getLogger("coterie")

SMALL_MODEL = 100_000  # parameters

OnRound = Callable[[RoundReport, Prepared], None]


def run(experiment: Settings, out: Path | None = None, on_round: OnRound | None = None) -> Result:
    """Run an experiment; with `out`, record it in a new run directory."""
    if out is not None:
        refuse_existing(out)
    require(
        out is not None or not experiment.checkpoint_every,
        f"checkpoint_every = {experiment.checkpoint_every}: a checkpoint needs an output directory (out)",
    )
    prepared = with_choice(prepare(experiment))
    directory = None if out is None else RunDirectory.create(out, complete(prepared.experiment), prepared.partition)
    return finish(prepared, directory, on_round)


def finish(prepared: Prepared, directory: RunDirectory | None, on_round: OnRound | None) -> Result:
    """Run the rounds that are left, in a quiet PyTorch, and log to the run's own file."""
    experiment = prepared.experiment
    threads = experiment.threads or ENGINES[experiment.engine].main_threads or _fitting_threads(prepared)
    with _quiet_state(threads), nullcontext() if directory is None else log_to(directory.path / LOG):
        return _run_rounds(prepared, directory, on_round)


def _fitting_threads(prepared: Prepared) -> int:
    """One thread for small models without convolutions, which lose more by sharing a step than they gain; else 0."""
    layout = prepared.problem_base.layout
    convolutions = any(len(entry.shape) > 2 for entry in layout.entries)
    return 0 if convolutions or layout.width > SMALL_MODEL else 1


def _run_rounds(prepared: Prepared, directory: RunDirectory | None, on_round: OnRound | None) -> Result:
    experiment, method = prepared.experiment, prepared.method
    federation, problem = prepared.federation(), prepared.problem()
    history = History(problem.task, [len(index) for index in problem.test])
    if directory is not None:
        directory.restore(federation)
        history.lines = directory.lines(up_to=federation.round)
    engine = prepared.engine(problem)
    names = [prepared.partition.names[client] for client in prepared.participants]
    if experiment.optimizer != "sgd":
        _load_optimisers()
    try:
        rounds = Rounds(method, federation, engine, experiment.join, experiment.evaluate_every)
        rounds.latest = history.last("received") if federation.round else rounds.evaluate_received()
        for note in (*prepared.notes, *(f"partition: {note}" for note in prepared.partition.notes)):
            log.info("%s", note)
        while federation.round < experiment.rounds:
            report = rounds.run_round()
            history.lines.append(as_line(report))
            _record(report, prepared, rounds, history, directory, names)
            if on_round is not None:
                on_round(report, prepared)
        labels = [problem.labels[index] for index in problem.test]
        quality = final_metrics(problem.task, rounds.scores_received(keep_scores=True), labels)
    finally:
        engine.close()
    summary = _summary(prepared, history, names, quality)
    if prepared.partition.held_out:
        summary["newcomers"] = {
            moment: {
                "mean": plain_number(scores.mean),
                "weighted": plain_number(scores.weighted),
                scores.scale.name: plain_numbers(scores.judged),
            }
            for moment, scores in onboard(prepared, federation).items()
        }
    if directory is not None:
        directory.finish(federation, summary)
    return Result(prepared, federation, history, summary)


def _record(
    report: RoundReport,
    prepared: Prepared,
    rounds: Rounds,
    history: History,
    directory: RunDirectory | None,
    names: list[str],
) -> None:
    experiment = prepared.experiment
    for client in report.diverged:
        log.warning(
            "round %d: client %s diverged (its weights are not finite); it is left out of the round and keeps its "
            "last good model. A smaller lr or clip= may help.",
            report.round,
            names[client],
        )
    if directory is None:
        return
    directory.add_line(history.lines[-1])
    every = experiment.record_every
    if report.mixes and every and (report.round % every == 0 or report.round == experiment.rounds):
        directory.add_mixes(report.round, report.mixes)
    if experiment.checkpoint_every and report.round % experiment.checkpoint_every == 0:
        directory.checkpoint(rounds.federation)


def _summary(
    prepared: Prepared, history: History, names: list[str], quality: dict[str, float | None]
) -> dict[str, Any]:
    experiment = prepared.experiment
    received, trained = history.last("received"), history.last("trained")
    assert received is not None
    assert trained is not None
    config = complete(experiment)
    clients = [
        {
            "client": name,
            "size": int(prepared.partition.sizes[client]),
            "received": plain_number(float(received.judged[row])),
            "trained": plain_number(float(trained.judged[row])),
        }
        for row, (client, name) in enumerate(zip(prepared.participants, names, strict=True))
    ]
    return {
        "method": config["method"],
        "rounds": experiment.rounds,
        "seconds": history.seconds(),
        **_metrics(history, prepared.problem_base.task),
        "worst_decile": _at_both_moments(received.worst_decile, trained.worst_decile),
        "std": _at_both_moments(received.std, trained.std),
        **quality,
        "clients": clients,
        "diverged": history.diverged(dict(enumerate(names))),
        "bytes": history.bytes(),
        "partition": {
            "hash": prepared.partition.hash,
            "notes": list(prepared.partition.notes),
        },
        "engine": experiment.engine,
        "config": config,
    }


def _metrics(history: History, task: Task) -> dict[str, Any]:
    """The metrics of all rounds, by name; what they are is said unless it is the usual."""
    names = [task.judged_by, *(metric.scale.name for metric in task.metrics if metric.scale.name != LOSS)]
    curves = {name: history.curves(name) for name in names}
    return curves if task.described() == Classification().described() else {"task": task.described(), **curves}


def _at_both_moments(received: float, trained: float) -> dict[str, float | None]:
    return {"received": plain_number(received), "trained": plain_number(trained)}


def _load_optimisers() -> None:
    """The first `torch.optim` optimiser of a process loads for a second: no part of the first round's time."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


@contextmanager
def _quiet_state(threads: int) -> Iterator[None]:
    """Use the wished number of threads, and leave PyTorch's global state as it was."""
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before)
