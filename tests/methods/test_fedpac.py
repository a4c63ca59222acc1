"""FedPAC: statistics and combinations by hand and by grid, and whole rounds against plain loops."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from plain_rounds import (
    CLIENTS,
    DATA,
    HEAD,
    SIZES,
    TRAIN,
    WIDTH,
    assert_relabelling_changes_nothing,
    assert_rows,
    cohort_of,
    copies,
    differs_from_both,
    load,
    mean_of,
    run,
    train,
    vector,
)
from torch import Tensor, nn

from coterie.client.recipe import Phase
from coterie.errors import CoterieError
from coterie.methods.fedpac import FeatureStatistics, FedPAC, combinations
from coterie.testing.toys import PlainNet
from support import final_rows, seat, tiny

C, D = DATA.classes, 8


def objective(a: Tensor, i: int, v: Tensor, h: Tensor) -> float:
    """Variance plus squared bias, by the definition."""
    bias = sum((a[j] * (h[j] - h[i]) for j in range(len(a))), torch.zeros_like(h[0]))
    return float((a**2 * v).sum() + (bias**2).sum())


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_combinations_are_the_best_of_a_grid(seed: int) -> None:
    stream, ticks = torch.Generator().manual_seed(seed), 30
    v = torch.rand(3, generator=stream, dtype=torch.float64)
    h = torch.randn(3, 4, generator=stream, dtype=torch.float64) / 2
    grid = [torch.tensor(p).double() / ticks for p in itertools.product(range(ticks + 1), repeat=3) if sum(p) == ticks]
    found = combinations(v, h)
    for i in range(3):
        best = min(grid, key=lambda a: objective(a, i, v, h))
        assert objective(found[i], i, v, h) <= objective(best, i, v, h) + 1e-5
        assert torch.allclose(found[i], best, atol=2 / ticks)


def test_with_equal_means_weights_are_inverse_to_variance() -> None:
    found = combinations(torch.tensor([1.0, 2.0, 4.0]), torch.ones(3, 5))
    torch.testing.assert_close(found, torch.tensor([[4.0, 2.0, 1.0]]).double().expand(3, -1) / 7)


def test_far_means_leave_everybody_alone_and_traces_vanish() -> None:
    found = combinations(torch.full((3,), 1e-3), torch.eye(3) * 100)
    assert torch.equal(found, torch.eye(3, dtype=torch.float64))


def test_statistics_by_loops() -> None:
    worker = seat(tiny(FedPAC()).prepare(), client=2)
    statistics = FeatureStatistics()(worker)
    model, own = copies(1)[0], TRAIN[2]
    z, y, n = model.body(DATA.inputs[own]).detach().double(), DATA.labels[own], len(TRAIN[2])
    v, h = 0.0, torch.zeros(C, D, dtype=torch.float64)
    for c in y.unique().tolist():
        mine, share = z[y == c], int((y == c).sum()) / n
        h[c] = share * mine.mean(0)
        v += share * float(mine.square().sum(1).mean()) - share**2 * float(mine.mean(0).square().sum())
    torch.testing.assert_close(
        statistics, torch.cat([torch.tensor([v / n]), h.flatten()]).float(), rtol=1e-5, atol=1e-6
    )


def test_statistics_are_about_the_model_as_received() -> None:
    """Training longer changes what is uploaded but not the statistics, hence not the combinations of round 1."""
    weights = [run(FedPAC(), rounds=1, epochs=epochs)[1][0].mixes[1].weights for epochs in (1, 3)]
    assert torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize("lam", [0.0, 2.0])
def test_rounds_equal_plain_loops(join: float, lam: float) -> None:
    models = copies()
    prototypes: dict[int, Tensor] = {}
    for t in range(1, 4):
        cohort, spread, shares, means = cohort_of(t, join), {}, {}, {}
        for k in cohort:
            model, own = models[k], TRAIN[k]
            y, counts = DATA.labels[own], torch.bincount(DATA.labels[own], minlength=C)
            z = model.body(DATA.inputs[own]).detach().double()
            shares[k] = torch.stack([z[y == c].sum(0) for c in range(C)]) / len(own)
            spread[k] = (float(z.square().sum(1).mean()) - float(shares[k].square().sum())) / len(own)
            train(model, k, t, moving=model.classifier.parameters(), lr=0.3, phase=0)

            def alignment(model: nn.Module, x: Tensor, y: Tensor, known: dict[int, Tensor] = prototypes) -> Tensor:
                assert isinstance(model, PlainNet)
                total = torch.zeros(())
                for feature, label in zip(model.body(x), y.tolist(), strict=True):
                    if label in known:
                        total = total + (feature - known[label]).square().mean()
                return lam * total / len(y)

            train(model, k, t, moving=model.body.parameters(), phase=1, extra=alignment)
            z = model.body(DATA.inputs[own]).detach()
            means[k] = {c: (int(counts[c]), z[y == c].mean(0)) for c in y.unique().tolist()}
        prototypes = dict(prototypes)
        for c in range(C):
            having = [means[k][c] for k in cohort if c in means[k]]
            if having:
                prototypes[c] = mean_of([mean for _, mean in having], [count for count, _ in having])
        weights = combinations(
            torch.tensor([spread[k] for k in cohort]), torch.stack([shares[k].flatten() for k in cohort])
        )
        heads = {k: vector(models[k].classifier) for k in cohort}
        body = mean_of([vector(models[k].body) for k in cohort], [SIZES[k] for k in cohort])
        for model in models:
            load(model.body, body)
        for row, k in enumerate(cohort):
            mixed = mean_of([heads[j] for j in cohort], weights[row].tolist())
            load(models[k].classifier, mixed)
    result, _ = run(FedPAC(lam=lam, head_lr=0.3), join=join)
    assert_rows(result, [vector(model) for model in models])
    for c, prototype in prototypes.items():
        torch.testing.assert_close(result.federation.values["prototypes"][c], prototype, rtol=1e-4, atol=1e-5)


def test_alignment_moves_the_extractor_from_round_two_on() -> None:
    first, first_aligned = [final_rows(run(FedPAC(lam=lam), rounds=1)[0]) for lam in (0.0, 5.0)]
    second, second_aligned = [final_rows(run(FedPAC(lam=lam), rounds=2)[0]) for lam in (0.0, 5.0)]
    assert torch.equal(first, first_aligned)
    assert not torch.allclose(second, second_aligned, atol=1e-4)


@pytest.mark.parametrize(("lam", "round", "terms"), [(0.0, 2, 1), (1.0, 1, 1), (1.0, 2, 2)])
def test_nothing_is_computed_for_an_alignment_that_is_zero(lam: float, round: int, terms: int) -> None:
    federation = tiny(FedPAC(lam=lam)).prepare().federation()
    federation.round = round
    phases = [step for step in FedPAC(lam=lam).recipe(federation) if isinstance(step, Phase)]
    assert [len(phase.terms) for phase in phases] == [1, terms]


def test_it_is_neither_local_training_nor_fedavg() -> None:
    assert differs_from_both(FedPAC())


def test_who_sits_out_keeps_its_classifier_and_gets_the_extractor() -> None:
    result, reports = run(FedPAC(), rounds=1, join=0.5)
    layout, rows = result.federation.layout, final_rows(result)
    resting = [k for k in range(CLIENTS) if k not in reports[0].cohort]
    head = layout.columns("classifier")
    assert torch.equal(head.take(rows)[resting], head.take(result.federation.initial).expand(len(resting), -1))
    body = layout.columns("extractor").take(rows)
    assert torch.equal(body, body[:1].expand_as(body))
    assert not torch.equal(body[0], layout.columns("extractor").take(result.federation.initial))
    weights = reports[0].mixes[1].weights
    assert weights.shape == (len(reports[0].cohort),) * 2
    torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)))


def test_the_wire() -> None:
    _, reports = run(FedPAC(), join=0.5)
    up, common, head = 4 * (WIDTH + 1 + 2 * C * D), 4 * (WIDTH - HEAD + C * D), 4 * HEAD
    taken: set[int] = set()
    for report in reports:
        # Extractor and prototypes are everybody's; a classifier is combined for those alone who sent theirs.
        combined = len(set(report.cohort) & taken)
        down = common * len(report.cohort) + head * combined if taken else 0
        assert report.bytes == {"up": up * len(report.cohort), "down": down}
        taken |= set(report.cohort)
    assert len(set(reports[1].cohort) - set(reports[0].cohort)) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize("model", ["plain", "norm"])
def test_relabelling(join: float, model: str) -> None:
    assert_relabelling_changes_nothing(FedPAC(), join=join, model=model)


@pytest.mark.parametrize("options", [{"lam": -1.0}, {"head_epochs": 0}, {"head_lr": 0.0}])
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = "):
        FedPAC(**options)
