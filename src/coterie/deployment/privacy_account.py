"""A site's own account of its privacy: what it told of its size, and all noise that its data were looked at through.

It is on the disk before anything leaves that it counts, whatever the server says later: a task that is asked again and
trained again counts again. Later versions of an agreement go on with it, whatever noise they agree on. It is of one
federation: what else is published of the same data is not in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from coterie.client.recipe import Recipe
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.deployment.messages import RefusedError
from coterie.errors import CoterieError, require
from coterie.files import sealed_line, unsealed_line, write_whole
from coterie.privacy.accountant import Release, epsilon_of
from coterie.privacy.noise import SecureNoise
from coterie.privacy.promise import Privacy
from coterie.privacy.stage import looks, told_size, training_releases
from coterie.runs.record import Count, decoded

ACCOUNT = "privacy.json"


class SpentSoFar(Struct, frozen=True):
    """What stands in the file: steps by noise multiplier and rate."""

    fingerprint: str
    size: Count
    steps: list[tuple[float, float, Count]]


@dataclass
class SiteAccount:
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
        fingerprint: str,
        promise: Privacy,
        samples: int,
        former: Collection[str] = (),
        begun: bool = False,
    ) -> SiteAccount:
        """The account in a site's folder, or a new one; `begun` says that the site has trained here before."""
        path = folder / ACCOUNT
        if path.is_file():
            account = cls._read(path, promise)
            require(
                account.fingerprint in (fingerprint, *former),
                f"'{path}' is of another federation of the same name; give the new one another name",
            )
            account.fingerprint = fingerprint
            return account
        require(
            not begun,
            f"'{path}' is missing, and with it how much privacy this site has spent; bring it back, or leave the "
            "federation",
        )
        account = cls(path, fingerprint, told_size(promise, samples, SecureNoise()), promise)
        if promise.of_examples:
            account.steps[promise.size_noise, 1.0] = 1
        account._write()
        return account

    @classmethod
    def _read(cls, path: Path, promise: Privacy) -> SiteAccount:
        try:
            kept = decoded(unsealed_line(path.read_bytes()), SpentSoFar, str(path))
        except (CoterieError, ValueError):
            raise CoterieError(f"'{path}' is damaged; bring it back, or leave the federation") from None
        steps = {(noise, rate): count for noise, rate, count in kept.steps}
        return cls(path, kept.fingerprint, kept.size, promise, steps)

    def _write(self) -> None:
        steps = [(noise, rate, count) for (noise, rate), count in self.steps.items()]
        write_whole(self.path, sealed_line(msgspec.json.encode(SpentSoFar(self.fingerprint, self.size, steps))))

    def count(self, federation: Federation, recipe: Recipe, sent: Mapping[str, Columns]) -> float:
        """Count what a task will tell, before it does; the ε with it. An error if that is more than the budget."""
        times = looks(self.promise, recipe, sent, federation)
        steps = dict(self.steps)
        for release in training_releases(self.promise, self.size, times, federation.training.batch):
            steps[release.multiplier, release.rate] = steps.get((release.multiplier, release.rate), 0) + release.steps
        epsilon = epsilon_of(
            [Release(noise, count, rate) for (noise, rate), count in steps.items()], self.promise.delta
        )
        if self.promise.epsilon is not None and epsilon > self.promise.epsilon:
            raise RefusedError(
                f"its privacy budget is spent: another round would make ε {epsilon:.4g}, of {self.promise.epsilon:g}"
            )
        self.steps = steps
        self._write()
        return epsilon
