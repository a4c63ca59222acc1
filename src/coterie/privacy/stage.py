"""Keeping a privacy promise: what is refused, what is told of sizes, noisy uploads, and what has been spent.

The server sees every upload and who took part, so that there is no gain from clients being drawn by chance: a client's
ε grows with every round that it trains in. What else would tell something of the data is refused before training:
measurements, class counts, validation samples, batch norm; for DP-SGD step rules of a method's own too. A number of
samples is not told (`client`: everybody counts the same) or told with noise (`example`), which is accounted for. Losses
and scores are never told; in a simulation it is the simulation that measures them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Recipe, measures, phases, plain_steps
from coterie.client.terms import looks_at_whole_batches
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.errors import CoterieError, require
from coterie.methods.base import Method
from coterie.privacy.account import Release, SiteAccount, epsilon_of, looks, spent, told_size
from coterie.privacy.noise import noise_of
from coterie.privacy.promise import Privacy
from coterie.privacy.steps import PrivateStepping, batches_an_epoch
from coterie.rounds.collect import declared_columns
from coterie.rounds.listeners import Note
from coterie.rounds.stages import Clients, Course, Incoming, Stage

log = logging.getLogger("coterie")

COUNTS_TELL = (
    "privacy = example: the method trains with a client's class counts, which is not accounted for; use another "
    "method, such as fedavg or fedper"
)
TIMES = "privacy.times"  # value [K]: uploads (`client`), or epochs that looked at examples (`example`)


class Spent(Note, frozen=True):
    """What clients have spent of their privacy so far: each ε holds with the run's δ; none where there is no bound."""

    epsilon: float | None  # the largest of all clients
    clients: list[float | None]  # of this round's cohort, and then of who was asked and did not answer in time

    @classmethod
    def of(cls, worst: float, asked: Sequence[float]) -> Spent:
        """The note of these, of which some may be infinite."""
        bounds = [epsilon if math.isfinite(epsilon) else None for epsilon in (worst, *asked)]
        return cls(bounds[0], bounds[1:])

    @property
    def shown(self) -> str:
        """The largest."""
        return f"ε {math.inf if self.epsilon is None else self.epsilon:.3g}"


