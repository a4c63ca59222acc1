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
from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.client.private import batches_an_epoch, epochs_on_examples
from coterie.client.recipe import Recipe, measures, phases, plain_steps
from coterie.core.accountant import Release, epsilon_of
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.noise import NoiseSource
from coterie.core.privacy import Privacy
from coterie.engines.base import Work
from coterie.errors import CoterieError, require
from coterie.methods.base import Method
from coterie.rounds.listeners import Listener
from coterie.rounds.report import RoundReport, Spent

log = logging.getLogger("coterie")

TIMES = "privacy.times"  # value [K]: uploads (`client`), or epochs that looked at examples (`example`)


def told_size(promise: Privacy, size: int, noise: NoiseSource) -> int:
    """What others are told of a client's number of training samples.

    >>> from coterie.core.noise import SecureNoise
    >>> told_size(Privacy(), 30, SecureNoise()), told_size(Privacy(privacy="client"), 30, SecureNoise())
    (30, 1)
    """
    if promise.of_clients:
        return 1
    if not promise.of_examples or not promise.size_noise:
        return size
    return max(1, round(size + promise.size_noise * float(noise.normal(1))))


def tell_sizes(federation: Federation) -> None:
    """Let the federation know of its clients' numbers of samples just what they tell."""
    if federation.privacy.privacy is not None:
        told = [
            told_size(federation.privacy, size, federation.noise(client, "size"))
            for client, size in enumerate(federation.sizes.tolist())
        ]
        federation.sizes = torch.tensor(told, dtype=torch.int64)


def set_up_privacy(federation: Federation) -> None:
    """Make room for the account; nothing without a promise."""
    if federation.privacy.privacy is not None:
        nothing = torch.zeros(federation.clients, dtype=torch.int64)
        federation.add_value(TIMES, nothing, per_client=True, held_by="server")


def check_privacy(method: Method, federation: Federation) -> None:
    """Refuse a method that tells more than its promise covers, and a budget that cannot hold, before the first round.

    The federation's slots and values are as they begin. Recipes and uploads are looked at round by round.
    """
    promise, layout, name = federation.privacy, federation.layout, type(method).__name__
    if promise.privacy is None:
        return
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
        recipe, sent = method.recipe(federation), _sent(method, federation)
        _check_recipe(promise, recipe, name)
        total += looks(promise, recipe, sent, federation)
        if promise.of_clients:
            _check_sent(promise, federation, sent, unseen, name)
    federation.round = here
    _check_budget(federation, total)


def _sent(method: Method, federation: Federation) -> dict[str, Columns]:
    return {slot: federation.layout.columns(group) for slot, group in method.uploads(federation).items()}


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


def _check_budget(federation: Federation, times: int) -> None:
    """An error if a client that takes part in every round spent more than the budget."""
    promise = federation.privacy
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
        f"{_way_out(federation, times)}"
    )


def _way_out(federation: Federation, times: int) -> str:
    """The least noise that keeps the budget, to two digits."""
    promise = federation.privacy
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


def looks(promise: Privacy, recipe: Recipe, sent: Mapping[str, Columns], federation: Federation) -> int:
    """How often a round releases something: its upload, if it has one, or the epochs that look at examples."""
    return int(any(sent.values())) if promise.of_clients else epochs_on_examples(recipe, federation.training)


def spent(promise: Privacy, size: int, times: int, batch: int) -> float:
    """The ε of a client that told this size after so many uploads, or epochs that looked at examples.

    >>> spent(Privacy(privacy="client", privacy_noise=2.0), size=1, times=0, batch=32)
    0.0
    """
    # How many examples a client has is told before its first step, with noise.
    told = [Release(promise.size_noise, 1)] if promise.of_examples else []
    return epsilon_of([*training_releases(promise, size, times, batch), *told], promise.delta)


def training_releases(promise: Privacy, size: int, times: int, batch: int) -> list[Release]:
    """What so many uploads, or epochs that looked at examples, release.

    >>> training_releases(Privacy(privacy="example", privacy_noise=1.5), size=95, times=3, batch=10)
    [Release(multiplier=1.5, steps=30, rate=0.1)]
    """
    if promise.of_clients:
        return [Release(promise.multiplier, times)]
    steps = batches_an_epoch(size, batch)
    return [Release(promise.multiplier, times * steps, rate=1 / steps)]


