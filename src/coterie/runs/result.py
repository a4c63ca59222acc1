"""What a run gives: numbers, and every client's model as an ordinary module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.client.batch import Batch
from coterie.client.problem import Problem
from coterie.client.trainer import tune
from coterie.client.worker import Worker
from coterie.core.exchange import Applied
from coterie.core.federation import Federation
from coterie.core.numbers import number_text
from coterie.data import Dataset
from coterie.data.arrays import require_unmasked
from coterie.display import Displayed
from coterie.errors import CoterieError, require
from coterie.setup.config import method_name
from coterie.runs.history import TESTED, History, by_client, numbers
from coterie.runs.kept import KeptRun
from coterie.setup.prepared import Prepared
from coterie.runs.training import training_frame
from coterie.registry import later
from coterie.rounds.delivery import as_delivered
from coterie.rounds.evaluate import MOMENTS, Floats
from coterie.typed import fitting, shown, typed

if TYPE_CHECKING:
    from coterie.display import Figure
    from pandas import DataFrame

Inputs = Tensor | npt.NDArray[Any] | Sequence[Any]


@dataclass(frozen=True)
class AtMoment:
    """A metric at one moment: `mean` and `weighted` hold `best`, `last` and `last5`; `by_client [K]` is the last.

    With validation samples, they hold `by_validation` too.
    """

    mean: dict[str, float]
    weighted: dict[str, float]
    by_client: Floats

    def __str__(self) -> str:
        last, best, last5 = (number_text(self.mean[at]) for at in ("last", "best", "last5"))
        chosen = self.mean.get("by_validation")
        by_validation = "" if chosen is None else f", best by validation {number_text(chosen)}"
        return f"mean {last} (best {best}, last five {last5}{by_validation})"


@dataclass(frozen=True)
class AtMoments:
    """A metric at all moments. Where everybody takes part in every round, `stored` is what `trained` is."""

    received: AtMoment
    trained: AtMoment
    stored: AtMoment

    def __str__(self) -> str:
        shown = f"received: {self.received}\n trained: {self.trained}"
        return shown if self.stored.mean == self.trained.mean else f"{shown}\n  stored: {self.stored}"


plot_run: Callable[..., Figure] = later("coterie.report.charts:plot_run")
plot_mixing: Callable[..., Figure] = later("coterie.report.pictures:plot_mixing")


@dataclass(frozen=True, repr=False)
class Result(Displayed):
    """A run that is finished, or was stopped by a listener: its summary then says why (`stopped`).

    `kept` is all that a run directory would tell of it.
    """

    prepared: Prepared
    federation: Federation
    history: History
    summary: dict[str, Any]
    kept: KeptRun

    def __repr__(self) -> str:
        method, data = method_name(self.prepared.method), self.prepared.data.name
        done = f"round {len(self.history.lines)} of {self.prepared.experiment.rounds}"
        newest = {moment: self.history.newest(moment) for moment in ("received", "trained")}
        scores = [f"{number_text(at.mean)} {moment}" for moment, at in newest.items() if at is not None]
        judged = f": {self.history.task.judged_by} {', '.join(scores)}" if scores else ""
        return f"Result({method} on {data}, {self.federation.clients} clients, {done}{judged})"

    @property
    def rounds(self) -> list[int]:
        """The rounds of which it is known who learned from whom."""
        return self.kept.recorded_rounds()

    @typed
    def mixes(self, round: int) -> list[Applied]:
        """Who learned from whom in a round.

        Without a run directory it is the last rounds that are remembered, up to 64 MB of weights.
        """
        return recorded_mixes(self.kept, round)

    @typed
    def plot(self, what: str = "curves") -> Figure:
        """A figure as reports have it: the `curves`, or another.

        These are `training`, `clients`, `partition`, `recall`, `ranking`, `calibration`, `learning`, `graph`,
        `influence`, `agreement`, `bytes` and `seconds`. It needs the extra `plots`, and no display.
        """
        return plot_run(self.kept, what)

    @typed
    def plot_mixing(self, round: int | None = None) -> Figure:
        """Who learned from whom in a round, beside the classes that clients hold, as a figure.

        By default it is the last round in which clients chose whom to learn from.
        """
        return plot_mixing(self.kept, round)

    def accuracy(self) -> AtMoments:
        """Accuracy by moment, by mean, by round, by client; tasks other than classification have none."""
        return self.metric("accuracy")

    @typed
    def metric(self, name: str = "") -> AtMoments:
        """A metric of the task (the one it is judged by, unless named) by moment, by mean, by round, by client."""
        return metric_of(self.history, name)

    def to_frame(self) -> DataFrame:
        """Every metric of every evaluated round as a pandas frame: a row for each round, moment and client.

        >>> from coterie.runs.experiment import Experiment
        >>> frame = Experiment(rounds=2, epochs=1).run().to_frame()
        >>> list(frame.columns)
        ['round', 'moment', 'client', 'accuracy', 'loss']
        >>> sorted(frame["moment"].unique()), frame.groupby("round")["accuracy"].mean().index.tolist()
        (['received', 'stored', 'trained'], [1, 2])
        """
        from pandas import DataFrame

        names = [client["client"] for client in self.summary["clients"]]
        metrics = [metric.scale.name for metric in self.history.task.metrics]
        return DataFrame(
            {"round": round, "moment": moment, "client": names[client], **{name: found[name][row] for name in metrics}}
            for moment in MOMENTS
            for round, found in self.history.measured(moment)
            for row, client in enumerate(found.get(TESTED, range(len(names))))
        )

    def training(self) -> DataFrame:
        """How clients did on the samples they trained on, while they did, as a pandas frame.

        A row for each round and each client that trained in it; columns `round`, `client` and the task's metrics.

        >>> from coterie.runs.experiment import Experiment
        >>> frame = Experiment(rounds=2, epochs=1).run().training()
        >>> list(frame.columns), bool(frame["loss"].iloc[-1] < frame["loss"].iloc[0])
        (['round', 'client', 'accuracy', 'loss'], True)
        """
        names = [client["client"] for client in self.summary["clients"]]
        metrics = [metric.scale.name for metric in self.history.task.metrics]
        return training_frame(self.history.lines, names, metrics)

    def model(self, client: int) -> nn.Module:
        """An ordinary module with the weights that the method tests for a client, as received after the last round.

        Where the method mixes at download or tests a tuned copy, that is done here too. Methods that predict
        with more than one model's output (see `predict`) give the model of their tested slot.
        """
        tested, layout = self.prepared.method.tested, self.prepared.problem_base.layout
        rows = self.rows(client)
        row, columns = rows["model"].clone(), self.federation[tested].columns
        columns.put(row, columns.take(rows[tested]))
        return layout.load(copy.deepcopy(self.prepared.problem_base.module), row).eval()

    def rows(self, client: int) -> dict[str, Tensor]:
        """A client's row `[P]` in every slot, just as it is tested; columns that a slot has not mean nothing."""
        with self._seated(client, self.prepared.problem()) as worker:
            return {slot: worker.model(slot).row.clone() for slot in self.federation.slots}

    def predict(self, client: int, inputs: Inputs) -> Tensor:
        """What the method predicts for `inputs [n, ...]` at a client, such as their classes: `[n]`.

        They are a tensor or an array, prepared as the data of the run were.
        """
        return self.prepared.problem_base.task.predict(self.scores(client, inputs))

    def scores(self, client: int, inputs: Inputs) -> Tensor:
        """The method's outputs for `inputs [n, ...]` at a client, just as it is tested: `[n, C]`."""
        inputs = fitting_inputs(inputs, self.prepared.data)
        labels = torch.zeros(len(inputs), dtype=self.prepared.problem_base.task.label_dtype)
        problem = replace(self.prepared.problem(), inputs=inputs, labels=labels)
        with self._seated(client, self.prepared.problem()) as worker, torch.no_grad():
            worker.problem = problem
            parts = torch.arange(len(inputs)).split(problem.test_batch)
            method = self.prepared.method
            return torch.cat([method.predict(Batch(worker, method.tested, part)) for part in parts])

    @contextmanager
    def _seated(self, client: int, problem: Problem) -> Iterator[Worker]:
        """A worker at which a client sits with what it received and, where the method says so, tuned."""
        method, clients = self.prepared.method, self.federation.clients
        client = fitting("client", client, int)
        require(0 <= client < clients, f"client = {client}: must lie in 0..{clients - 1}")
        worker = Worker(problem, method, self.federation.seed)
        delivered = as_delivered(method, self.federation, torch.tensor([client]))
        with delivered, torch.random.fork_rng(devices=[]):
            worker.seat(self.federation, client)
            with torch.enable_grad():  # whoever asks may have done without
                tune(worker)
            yield worker


