"""A site's own account of its privacy: what it told of its size, and how often its data were looked at.

It is on the disk before anything leaves that it counts, whatever the server says later: a task that is asked again and
trained again counts again. It is of one federation: what else is published of the same data is not in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from coterie.client.recipe import Recipe
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.noise import SecureNoise
from coterie.core.privacy import Privacy
from coterie.deployment.wire import RefusedError
from coterie.errors import CoterieError, require
from coterie.files import write_whole
from coterie.rounds.privacy import releases, spent, told_size

ACCOUNT = "privacy.json"


@dataclass
class SiteAccount:
    """What a site has told, kept in a file of its folder."""

    path: Path
    fingerprint: str
    size: int
    times: int = 0
    promise: Privacy = field(default_factory=Privacy)

    @classmethod
    def open(cls, folder: Path, fingerprint: str, promise: Privacy, samples: int, begun: bool) -> SiteAccount:
        """The account in a site's folder, or a new one; `begun` says that the site has trained here before."""
        path = folder / ACCOUNT
        if path.is_file():
            account = cls._read(path, promise)
            require(
                account.fingerprint == fingerprint,
                f"'{path}' is of another federation of the same name; give the new one another name",
            )
            return account
        require(
            not begun,
            f"'{path}' is missing: nobody knows what has been told of this site's data; bring it back, or leave the "
            "federation",
        )
        account = cls(path, fingerprint, told_size(promise, samples, SecureNoise()), promise=promise)
        account._write()
        return account

    @classmethod
    def _read(cls, path: Path, promise: Privacy) -> SiteAccount:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            numbers = {name: found[name] for name in ("size", "times")}
            whole = all(type(value) is int and value >= 0 for value in numbers.values())
            account = cls(path, str(found["fingerprint"]), **numbers, promise=promise)
        except (ValueError, KeyError, TypeError, UnicodeDecodeError):
            whole = False
        if not whole:
            raise CoterieError(f"'{path}' is damaged; bring it back, or leave the federation")
        return account

    def _write(self) -> None:
        kept = {name: value for name, value in vars(self).items() if name in ("fingerprint", "size", "times")}
        write_whole(self.path, (json.dumps(kept) + "\n").encode())

    def count(self, federation: Federation, recipe: Recipe, sent: dict[str, Columns]) -> float:
        """Count what a task will tell, before it does; the ε with it. An error if that is more than the budget."""
        times = self.times + releases(self.promise, recipe, sent, federation)
        epsilon = spent(self.promise, self.size, times, federation.training.batch)
        if self.promise.epsilon is not None and epsilon > self.promise.epsilon:
            raise RefusedError(
                f"its privacy budget is spent: another round would make ε {epsilon:.4g}, of {self.promise.epsilon:g}"
            )
        self.times = times
        self._write()
        return epsilon
