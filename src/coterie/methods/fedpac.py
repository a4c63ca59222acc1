"""FedPAC: features are aligned with everybody's class means, classifiers combined by what each client gains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.measures import ClassMeans, class_mean_of_clients
from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.terms import PrototypeDistance, task_loss
from coterie.client.views import ClientView
from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.core.training import StatsPolicy
from coterie.devices import exact
from coterie.errors import require
from coterie.maths.similarity import mirrored
from coterie.methods.base import Method, require_classes


@dataclass(frozen=True)
class FeatureStatistics:
    """The measurement: what the received extractor makes of the client's training data, `[1 + C·d]`.

    First v = (mean ‖z‖² − Σ_c p_c²‖μ_c‖²) / n, then h_c = p_c μ_c for every class c (zero for classes that the
    client does not have); p_c are the class shares and μ_c the mean features.
    """

    name: ClassVar[str] = "feature_statistics"

    def __call__(self, worker: ClientView) -> Tensor:
        """Measure with the received extractor, in evaluation mode."""
        samples = worker.problem.train[worker.client]
        features = exact(worker.train_features())
        labels = worker.problem.labels[samples].to(features.device)
        sums = features.new_zeros(worker.federation.classes, features.shape[1])
        shares_of_mean = sums.index_add_(0, labels, features) / len(samples)
        spread = features.square().sum(1).mean() - shares_of_mean.square().sum()
        return torch.cat([spread[None] / len(samples), shares_of_mean.flatten()]).float()


@dataclass(frozen=True)
class FedPAC(Method):
    """Personalized federated learning with feature alignment and classifier collaboration (Xu et al., 2023).

    Client: with the extractor as received, statistics v, h_c; then `head_epochs` on the classifier at `head_lr`
    (None: the run's; the authors' code has 1 and 0.1); then the run's epochs on the extractor with CE + λ·MSE(z,
    prototype of y). Server: θ ← Σ n_k/Σn θ_k; prototypes are the class means averaged by class counts; φ_i ← Σ_j
    a_j φ_j with

        a = argmin_{a ≥ 0, Σa = 1} Σ_j a_j² v_j + ‖Σ_j a_j (h_j − h_i)‖²,

    weights below 10⁻³ set to zero and the rest renormalised. Tested: the mean extractor with the client's own
    combination. There are no prototypes in round 1, nor for a class that nobody has sent yet. All of it is about
    the cohort: an unsampled client keeps its classifier. Batch-norm statistics stay local.

    >>> FedPAC(head_epochs=2)
    FedPAC(lam=1.0, head_epochs=2, head_lr=None)
    """

    lam: float = 1.0
    head_epochs: int | None = None
    head_lr: float | None = None

    paper: ClassVar[str] = "Xu et al., ICLR 2023"
    extra_cost: ClassVar[str] = "two passes for features, training the classifier on cached ones; server: a QP a client"
    shared: ClassVar[str] = "extractor"
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam = {self.lam}: must not be negative")
        require(
            self.head_epochs is None or self.head_epochs >= 1,
            f"head_epochs = {self.head_epochs}: must be at least 1",
        )
        require(self.head_lr is None or self.head_lr > 0, f"head_lr = {self.head_lr}: must be greater than 0")

    def check(self, federation: Federation) -> None:
        """Features are averaged by class."""
        require_classes(federation, "fedpac")

    def init(self, federation: Federation) -> None:
        """Nobody's class means are known yet."""
        federation.ask_class_counts()
        federation.add_value("prototypes", torch.full((federation.classes, federation.feature_width), torch.nan))

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """How long the classifier trains, and at what rate."""
        run = federation.training
        return {"head_epochs": self.head_epochs or run.epochs, "head_lr": self.head_lr or run.lr}

    def recipe(self, federation: Federation) -> Recipe:
        """The classifier on frozen features, then the extractor under it; statistics before, class means after."""
        aligned = (PrototypeDistance("prototypes", self.lam),) if self.lam and federation.round > 1 else ()
        return (
            Measure(FeatureStatistics()),
            Phase(train="classifier", epochs=self.head_epochs, lr=self.head_lr),
            Phase(train="extractor", terms=(task_loss, *aligned)),
            Measure(ClassMeans()),
        )

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The whole model."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mean extractor, mean prototypes, combined classifiers."""
        yield Mix(by_size(uploads), "extractor")
        yield Put("prototypes", class_mean_of_clients(uploads))
        statistics = uploads.measured["feature_statistics"].double()
        yield Mix(combinations(statistics[:, 0], statistics[:, 1:]), "classifier")


