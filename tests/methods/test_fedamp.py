"""FedAMP: attention by hand, a regulariser that has a gradient, and whole rounds against plain loops."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from plain_rounds import (
    CLIENTS,
    WIDTH,
    assert_relabelling_changes_nothing,
    assert_rows,
    cohort_of,
    copies,
    differs_from_both,
    run,
    train,
    vector,
)
from torch import Tensor, nn

from coterie.client.trainer import train as train_at
from coterie.errors import CoterieError
from coterie.methods.fedamp import FedAMP
from support import final_rows, seat, tiny, warnings_in


def test_attention_by_hand() -> None:
    distances = torch.tensor([[0.0, math.log(4), math.log(8)], [math.log(4), 0.0, 50.0], [math.log(8), 50.0, 0.0]])
    weights = FedAMP().attention(distances)
    expected = torch.tensor([[0.625, 0.25, 0.125], [0.25, 0.75, 0.0], [0.125, 0.0, 0.875]], dtype=torch.float64)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)


def test_alpha_scales_and_sigma_widens() -> None:
    distances = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    off = FedAMP(alpha=0.5, sigma=2.0).attention(distances)[0, 1]
    assert float(off) == pytest.approx(0.5 / 2 * math.exp(-1))


def test_attention_that_exceeds_one_is_rescaled() -> None:
    weights = FedAMP().attention(torch.zeros(4, 4))
    torch.testing.assert_close(weights, (torch.ones(4, 4) - torch.eye(4)).double() / 3)


@pytest.mark.parametrize(("alpha", "lines"), [(1.0, 1), (1 / CLIENTS, 0)])
def test_a_run_says_once_that_anchors_leave_their_own_client_out(
    alpha: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    _, reports = run(FedAMP(alpha=alpha), rounds=3, lr=0.01)
    own = torch.stack([report.mixes[0].weights.diagonal() for report in reports])
    assert bool((own < 1e-6).all()) is (lines == 1)
    found = warnings_in(caplog)
    assert len(found) == lines
    for text in found:
        assert text.startswith(
            f"fedamp, round 1: the anchors of {CLIENTS} of {CLIENTS} clients leave their own models out"
        )
        assert "(alpha = 1, sigma = 1)" in text
        assert f"alpha/sigma below 1/{CLIENTS - 1}" in text


def test_a_single_client_is_its_own_anchor() -> None:
    assert FedAMP().attention(torch.zeros(1, 1)).tolist() == [[1.0]]


def test_the_regulariser_moves_the_row_by_its_gradient() -> None:
    """One full-batch step with and without it differ by lr · autograd of (λ/2α)‖w − u‖²."""
    rows: list[Tensor] = []
    for noop in (False, True):
        method = FedAMP(lam=3.0, alpha=2.0, noop_reg=noop)
        worker = seat(tiny(method, batch=1000).prepare(), client=1)
        worker.federation["anchor"].own += torch.linspace(0.5, 1, WIDTH)
        train_at(worker, method.recipe(worker.federation))
        rows.append(worker.model("model").row.clone())
    start = worker.received().clone().requires_grad_(True)
    penalty = 3.0 / (2 * 2.0) * (start - worker.federation["anchor"].own[1]).square().sum()
    (gradient,) = torch.autograd.grad(penalty, start)
    assert float(gradient.abs().min()) > 0
    torch.testing.assert_close(rows[1] - rows[0], 0.1 * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", [FedAMP(noop_reg=True), FedAMP(lam=0)])
@pytest.mark.parametrize("model", ["plain", "norm"])
def test_without_its_regulariser_it_is_local_training(method: FedAMP, model: str) -> None:
    assert torch.equal(final_rows(tiny(method, model).run()), final_rows(tiny("local", model).run()))


def test_with_it_it_is_neither_local_training_nor_fedavg() -> None:
    assert differs_from_both(FedAMP())


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_rounds_equal_plain_loops(join: float) -> None:
    method = FedAMP(alpha=0.8, sigma=2.0, lam=0.5)
    models = copies()
    anchors = [vector(model) for model in models]
    known: set[int] = set()
    for t in range(1, 5):
        for k in cohort_of(t, join):

            def pull(model: nn.Module, _x: Tensor, _y: Tensor, anchor: Tensor = anchors[k]) -> Tensor:
                return 0.5 / (2 * 0.8) * (nn.utils.parameters_to_vector(model.parameters()) - anchor).square().sum()

            train(models[k], k, t, extra=pull)
            known.add(k)
        rows = [vector(model) for model in models]
        for i in known:
            xi = {j: 0.8 / 2.0 * math.exp(-float((rows[i] - rows[j]).square().sum()) / 2.0) for j in known - {i}}
            scale = max(1.0, sum(xi.values()))
            anchor = (1 - sum(xi.values()) / scale) * rows[i]
            for j, weight in xi.items():
                anchor = anchor + weight / scale * rows[j]
            anchors[i] = anchor
    result, _ = run(method, rounds=4, join=join)
    assert_rows(result, [vector(model) for model in models])
    torch.testing.assert_close(result.federation["anchor"].own, torch.stack(anchors), rtol=1e-5, atol=1e-5)


def test_who_sits_out_keeps_model_and_is_in_nobodys_mix_before_its_first_round() -> None:
    result, reports = run(FedAMP(), rounds=1, join=0.5)
    (mix,) = reports[0].mixes
    present = reports[0].cohort
    resting = [k for k in range(CLIENTS) if k not in present]
    assert mix.weights.shape == (len(present), len(present))
    assert mix.columns.tolist() == sorted(present)
    initial = result.federation.initial
    assert all(torch.equal(final_rows(result)[k], initial) for k in resting)
    assert all(torch.equal(result.federation["anchor"].own[k], initial) for k in resting)


def test_the_first_round_is_held_at_the_initial_model() -> None:
    method = FedAMP(lam=1.5)
    models = copies()
    start = vector(copy.deepcopy(models[0]))
    for k in range(CLIENTS):
        train(
            models[k],
            k,
            1,
            extra=lambda m, _x, _y: 0.75 * (nn.utils.parameters_to_vector(m.parameters()) - start).square().sum(),
        )
    assert_rows(run(method, rounds=1)[0], [vector(model) for model in models])


def test_a_model_goes_up_and_an_anchor_comes_down_to_those_who_sent_one() -> None:
    known: set[int] = set()
    reports = run(FedAMP(), join=0.5)[1]
    for report in reports:
        present = set(report.cohort)
        assert report.bytes["up"] == 4 * WIDTH * len(present)
        assert report.bytes["down"] == 4 * WIDTH * len(present & known)
        known |= present
    assert len(known) > len(reports[0].cohort)  # somebody came late


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_changes_nothing(FedAMP(), join=join)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"sigma": -1.0}, {"lam": -0.1}])
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = "):
        FedAMP(**options)
