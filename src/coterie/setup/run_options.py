"""Every setting of a run, with its default, its meaning and its check: the one place where they stand.

Free of PyTorch: the command line's help is made from them. `Settings` says which objects may stand where a name does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.core.training import MemoryChoice
from coterie.errors import require
from coterie.options import BY_RULE, setting
from coterie.processes import most_threads
from coterie.setup.features import SIMULATED, JointTraining, SimulatedFeatures, settings_of

RUNS_SEED = "the run's seed"
SCALES = ("", "none", "standard", "range", "published")


@dataclass(frozen=True, kw_only=True)
class RunOptions(SimulatedFeatures, JointTraining):
    """The settings of a run as they are given: numbers and words, or objects in place of the first four names."""

    method: Any = setting("fedavg", "The method (see 'coterie methods').", "method")
    data: Any = setting(
        "digits", "A data set (see 'coterie datasets') or a path to your own .csv, .parquet, .npz or folder.", "data"
    )
    label: str = setting("label", "The label column of your own table.", "data")
    client_column: str | None = setting(
        None,
        "The column (of .npz: the key) of your own data that names each sample's client.",
        "data",
        "--client-column",
        "--client",
        shown="'client', if there is one",
    )
    task: str = setting(
        "",
        "What labels are: classes (classification) or numbers (regression).",
        "data",
        shown="the data set's",
    )
    scale: str = setting(
        "",
        "Columns of tables, by all clients' training samples: standard (mean 0, deviation 1), range (-1 .. 1), none; "
        "published: images as pFedSim's authors did (cifar10).",
        "data",
        shown="tables as they are, images to -1 .. 1",
    )
    share: float = setting(1.0, "Use only this share of the data's samples, drawn from every class.", "data")
    partition: Any = setting(
        None,
        "The rule that shares the data out among clients (see 'coterie partitions'), or a FILE.npz that says who holds "
        "what.",
        "partition",
        shown="by_client if the data name clients, else dirichlet",
    )
    model: Any = setting("mlp", "The model (see 'coterie models').", "data")
    model_seed: int | None = setting(
        None, "A seed of their own for the model's first weights.", "data", shown=RUNS_SEED
    )
    test: float | None = setting(
        None, "The share of each client's samples that it is tested on.", "partition", shown=BY_RULE
    )
    validation: float | None = setting(
        None, "The share of each client's other samples kept for validation.", "partition", shown=BY_RULE
    )
    held_out: int | float = setting(
        0, "Clients kept apart as newcomers: their number, or their share as a fraction.", "partition"
    )
    partition_seed: int | None = setting(
        None, "A seed of its own for the partition: rule, split and newcomers.", "partition", shown=RUNS_SEED
    )
    memory: MemoryChoice = setting(
        "auto", "Order of images and convolutions in memory: contiguous, channels_last, auto (by trial).", "running"
    )
    engine: str = setting(
        "auto",
        "auto (by trial; short runs: serial), serial, processes (one a core), adaptive (either), stacked (one batch), "
        "ray (a cluster).",
        "running",
    )
    device: str = setting(
        "cpu", "Where clients train: cpu, cuda, mps or auto (but for cpu, engine auto is stacked).", "running"
    )
    workers: int = setting(0, "Workers of engines 'processes' and 'ray' (0: one per core).", "running")
    ray_address: str = setting("", "Engine 'ray': HOST:PORT of a cluster, or 'auto' (none: a local Ray).", "running")
    ray_gpus: float = setting(0.0, "Engine 'ray': the share of a GPU that each actor reserves.", "running")
    threads: int = setting(0, "PyTorch threads (0: by model: 1 if small, else PyTorch's).", "running")
    evaluate_every: int = setting(1, "Test everybody every so many rounds.", "running")
    evaluate_clients: int = setting(
        0,
        "Test this many clients, drawn anew each time, in place of everybody; everybody at the end.",
        "running",
        shown="everybody",
    )
    judge: str = setting(
        "",
        "Who is tested, by a judge of your own (see docs/plugins.md).",
        "running",
        shown="everybody, or evaluate_clients",
    )
    record_every: int = setting(1, "Record who learns from whom every so many rounds (0: never).", "running")
    checkpoint_every: int | None = setting(
        None,
        "Save a checkpoint for 'resume' every so many rounds (0: never).",
        "running",
        shown="about every minute",
    )

    def __post_init__(self) -> None:
        JointTraining.__post_init__(self)
        for feature in settings_of(SIMULATED):
            feature.__post_init__(self)
        require(self.evaluate_every >= 1, f"evaluate_every = {self.evaluate_every}: must be at least 1")
        require(
            self.evaluate_clients == 0 or self.evaluate_clients >= 2,
            f"evaluate_clients = {self.evaluate_clients}: must be at least 2, or 0 for everybody",
        )
        require(
            not (self.judge and self.evaluate_clients),
            f"judge = '{self.judge}': evaluate_clients = {self.evaluate_clients} says who is tested; leave one of the "
            "two out",
        )
        for option in ("record_every", "checkpoint_every"):
            value = getattr(self, option)
            require(value is None or value >= 0, f"{option} = {value}: must not be negative (0: never)")
        require(self.workers >= 0, f"workers = {self.workers}: must not be negative (0: one per core)")
        require(self.ray_gpus >= 0, f"ray_gpus = {self.ray_gpus}: must not be negative")
        for option in ("ray_address", "ray_gpus"):
            value = getattr(self, option)
            require(not value or self.engine == "ray", f"{option} = {value}: is for engine='ray'")
        for option in ("partition_seed", "model_seed"):
            value = getattr(self, option)
            require(value is None or value >= 0, f"{option} = {value}: must not be negative")
        require(0 < self.share <= 1, f"share = {self.share:g}: must be above 0 and at most 1")
        require(self.scale in SCALES, f"scale = {self.scale}: must be {', '.join(SCALES[1:-1])} or {SCALES[-1]}")
        require(self.threads >= 0, f"threads = {self.threads}: must not be negative (0: by model)")
        most, started = most_threads(), {"threads": self.threads, "workers": self.workers}
        for option in ("threads",) if self.engine == "ray" else started:  # a cluster has room for more
            require(started[option] <= most, f"{option} = {started[option]}: must be at most {most} on this machine")

    def records(self, round: int) -> bool:
        """Whether it is recorded who learns from whom in a round: when its turn comes, and at the end.

        >>> [round for round in range(1, 8) if RunOptions(rounds=7, record_every=3).records(round)]
        [3, 6, 7]
        """
        every = self.record_every
        return bool(every) and (round % every == 0 or round == self.rounds)
