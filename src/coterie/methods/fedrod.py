"""FedRoD: a classifier for everybody and one for oneself, on the same features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.client.recipe import Phase, Recipe
from coterie.client.terms import task_loss
from coterie.client.views import BatchView
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.errors import unknown
from coterie.methods.base import Method, require_classes

HEADS = ("sum", "personal", "global")


def balanced_loss(batch: BatchView) -> Tensor:
    """CE(g(z) + log n, y), n the client's class counts: moves extractor and global classifier, `[B]`.

    Classes that the client does not have get log 0 = −∞, so they take no part.
    """
    return batch.task.loss(batch.logits + batch.value("log_counts"), batch.labels)


def personal_loss(batch: BatchView) -> Tensor:
    """CE(stopgrad(g(z)) + p(stopgrad(z)), y): moves the personal classifier alone, `[B]`."""
    logits = batch.logits.detach() + batch.head("personal_head", batch.features.detach())
    return batch.task.loss(logits, batch.labels)


@dataclass(frozen=True)
class FedRod(Method):
    """On bridging generic and personalized federated learning for image classification (Chen and Chao, 2022).

    Extractor θ and global classifier g minimise the balanced softmax loss CE(g(z) + log n_k, y), n_k the client's
    class counts over its whole training set; the personal classifier p_k minimises CE(g(z) + p_k(z), y) in the
    same steps, with g(z) and z held constant. (θ, g) ← Σ_k n_k/Σn · (θ_k, g_k), batch-norm statistics included;
    p_k, which starts as a copy of g, stays. (The paper's variant that makes p_k with a hypernetwork is not here.)

    `balanced=False` trains (θ, g) on plain CE, exactly like FedAvg.

    Tested: argmax(g(z) + p_k(z)); `head="personal"` tests p_k alone, `"global"` g alone. A client that sits a round
    out keeps p_k and gets the newest (θ, g); before it first takes part p_k is the initial classifier.

    >>> FedRod(head="personal")
    FedRod(balanced=True, head='personal')
    """

    balanced: bool = True
    head: str = "sum"

    paper: ClassVar[str] = "Chen and Chao, ICLR 2022"
    extra_cost: ClassVar[str] = "a second classifier on the same features"

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise unknown("head", self.head, HEADS)

    def check(self, federation: Federation) -> None:
        """Class counts balance the loss."""
        require_classes(federation, "fedrod")

    def init(self, federation: Federation) -> None:
        """A personal classifier for everybody; what clients know of their own classes."""
        federation.add_slot("personal_head", "classifier", held_by="client")
        counts = federation.class_counts.float()
        federation.add_value("log_counts", counts.log(), per_client=True, held_by="client")

    def recipe(self, federation: Federation) -> Recipe:
        """One forward and one backward pass for both classifiers."""
        terms = (balanced_loss if self.balanced else task_loss, personal_loss)
        return (Phase(also={"personal_head": "classifier"}, terms=terms),)

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mix extractor and global classifier by data size."""
        yield Mix(by_size(uploads))

    def predict(self, batch: BatchView) -> Tensor:
        """The classifiers' joint answer, or that of one of them."""
        if self.head == "global":
            return batch.logits
        personal = batch.head("personal_head")
        return personal if self.head == "personal" else batch.logits + personal
