"""pFedGraph: weights that a projection onto the simplex gives, and a turn towards the aggregate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, gradient_at, play, prepared_for
from torch import nn
from torch.nn.functional import cross_entropy

from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.pfedgraph import PFedGraph, Towards, onto_simplex
from coterie.testing.toys import seeded


def test_a_graph_worked_out_by_hand() -> None:
    """Clients 0 and 1 are alike (0.95 counts as 1), 2 goes the other way; α = 1: the points are p + cos/2."""
    similarity = torch.tensor([[1.0, 0.95, -0.5], [0.95, 1.0, 0.2], [-0.5, 0.2, 1.0]]).double()
    weights = PFedGraph(alpha=1.0).graph(similarity, torch.tensor([0.5, 0.25, 0.25]).double())
    # Rows 0 and 1: (1.0, 0.75, ·) − 0.375, the last below that. Row 2: (0.25, 0.35, 0.75) − 7/60.
    expected = [[0.625, 0.375, 0.0], [0.625, 0.375, 0.0], [0.25 - 7 / 60, 0.35 - 7 / 60, 0.75 - 7 / 60]]
    assert_near(weights, torch.tensor(expected))


def test_just_above_nine_tenths_clients_count_as_equal() -> None:
    shares = torch.tensor([0.5, 0.5]).double()
    for cosine, expected in ((0.91, [0.5, 0.5]), (0.9, [0.525, 0.475]), (0.85, [0.5375, 0.4625])):
        weights = PFedGraph(alpha=1.0).graph(torch.tensor([[1.0, cosine], [cosine, 1.0]]).double(), shares)
        assert_near(weights[0], torch.tensor(expected))


def test_the_projection_minimises_the_papers_objective() -> None:
    stream = torch.Generator().manual_seed(1)
    shares, distances = torch.rand(6, generator=stream).double(), torch.rand(6, generator=stream).double()
    shares /= shares.sum()
    for alpha in (0.1, 0.8, 5.0):
        best = onto_simplex((shares - distances / (2 * alpha))[None])[0]
        assert float(best.sum()) == pytest.approx(1)
        assert float(best.min()) >= 0
        others = torch.distributions.Dirichlet(torch.full((6,), 0.5)).sample((2000,)).double()

        def objective(x: torch.Tensor, alpha: float = alpha) -> torch.Tensor:
            return x @ distances + alpha * (x - shares).square().sum(-1)

        assert bool((objective(best) <= objective(others) + 1e-12).all())
        assert bool((objective(best) <= objective(0.99 * best + 0.01 * others) + 1e-12).all())


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_with_infinite_alpha_and_no_turn_it_is_fedavg(join: float) -> None:
    ours, fedavg = play(PFedGraph(alpha=1e9, lam=0), join=1.0), play(FedAvg(), join=1.0)
    assert_near(ours.rows(), fedavg.rows())
    some = play(PFedGraph(alpha=1e9, lam=0), join=join, rounds=1)
    cohort = some.reports[0].cohort
    assert_near(some.rows()[cohort], play(FedAvg(), join=join, rounds=1).rows()[cohort])


def test_with_small_alpha_and_clients_that_are_not_alike_it_is_local() -> None:
    """One gradient on very different batches: cosines stay below 0.9, so each keeps to itself."""
    ours, local = (play(method, rounds=1, epochs=1) for method in (PFedGraph(alpha=1e-6, lam=0), Local()))
    weights = ours.reports[0].mixes[0].weights
    alone = weights.diagonal() > 1 - 1e-6
    assert bool(alone.any())
    assert_near(ours.rows()[alone], local.rows()[alone])


def half_frozen() -> nn.Module:
    """A model whose trained columns are two spans."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    return model


@pytest.mark.parametrize("frozen", [False, True])
def test_the_turn_has_the_gradient_of_the_scaled_product(frozen: bool) -> None:
    model = {"model": seeded(half_frozen), "classifier": "4"} if frozen else {}
    prepared = prepared_for(PFedGraph(lam=3.0), **model)

    def arrange(federation: Federation) -> None:
        own = federation["direction"].own
        own.add_(torch.randn(own.shape, generator=torch.Generator().manual_seed(1)))
        federation.round = 2

    federation = prepared.federation()
    federation.round = 2
    (phase,) = prepared.method.recipe(federation)
    gradients, batch, worker = gradient_at(prepared, phase, client=2, arrange=arrange)
    module, layout = prepared.problem_base.module, prepared.problem_base.layout
    trained = layout.trainable
    row = worker.federation["model"].rows(torch.tensor([2]))[0].requires_grad_()
    direction = trained.take(worker.received("direction"))
    logits = torch.func.functional_call(module, layout.views(row), (batch.inputs,))
    moved = trained.take(row)
    loss = cross_entropy(logits, batch.labels) - 3.0 * (direction @ moved) / moved.norm()
    (expected,) = torch.autograd.grad(loss, row)
    assert_near(trained.take(gradients["model"]), trained.take(expected))
    assert len(trained.spans) == (2 if frozen else 1)


def test_a_turn_by_hand() -> None:
    """w = (3, 4), ū = (1, 0): e = (0.6, 0.8), so −λ((1, 0) − 0.6e)/5 = −λ(0.128, −0.096)."""
    found = Towards(10.0).gradient(torch.tensor([3.0, 4.0]), lambda slot: torch.tensor([1.0, 0.0]))
    assert_near(found, torch.tensor([-1.28, 0.96]))
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]])
    several = Towards(10.0).gradient(rows, lambda slot: torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]]))
    assert_near(several, torch.tensor([[-1.28, 0.96], [-12.8, 9.6], [0.0, 0.0]]))


def test_directions_are_means_of_models_of_length_one() -> None:
    ours = play(PFedGraph(), rounds=1, join=0.5)
    cohort, trained = ours.reports[0].cohort, play(Local(), rounds=1, join=0.5)
    units = nn.functional.normalize(trained.rows()[cohort], dim=1)
    graph, turned = ours.reports[0].mixes
    assert torch.equal(graph.weights, turned.weights)
    assert_near(ours.rows("direction")[cohort], graph.weights @ units)
    resting = [client for client in range(ours.federation.clients) if client not in cohort]
    assert float(ours.rows("direction")[resting].abs().max()) == 0


def test_a_positive_turn_keeps_models_nearer_to_their_aggregate() -> None:
    """The cosine of trained models and what they were turned towards, in the second round."""
    nearness = []
    for lam in (-2.0, 1e-9, 2.0):
        units: list[torch.Tensor] = []
        turned: list[torch.Tensor] = []

        def watch(federation: Federation, units: list[Any] = units, turned: list[Any] = turned) -> None:
            units.append(federation["unit"].own.clone())
            turned.append(federation["direction"].own.clone())

        play(PFedGraph(alpha=50.0, lam=lam), watch, rounds=2)
        nearness.append(float(nn.functional.cosine_similarity(units[1], turned[0]).mean()))
    assert nearness[0] < nearness[1] < nearness[2]


def test_models_and_directions_come_down() -> None:
    ours = play(PFedGraph())
    assert_bytes(ours, up=ours.bytes_of("all"), down=2 * ours.bytes_of("all"))
    plain = play(PFedGraph(lam=0))
    assert_bytes(plain, up=plain.bytes_of("all"), down=plain.bytes_of("all"))


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(PFedGraph(), join=0.5)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": -1.0}])
def test_refused_options(options: dict[str, Any]) -> None:
    with pytest.raises(CoterieError, match=r"^alpha = .*: must"):
        PFedGraph(**options)
