"""Arrays in memory, with their owners and a test split of their own."""

import numpy as np

import coterie as ct

draw = np.random.default_rng(0)


def measured(count):
    """Features, labels, and which machine each sample comes from; each machine has an offset of its own."""
    machine = draw.integers(5, size=count)
    label = draw.integers(3, size=count)
    return draw.normal(size=(count, 6)) + label[:, None] + 0.3 * machine[:, None], label, machine


x, y, owners = measured(600)
data = ct.from_arrays(x, y, owners=owners, test=measured(200), class_names=("low", "middle", "high"), name="sensors")
print(data)
result = ct.Experiment("fedper", data, ct.ByClient(), rounds=10, lr=0.1, threads=1).run()
print(f"{result.accuracy().received.mean['last']:.2f}")
print("client 0 says", result.predict(0, x[:5].astype("float32")).tolist())
