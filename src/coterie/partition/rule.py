"""What all partition rules have in common: from shares of the data to a checked `Partition`, its parts split."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from coterie.data.dataset import Dataset
from coterie.errors import require
from coterie.partition.partition import Indices, Partition, Plain
from coterie.rng import numpy_stream
from coterie.typed import TypedOptions, shown, typed

# (1 − 0.9) · 10 is 0.999… in floating point; without this the cut would lose a sample.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Split(metaclass=TypedOptions):
    """A random, unstratified split of each client's own samples.

    `test` is the share of a client's samples that is kept for testing; the training part has
    `int((1 − test) · n)` samples, but both parts keep at least one where the client has two.
    `validation` is the share of the *training part* that is set aside afterwards.

    >>> train, validation, test = Split(test=0.25, validation=0.2)(np.arange(40), seed=0, client=3)
    >>> len(train), len(validation), len(test)
    (24, 6, 10)
    """

    test: float = 0.25
    validation: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.test < 1, f"test = {self.test:g}: must be greater than 0 and less than 1")
        require(0 <= self.validation < 1, f"validation = {self.validation:g}: must be at least 0 and less than 1")

    def __call__(self, pool: Indices, seed: int, client: int) -> tuple[Indices, Indices, Indices]:
        """Cut one client's samples into (train, validation, test), each in ascending order."""
        shuffled = numpy_stream(seed, "partition:split", client=client).permutation(pool)
        size = int((1 - self.test) * len(pool) + ROUNDING)
        size = max(1, min(size, len(pool) - 1))
        train, validation = self.without_validation(shuffled[:size], seed, client)
        return train, validation, np.sort(shuffled[size:])

    def without_validation(self, train: Indices, seed: int, client: int) -> tuple[Indices, Indices]:
        """Cut a training part into (train, validation).

        A sample that occurs several times goes to one side with all its copies, so that validation never
        sees a sample of the training part.

        >>> train, validation = Split(validation=0.5).without_validation(np.array([7, 7, 7, 9, 9, 9]), 0, 0)
        >>> sorted([train.tolist(), validation.tolist()])
        [[7, 7, 7], [9, 9, 9]]
        """
        nothing = np.empty(0, np.int64)
        if self.validation == 0:
            return np.sort(train), nothing
        samples, copies = np.unique(train, return_counts=True)
        size = int(self.validation * len(train) + ROUNDING)
        if len(samples) < 2:
            return np.sort(train), nothing
        order = numpy_stream(seed, "partition:validation", client=client).permutation(len(samples))
        taken = int(np.searchsorted(np.cumsum(copies[order]), max(1, size))) + 1
        taken = min(taken, len(samples) - 1)
        chosen = np.isin(train, samples[order[:taken]])
        return np.sort(train[~chosen]), np.sort(train[chosen])


