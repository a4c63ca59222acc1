"""A method of your own whose server has an optimiser: FedAvg with momentum (Hsu et al., arXiv 1909.06335)."""

from dataclasses import dataclass

import coterie as ct
from coterie.core.mixing import by_size
from coterie.testing import check_method


@dataclass(frozen=True)
class FedAvgM(ct.Method):
    """v ← momentum · v + (mean of the uploads − w);  w ← w + v."""

    momentum: float = 0.9

    def init(self, federation):
        """v, which the server keeps for itself: it never travels."""
        federation.add_slot("velocity", "parameters", shared="parameters", fill=0.0, held_by="server")

    def exchange(self, uploads):
        """The mix moves batch-norm statistics, and is what W shows; `Put` then writes the parameters."""
        federation = uploads.federation
        anyone, parameters = federation.everyone[:1], federation.layout.columns("parameters")
        before = federation["model"].rows(anyone, parameters)  # [1, P]: the row that everybody shares
        mean = by_size(uploads).float() @ uploads.rows(parameters)  # [1, m] @ [m, P]
        velocity = self.momentum * federation["velocity"].rows(anyone) + (mean - before)
        yield ct.Mix(by_size(uploads))
        yield ct.Put("velocity", velocity, group="parameters")
        yield ct.Put("model", before + velocity, group="parameters")


if __name__ == "__main__":
    few = {"partition": ct.Dirichlet(clients=10, alpha=0.1), "rounds": 10, "lr": 0.02, "threads": 1}
    finished = {}
    for method in (ct.FedAvg(), FedAvgM(momentum=0.0), FedAvgM(momentum=0.7)):
        finished[method] = result = ct.Experiment(method, **few).run()
        print(f"{method}: {result.accuracy().received.mean['last']:.3f}")
    plain, without = (finished[method].model(0).state_dict() for method in (ct.FedAvg(), FedAvgM(0.0)))
    apart = max(float((plain[name] - without[name]).abs().max()) for name in plain)
    print("without momentum it is FedAvg:", apart < 1e-5)
    check_method(FedAvgM(), hear=lambda name, problem: print(f"{name}: {problem or 'kept'}"))
