"""A run that is opened again: its numbers as tables, its models as modules, whether or not it has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor, nn

from coterie.core.exchange import Applied
from coterie.core.task.base import LOSS
from coterie.core.task.quality import calibration_errors, fits, recalls
from coterie.display import Displayed
from coterie.errors import CoterieError, require
from coterie.runs.about import About
from coterie.setup.config import Config
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.runs.history import History, Line, at_moment, by_client
from coterie.runs.kept import ABOUT, FEDERATION, LAYOUT, QUALITY, KeptRun
from coterie.runs.packed import PackedRun
from coterie.runs.result import AtMoments, Inputs, Result, metric_of, plot_mixing, plot_run, recorded_mixes
from coterie.runs.summary import summary_of
from coterie.runs.training import last_training, training_frame, training_mean
from coterie.runs.without_data import experiment_of, missing_objects, prepared_without_data, task_of
from coterie.files import silence
from coterie.partition import Partition
from coterie.rounds.evaluate import MOMENTS, Moment
from coterie.typed import typed

if TYPE_CHECKING:
    from coterie.display import Figure
    from pandas import DataFrame

Status = Literal["finished", "stopped", "unfinished"]


@typed
def open_run(path: str | Path, experiment: Experiment | None = None) -> OpenedRun:
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
    kept = kept_run(Path(path))
    kept.require_complete()
    return OpenedRun(kept, experiment)


def kept_run(path: Path) -> KeptRun:
    """The files of a run: a directory, a packed run `FILE.zip`, or one of several, `FILE.zip/NAME`."""
    if path.is_file():
        return PackedRun.open(path)
    return PackedRun.open(path.parent, path.name) if path.parent.is_file() else RunDirectory.open(path)


class OpenedRun(Displayed):
    """A run as its files tell it.

    `config` repeats it and `about` describes it. Clients count as in the run: those held out are not among them.

    >>> import tempfile
    >>> from coterie.runs.experiment import Experiment
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Experiment("fedavg", rounds=1, epochs=1, threads=1).run(f"{folder}/run")
    ...     run = open_run(f"{folder}/run")
    ...     run.status, run.done, run.config["method"]
    ('finished', 1, 'fedavg')
    """

    def __init__(self, kept: KeptRun, experiment: Experiment | None = None) -> None:
        self._kept, self._experiment = kept, experiment
        self.path = kept.path
        self.config: Config = kept.config()
        self.about: About = kept.about()
        kept.require_as_begun(self.about)

    def __repr__(self) -> str:
        return f"OpenedRun({str(self.path)!r}, {self.status}, round {self.done} of {self.config['rounds']})"

    @property
    def status(self) -> Status:
        """How it stands: `stopped` is what a listener stopped, `unfinished` what was killed or is still going."""
        return "finished" if self._kept.finished else "stopped" if self._kept.stopped else "unfinished"

    @property
    def done(self) -> int:
        """How many rounds are over."""
        return len(self._lines)

    @property
    def rounds(self) -> list[int]:
        """The rounds in which it was recorded who learned from whom."""
        return self._kept.recorded_rounds()

    @property
    def summary(self) -> dict[str, Any] | None:
        """The final numbers of a run that is finished or was stopped."""
        return self._kept.summary()

    @cached_property
    def partition(self) -> Partition:
        """Who holds which samples."""
        return self._kept.partition()

    @typed
    def mixes(self, round: int) -> list[Applied]:
        """Who learned from whom in a recorded round."""
        return recorded_mixes(self._kept, round)

    @typed
    def plot(self, what: str = "curves") -> Figure:
        """A figure of the run, as `Result.plot` draws it."""
        return plot_run(self._kept, what)

    @typed
    def plot_mixing(self, round: int | None = None) -> Figure:
        """Who learned from whom in a recorded round, as `Result.plot_mixing` draws it."""
        return plot_mixing(self._kept, round)

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
        for line in self._lines:
            training, cost = training_mean(line, LOSS), (sum(line["seconds"].values()), sum(line["bytes"].values()))
            for moment in MOMENTS:
                if (found := at_moment(line, moment)) is not None:
                    scores = (found[name] for name in ("mean", "weighted", "std", "worst_decile"))
                    yield line["round"], moment, *scores, training, *cost

    @property
    def bytes(self) -> int:
        """What a network would have carried so far, up and down together."""
        return sum(sum(line["bytes"].values()) for line in self._lines)

    @property
    def seconds(self) -> float:
        """How long its rounds took so far."""
        return float(sum(sum(line["seconds"].values()) for line in self._lines))

    @property
    def clients(self) -> DataFrame:
        """Every client: its name, its samples, what it was last judged by at each moment, its samples of each class.

        `training_loss` and its like are those of the last round in which it trained.
        """
        from pandas import DataFrame

        everyone = [one for one in self.about["clients"] if one["takes_part"]]
        columns = {key: [one[key] for one in everyone] for key in ("name", "train", "validation", "test")}
        for moment in MOMENTS:
            newest = self.newest(moment)
            unknown = np.full(len(everyone), np.nan)
            found = unknown if newest is None else by_client(newest, self.judged_by, len(everyone))
            columns[moment] = found.tolist()
        for metric in dict.fromkeys((LOSS, self.judged_by)):
            columns[f"training_{metric}"] = last_training(self._lines, metric, len(everyone)).tolist()
        for number, name in enumerate(self.about["data"]["class_names"]):
            columns[f"class {name}"] = [one["classes"][number] for one in everyone]
        table = DataFrame(columns)
        table.index.name = "client"
        return table

    @property
    def training(self) -> DataFrame:
        """How clients did on the samples they trained on, as they did: a line for each round and client of its cohort.

        Its columns are `round`, `client` and the task's metrics, such as `accuracy` and `loss`.
        """
        names = [one["name"] for one in self.about["clients"] if one["takes_part"]]
        return training_frame(self._lines, names, list(self.about["data"]["task"]["metrics"]))

    @property
    def quality(self) -> DataFrame:
        """The clients' finished models beyond their score, a line each: `macro_f1`, `auc`, `ece`, `recall …` by class.

        NaN stands where a client has no test samples of a class, or of one class alone (AUC). Runs that have not ended,
        and tasks without classes, have no lines.
        """
        from pandas import DataFrame

        kept = {name: values.numpy() for name, values in self._kept.quality().items()}
        names = [one["name"] for one in self.about["clients"] if one["takes_part"]] if kept else []
        columns: dict[str, Any] = {"name": names}
        if {"macro_f1", "auc", "hits", "support", "bin_samples", "bin_hits", "bin_confidence"} <= kept.keys():
            classes = self.about["data"]["class_names"]
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

    @property
    def judged_by(self) -> str:
        """The name of the metric that the run is judged by."""
        return str(self.about["data"]["task"]["judged_by"])

    def newest(self, moment: Moment) -> Line | None:
        """What was last measured at a moment, as `rounds.jsonl` has it: means, and every metric of every client.

        Where that is a sample of the clients, it says whose the scores are (`clients`), and how far off means may be.
        """
        return next((found for line in reversed(self._lines) if (found := at_moment(line, moment)) is not None), None)

    def accuracy(self) -> AtMoments:
        """Accuracy by moment, by mean, by round, by client, as `Result.accuracy` gives it."""
        return self.metric("accuracy")

    @typed
    def metric(self, name: str = "") -> AtMoments:
        """A metric of the task (the one it is judged by, unless named) by moment, by mean, by round, by client."""
        return metric_of(self._history, name)

    def summary_so_far(self) -> dict[str, Any]:
        """The same as the summary, of the rounds that there are; without the numbers that only an end has."""
        participants = [client for client, one in enumerate(self.about["clients"]) if one["takes_part"]]
        return summary_of(self._history, self.partition, participants, self.config, {})

    def model(self, client: int) -> nn.Module:
        """An ordinary module with the weights that the method tests for a client, as received after the last round.

        Of a run that has not ended it is that of the last checkpoint, as it was when models were first asked for.
        """
        return self.result.model(client)

    def predict(self, client: int, inputs: Inputs) -> Tensor:
        """What the method predicts for `inputs [n, ...]` at a client, such as their classes: `[n]`."""
        return self.result.predict(client, inputs)

    @property
    def _history(self) -> History:
        task = task_of(self.config, self.about["data"], self._experiment, self.path)
        everyone = [one for one in self.about["clients"] if one["takes_part"]]
        tested, validated = ([one[part] for one in everyone] for part in ("test", "validation"))
        return History(task, tested, self._lines, validated)

    @property
    def _lines(self) -> list[Line]:
        return self._kept.lines_in_order()

    @property
    def _ground(self) -> tuple[Config, About, Partition, Experiment | None, Path]:
        """All that there is to put model and method in place again."""
        require(
            self.config["engine"] != FEDERATION,
            f"run = {self.path}: is a federation's server, which does not have its sites' models; each site has "
            "its own ('coterie federation model')",
        )
        self._require_described("method", "model")
        config = self.config if self._experiment is not None else self._kept.own_config()
        return config, self.about, self.partition, self._experiment, self.path

    def _require_described(self, *keys: str) -> None:
        missing = missing_objects(self.config, keys)
        require(
            self._experiment is not None or not missing,
            f"run = {self.path}: what was made in Python is not kept: {', '.join(missing)}; pass what it was run with: "
            f"coterie.open_run({str(self.path)!r}, experiment=…)",
        )

    @cached_property
    def result(self) -> Result:
        """The run after the last round that was kept, as if it had just ended there."""
        prepared = prepared_without_data(*self._ground)
        federation, (state, texts) = prepared.federation(), self._kept.newest_state()
        try:
            federation.restore(state)
            federation.round = int(json.loads(texts[LAYOUT])["round"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise CoterieError(f"run = {self.path}: its rows are damaged, or not this run's ({reason})") from None
        if prepared.method.tune(federation):
            # Clients tune on their own samples: here the data themselves are needed.
            self._require_described("data")
            config, _, partition, experiment, _ = self._ground
            with silence():
                prepared = experiment_of(config, partition, experiment, with_data=True).prepare()
        return Result(prepared, federation, self._history, self.summary or {"rounds": self.done}, self._kept)