@dataclass(frozen=True)
class Private(Stage):
    """Keeps a run's promise: what is clipped and noisy leaves a client, and what else would tell is refused."""

    promise: Privacy
    name: ClassVar[str] = "privacy"
    hides_results: ClassVar[bool] = True

    @classmethod
    def of(cls, settings: Privacy, clients: Clients | None = None) -> Private:
        """The promise of a run."""
        return cls(settings.promise)

    @property
    def promised(self) -> str:
        """The noise that is added where the data are, and the budget."""
        return self.promise.in_words

    def described(self) -> dict[str, Any]:
        """What an ε is about, and its δ."""
        return {**self.promise.described(), "delta": self.promise.delta}

    def account(self, folder: Path, agreements: Sequence[str], samples: int, begun: bool) -> SiteAccount:
        """What a site has told of its data, and all noise that they were looked at through."""
        return SiteAccount.open(folder, agreements, self.promise, samples, begun)

    def attach(self, federation: Federation) -> None:
        """Where examples are promised privacy, steps are those of DP-SGD, and class counts are not told."""
        if self.promise.of_examples:
            federation.stepping = PrivateStepping(self.promise)
            federation.withhold_class_counts(COUNTS_TELL)

    def simulate(self, federation: Federation) -> None:
        """The federation knows of clients' numbers of samples just what they tell; there is room for the account."""
        sizes = [
            told_size(self.promise, size, noise_of(federation, client, "size"))
            for client, size in enumerate(federation.sizes.tolist())
        ]
        federation.sizes = torch.tensor(sizes, dtype=torch.int64)
        nothing = torch.zeros(federation.clients, dtype=torch.int64)
        federation.add_value(TIMES, nothing, per_client=True, held_by="server")

    def check(self, method: Method, federation: Federation) -> None:
        """Refuse a method that tells more than the promise covers, and a budget that cannot hold.

        The federation's slots and values are as they begin. Recipes and uploads are looked at round by round.
        """
        promise, layout, name = self.promise, federation.layout, type(method).__name__
        if federation.asks_class_counts:
            raise _refusal(promise, f"{name} has clients tell how many samples of each class they hold")
        validation = federation.validation_sizes
        if method.learns_from_validation or (validation is not None and bool(validation.any())):
            raise _refusal(promise, "validation scores would be told", "leave validation out (validation = 0)")
        if promise.of_examples and layout.has_batch_norm:
            raise _refusal(promise, "batch norm mixes the examples of a batch", "use norm = group")
        here, total, unseen = federation.round, 0, dict[str, Columns]()
        for number in range(1, federation.rounds + 1):
            federation.round = number
            recipe, sent = method.recipe(federation), declared_columns(federation, method.uploads(federation))
            _check_recipe(promise, recipe, name)
            total += looks(promise, recipe, sent, federation)
            if promise.of_clients:
                _check_sent(promise, federation, sent, unseen, name)
        federation.round = here
        _check_budget(promise, federation, total)

    def trained(self, federation: Federation, incoming: Incoming) -> Incoming:
        """Of a promise to clients, whoever diverged sends noise alone, since to say so would tell of its data."""
        if not self.promise.of_clients:
            return incoming
        broken = torch.zeros(len(incoming.cohort), dtype=torch.bool)
        for matrix in incoming.held.values():
            broken |= ~torch.isfinite(matrix).all(1)
        if not bool(broken.any()):
            return incoming
        log.warning("a client's training diverged; it goes on from what it held before, and sends noise")
        kept = {slot: matrix.clone() for slot, matrix in incoming.held.items()}
        for slot, matrix in kept.items():
            matrix[broken] = federation[slot].rows(incoming.cohort[broken])
        return replace(incoming, held=kept)

    def client(self, federation: Federation, incoming: Incoming) -> Incoming:
        """What is sent, clipped and noisy; clients go on from that themselves.

        All that a client sends is one vector: its change against what it held before, which the server knows. Nothing
        else may see the rows in between.
        """
        promise, held = self.promise, incoming.held
        sent = {slot: columns for slot, columns in incoming.declared.items() if columns and slot in held}
        if not promise.of_clients or not promise.privacy_clip or not sent:
            return incoming
        out = {slot: rows.clone() if slot in sent else rows for slot, rows in held.items()}
        for place, client in enumerate(incoming.cohort.tolist()):
            me = torch.tensor([client])
            before = torch.cat([federation[slot].rows(me, columns)[0] for slot, columns in sent.items()])
            places = {slot: columns.within(federation[slot].columns) for slot, columns in sent.items()}
            after = torch.cat([columns_sent.take(out[slot][place]) for slot, columns_sent in places.items()])
            moved = clipped(after - before, promise.privacy_clip)
            noisy = before + moved + promise.deviation * noise_of(federation, client, "upload").normal(len(moved))
            parts = noisy.split([columns.size for columns in sent.values()])
            for (slot, columns_sent), values in zip(places.items(), parts, strict=True):
                columns_sent.put(out[slot][place], values)
        return replace(incoming, held=out)

    def note(self, federation: Federation, course: Course) -> Spent | None:
        """What has been spent so far: counted are all that were asked, whether or not it came in time and counted.

        Real sites keep accounts of their own.
        """
        if TIMES not in federation.values:
            return None
        times = looks(self.promise, course.recipe, course.declared, federation)
        federation.keep_value(TIMES, course.asked, federation.values[TIMES][course.asked] + times)
        everybody = epsilons(self.promise, federation)
        order = [*course.cohort.tolist(), *course.asked[~torch.isin(course.asked, course.cohort)].tolist()]
        return Spent.of(max(everybody), [everybody[client] for client in order])


def _check_sent(
    promise: Privacy, federation: Federation, sent: Mapping[str, Columns], unseen: dict[str, Columns], name: str
) -> None:
    """Refuse uploads that are no change against what the server knows; `unseen` is what clients changed unseen."""
    for slot, held in federation.slots.items():
        now = sent.get(slot, Columns())
        if now & federation.layout.columns("stats"):
            raise _refusal(promise, "batch-norm statistics are sent", "use norm = group, or stats = local")
        if now & unseen.get(slot, Columns()):
            raise _refusal(promise, f"{name} sends parts of '{slot}' that clients have trained unseen before")
        unseen[slot] = unseen.get(slot, Columns()) | (held.own_columns - now)


