"""Natural partitions: the data set itself says whose each sample is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.data.dataset import Dataset
from coterie.errors import CoterieError, require
from coterie.partition.partition import Indices
from coterie.partition.rule import Rule, Shares, require_count
from coterie.rng import numpy_stream


@dataclass(frozen=True)
class ByDomain(Rule):
    """One client for each domain of the data set, or several that share it evenly.

    >>> import torch
    >>> owners = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    >>> data = Dataset("toy", torch.zeros(8, 1), torch.arange(8) % 2, 2, -1, owners, ("photo", "sketch"))
    >>> ByDomain(clients_per_domain=2)(data, seed=0).names
    ('photo-0', 'photo-1', 'sketch-0', 'sketch-1')
    """

    clients_per_domain: int = 1

    name: ClassVar[str] = "by_domain"

    def __post_init__(self) -> None:
        require_count("clients_per_domain", self.clients_per_domain)

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Shuffle each domain and deal it out to its clients."""
        pools: list[Indices] = []
        names: list[str] = []
        per_domain = self.clients_per_domain
        for domain, (owner, samples) in enumerate(_by_owner(dataset, self.name)):
            require(
                per_domain <= len(samples),
                f"clients_per_domain = {per_domain}: must be at most {len(samples)}, the size of '{owner}'",
            )
            shuffled = numpy_stream(seed, "partition:by_domain", client=domain).permutation(samples)
            pools += np.array_split(shuffled, per_domain)
            names += [owner] if per_domain == 1 else [f"{owner}-{part}" for part in range(per_domain)]
        return Shares(pools=pools, names=tuple(names), resolved={"clients": len(pools)})


@dataclass(frozen=True)
class ByClient(Rule):
    """One client for each owner of samples that the data set names, such as a writer or a site.

    `clients=None` takes every owner; a number draws so many of them at random.

    >>> import torch
    >>> owners = torch.tensor([0, 0, 1, 1, 2, 2])
    >>> data = Dataset("toy", torch.zeros(6, 1), torch.arange(6) % 2, 2, -1, owners, ("a", "b", "c"))
    >>> ByClient()(data, seed=0).names
    ('a', 'b', 'c')
    """

    clients: int | None = None

    name: ClassVar[str] = "by_client"

    def __post_init__(self) -> None:
        if self.clients is not None:
            require_count("clients", self.clients)

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Take the owners' samples as they are."""
        owned = _by_owner(dataset, self.name)
        if self.clients is not None:
            require(
                self.clients <= len(owned),
                f"clients = {self.clients}: must be at most {len(owned)}, the owners in '{dataset.name}'",
            )
            drawn = numpy_stream(seed, "partition:by_client").permutation(len(owned))[: self.clients]
            owned = [owned[owner] for owner in np.sort(drawn)]
        names, pools = zip(*owned, strict=True)
        return Shares(pools=list(pools), names=names, resolved={"clients": len(pools)})


def _by_owner(dataset: Dataset, rule: str) -> list[tuple[str, Indices]]:
    """Every owner's name and samples."""
    if dataset.owners is None:
        raise CoterieError(
            f"partition = {rule}: data '{dataset.name}' does not say whose its samples are; use a data set "
            "with owners or a rule such as dirichlet"
        )
    owners = dataset.owners.numpy().astype(np.int64)
    count = max(int(owners.max()) + 1, len(dataset.owner_names))
    names = dataset.owner_names or tuple(str(owner) for owner in range(count))
    require(
        owners.min() >= 0 and len(names) == count,
        f"data '{dataset.name}': owners lie in {owners.min()}..{owners.max()} but have {len(names)} names",
    )
    order = np.argsort(owners, kind="stable").astype(np.int64)
    samples = np.split(order, np.cumsum(np.bincount(owners, minlength=count))[:-1])
    return list(zip(names, samples, strict=True))