def combinations(variances: Tensor, means: Tensor) -> Tensor:
    """Row i: the best combination for client i, given `variances [m]` and `means [m, n]`: `[m, m]`.

    The squared bias is aᵀE_iE_iᵀa, row j of E_i being h_j − h_i. As Σa = 1, that is aᵀGa − 2g_iᵀa + G_ii with the Gram
    matrix G of all h: one form serves everybody.

    >>> combinations(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([[0.0], [0.0], [100.0]])).round(decimals=3)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    centred = means.double() - means.double().mean(0)
    gram = mirrored(centred @ centred.T)
    spread = torch.diag(variances.double().clamp(min=0))
    if len(gram) > FEW:
        return without_traces(simplex_minimisers(spread + gram, gram))
    rows = [simplex_minimiser(spread + gram - row[:, None] - row[None] + row[i]) for i, row in enumerate(gram)]
    return without_traces(torch.stack(rows))


FEW = 100
"""Clients, up to which each has a solver of its own, whose last bits recorded results have."""
RIDGE = 1e-10  # relative; makes the minimiser unique where the form alone does not


def simplex_minimiser(form: Tensor) -> Tensor:
    """argmin aᵀQa over a ≥ 0, Σa = 1 for a positive semi-definite `form [m, m]`: `[m]`, float64.

    With Q = LLᵀ this is the non-negative least-squares problem min ‖Lᵀb‖² + (1ᵀb − 1)² up to scale: both have
    the conditions Qb = c·1 + ν, ν ≥ 0, ν ⊥ b, so a = b / Σb. An active-set solver gives the exact answer.

    >>> simplex_minimiser(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    form = form.double()
    scale = form.diagonal().max()
    if scale <= 0:
        return torch.full((len(form),), 1 / len(form), dtype=torch.float64)
    root = torch.linalg.cholesky(form / scale + RIDGE * torch.eye(len(form), dtype=torch.float64)).T
    system = torch.cat([root, torch.ones(1, len(form), dtype=torch.float64)])
    aim = torch.zeros(len(system), dtype=torch.float64)
    aim[-1] = 1
    from scipy.optimize import nnls  # slow to import, seldom needed

    solution = torch.from_numpy(nnls(system.numpy(), aim.numpy())[0])
    return solution / solution.sum()


PATIENCE = 3
"""So many exchanges may leave no fewer elements wrong; then they are exchanged one at a time, which comes to an end."""
WRONG = 1e-12


def simplex_minimisers(form: Tensor, slopes: Tensor) -> Tensor:
    """Row i: argmin aᵀHa − 2gᵢᵀa over a ≥ 0, Σa = 1 for a positive semi-definite `form` H `[m, m]`: `[r, m]`, float64.

    `slopes [r, m]` are the gᵢ. Block principal pivoting (Kim and Park, 2011): with F, the elements that are not zero,
    a_F = H_FF⁻¹(g_F + μ1); those that come out negative leave F and those outside whose slope is below μ enter it, all
    at once, until none is wrong. One factorisation does the first step of everybody.

    >>> simplex_minimisers(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
    tensor([[0.7500, 0.2500],
            [1.0000, 0.0000]], dtype=torch.float64)
    """
    scale = float(form.diagonal().max())
    scale = scale if scale > 0 else 1.0
    form = form.double() / scale + RIDGE * torch.eye(len(form), dtype=torch.float64)
    slopes, even = slopes.double() / scale, torch.ones(len(form), 1, dtype=torch.float64)
    solved = torch.cholesky_solve(torch.cat([slopes.T, even], 1), torch.linalg.cholesky(form))
    given, even = solved[:, :-1], solved[:, -1:]
    first = given + even * ((1 - given.sum(0)) / even.sum())  # as if a might be negative
    pairs = zip(slopes, first.T, given.T, strict=True)
    return torch.stack([_pivoted(form, slope, start > 0, given) for slope, start, given in pairs])


def _pivoted(form: Tensor, slope: Tensor, inside: Tensor, given: Tensor) -> Tensor:
    """One minimiser `[m]`: the first step says what is `inside [m]`, and `given` is H⁻¹g."""
    best, left = len(slope) + 1, PATIENCE
    for _ in range(5 * len(slope)):
        places = inside.nonzero()[:, 0]
        sides = torch.stack([slope[places], torch.ones(len(places), dtype=torch.float64)], 1)
        one, even = torch.cholesky_solve(sides, torch.linalg.cholesky(form[places][:, places])).unbind(1)
        level = (1 - one.sum()) / even.sum()
        values = torch.zeros_like(slope)
        values[places] = one + level * even
        wrong = torch.where(inside, values, form[:, places] @ values[places] - slope - level) < -WRONG
        many = int(wrong.sum())
        if not many:
            return values.clamp(min=0) / values.clamp(min=0).sum()
        best, left = (many, PATIENCE) if many < best else (best, left - 1)
        if left < 0:
            wrong[: int(wrong.nonzero()[-1])] = False
        inside ^= wrong
    # Rounding can keep an element changing sides for ever. On the simplex this form is the same, and none is negative.
    return simplex_minimiser(form - slope[:, None] - slope + slope @ given)


def without_traces(weights: Tensor, smallest: float = 1e-3) -> Tensor:
    """Weights `[r, m]` without those below `smallest`; what remains sums to one again.

    >>> without_traces(torch.tensor([[0.7496, 0.25, 0.0004]]))
    tensor([[0.7499, 0.2501, 0.0000]])
    """
    # Among very many clients all weights may be traces; then the largest stays.
    kept = (weights >= smallest) | (weights == weights.max(1, keepdim=True).values)
    left = torch.where(kept, weights, 0.0)
    return left / left.sum(1, keepdim=True)
