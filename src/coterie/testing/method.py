"""What every method must do, whatever it is: each check is one promise, and says which part of it is broken."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.pixels import whole
from coterie.engines import make_engine
from coterie.engines.base import Engine
from coterie.errors import CoterieError, unknown
from coterie.files import silence
from coterie.methods.base import Method
from coterie.partition import Partition
from coterie.rounds.delivery import as_delivered
from coterie.rounds.listeners import Listener, RoundReport
from coterie.runs.directory import RunDirectory
from coterie.runs.record import Travelled
from coterie.runs.resume import resume
from coterie.testing.together import SITES, agreed, run_on_messages, simulated
from coterie.testing.toys import CLASSES, CLIENTS, ROUNDS, toy_data, toy_experiment, toy_partition, with_validation

JOIN = 0.5  # of the clients, where only a part takes part
NEAR = 2e-5  # how far rows may lie apart that were computed in another order


class CheckFailedError(AssertionError):
    """A method or an engine does not keep a promise; the message says which, and how it was broken."""


def check_method(
    method: Method, only: Sequence[str] = (), hear: Callable[[str, Exception | None], None] = lambda *_: None
) -> None:
    """Run the checks that Coterie's own methods pass on a method; an error lists all that it fails.

    `only` names some of `METHOD_CHECKS`; `hear` is told of each check and, if it failed, why.

    >>> from coterie.methods import FedAvg
    >>> check_method(FedAvg(), only=["relabelling"])
    """
    for name in only:
        if name not in METHOD_CHECKS:
            raise unknown("check", name, METHOD_CHECKS)
    failures = []
    for name in only or METHOD_CHECKS:
        try:
            with silence():
                METHOD_CHECKS[name](method)
            hear(name, None)
        except (AssertionError, CoterieError, RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
            hear(name, error)
            failures.append(f"{name}: {str(error).strip() or type(error).__name__}")
    if failures:
        raise CheckFailedError(f"{type(method).__name__} fails {len(failures)} checks:\n" + "\n".join(failures))


@dataclass
class _Watch(Listener):
    reports: list[RoundReport]

    def round(self, report: RoundReport) -> None:
        self.reports.append(report)


def check_value(method: Method) -> None:
    """A method is a value: a frozen dataclass, equal to another of the same options, and described."""
    kind = type(method)
    frozen = is_dataclass(method) and getattr(kind, "__dataclass_params__").frozen  # noqa: B009 (private to dataclasses)
    _expect(frozen, "is no frozen dataclass")
    _expect(method == method and hash(method) == hash(method), "is not equal to itself")
    _expect(bool((kind.__doc__ or "").strip()), "has no docstring")


def check_sound(method: Method) -> None:
    """Rows stay finite, every mix is a mean, models move: for one client and more, all or half, with batch norm."""
    for model in ("plain", "norm"):
        for join, clients in ((1.0, CLIENTS), (JOIN, CLIENTS), (1.0, 2), (1.0, 1)):
            where = f"model '{model}', {clients} clients, join {join:g}"
            watch = _Watch([])
            result = toy_experiment(method, model, join=join, clients=clients).run(listeners=[watch])
            for slot in result.federation.slots:
                _expect(_is_finite(_rows(result.federation, slot)), f"{where}: slot '{slot}' is not finite")
            _expect(not result.summary["diverged"], f"{where}: clients diverged")
            moved = not torch.equal(_rows(result.federation), _rows(result.prepared.federation()))
            _expect(moved, f"{where}: no model has changed")
            for report in watch.reports:
                _expect(len(report.cohort) == max(1, int(join * clients)), f"{where}: a cohort of {report.cohort}")
                _expect_means(report, clients, where)
                for moment in (report.received, report.trained):
                    finite = moment is not None and bool(np.isfinite(moment.judged).all())
                    _expect(finite, f"{where}, round {report.round}: clients without a score")
                _expect(all(count >= 0 for count in report.bytes.values()), f"{where}: bytes {report.bytes}")


def check_odd(method: Method) -> None:
    """Rows and values stay finite and mixes are means where a round has one client, all are equal, or data are few."""
    for where, options in _odd_settings():
        watch = _Watch([])
        result = toy_experiment(method, **options).run(listeners=[watch])
        for report in watch.reports:
            _expect_means(report, CLIENTS, where)
        for slot in result.federation.slots:
            _expect(_is_finite(_rows(result.federation, slot)), f"{where}: slot '{slot}' is not finite")
        for name, value in result.federation.values.items():
            _expect(not bool((value == math.inf).any()), f"{where}: value '{name}' is infinite")
        _expect(not result.summary["diverged"], f"{where}: clients diverged")


def _odd_settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs in which something is missing that methods may count on, each with what it is."""
    data = toy_data(180)
    usual = with_validation(toy_partition(data, CLIENTS))
    yield "one client a round", {"data": data, "partition": usual, "join": 1 / CLIENTS, "rounds": CLIENTS}
    yield "rows that do not change", {"data": data, "partition": usual, "lr": 1e-30}
    with_one_sample = replace(usual, train=(usual.train[0][:1], *usual.train[1:]))
    yield "a client with one sample", {"data": data, "partition": with_one_sample}
    for classes, where in ((CLASSES, "clients with one class each"), (1, "one class in all")):
        members = [
            np.flatnonzero(data.labels.numpy() == client % classes)[client::CLIENTS] for client in range(CLIENTS)
        ]
        parts = Partition(
            train=tuple(samples[3:] for samples in members), test=tuple(samples[:3] for samples in members)
        )
        yield where, {"data": data, "partition": with_validation(parts)}