def recorded_mixes(kept: KeptRun, round: int) -> list[Applied]:
    """The mixes of a round; an error names the rounds that were recorded."""
    recorded = kept.recorded_rounds()
    known = f"{recorded[0]} to {recorded[-1]}, {len(recorded)} of them" if recorded else "none"
    require(round in recorded, f"round = {round}: is not among the rounds that were recorded ({known})")
    return kept.mixes(round)


def fitting_inputs(inputs: Inputs, data: Dataset) -> Tensor:
    """Inputs `[n, ...]` as a model of the data takes them; an error says what else they are.

    >>> from coterie.data import load
    >>> fitting_inputs(np.zeros((2, 8, 8)), load("digits"))
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: inputs: samples have the shape (8, 8); the model takes (1, 8, 8), several at a time
    """
    require_unmasked(inputs)
    try:
        found = inputs.detach() if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
    except (TypeError, ValueError, RuntimeError):
        raise CoterieError(f"inputs = {shown(inputs)}: must be a tensor or an array, `[n, ...]`") from None
    require(
        tuple(found.shape[1:]) == data.shape,
        f"inputs: samples have the shape {tuple(found.shape[1:])}; the model takes {data.shape}, several at a time",
    )
    wanted = data.inputs.dtype
    require(
        found.is_floating_point() == wanted.is_floating_point,
        f"inputs: are {str(found.dtype).removeprefix('torch.')}; the model takes {str(wanted).removeprefix('torch.')}, "
        "prepared as its data were",
    )
    return found.to("cpu", wanted)


def metric_of(history: History, name: str = "") -> AtMoments:
    """A metric of the rounds so far (the one the task is judged by, unless named)."""
    name = name or history.task.judged_by
    curves, done = history.curves(name), len(history.lines)
    require(bool(curves), f"the run was stopped after round {done}, before its first evaluation")
    moments, clients = {}, len(history.test_sizes)
    for moment in MOMENTS:
        tests = history.evaluations(moment)
        # Where samples are tested, what everybody stores is known in the end alone.
        told = curves[moment] if tests else {mean: dict.fromkeys(at) for mean, at in curves["received"].items()}
        by_round = {mean: dict(zip(at, numbers(list(at.values())).tolist(), strict=True)) for mean, at in told.items()}
        last = by_client(tests[-1], name, clients) if tests else np.full(clients, np.nan)
        moments[moment] = AtMoment(**by_round, by_client=last)
    return AtMoments(**moments)
