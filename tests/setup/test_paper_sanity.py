"""Small versions of what the papers show about their methods, on the digits that come with the library."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.core.exchange import Uploads
from coterie.data import load
from coterie.maths.similarity import class_cosines
from coterie.methods import FedReMa, Local, PFedCS, PFedSim
from coterie.partition import Dominant, Partition, Pathological
from coterie.runs.experiment import Experiment
from listening import EachRound

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def four_classifiers() -> Tensor:
    """pFedSim's toy experiment: four LeNet5 from one start, each on five digits, `[4, C, d]`.

    The first two share all their digits, the second and third three, the last two two, the first and last none.
    """
    data = load("digits")
    labels = data.labels.numpy()
    digits = [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (2, 3, 4, 5, 6), (5, 6, 7, 8, 9)]
    pools = []
    for client, owned in enumerate(digits):
        stream = np.random.default_rng(client)
        pools.append(np.concatenate([stream.permutation(np.flatnonzero(labels == digit))[:24] for digit in owned]))
    partition = Partition(
        train=tuple(pools), test=tuple(np.setdiff1d(np.arange(len(labels)), pool)[:5] for pool in pools)
    )
    settings = {"model": "lenet5", "rounds": 1, "epochs": 20, "batch": 32, "lr": 0.05}
    federation = Experiment(method=Local(), data=data, partition=partition, **settings).run().federation
    matrix = federation.layout.classifier_weights[-1]
    return federation["model"].rows(federation.everyone, matrix.columns).view(4, *matrix.shape)


@pytest.mark.parametrize("similarity", ["code", "paper"])
def test_similar_data_make_similar_classifiers(four_classifiers: Tensor, similarity: str) -> None:
    found = PFedSim(similarity=similarity).similarities(four_classifiers)
    by_overlap = [float(found[i, j]) for i, j in ((0, 1), (1, 2), (2, 3), (0, 3))]
    for more, less in pairwise(by_overlap):
        assert more > 1.1 * less


def test_rows_of_classes_differ_where_one_client_alone_has_the_class(four_classifiers: Tensor) -> None:
    cosines = torch.stack([of_class[1, 2] for of_class in class_cosines(four_classifiers)])
    both, neither, one = cosines[[2, 3, 4]], cosines[[7, 8, 9]], cosines[[0, 1, 5, 6]]
    assert float(torch.cat([both, neither]).min()) > float(one.max())


@pytest.mark.parametrize("unbalanced", [False, True])
def test_pfedcs_finds_the_clients_with_the_same_classes(unbalanced: bool) -> None:
    """Figure 1: of 20 clients, every four hold the same two classes; collaborators come from the own four."""
    data = load("digits")
    rule = Pathological(clients=20, classes_per_client=2, unbalanced=unbalanced)
    collaborators: list[Tensor] = []
    result = Experiment(
        method=PFedCS(beta=10), data=data, partition=rule, rounds=5, epochs=3, batch=16, lr=0.05, evaluate_every=5
    ).run(
        listeners=[
            EachRound(
                lambda report: collaborators.extend(
                    (mix.weights > 0).fill_diagonal_(False) for mix in report.mixes if mix.target == "teacher"
                )
            )
        ]
    )
    owns = torch.from_numpy(result.prepared.partition.class_counts(data)) > 0
    same = (owns[:, None] & owns[None]).any(-1).fill_diagonal_(False)
    assert same.sum(1).tolist() == [3] * 20
    assert len(collaborators) == 5
    for chosen in collaborators[3:]:
        assert bool(chosen.any(1).all())
        assert not bool((chosen & ~same).any())
    if not unbalanced:
        assert torch.equal(collaborators[0], same)


@dataclass(frozen=True)
class Observed(FedReMa):
    """FedReMa that lets its similarities be seen."""

    seen: list[Tensor] = field(default_factory=list)

    def answers_alike(self, uploads: Uploads) -> Tensor:
        alike = super().answers_alike(uploads)
        self.seen.append(alike)
        return alike


def test_fedrema_finds_its_group_relevant() -> None:
    """Five groups of four clients with dominant classes: relevance within a group is far above that between groups."""
    method = Observed(delta=0.0)
    chosen: list[Tensor] = []
    Experiment(
        method=method,
        partition=Dominant(clients=20, samples=80, iid=0.2),
        rounds=3,
        epochs=5,
        batch=16,
        lr=0.05,
        evaluate_every=3,
    ).run(listeners=[EachRound(lambda report: chosen.append((report.mixes[1].weights > 0).fill_diagonal_(False)))])
    group = torch.arange(20) // 4
    same, apart = (group[:, None] == group[None]), ~torch.eye(20, dtype=torch.bool)
    assert len(method.seen) == len(chosen) == 3
    for alike, relevant in zip(method.seen, chosen, strict=True):
        assert float(alike[same & apart].mean()) > 0.9
        assert float(alike[~same].mean()) < 0.6
        # A client picked at random is of the own group in 3 of 19 cases.
        assert float((relevant & same).sum() / relevant.sum()) > 2 * 3 / 19
