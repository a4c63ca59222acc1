"""Classifiers that follow from how features are distributed: linear discriminant analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.client.views import BatchView, ClientView

SMALL = 1e-4  # ε, of shares and covariances
SEARCH = {"maxiter": 10, "gtol": 1e-3}  # for β


def answers(features: Tensor, distribution: Tensor, log_priors: Tensor) -> Tensor:
    """What linear discriminant analysis says to `features [n, d]`, given means and covariance `[C + d, d]`: `[n, C]`.

    In double precision: covariances are far from well-conditioned.
    """
    width = distribution.shape[1]
    means, covariance = distribution.double().split([len(distribution) - width, width])
    spread = covariance.diagonal().mean() * torch.eye(width, dtype=means.dtype, device=means.device)
    weights = torch.linalg.solve((1 - SMALL) * covariance + SMALL * spread, means.T)
    said: Tensor = features.double() @ weights + log_priors - (means.T * weights).sum(0) / 2
    return said.to(features.dtype)


@dataclass(frozen=True)
class Distribution:
    """The measurement: class means and covariance of the client's features, moved from everybody's: `[C + d, d]`."""

    folds: int
    betas: int
    ridge: float

    name: ClassVar[str] = "feature_distribution"

    def __call__(self, worker: ClientView) -> Tensor:
        """With the extractor as trained, in evaluation mode."""
        labels = worker.problem.labels[worker.problem.train[worker.client]]
        return self.of(worker, worker.train_features(), labels).cpu()

    def of(self, view: ClientView | BatchView, features: Tensor, labels: Tensor) -> Tensor:
        """β of the way from everybody's to the client's own, which is worked out once for the same features."""
        if view.notes.get("adapted from") is not features:
            given, log_priors = view.value(self.name).double(), view.value("log_priors")
            shares = self.shares(features.double(), labels, given, log_priors)
            view.notes["adapted"] = moved(given, self.own(features.double(), labels, given), shares).to(features.dtype)
            view.notes["adapted from"] = features
        return view.notes["adapted"]

    def own(self, features: Tensor, labels: Tensor, given: Tensor) -> Tensor:
        """The client's own; classes of no more than `folds` samples have the means that are given."""
        width, known = features.shape[1], torch.bincount(labels, minlength=len(given) - features.shape[1])
        sums = features.new_zeros(len(known), width).index_add_(0, labels, features)
        enough = (known > self.folds)[:, None]
        means = torch.where(enough, sums / known.clamp(min=1)[:, None], given[: len(known)])
        apart = features - means[labels]
        scatter = apart.T @ apart / max(len(labels) - 1, 1)
        return torch.cat([means, scatter + self.ridge * torch.eye(width, dtype=means.dtype, device=means.device)])

    def shares(self, features: Tensor, labels: Tensor, given: Tensor, log_priors: Tensor) -> Tensor:
        """β in [0, 1] of means and of the covariance, by which samples left out are told best: `[2]` or `[1]`.

        Each class's samples go to the folds in turn. Classes of fewer than `folds` are passed over; without others β is
        0.
        """
        counts = torch.bincount(labels, minlength=len(log_priors))
        whole = counts[labels] >= self.folds
        if not bool(whole.any()):
            return features.new_zeros(self.betas)
        features, labels = features[whole].detach(), labels[whole]
        of_class = labels[:, None] == torch.arange(len(counts), device=labels.device)
        fold = (of_class.cumsum(0)[of_class] - 1) % self.folds
        folds = range(self.folds)
        others = [(one, self.own(features[fold != one], labels[fold != one], given)) for one in folds]

        def loss(at: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
            with torch.enable_grad():
                shares = torch.as_tensor(at).to(features).requires_grad_()
                told = [answers(features[fold == one], moved(given, rest, shares), log_priors) for one, rest in others]
                total = torch.stack([cross_entropy(said, labels[fold == one]) for one, said in enumerate(told)]).sum()
                (slope,) = torch.autograd.grad(total, shares)
            return float(total.detach()), slope.cpu().numpy()

        from scipy.optimize import minimize

        bounds = [(0, 1)] * self.betas
        found = minimize(loss, np.full(self.betas, 0.5), jac=True, bounds=bounds, method="L-BFGS-B", options=SEARCH)
        return torch.as_tensor(found.x).to(features)


def moved(given: Tensor, own: Tensor, shares: Tensor) -> Tensor:
    """The given distribution `[C + d, d]` moved towards one's own: means by the first share, the rest by the last."""
    width = given.shape[1]
    each = torch.cat([shares[:1].expand(len(given) - width), shares[-1:].expand(width)])[:, None]
    return given + each * (own - given)
