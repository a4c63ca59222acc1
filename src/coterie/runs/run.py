"""A run, before it has ended and after: its numbers as tables, its models as modules, its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor, nn

from coterie.core.exchange import Applied
from coterie.core.federation import Federation
from coterie.core.numbers import number_text
from coterie.core.task.base import LOSS
from coterie.core.task.quality import calibration_errors, fits, recalls
from coterie.display import Displayed
from coterie.errors import CoterieError, require
from coterie.files import silence
from coterie.partition import Partition
from coterie.registry import later, short_name
from coterie.rounds.evaluate import MOMENTS, Floats, Moment
from coterie.runs.history import History, by_client, numbers, training_mean
from coterie.runs.models import Inputs, Models, missing_objects, prepared_without_data, settings_of_run, task_of
from coterie.runs.reader import FEDERATION, Record, record_of, round_of
from coterie.runs.record import Line, RunAbout, Scores
from coterie.runs.store import ABOUT, QUALITY
from coterie.runs.summary import summary_of
from coterie.setup.config import Config
from coterie.setup.prepared import Prepared, prepare
from coterie.setup.settings import Settings
from coterie.typed import typed

if TYPE_CHECKING:
    from pandas import DataFrame

    from coterie.display import Figure

Status = Literal["finished", "stopped", "unfinished"]


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


plot_run: Callable[..., Figure] = later("coterie.report.figures:plot_run")
plot_mixing: Callable[..., Figure] = later("coterie.report.figures:plot_mixing")


@typed
def open_run(path: str | Path, experiment: Settings | None = None) -> Run:
    """Open a run that is finished, was stopped or is still going, as it is at this moment.

    `path` is its directory, or a file that `coterie pack` wrote (`FILE.zip`; if it holds several, `FILE.zip/NAME`).
    A run whose method, model or task was made in Python gives numbers as it is; for its models it needs the
    `experiment` again. The data set is needed by none but methods that tune before they are tested.

    >>> import tempfile
    >>> from coterie.runs.experiment import Experiment
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Experiment("fedper", rounds=2, epochs=1, threads=1).run(f"{folder}/run")
    ...     open_run(f"{folder}/run").rounds
    [1, 2]
    """
    record = record_of(Path(path))
    record.require_complete()
    run = Run(record, experiment)
    _ = run.about  # what is no whole run is said at once
    return run


class Run(Displayed):
    """A run: what `Experiment.run` gives, and what `open_run` opens, whether or not it has ended.

    `config` repeats it and `about` describes it. Clients count as in the run: those held out are not among them.

    >>> import tempfile
    >>> from coterie.runs.experiment import Experiment
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Experiment("fedavg", rounds=1, epochs=1, threads=1).run(f"{folder}/run")
    ...     again = open_run(f"{folder}/run")
    ...     run.status, run.done, run.config["method"], again.summary == run.summary
    ('finished', 1, 'fedavg', True)
    """

    def __init__(
        self,
        record: Record,
        experiment: Settings | None = None,
        models: Models | None = None,
        history: History | None = None,
    ) -> None:
        self.record, self.path = record, record.path
        self._experiment, self._models, self._history = experiment, models, history

    def __repr__(self) -> str:
        about, scores = self.about, {moment: self.newest(moment) for moment in ("received", "trained")}
        means = [f"{number_text(at.mean)} {moment}" for moment, at in scores.items() if at is not None]
        judged = f": {self.judged_by} {', '.join(means)}" if means else ""
        what = f"{short_name(self.config['method'])} on {about.data.name}, {len(about.participants)} clients"
        return f"Run({what}, {self.status}, round {self.done} of {self.config['rounds']}{judged})"

    @cached_property
    def config(self) -> Config:
        """The configuration that repeats it."""
        return self.record.config()

    @cached_property
    def about(self) -> RunAbout:
        """What describes it as a whole: data, model, clients, settings as they came out, who worked on it."""
        about = self.record.about()
        self.record.require_as_begun(about)
        return about

    @cached_property
    def partition(self) -> Partition:
        """Who holds which samples."""
        return self.record.partition()

    @property
    def status(self) -> Status:
        """How it stands: `stopped` is what a listener stopped, `unfinished` what was killed or is still going."""
        return "finished" if self.record.finished else "stopped" if self.record.stopped else "unfinished"

    @property
    def lines(self) -> list[Line]:
        """What every round left, in order."""
        return self.record.lines()

    @property
    def done(self) -> int:
        """How many rounds are over."""
        return len(self.lines)

    @property
    def rounds(self) -> list[int]:
        """The rounds of which it is known who learned from whom."""
        return self.record.recorded_rounds()

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers of its end; of a run that has none, those of the rounds that there are."""
        summary = self.record.summary()
        if summary is not None:
            return summary
        participants = [number for number, client in enumerate(self.about.clients) if client.takes_part]
        return summary_of(self.numbers, self.partition, participants, self.config, {})

    @typed
    def mixes(self, round: int) -> list[Applied]:
        """Who learned from whom in a recorded round.

        Without a run directory it is the last rounds that are remembered, up to 64 MB of weights.
        """
        recorded = self.rounds
        known = f"{recorded[0]} to {recorded[-1]}, {len(recorded)} of them" if recorded else "none"
        require(round in recorded, f"round = {round}: is not among the rounds that were recorded ({known})")
        return self.record.mixes(round)

    @typed
    def plot(self, what: str = "curves") -> Figure:
        """A figure as reports have it: the `curves`, or another.

        These are `training`, `clients`, `partition`, `recall`, `ranking`, `calibration`, `learning`, `graph`,
        `influence`, `agreement`, `bytes` and `seconds`. It needs the extra `plots`, and no display.
        """
        return plot_run(self.record, what)

    @typed
    def plot_mixing(self, round: int | None = None) -> Figure:
        """Who learned from whom in a round, beside the classes that clients hold, as a figure.

        By default it is the last round in which clients chose whom to learn from.
        """
        return plot_mixing(self.record, round)

    @property
    def numbers(self) -> History:
        """The rounds so far, to be summed up: curves over rounds, bytes, seconds, what clients computed."""
        if self._history is not None:
            return self._history
        task = task_of(self.config, self.about.data, self._experiment, self.path)
        tested, validated = (
            [getattr(client, part) for client in self.about.participants] for part in ("test", "validation")
        )
        return History(task, tested, self.lines, validated)

    @property
    def history(self) -> DataFrame:
        """What the run is judged by, a line for each evaluated round and moment: its means and spread over clients.

        `training_loss` is the mean over the clients that trained in the round, `seconds` and `bytes` are those of the
        whole round, up and down together.
        """
        from pandas import DataFrame

        columns = ("round", "moment", "mean", "weighted", "std", "worst_decile", "training_loss", "seconds", "bytes")
        return DataFrame(self._moments(), columns=columns)

    def _moments(self) -> Iterator[tuple[Any, ...]]:
        for line in self.lines:
            training, cost = training_mean(line, LOSS), (line.seconds.total, line.bytes.total)
            for moment in MOMENTS:
                if (at := line.at(moment)) is not None:
                    yield line.round, moment, at.mean, at.weighted, at.std, at.worst_decile, training, *cost

    @property
    def bytes(self) -> int:
        """What a network would have carried so far, up and down together."""
        return sum(line.bytes.total for line in self.lines)

    @property
    def seconds(self) -> float:
        """How long its rounds took so far."""
        return sum(line.seconds.total for line in self.lines)

    @property
    def clients(self) -> DataFrame:
        """Every client: its name, its samples, what it was last judged by at each moment, its samples of each class.

        `training_loss` and its like are those of the last round in which it trained.
        """
        from pandas import DataFrame

        everyone, rounds = self.about.participants, self.numbers
        columns = {
            key: [getattr(client, key) for client in everyone] for key in ("name", "train", "validation", "test")
        }
        for moment in MOMENTS:
            newest = self.newest(moment)
            unknown = np.full(len(everyone), np.nan)
            values = unknown if newest is None else by_client(newest, self.judged_by, len(everyone))
            columns[moment] = values.tolist()
        for metric in dict.fromkeys((LOSS, self.judged_by)):
            columns[f"training_{metric}"] = rounds.training_of(metric).tolist()
        for number, name in enumerate(self.about.data.class_names):
            columns[f"class {name}"] = [client.classes[number] for client in everyone]
        table = DataFrame(columns)
        table.index.name = "client"
        return table

    @property
    def training(self) -> DataFrame:
        """How clients did on the samples they trained on, as they did: a line for each round and client of its cohort.

        Its columns are `round`, `client` and the task's metrics, such as `accuracy` and `loss`.
        """
        return self.numbers.training_frame([client.name for client in self.about.participants])

    @property
    def quality(self) -> DataFrame:
        """The clients' finished models beyond their score, a line each: `macro_f1`, `auc`, `ece`, `recall …` by class.

        NaN stands where a client has no test samples of a class, or of one class alone (AUC). Runs that have not ended,
        and tasks without classes, have no lines.
        """
        from pandas import DataFrame

        kept = {name: values.numpy() for name, values in self.record.quality().items()}
        names = [client.name for client in self.about.participants] if kept else []
        columns: dict[str, Any] = {"name": names}
        if {"macro_f1", "auc", "hits", "support", "bin_samples", "bin_hits", "bin_confidence"} <= kept.keys():
            classes = self.about.data.class_names
            require(
                fits(kept, len(names), len(classes)),
                f"run = {self.path}: {QUALITY} and {ABOUT} are not of one run (their clients or classes differ); bring "
                "the right one back, or run it again in another directory",
            )
            columns |= {"macro_f1": kept["macro_f1"], "auc": kept["auc"], "ece": calibration_errors(kept)}
            shares = recalls(kept)
            columns |= {f"recall {name}": shares[:, place] for place, name in enumerate(classes)}
        table = DataFrame(columns)
        table.index.name = "client"
        return table

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

        names = [client.name for client in self.about.participants]
        return DataFrame(
            {"round": round, "moment": moment, "client": names[client]}
            | {metric: values[row] for metric, values in scores.values.items()}
            for moment in MOMENTS
            for round, scores in self.numbers.measured(moment)
            for row, client in enumerate(range(len(names)) if scores.clients is None else scores.clients)
        )

    @property
    def judged_by(self) -> str:
        """The name of the metric that the run is judged by."""
        return self.about.data.task.judged_by

    def newest(self, moment: Moment) -> Scores | None:
        """What was last measured at a moment: means, and every metric of every client.

        Where that is a sample of the clients, it says whose the scores are (`clients`), and how far off means may be.
        """
        return next((scores for line in reversed(self.lines) if (scores := line.at(moment)) is not None), None)

    def accuracy(self) -> AtMoments:
        """Accuracy by moment, by mean, by round, by client; tasks other than classification have none."""
        return self.metric("accuracy")

    @typed
    def metric(self, name: str = "") -> AtMoments:
        """A metric of the task (the one it is judged by, unless named) by moment, by mean, by round, by client."""
        rounds = self.numbers
        name = name or rounds.task.judged_by
        curves, clients = rounds.curves(name), len(rounds.test_sizes)
        require(bool(curves), f"the run was stopped after round {len(rounds.lines)}, before its first evaluation")
        moments = {}
        for moment in MOMENTS:
            tests = rounds.evaluations(moment)
            # Where samples are tested, what everybody stores is known in the end alone.
            choices = curves[moment] if tests else {mean: dict.fromkeys(at) for mean, at in curves["received"].items()}
            means = {
                mean: dict(zip(at, numbers(list(at.values())).tolist(), strict=True)) for mean, at in choices.items()
            }
            last = by_client(tests[-1], name, clients) if tests else np.full(clients, np.nan)
            moments[moment] = AtMoment(**means, by_client=last)
        return AtMoments(**moments)

    def model(self, client: int) -> nn.Module:
        """An ordinary module with the weights that the method tests for a client, as received after the last round.

        Of a run that has not ended it is that of the last checkpoint, as it was when models were first asked for. Where
        the method mixes at download or tests a tuned copy, that is done here too. Methods that predict with more than
        one model's output (see `predict`) give the model of their tested slot. Where a scale was agreed on, the module
        brings inputs to it.
        """
        return self.models.model(client)

    def rows(self, client: int) -> dict[str, Tensor]:
        """A client's row `[P]` in every slot, just as it is tested; columns that a slot has not mean nothing."""
        return self.models.rows(client)

    def predict(self, client: int, inputs: Inputs) -> Tensor:
        """What the method predicts for `inputs [n, ...]` at a client, such as their classes: `[n]`.

        They are a tensor or an array, prepared as the data of the run were; a scale that was agreed on is applied here.
        """
        return self.models.predict(client, inputs)

    def scores(self, client: int, inputs: Inputs) -> Tensor:
        """The method's outputs for `inputs [n, ...]` at a client, just as it is tested: `[n, C]`."""
        return self.models.scores(client, inputs)

    @property
    def prepared(self) -> Prepared:
        """What was prepared before the first round; of a run that is opened, with a sample of zeros for its data."""
        return self.models.prepared

    @property
    def federation(self) -> Federation:
        """The state after the last round that there is: slots, values, who took part when."""
        return self.models.federation

    @cached_property
    def models(self) -> Models:
        """The clients' models after the last round that there is."""
        if self._models is not None:
            return self._models
        require(
            self.config["engine"] != FEDERATION,
            f"run = {self.path}: is a federation's server, which does not have its sites' models; each site has "
            "its own ('coterie federation model')",
        )
        self._require_described("method", "model")
        config = self.config if self._experiment is not None else self.record.own_config()
        prepared = prepared_without_data(config, self.about, self.partition, self._experiment, self.path)
        federation, state = prepared.federation(), self.record.newest_state()
        try:
            federation.restore(state[0])
            federation.round = round_of(state)
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise CoterieError(f"run = {self.path}: its rows are damaged, or not this run's ({reason})") from None
        if prepared.method.tune(federation) or prepared.method.predicts_with_samples:
            # Clients tune on their own samples, or predict with them: here the data themselves are needed.
            self._require_described("data")
            with silence():
                prepared = prepare(settings_of_run(config, self.partition, self._experiment, with_data=True))
        return Models(prepared, federation)

    def _require_described(self, *keys: str) -> None:
        missing = missing_objects(self.config, keys)
        require(
            self._experiment is not None or not missing,
            f"run = {self.path}: what was made in Python is not kept: {', '.join(missing)}; pass what it was run with: "
            f"coterie.open_run({str(self.path)!r}, experiment=…)",
        )
