"""What is told of data, and how much privacy that spends: by the rules for all, and in a real site's own account.

A site's account says what it told of its size, and all noise that its data were looked at through. It is on the disk
before anything leaves that it counts, whatever the server says later: a task that is asked again and trained again
counts again. Later versions of an agreement go on with it, whatever noise they agree on. It is of one federation: what
else is published of the same data is not in it.

From noise to ε it is Rényi differential privacy as Opacus accounts for it (Mironov, 2017; Mironov et al., 2019).
Everything that is released of one unit's data is a list of Gaussian mechanisms, each with its noise multiplier, the
rate at which its Poisson sample draws an example (1: all of them) and how often it ran. Their Rényi divergences add up
order by order; ε(δ) is the least that any order gives. Opacus is an extra: `pip install 'coterie[privacy]'`.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from coterie.client.recipe import Recipe
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.errors import CoterieError, require
from coterie.files import sealed_line, unsealed_line, write_whole
from coterie.privacy.noise import NoiseSource, SecureNoise
from coterie.privacy.promise import Privacy
from coterie.privacy.steps import batches_an_epoch, epochs_on_examples
from coterie.rounds.stages import Account

ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 10)),
    2.25, 2.5, 2.75, 3.5, 4.5,
    *range(2, 65),
    *(72, 96, 128, 192, 256, 512, 1024),
)  # fmt: skip


@dataclass(frozen=True)
class Release:
    """A Gaussian mechanism that ran `steps` times; its noise is a multiple of what one unit can change."""

    multiplier: float
    steps: int
    rate: float = 1.0


def epsilon_of(releases: Iterable[Release], delta: float) -> float:
    """The ε that holds with δ for all of these releases together; infinite if one of them has no noise.

    >>> epsilon_of([], delta=1e-5), epsilon_of([Release(0.0, steps=1)], delta=1e-5)
    (0.0, inf)
    """
    telling = [release for release in releases if release.steps and release.rate]
    if not telling:
        return 0.0
    if any(release.multiplier == 0 for release in telling):
        return math.inf
    total = [0.0] * len(ORDERS)
    for release in telling:
        each = _of_one(release.multiplier, release.rate)
        total = [sum_ + release.steps * value for sum_, value in zip(total, each, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the last: a larger one could only lower ε
        spent, _ = _opacus().get_privacy_spent(orders=list(ORDERS), rdp=total, delta=delta)
    return max(0.0, float(spent))


@cache
def _of_one(multiplier: float, rate: float) -> tuple[float, ...]:
    """The Rényi divergence of one step, order by order."""
    divergences = _opacus().compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=list(ORDERS))
    return tuple(map(float, divergences))


@cache
def _opacus() -> Any:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise CoterieError(f"privacy: Opacus is not installed ({error}); pip install 'coterie[privacy]'") from None
    # To import it sets up logging for the whole program, which is not its business.
    root.handlers[:] = handlers
    root.setLevel(level)
    return rdp


ACCOUNT = "privacy.json"


class SpentSoFar(Struct, frozen=True):
    """What stands in the file: steps by noise multiplier and rate."""

    fingerprint: str
    size: Annotated[int, Meta(ge=0)]
    steps: list[tuple[float, float, Annotated[int, Meta(ge=0)]]]


def told_size(promise: Privacy, size: int, noise: NoiseSource) -> int:
    """What others are told of a client's number of training samples.

    >>> told_size(Privacy(), 30, SecureNoise()), told_size(Privacy(privacy="client"), 30, SecureNoise())
    (30, 1)
    """
    if promise.of_clients:
        return 1
    if not promise.of_examples or not promise.size_noise:
        return size
    return max(1, round(size + promise.size_noise * float(noise.normal(1))))


@dataclass
class SiteAccount(Account):
    """What a site has told, kept in a file of its folder: `steps` counts those of each noise multiplier and rate."""

    path: Path
    fingerprint: str
    size: int
    promise: Privacy
    steps: dict[tuple[float, float], int] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        folder: Path,
        agreements: Sequence[str],
        promise: Privacy,
        samples: int,
        begun: bool = False,
    ) -> SiteAccount:
        """The account in a site's folder, or a new one; `begun` says that the site has trained here before.

        It is of the first of these agreements, or of a version of it that was before.
        """
        path = folder / ACCOUNT
        if path.is_file():
            account = cls._read(path, promise)
            require(
                account.fingerprint in agreements,
                f"'{path}' is of another federation of the same name; give the new one another name",
            )
            account.fingerprint = agreements[0]
            return account
        require(
            not begun,
            f"'{path}' is missing, and with it how much privacy this site has spent; bring it back, or leave the "
            "federation",
        )
        account = cls(path, agreements[0], told_size(promise, samples, SecureNoise()), promise)
        if promise.of_examples:
            account.steps[promise.size_noise, 1.0] = 1
        account._write()
        return account

    @classmethod
    def _read(cls, path: Path, promise: Privacy) -> SiteAccount:
        try:
            kept = msgspec.json.decode(unsealed_line(path.read_bytes()), type=SpentSoFar)
        except (CoterieError, ValueError, msgspec.MsgspecError):
            raise CoterieError(f"'{path}' is damaged; bring it back, or leave the federation") from None
        steps = {(noise, rate): count for noise, rate, count in kept.steps}
        return cls(path, kept.fingerprint, kept.size, promise, steps)

    def _write(self) -> None:
        steps = [(noise, rate, count) for (noise, rate), count in self.steps.items()]
        write_whole(self.path, sealed_line(msgspec.json.encode(SpentSoFar(self.fingerprint, self.size, steps))))

    def count(self, federation: Federation, recipe: Recipe, declared: Mapping[str, Columns]) -> float:
        """Count what a task will tell, before it does; the ε with it. An error if that is more than the budget."""
        times = looks(self.promise, recipe, declared, federation)
        steps = dict(self.steps)
        for release in training_releases(self.promise, self.size, times, federation.training.batch):
            steps[release.multiplier, release.rate] = steps.get((release.multiplier, release.rate), 0) + release.steps
        epsilon = epsilon_of(
            [Release(noise, count, rate) for (noise, rate), count in steps.items()], self.promise.delta
        )
        if self.promise.epsilon is not None and epsilon > self.promise.epsilon:
            raise CoterieError(
                f"its privacy budget is spent: another round would make ε {epsilon:.4g}, of {self.promise.epsilon:g}"
            )
        self.steps = steps
        self._write()
        return epsilon


def looks(promise: Privacy, recipe: Recipe, sent: Mapping[str, Columns], federation: Federation) -> int:
    """How often a round releases something: its upload, if it has one, or the epochs that look at examples."""
    return int(any(sent.values())) if promise.of_clients else epochs_on_examples(recipe, federation.training)


def spent(promise: Privacy, size: int, times: int, batch: int) -> float:
    """The ε of a client that told this size after so many uploads, or epochs that looked at examples.

    >>> spent(Privacy(privacy="client", privacy_noise=2.0), size=1, times=0, batch=32)
    0.0
    """
    # How many examples a client has is told before its first step, with noise.
    size_told = [Release(promise.size_noise, 1)] if promise.of_examples else []
    return epsilon_of([*training_releases(promise, size, times, batch), *size_told], promise.delta)


def training_releases(promise: Privacy, size: int, times: int, batch: int) -> list[Release]:
    """What so many uploads, or epochs that looked at examples, release.

    >>> training_releases(Privacy(privacy="example", privacy_noise=1.5), size=95, times=3, batch=10)
    [Release(multiplier=1.5, steps=30, rate=0.1)]
    """
    if promise.of_clients:
        return [Release(promise.multiplier, times)]
    steps = batches_an_epoch(size, batch)
    return [Release(promise.multiplier, times * steps, rate=1 / steps)]
