"""A method of your own that mixes: models learn from those whose classifiers lie near."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import coterie as ct
from coterie.maths.similarity import squared_distances
from coterie.testing import check_method


@dataclass(frozen=True)
class Kindred(ct.Method):
    """W_ij ∝ exp(−sharpness · d_ij / mean d), d the squared distance of the classifiers of i and j."""

    sharpness: float = 8.0
    shared: ClassVar[str] = ""  # nothing is held in common: each client's whole row is its own

    def uploads(self, federation):
        """Whole models."""
        return {"model": "all"}

    def exchange(self, uploads):
        """One matrix [m, m] for the m clients of the round, applied to their whole rows."""
        apart = squared_distances(uploads.rows("classifier"))
        yield ct.Mix(torch.softmax(-self.sharpness * apart / apart.mean().clamp(min=1e-12), dim=1))


if __name__ == "__main__":
    partition = ct.Pathological(clients=10, classes_per_client=2)  # clients 0 and 1 hold the same two digits
    for method in (ct.Local(), ct.FedAvg(), Kindred()):
        result = ct.Experiment(method, "digits", partition, test=0.75, rounds=10, lr=0.05, threads=1).run()
        print(f"{type(method).__name__:8} {result.accuracy().received.mean['last']:.3f}")
    (mix,) = result.mixes(10)
    print("client 0 learns most from", mix.weights[0].argsort(descending=True)[:2].tolist())
    check_method(Kindred(), hear=lambda name, problem: print(f"{name}: {problem or 'kept'}"))
