"""A method of your own with a term in the local loss: FedPer whose clients do not forget what they received."""

from dataclasses import dataclass

import coterie as ct
from coterie.client.terms import RECEIVED, task_loss
from coterie.testing import check_method


@dataclass(frozen=True)
class Remember:
    """weight · KL(answers of the model as received ‖ answers now): a term gives one value a sample, [B]."""

    weight: float

    def __call__(self, batch):
        """`batch.under(RECEIVED)` is the same batch under the row that was downloaded, which does not move."""
        before, now = batch.under(RECEIVED).logits.log_softmax(1), batch.logits.log_softmax(1)
        return self.weight * (before.exp() * (before - now)).sum(1)


@dataclass(frozen=True)
class FedPerRemembering(ct.FedPer):
    """min CE + weight · KL(received ‖ now); sharing is FedPer's, and so it is with weight 0."""

    weight: float = 0.5

    def recipe(self, federation):
        """One phase of training, with one more term."""
        more = (Remember(self.weight),) if self.weight else ()
        return (ct.Phase(terms=(task_loss, *more)),)


if __name__ == "__main__":
    few = {"partition": ct.Dirichlet(clients=10, alpha=0.1), "rounds": 6, "lr": 0.05, "threads": 1}
    for method in (ct.FedPer(), FedPerRemembering(weight=0.0), FedPerRemembering(weight=0.5)):
        scores = ct.Experiment(method, **few).run().accuracy()
        print(f"{method}: {scores.received.mean['last']:.3f} received, {scores.trained.mean['last']:.3f} trained")
    check_method(FedPerRemembering(), hear=lambda name, problem: print(f"{name}: {problem or 'kept'}"))
