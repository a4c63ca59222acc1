"""A task of your own: counts, learned by the Poisson likelihood and judged by how far off they are."""

from dataclasses import dataclass

import numpy as np
from torch.nn.functional import poisson_nll_loss

import coterie as ct


@dataclass(frozen=True)
class PoissonLoss(ct.Loss):
    """The model puts out the logarithm of the rate, `[B, 1]`."""

    def __call__(self, outputs, labels):
        return poisson_nll_loss(outputs.squeeze(1), labels, log_input=True, reduction="none")


@dataclass(frozen=True)
class CountError(ct.Metric):
    """|expected − counted|; lower is better."""

    @property
    def scale(self):
        return ct.Scale("count_error", higher_is_better=False)

    def quantities(self, outputs, labels):
        return {"count_error": (outputs.squeeze(1).exp() - labels).abs()}


draw = np.random.default_rng(0)
ward = draw.integers(4, size=600)  # four wards count their visitors; each has a level of its own
x = draw.normal(size=(600, 3))
y = draw.poisson(np.exp(0.3 * x[:, 0] + 0.4 * ward)).astype("float32")

task = ct.Regression(loss=PoissonLoss(), metrics=(CountError(),), judged_by="count_error")
data = ct.from_arrays(x, y, owners=ward, task=task, name="visitors")
for method in ("fedavg", "fedper"):
    result = ct.Experiment(method, data, ct.ByClient(), rounds=15, lr=0.02, threads=1).run()
    print(f"{method}: off by {result.metric('count_error').received.mean['last']:.2f} visitors")