def check_relabelling(method: Method) -> None:
    """The row index is a client's id: relabelled clients permute the result, and change nothing else."""
    data = toy_data(180)
    partition = with_validation(toy_partition(data, CLIENTS))
    order = [2, 0, 3, 1]
    for model, join in (("plain", 1.0), ("norm", 1.0), ("norm", JOIN)):
        plain = toy_experiment(method, model, join=join, data=data, partition=partition).run()
        other = toy_experiment(method, model, join=join, data=data, partition=partition.permuted(order)).run()
        where = f"model '{model}', join {join:g}"
        _expect_near(_rows(other.federation), _rows(plain.federation)[order], f"{where}: relabelled rows", 1e-4)
        for line, again in zip(plain.lines, other.lines, strict=True):
            at = f"{where}, round {line.round}"
            _expect(sorted(order[client] for client in again.cohort) == line.cohort, f"{at}: another cohort")
            for moment in ("received", "trained"):
                same = again.values(moment, "accuracy") == np.array(line.values(moment, "accuracy"))[order].tolist()
                _expect(same, f"{at}: accuracies '{moment}' of relabelled clients")


class _PowerCutError(Exception):
    """The run is killed."""


class _Kill(Listener):
    def round(self, report: RoundReport) -> None:
        if report.round == 2:
            raise _PowerCutError


