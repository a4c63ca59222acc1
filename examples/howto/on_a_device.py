"""Train on the best device that is here: a GPU if there is one, else the processor. The numbers differ by rounding."""

import coterie as ct

same = {"partition": ct.Dirichlet(clients=20, alpha=0.1), "rounds": 10, "lr": 0.05, "threads": 1}
there = ct.Experiment("fedper", device="auto", engine="stacked", **same).run()  # all clients of a round as one batch
here = ct.Experiment("fedper", device="cpu", engine="serial", **same).run()  # one client after the other

for name, result in {"the best device": there, "the processor": here}.items():
    print(f"on {name:16}{result.accuracy().trained.mean['last']:.3f}")