@dataclass(frozen=True)
class Shares:
    """What a rule decided: each client's samples, before they are split.

    `tests` is given by rules that draw test samples from elsewhere; the others leave it `None` and get a
    split. `validations`, beside `tests`, stand unless the split wants a share for validation. `resolved` holds
    parameters whose value depended on the data.
    """

    pools: list[Indices]
    tests: list[Indices] | None = None
    validations: list[Indices] | None = None
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    resolved: Mapping[str, Plain] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule(metaclass=TypedOptions):
    """A partition rule: a frozen dataclass of options that is called with a data set and a seed.

    `name` is its name in the registry, `default_split` the split of the protocol it comes from, `needs_classes` says
    whether it shares out classes.
    """

    name: ClassVar[str]
    default_split: ClassVar[Split] = Split()
    needs_classes: ClassVar[bool] = False

    @abstractmethod
    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Decide which samples each client holds."""

    @typed
    def __call__(self, dataset: Dataset, seed: int, split: Split | None = None) -> Partition:
        """Partition the data; without `split` the rule's own default is used.

        Rules that take their test samples from elsewhere ignore `split.test` and honour `split.validation`.
        """
        require_count("seed", seed, least=0)
        require(
            not self.needs_classes or dataset.classes > 0,
            f"partition = {self.name}: shares out classes, and the task of data '{dataset.name}' is "
            f"{dataset.of_task.name}; use quantile, iid or by_client",
        )
        split = split or self.default_split
        shares = self.shares(dataset, seed)
        _require_shares(shares, self.name)
        # `check` would say the same later, but an empty pool cannot even be split.
        for client, pool in enumerate(shares.pools):
            label = shares.names[client] if shares.names else str(client)
            require(len(pool) > 0, f"client '{label}' has no samples in data '{dataset.name}'; use fewer clients")
        train, validation, test = zip(*_parts(shares, split, seed), strict=True)
        parameters: dict[str, Plain] = {
            **self.recorded(),
            "seed": seed,
            "test": split.test if shares.tests is None else "by origin",
            "validation": split.validation,
            "data": dataset.name,
            "data_size": len(dataset),
            **shares.resolved,
        }
        partition = Partition(
            train=train,
            validation=validation,
            test=test,
            rule=self.name,
            parameters=parameters,
            notes=shares.notes,
            names=shares.names,
        )
        partition.check(dataset)
        return partition

    def recorded(self) -> dict[str, Any]:
        """The options as a partition records them."""
        return {option.name: getattr(self, option.name) for option in fields(self)}


def _require_shares(given: object, rule: str) -> None:
    """An error unless a rule gave shares: for each client an array of whole numbers, in as many parts as there are."""
    require(isinstance(given, Shares), f"partition = {rule}: its shares are {shown(given)}; return Shares(...)")
    assert isinstance(given, Shares)
    for part, pools in (("pools", given.pools), ("tests", given.tests), ("validations", given.validations)):
        if pools is None and part != "pools":
            continue
        listed = isinstance(pools, list | tuple) and len(pools) > 0
        require(
            listed, f"partition = {rule}: {part} of its shares are {shown(pools)}; there must be one for each client"
        )
        assert pools is not None
        for client, pool in enumerate(pools):
            whole = isinstance(pool, np.ndarray) and pool.ndim == 1 and (pool.dtype.kind in "iu" or not len(pool))
            require(
                whole, f"partition = {rule}: {part} of client {client} must be an array of samples' numbers, [n], whole"
            )
        require(
            len(pools) == len(given.pools),
            f"partition = {rule}: its shares have {len(given.pools)} pools, but {len(pools)} {part}",
        )
    require(
        not given.names or len(given.names) == len(given.pools),
        f"partition = {rule}: its shares have {len(given.pools)} pools, but {len(given.names)} names",
    )


def _parts(shares: Shares, split: Split, seed: int) -> list[tuple[Indices, Indices, Indices]]:
    """Every client's training, validation and test samples."""
    if shares.tests is None:
        return [split(pool, seed, client) for client, pool in enumerate(shares.pools)]
    pools, tests = shares.pools, [np.sort(test) for test in shares.tests]
    if shares.validations is not None:
        if not split.validation:
            return list(zip(map(np.sort, pools), map(np.sort, shares.validations), tests, strict=True))
        pools = [np.concatenate(both) for both in zip(pools, shares.validations, strict=True)]
    return [
        (*split.without_validation(pool, seed, client), test)
        for client, (pool, test) in enumerate(zip(pools, tests, strict=True))
    ]


def require_count(option: str, value: int, least: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `least`.

    >>> require_count("clients", 0)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: clients = 0: must be a whole number of at least 1
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= least, f"{option} = {value}: must be a whole number of at least {least}")


def require_alpha(alpha: float) -> None:
    """Raise unless `alpha` is a usable Dirichlet concentration."""
    usable = math.isfinite(alpha) and 1e-6 <= alpha <= 1e6
    require(usable, f"alpha = {alpha:g}: must be greater than 0 (from 1e-06 to 1e+06)")


def require_skew(clients: int, alpha: float, least: int | None) -> None:
    """Raise unless these are usable options of a rule that draws sizes and lets nobody be too small."""
    require_count("clients", clients)
    require_alpha(alpha)
    if least is not None:
        require_count("least", least)


def require_enough_samples(clients: int, dataset: Dataset) -> None:
    """Raise if there are more clients than samples."""
    require(
        clients <= len(dataset),
        f"clients = {clients}: must be at most {len(dataset)}, the samples in data '{dataset.name}'",
    )


def by_class(dataset: Dataset, start: int = 0, end: int | None = None) -> list[Indices]:
    """The indices of every class's samples within `start..end`, in ascending order: C arrays."""
    labels = dataset.labels[start:end].numpy()
    order = np.argsort(labels, kind="stable").astype(np.int64) + start
    ends = np.cumsum(np.bincount(labels, minlength=dataset.classes))
    return np.split(order, ends[:-1])


def cut(samples: Indices, sizes: Indices) -> list[Indices]:
    """Cut an array into contiguous slices of the given sizes, which add up to its length."""
    return np.split(samples, np.cumsum(sizes)[:-1])
