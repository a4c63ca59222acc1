"""Noise with an account of what it buys: the smaller ε, the less is told of an example, and the worse the model."""

import coterie as ct

few = {"partition": ct.Iid(clients=5), "rounds": 8, "epochs": 1, "lr": 0.3, "threads": 1}
print(f"no noise   accuracy {ct.Experiment('fedavg', **few).run().accuracy().received.mean['last']:.2f}")
for noise in (0.7, 2.0):
    result = ct.Experiment("fedavg", privacy="example", privacy_noise=noise, privacy_clip=1.0, **few).run()
    spent = result.summary["privacy"]
    print(f"noise {noise:3.1f}  accuracy {result.accuracy().received.mean['last']:.2f}", end="  ")
    print(f"ε = {spent['epsilon']:.1f} at δ = {spent['delta']:.0e} for {spent['unit']}")