def check_resumption(method: Method) -> None:
    """A run that is killed and resumed ends bit-identical: all that changes lives in the federation."""
    experiment = toy_experiment(method, "norm", join=JOIN, rounds=4, checkpoint_every=1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            experiment.run(Path(folder) / "killed", listeners=[_Kill()])
        except _PowerCutError:
            again = resume(Path(folder) / "killed", experiment=experiment)
        whole = experiment.run(Path(folder) / "whole")
        killed, unbroken = (RunDirectory.open(Path(folder) / name) for name in ("killed", "whole"))
        for round in killed.recorded_rounds():
            for mix, other in zip(killed.mixes(round), unbroken.mixes(round), strict=True):
                _expect(torch.equal(mix.weights, other.weights), f"round {round}: '{mix.group}' is mixed otherwise")
    state = dict(whole.federation.state())
    for name, tensor in again.federation.state():
        _expect(torch.equal(tensor.nan_to_num(), state[name].nan_to_num()), f"'{name}' differs after a resumption")
    for line, expected in zip(again.lines, whole.lines, strict=True):
        same = structs.replace(line, seconds=expected.seconds) == expected
        _expect(same, f"round {line.round} is recorded otherwise after a resumption")


def check_extension(method: Method) -> None:
    """A run that gets more rounds ends like one that planned them, unless `resolved` says that their number counts."""
    short, longer = (toy_experiment(method, "norm", join=JOIN, rounds=rounds) for rounds in (2, 5))
    if short.prepare().resolved != longer.prepare().resolved:
        return
    with tempfile.TemporaryDirectory() as folder:
        short.run(Path(folder) / "run")
        extended = resume(Path(folder) / "run", experiment=short, rounds=longer.rounds)
    state = dict(longer.run().federation.state())
    for name, tensor in extended.federation.state():
        same = torch.equal(tensor.nan_to_num(), state[name].nan_to_num())
        _expect(same, f"'{name}' depends on how many rounds were planned, of which `resolved` says nothing")


def check_evaluation(method: Method) -> None:
    """Testing changes nothing."""
    often = toy_experiment(method, "norm", join=JOIN).run()
    seldom = toy_experiment(method, "norm", join=JOIN, evaluate_every=ROUNDS).run()
    _expect(torch.equal(_rows(often.federation), _rows(seldom.federation)), "rows depend on how often they are tested")
    for moment in ("received", "trained"):
        same = often.lines[-1].values(moment, "accuracy") == seldom.lines[-1].values(moment, "accuracy")
        _expect(same, f"accuracies '{moment}' depend on how often they are tested")


def check_newcomers(method: Method) -> None:
    """Clients that were held out are received and can train."""
    data = toy_data(180)
    whole = with_validation(toy_partition(data, 5))
    partition = Partition(train=whole.train, validation=whole.validation, test=whole.test, held_out=(1, 4))
    result = toy_experiment(method, "norm", data=data, partition=partition, join=0.67).run()
    for moment in ("received", "trained"):
        accuracies = result.summary["newcomers"][moment]["accuracy"]
        _expect(len(accuracies) == 2 and all(map(math.isfinite, accuracies)), f"newcomers as {moment}: {accuracies}")


def check_divergence(method: Method) -> None:
    """A client whose model overflows is named, keeps its last good row, and harms nobody."""
    data = toy_data(180)
    partition = with_validation(toy_partition(data, CLIENTS))
    inputs = whole(data.inputs).clone()
    inputs[partition.train[1]] *= 1e30
    spoiled = type(data)("spoiled", inputs, data.labels, classes=data.classes)
    result = toy_experiment(method, "relu", data=spoiled, partition=partition).run()
    _expect(set(result.summary["diverged"]) == {"1"}, f"client 1 diverged, but {result.summary['diverged']} is named")
    for slot in result.federation.slots:
        _expect(_is_finite(_rows(result.federation, slot)), f"slot '{slot}' is not finite")


def check_travel(method: Method) -> None:
    """On packed messages, with NaN for all that a side cannot know, it ends as in a simulation; so do the bytes."""
    for join in (1.0, 0.67):
        agreement = agreed(method, join=join, validation=0.2, rounds=4)
        serial = simulated(agreement).run()
        together, last = run_on_messages(agreement, poison=True)
        everyone = serial.federation.everyone
        with as_delivered(method, serial.federation, everyone):
            for slot, theirs in serial.federation.slots.items():
                if theirs.held_by == "server" or theirs.dropped:
                    continue
                columns = theirs.columns if slot == method.tested else theirs.own_columns
                for client, site in enumerate(SITES):
                    me = everyone[client : client + 1]
                    mine = together.sites[site].federation[slot].rows(me, columns)
                    _expect_near(mine, theirs.rows(me, columns), f"join {join:g}, {site}: slot '{slot}'", 1e-6)
        for report, line in zip(together.reports, serial.lines, strict=True):
            where = f"join {join:g}, round {line.round}"
            _expect(
                Travelled(**report.bytes) == line.bytes,
                f"{where}: {report.bytes} travelled, the ledger has {line.bytes}",
            )
        for client, site in enumerate(SITES):
            ours, theirs_last = last[site]["received"], serial.lines[-1].values("received", "accuracy")[client]
            near = math.isclose(ours["correct"] / ours["samples"], theirs_last or 0.0, abs_tol=1e-9)
            _expect(near, f"join {join:g}, {site}: the finished model is not the simulation's")


def check_engines(method: Method) -> None:
    """The stacked engine (or its fall-back) ends with the serial engine's rows, and tells the same of training."""
    for join in (1.0, JOIN):
        (serial, losses), (other, also_told) = (_rounds(method, engine, join) for engine in ("serial", "stacked"))
        _expect_near(_rows(other), _rows(serial), f"join {join:g}: stacked rows", 1e-3)
        _expect_near(also_told, losses, f"join {join:g}: losses on training samples", 1e-3)


METHOD_CHECKS: dict[str, Callable[[Method], None]] = {
    "value": check_value,
    "sound": check_sound,
    "odd": check_odd,
    "relabelling": check_relabelling,
    "resumption": check_resumption,
    "extension": check_extension,
    "evaluation": check_evaluation,
    "newcomers": check_newcomers,
    "divergence": check_divergence,
    "travel": check_travel,
    "engines": check_engines,
}
"""The checks by name, in the order in which they are run."""


def _rounds(method: Method, name: str, join: float) -> tuple[Federation, Tensor]:
    """The federation after a few rounds on an engine, and what was told of training; 0 for what was not."""
    experiment = toy_experiment(method, join=join)
    prepared = experiment.prepare()
    engine: Engine = make_engine(name, prepared.problem(), method, experiment.seed)
    rounds = prepared.rounds(engine)
    with torch.random.fork_rng(devices=[]):
        trainings = [rounds.run_round().training for _ in range(ROUNDS)]
    engine.close()
    losses = [np.zeros(0) if training is None else training.loss for training in trainings]
    return rounds.federation, torch.from_numpy(np.concatenate(losses)).nan_to_num()


def _expect(promise: bool, message: str) -> None:
    if not promise:
        raise CheckFailedError(message)


def _expect_near(actual: Tensor, expected: Tensor, what: str, tolerance: float = NEAR) -> None:
    apart = float((actual - expected).abs().max()) if actual.numel() else 0.0
    _expect(apart <= tolerance, f"{what} lie {apart:.2g} apart (at most {tolerance:g})")


def _expect_means(report: RoundReport, clients: int, where: str) -> None:
    for mix in report.mixes:
        sums = mix.weights.sum(1)
        sound = bool((mix.weights >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-5)
        _expect(sound, f"{where}, round {report.round}: the mix of '{mix.group}' is no weighted mean")
        _expect(set(mix.columns.tolist()) <= set(range(clients)), f"{where}: a mix of clients that do not exist")


def _rows(federation: Federation, slot: str = "model") -> Tensor:
    return federation[slot].rows(federation.everyone)


def _is_finite(rows: Tensor) -> bool:
    return bool(torch.isfinite(rows).all())