def noisy_uploads(
    federation: Federation, cohort: Tensor, held: Mapping[str, Tensor], declared: Mapping[str, Columns]
) -> dict[str, Tensor]:
    """The rows that clients hold, with what they send of them clipped and noisy; they go on from that themselves.

    All that a client sends is one vector: its change against what it held before, which the server knows. Nothing else
    may see the rows in between.
    """
    promise = federation.privacy
    sent = {slot: columns for slot, columns in declared.items() if columns and slot in held}
    if not promise.of_clients or not promise.privacy_clip or not sent:
        return dict(held)
    out = {slot: rows.clone() if slot in sent else rows for slot, rows in held.items()}
    for place, client in enumerate(cohort.tolist()):
        me = torch.tensor([client])
        before = torch.cat([federation[slot].rows(me, columns)[0] for slot, columns in sent.items()])
        places = {slot: columns.within(federation[slot].columns) for slot, columns in sent.items()}
        after = torch.cat([own.take(out[slot][place]) for slot, own in places.items()])
        moved = clipped(after - before, promise.privacy_clip)
        noisy = before + moved + promise.deviation * federation.noise(client, "upload").normal(len(moved))
        for (slot, own), values in zip(places.items(), noisy.split([one.size for one in sent.values()]), strict=True):
            own.put(out[slot][place], values)
    return out


def clipped(vector: Tensor, norm: float) -> Tensor:
    """A vector `[n]` that is no longer than a norm.

    >>> clipped(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    """
    length = float(torch.linalg.vector_norm(vector.double()))
    return vector * (norm / length) if length > norm else vector


def without_divergence(federation: Federation, cohort: Tensor, rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The rows of a promise to clients: whoever diverged sends noise alone, since to say so would tell of its data."""
    if not federation.privacy.of_clients:
        return rows
    broken = torch.zeros(len(cohort), dtype=torch.bool)
    for matrix in rows.values():
        broken |= ~torch.isfinite(matrix).all(1)
    if not bool(broken.any()):
        return rows
    log.warning("a client's training diverged; it goes on from what it held before, and sends noise")
    kept = {slot: matrix.clone() for slot, matrix in rows.items()}
    for slot, matrix in kept.items():
        matrix[broken] = federation[slot].rows(cohort[broken])
    return kept


class PrivacyAccount(Listener):
    """Adds to each report what has been spent so far; nothing without a promise."""

    def __init__(self, method: Method, federation: Federation) -> None:
        self._method, self._federation = method, federation
        self._times = 0

    def delivered(self, report: RoundReport, work: Work) -> None:
        """Take note of how often the round's recipe looks at data."""
        federation = self._federation
        self._times = looks(federation.privacy, work.recipe, _sent(self._method, federation), federation)

    def round(self, report: RoundReport) -> None:
        """Count what all that were asked may have sent, whether or not it came in time and counted."""
        federation = self._federation
        if TIMES not in federation.values:
            return
        asked = [*report.cohort, *report.missing]
        clients = torch.tensor(asked, dtype=torch.int64)
        federation.keep_value(TIMES, clients, federation.values[TIMES][clients] + self._times)
        everybody = epsilons(federation)
        report.spent = Spent(max(everybody), [everybody[client] for client in asked])


def epsilons(federation: Federation) -> list[float]:
    """Every client's ε so far; 0 for those who have not trained yet."""
    promise, batch = federation.privacy, federation.training.batch
    counted = zip(federation.sizes.tolist(), federation.values[TIMES].tolist(), strict=True)
    known: dict[tuple[int, int], float] = {}
    found = []
    for size, times in counted:
        steps = size if promise.of_clients else batches_an_epoch(size, batch)
        if (steps, times) not in known:
            known[steps, times] = spent(promise, size, times, batch) if times else 0.0
        found.append(known[steps, times])
    return found
