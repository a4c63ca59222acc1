"""FedReMa: classifiers learn from the most relevant clients, found by what they answer to a random feature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.measures import ClassMeans, class_mean_of_clients
from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.terms import PrototypeDistance, task_loss
from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import require_pairs
from coterie.core.mixing import among, by_size, identity, normalised
from coterie.core.training import StatsPolicy
from coterie.errors import require, unknown
from coterie.maths.similarity import cosines, mirrored
from coterie.methods.base import Method, require_classes
from coterie.rng import torch_stream

VARIANTS = ("", "F", "A", "A&F")
PROBES = ("shared", "per_row")


@dataclass(frozen=True)
class FedReMa(Method):
    """FedReMa: improving personalized federated learning via leveraging the most relevant clients (ECAI 2024).

    Extractors are FedAvg's. In the critical co-learning period the server feeds one random feature to every
    classifier, compares the softened answers (5), cuts each client's sorted similarities at their largest gap,
    and gives it the data-weighted mean of the classifiers above it (7). The period ends once the mean gap falls
    to δ of its maximum (8)–(9); from then on classifiers mix by how often they were chosen (10).

    Where the paper contradicts itself: Algorithm 1 keeps the client below the gap; we do not
    (`include_lower=True` does). The gap to the client itself does not count, with either. A round in which at most
    two clients answer has no gap and does not end the period. `variant="F"` aligns features with the mean class
    features, `"A"` trains classifier and extractor in turn, `"A&F"` does both.

    >>> FedReMa(delta=0.0).delta
    0.0
    """

    delta: float = 0.5
    temperature: float = 0.5
    variant: str = ""
    alignment: float = 1.0
    probe: str = "shared"
    probe_high: float = 1.0
    num_probes: int = 1
    include_lower: bool = False

    paper: ClassVar[str] = "FedReMa, ECAI 2024"
    extra_cost: ClassVar[str] = "server: one random feature through every classifier"
    shared: ClassVar[str] = "extractor"
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(0 <= self.delta <= 1, f"delta = {self.delta}: must lie in [0, 1]")
        require(self.temperature > 0, f"temperature = {self.temperature}: must be greater than 0")
        require(self.alignment >= 0, f"alignment = {self.alignment}: must not be negative")
        require(self.probe_high > 0, f"probe_high = {self.probe_high}: must be greater than 0")
        require(self.num_probes >= 1, f"num_probes = {self.num_probes}: must be at least 1")
        for option, allowed in (("variant", VARIANTS), ("probe", PROBES)):
            if getattr(self, option) not in allowed:
                raise unknown(option, getattr(self, option), allowed)

    def check(self, federation: Federation) -> None:
        """Classifiers are compared by what they say about classes."""
        require_pairs("fedrema", federation.clients, "the counts of who was relevant", each=8)
        require_classes(federation, "fedrema")

    def init(self, federation: Federation) -> None:
        """Last uploads; how often each was chosen; whether the period lasts, and the largest gap; class means."""
        federation.add_slot("uploaded", "classifier", held_by="server", follows="model")
        chosen = torch.zeros(federation.clients, federation.clients)
        federation.add_value("chosen", chosen, per_client=True, held_by="server")
        federation.add_value("period", torch.tensor([1.0, 0.0], dtype=torch.float64), held_by="server")
        if "F" in self.variant:
            federation.ask_class_counts()
            federation.add_value("prototypes", torch.full((federation.classes, federation.feature_width), torch.nan))

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training, or with alignment (then mean features of the client's classes too), or in turn."""
        aligned = "F" in self.variant
        terms = (task_loss, *((PrototypeDistance("prototypes", self.alignment),) if aligned else ()))
        means = (Measure(ClassMeans()),) if aligned else ()
        if "A" in self.variant:
            return (Phase(train="classifier"), Phase(train="extractor", terms=terms), *means)
        return (Phase(terms=terms), *means)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The whole model."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mean extractor; classifiers by relevance, now or as remembered."""
        federation, cohort = uploads.federation, uploads.cohort
        yield Mix(by_size(uploads), "extractor")
        if "F" in self.variant:
            yield Put("prototypes", class_mean_of_clients(uploads))
        chosen, (lasts, largest) = federation.values["chosen"], federation.values["period"].tolist()
        if lasts:
            relevant, gaps = most_relevant(self.answers_alike(uploads), self.include_lower)
            yield Mix(among(relevant, uploads.sizes), "classifier")
            chosen = chosen.clone()
            chosen[cohort[:, None], cohort] += relevant
            yield Put("chosen", chosen)
            if len(cohort) > 2:  # two clients leave no gap to judge the period by
                gap, largest = float(gaps.mean()), max(largest, float(gaps.mean()))
                lasts = largest == 0 or self.delta == 0 or gap / largest > self.delta
                yield Put("period", torch.tensor([float(lasts), largest], dtype=torch.float64))
        else:
            never = chosen[cohort].sum(1) == 0
            history = torch.where(never[:, None], identity(federation.clients)[cohort], chosen[cohort].double())
            yield Mix(normalised(history), "classifier", source="uploaded")

    def answers_alike(self, uploads: Uploads) -> Tensor:
        """s of (5): cosines of the classifiers' softened answers to random features, `[m, m]`.

        Symmetric if the features are shared.
        """
        federation, rows = uploads.federation, uploads.rows("classifier").cpu()
        shape = (self.num_probes, federation.feature_width)
        if self.probe == "shared":
            stream = torch_stream(federation.seed, "probe", federation.round)
            return self._alike(federation, rows, self.probe_high * torch.rand(shape, generator=stream))
        alike = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        for row, key in enumerate(federation.keys[uploads.cohort].tolist()):
            stream = torch_stream(federation.seed, "probe", federation.round, key)
            alike[row] = self._alike(federation, rows, self.probe_high * torch.rand(shape, generator=stream))[row]
        return alike

    def _alike(self, federation: Federation, rows: Tensor, features: Tensor) -> Tensor:
        answers = (federation.head_logits(rows, features).double() / self.temperature).softmax(-1)
        # A classifier whose answer overflows resembles nobody but itself.
        return mirrored(torch.stack([cosines(answer).nan_to_num(nan=0.0) for answer in answers.unbind(1)]).mean(0))


def most_relevant(similarity: Tensor, include_lower: bool = False) -> tuple[Tensor, Tensor]:
    """Maximum-difference segmentation: each row's clients above its largest gap, itself included.

    Returns `[m, m]` bool and the gaps `[m]`. The gap to the client itself does not count; with nothing to
    tell the others apart (fewer than two of them, or all alike) everybody is relevant.

    >>> most_relevant(torch.tensor([[1.0, 0.1, 0.2, 0.8, 0.9]] * 1 + [[1.0] * 5] * 4))[0][0].tolist()
    [True, False, False, True, True]
    """
    m = len(similarity)
    if m <= 2:
        return torch.ones(m, m, dtype=torch.bool), torch.zeros(m, dtype=torch.float64)
    # The client itself comes last, whatever its similarity.
    ranked = similarity.double().clone().fill_diagonal_(torch.inf)
    values, order = ranked.sort(dim=1, stable=True)
    gaps, place = values[:, :-1].diff(dim=1).max(1)
    alike = gaps <= 1e-12
    first = torch.where(alike, 0, place if include_lower else place + 1)
    above = torch.arange(m)[None] >= first[:, None]
    relevant = torch.zeros(m, m, dtype=torch.bool).scatter_(1, order, above)
    return relevant, torch.where(alike, 0.0, gaps)