def _refusal(promise: Privacy, why: str, way_out: str = "use another method, such as fedavg or fedper") -> CoterieError:
    return CoterieError(f"privacy = {promise.privacy}: {why}, which is not accounted for; {way_out}")


def _check_recipe(promise: Privacy, recipe: Recipe, name: str) -> None:
    for measure in measures(recipe):
        raise _refusal(promise, f"{name} measures '{measure.name}' on a client's data")
    if promise.of_examples and any(phase.rule is not plain_steps for phase in phases(recipe)):
        raise _refusal(promise, f"{name} takes steps by a rule of its own")
    if promise.of_examples and any(looks_at_whole_batches(term) for phase in phases(recipe) for term in phase.terms):
        raise _refusal(promise, f"{name} looks at a batch as a whole")


def _check_budget(promise: Privacy, federation: Federation, times: int) -> None:
    """An error if a client that takes part in every round spent more than the budget."""
    if promise.of_examples:
        least = int(federation.sizes[federation.sizes > 0].min()) if bool((federation.sizes > 0).any()) else 0
        require(
            promise.delta * least < 1,
            f"delta = {promise.delta:g}: must be below 1 / {least}, the number of a client's examples",
        )
    if promise.epsilon is None:
        return
    worst = _worst(promise, federation, times)
    if worst <= promise.epsilon:
        return
    raise CoterieError(
        f"epsilon = {promise.epsilon:g}: {federation.rounds} rounds spend {worst:.4g} (δ = {promise.delta:g}); "
        f"{_way_out(promise, federation, times)}"
    )


def _way_out(promise: Privacy, federation: Federation, times: int) -> str:
    """The least noise that keeps the budget, to two digits."""
    assert promise.epsilon is not None
    if not promise.privacy_clip:
        return "set privacy_clip and privacy_noise above 0"
    if promise.of_examples and epsilon_of([Release(promise.size_noise, 1)], promise.delta) > promise.epsilon:
        return f"raise size_noise (it is {promise.size_noise:g}): the number of examples alone tells more than that"

    def holds(noise: float) -> bool:
        return _worst(_with_noise(promise, noise), federation, times) <= (promise.epsilon or 0.0)

    high = max(1.0, promise.privacy_noise)
    while not holds(high):
        high *= 2
        if high > 1e6:
            return "raise epsilon"
    low = 0.0
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    digits = 10 ** (1 - math.floor(math.log10(high)))
    return f"privacy_noise = {math.ceil(high * digits) / digits:g} would keep it, or fewer rounds"


def _with_noise(promise: Privacy, noise: float) -> Privacy:
    """The same promise with another noise."""
    return Privacy(**{**vars(promise), "privacy_noise": noise})


def _worst(promise: Privacy, federation: Federation, times: int) -> float:
    known = federation.sizes[federation.sizes > 0].unique().tolist()
    known = [1] if promise.of_clients else known
    return max((spent(promise, size, times, federation.training.batch) for size in known), default=0.0)


def clipped(vector: Tensor, norm: float) -> Tensor:
    """A vector `[n]` that is no longer than a norm.

    >>> clipped(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    """
    length = float(torch.linalg.vector_norm(vector.double()))
    return vector * (norm / length) if length > norm else vector


def epsilons(promise: Privacy, federation: Federation) -> list[float]:
    """Every client's ε so far; 0 for those who have not trained yet."""
    batch = federation.training.batch
    counted = zip(federation.sizes.tolist(), federation.values[TIMES].tolist(), strict=True)
    known: dict[tuple[int, int], float] = {}
    by_client = []
    for size, times in counted:
        steps = size if promise.of_clients else batches_an_epoch(size, batch)
        if (steps, times) not in known:
            known[steps, times] = spent(promise, size, times, batch) if times else 0.0
        by_client.append(known[steps, times])
    return by_client
