"""The options that `run` and `compare` share. What was not given stays `None` and takes its default elsewhere.

Nothing heavy is imported here: `coterie --help` must answer at once.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin

from cyclopts import Group, Parameter, Token

from coterie.options import coerced

DATA = Group("Data and model", sort_key=1)
PARTITION = Group("Partition (each rule takes some of these: see 'coterie partitions')", sort_key=2)
TRAINING = Group("Training", sort_key=3)
RUNNING = Group("Running and recording", sort_key=4)
BY_RULE = "the rule's"


def read_value(wanted: Any, tokens: Sequence[Token]) -> Any:
    """A converter that reads values just as a configuration file does: `2.7` is no whole number."""
    plain = wanted
    if get_origin(wanted) in (Union, types.UnionType):
        plain = reduce(or_, (one for one in get_args(wanted) if one is not type(None)))
    token = tokens[0]
    return coerced((token.keyword or "value").lstrip("-").replace("-", "_"), token.value, plain)


def read_values(wanted: Any, tokens: Sequence[Token]) -> Any:
    """The same for an option with several values."""
    return [read_value(get_args(wanted)[0], [token]) for token in tokens]


def option(help: str, default: object, group: Group, *names: str) -> Parameter:
    """An option with its help; `default` is what the help shows."""
    return Parameter(
        name=names or None, help=help, show_default=str(default), group=group, converter=read_value, negative=()
    )


def switch(help: str, default: object, group: Group) -> Parameter:
    """An option that is on or off: `--name`, `--no-name`."""
    return Parameter(help=help, show_default=str(default), group=group)


@Parameter(name="*")
@dataclass(frozen=True)
class GivenSettings:
    """Every setting of an experiment but its method and its seed, each `None` unless it was given."""

    protocol: Annotated[
        str | None, option("A paper's settings to start from (see 'coterie protocols').", "none", DATA)
    ] = None
    data: Annotated[
        str | None,
        option(
            "A data set (see 'coterie datasets') or a path to your own .csv, .parquet, .npz or folder.", "digits", DATA
        ),
    ] = None
    label: Annotated[str | None, option("The label column of your own table.", "label", DATA)] = None
    client_column: Annotated[
        str | None,
        option(
            "The column (of .npz: the key) of your own data that names each sample's client.",
            "'client', if there is one",
            DATA,
            "--client-column",
            "--client",
        ),
    ] = None
    task: Annotated[
        str | None,
        option("What labels are: classes (classification) or numbers (regression).", "the data set's", DATA),
    ] = None
    model: Annotated[str | None, option("The model (see 'coterie models').", "mlp", DATA)] = None
    classifier: Annotated[
        str | None,
        option(
            "What counts as the classifier: 'last', 'all' fully connected layers, or the path of a module.",
            "last",
            DATA,
        ),
    ] = None
    stats: Annotated[
        str | None,
        option("Batch-norm statistics: 'mean' (averaged) or 'local' (they stay).", "the method's", DATA),
    ] = None

    partition: Annotated[
        str | None, option("The rule that shares the data out among clients.", "dirichlet", PARTITION)
    ] = None
    clients: Annotated[int | None, option("How many clients there are.", BY_RULE, PARTITION)] = None
    alpha: Annotated[
        float | None, option("Dirichlet concentration; the smaller, the more clients differ.", BY_RULE, PARTITION)
    ] = None
    cap: Annotated[bool | None, switch("A client that holds its share takes no further class.", BY_RULE, PARTITION)] = (
        None
    )
    least: Annotated[int | None, option("The smallest client's samples.", BY_RULE, PARTITION)] = None
    classes_per_client: Annotated[int | None, option("Classes of each client.", BY_RULE, PARTITION)] = None
    variant: Annotated[str | None, option("'order' (clients form groups) or 'random' classes.", BY_RULE, PARTITION)] = (
        None
    )
    unbalanced: Annotated[bool | None, switch("Clients differ in size.", BY_RULE, PARTITION)] = None
    bins: Annotated[int | None, option("Bins of equally many samples.", BY_RULE, PARTITION)] = None
    samples: Annotated[int | None, option("Samples of each client.", BY_RULE, PARTITION)] = None
    iid: Annotated[float | None, option("The share of them that is evenly mixed, 0 to 1.", BY_RULE, PARTITION)] = None
    train_samples: Annotated[int | None, option("Training samples of each client.", BY_RULE, PARTITION)] = None
    test_samples: Annotated[int | None, option("Test samples of each client.", BY_RULE, PARTITION)] = None
    clients_per_domain: Annotated[int | None, option("Clients that share a domain.", BY_RULE, PARTITION)] = None
    test: Annotated[
        float | None, option("The share of each client's samples that it is tested on.", BY_RULE, PARTITION)
    ] = None
    validation: Annotated[
        float | None, option("The share of each client's other samples kept for validation.", BY_RULE, PARTITION)
    ] = None
    held_out: Annotated[
        int | float | None,
        option("Clients kept apart as newcomers: their number, or their share as a fraction.", 0, PARTITION),
    ] = None

    rounds: Annotated[int | None, option("Rounds of training and mixing.", 20, TRAINING)] = None
    join: Annotated[float | None, option("The share of clients that take part in a round.", 1.0, TRAINING)] = None
    epochs: Annotated[int | None, option("Local epochs a round.", 5, TRAINING)] = None
    batch: Annotated[int | None, option("Batch size.", 32, TRAINING)] = None
    lr: Annotated[float | None, option("Learning rate.", 0.01, TRAINING)] = None
    optimizer: Annotated[str | None, option("Local optimiser: sgd, adam, adamw, rmsprop …", "sgd", TRAINING)] = None
    momentum: Annotated[float | None, option("Momentum (of sgd and rmsprop).", 0.0, TRAINING)] = None
    weight_decay: Annotated[float | None, option("Weight decay.", 0.0, TRAINING)] = None
    clip: Annotated[float | None, option("Clip gradients to this norm (0: never).", 0.0, TRAINING)] = None
    schedule: Annotated[
        str | None, option("Learning rate over rounds: constant, exponential or cosine.", "constant", TRAINING)
    ] = None
    decay: Annotated[float | None, option("Factor a round of the exponential schedule.", 1.0, TRAINING)] = None

    memory: Annotated[
        str | None,
        option("Order of images and convolutions in memory: contiguous or channels_last.", "contiguous", RUNNING),
    ] = None
    engine: Annotated[
        str | None,
        option(
            "serial, processes (one a core), stacked (one batch), ray (a cluster), auto (by trial).", "serial", RUNNING
        ),
    ] = None
    device: Annotated[
        str | None,
        option("Where engine 'stacked' trains: cpu or cuda (then the default engine is stacked).", "cpu", RUNNING),
    ] = None
    workers: Annotated[
        int | None, option("Workers of engines 'processes' and 'ray' (0: one per core).", 0, RUNNING)
    ] = None
    ray_address: Annotated[
        str | None, option("Engine 'ray': HOST:PORT of a cluster, or 'auto' (none: a local Ray).", "", RUNNING)
    ] = None
    ray_gpus: Annotated[
        float | None, option("Engine 'ray': the share of a GPU that each actor reserves.", 0.0, RUNNING)
    ] = None
    threads: Annotated[int | None, option("PyTorch threads (0: by model: 1 if small, else PyTorch's).", 0, RUNNING)] = (
        None
    )
    evaluate_every: Annotated[int | None, option("Test everybody every so many rounds.", 1, RUNNING)] = None
    record_every: Annotated[
        int | None, option("Record who learns from whom every so many rounds (0: never).", 1, RUNNING)
    ] = None
    checkpoint_every: Annotated[
        int | None, option("Save a checkpoint for 'resume' every so many rounds (0: never).", 0, RUNNING)
    ] = None

    def given(self) -> dict[str, Any]:
        """The settings that were given.

        >>> GivenSettings(rounds=3).given()
        {'rounds': 3}
        """
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
