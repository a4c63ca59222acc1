"""A model of your own: any module with float32 parameters; say which part of it is the classifier."""

from torch import nn

import coterie as ct


class Net(nn.Module):
    """A small convolutional network; `shape` and `classes` are those of the data."""

    def __init__(self, shape, classes):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(shape[0], 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
        self.head = nn.Linear(8 * 4 * 4, classes)

    def forward(self, images):
        return self.head(self.trunk(images))


experiment = ct.Experiment(
    "fedper", "digits", ct.Dirichlet(clients=6, alpha=0.1), model=Net, classifier="head", rounds=4, lr=0.1, threads=1
)
layout = experiment.prepare().problem().layout
for group in ("all", "extractor", "classifier", "trunk", "all - trunk"):
    print(f"{group:12}{layout.columns(group).size:6} columns")
result = experiment.run()
print(f"{result.accuracy().received.mean['last']:.2f}")
print(type(result.model(0)).__name__, "of client 0:", sum(p.numel() for p in result.model(0).parameters()), "numbers")
