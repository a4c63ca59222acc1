"""pFedMe: personal models as the proximal points of a global one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from coterie.client.recipe import Keep, Phase, Recipe
from coterie.client.views import Batches, TrainerView
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import uniform
from coterie.errors import require
from coterie.methods.fedavg import FedAvg


@dataclass(frozen=True)
class MoreauSteps:
    """The step rule of pFedMe: some steps of θ̃ towards its optimum near w_k, then one of w_k towards θ̃."""

    lam: float
    steps: int
    inner_lr: float

    def __call__(self, trainer: TrainerView, batches: Batches) -> None:
        """θ̃ starts from w_k as received and goes on from where the last batch left it."""
        theta, local = trainer.worker.model("personal"), trainer.worker.model("model")
        theta.row.copy_(local.row)
        personal = [part for part in trainer.parts if part.slot == "personal"]
        anchors = [part for part in trainer.parts if part.slot == "model"]
        rate = self.inner_lr * trainer.factor
        for batch in batches:
            for _ in range(self.steps):
                trainer.gradient(batch.under(batch.slot))
                for part, anchor in zip(personal, anchors, strict=True):
                    part.grad.add_(part.row - anchor.row, alpha=self.lam)
                    part.row.sub_(part.grad, alpha=rate)
            for part, anchor in zip(personal, anchors, strict=True):
                part.grad.zero_()
                anchor.grad.copy_(self.lam * (anchor.row - part.row))
            trainer.step()
        # Only θ̃ sees data: its running statistics are those of w_k as well.
        stats = trainer.worker.problem.layout.columns("stats")
        stats.put(local.row, stats.take(theta.row))


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Personalized federated learning with Moreau envelopes (Dinh et al., 2020).

    On each batch, `steps` times θ̃ ← θ̃ − inner_lr · (∇CE(θ̃) + λ(θ̃ − w_k)), then w_k ← w_k − ηλ(w_k − θ̃), η the
    run's lr (ηλ should stay below 1), and `inner_lr` too unless given. Server: w ← (1 − β)w + β · mean w_k, uniform
    over the cohort as in the paper; here clients send w + β(w_k − w), of which the mean is the same.

    The paper leaves open where θ̃ starts: in each round at w as received, then where the last batch left it.
    Published code adds a weight decay to θ̃; set the run's weight_decay, which acts on θ̃ and w_k with every outer
    step. With momentum, the outer step has it.

    Tested: θ̃_k as the client's last training left it, at both moments; a client that has never taken part holds
    the newest w, which it downloads as its personal model too when it first takes part.

    >>> PFedMe(steps=3)
    PFedMe(lam=15.0, beta=1.0, steps=3, inner_lr=None)
    """

    lam: float = 15.0
    beta: float = 1.0
    steps: int = 5
    inner_lr: float | None = None

    paper: ClassVar[str] = "Dinh et al., NeurIPS 2020"
    extra_cost: ClassVar[str] = "`steps` gradients a batch instead of one; every client's personal model"
    tested: ClassVar[str] = "personal"

    def __post_init__(self) -> None:
        require(self.lam > 0, f"lam = {self.lam}: must be greater than 0")
        require(self.beta > 0, f"beta = {self.beta}: must be greater than 0")
        require(self.steps >= 1, f"steps = {self.steps}: must be at least 1")
        require(self.inner_lr is None or self.inner_lr > 0, f"inner_lr = {self.inner_lr}: must be greater than 0")

    def init(self, federation: Federation) -> None:
        """θ̃ of everybody."""
        federation.add_slot("personal", federation.layout.everything)

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The rate of the inner steps."""
        return {"inner_lr": self.inner_lr or federation.training.lr}

    def recipe(self, federation: Federation) -> Recipe:
        """θ̃ and w_k in the same steps; what clients send has gone β of the way."""
        rule = MoreauSteps(self.lam, self.steps, self.inner_lr or federation.training.lr)
        sent = () if self.beta == 1 else (Keep("model", lambda rows: rows.relaxed(self.beta)),)
        return (Phase(slot="personal", also={"model": "all"}, rule=rule), *sent)

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The mean of the cohort; newcomers hold its result."""
        federation, weights = uploads.federation, uniform(len(uploads.cohort))
        yield Mix(weights)
        new = federation.everyone[~federation.taken_part]
        if len(new):
            yield Mix(weights, target="personal", to=new)
