"""FedDistill: mean logits by class travel, models do not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_training import (
    Plain,
    assert_bytes,
    assert_near,
    assert_relabelling_permutes,
    assert_unlike,
    gradient_at,
    play,
    prepared_for,
    rows_of_modules,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.core.exchange import Put, Uploads
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.feddistill import ClassTeacher, FedDistill

NAN = torch.nan


@pytest.mark.thorough
@pytest.mark.parametrize("leave_out_own", [False, True])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_plain_loops_give_the_same_models_and_logits(join: float, leave_out_own: bool) -> None:
    ours = play(FedDistill(lam=0.7, leave_out_own=leave_out_own), join=join)
    plain = Plain(ours.prepared)
    models = plain.models()
    taught: list[dict[int, Tensor]] = [{} for _ in models]
    for round, cohort in plain.rounds():
        sent: dict[int, dict[int, Tensor]] = {}
        for k in cohort:

            def loss(x: Tensor, y: Tensor, k: int = k) -> Tensor:
                logits = models[k](x)
                total = cross_entropy(logits, y)
                for answer, c in zip(logits, y.tolist(), strict=True):
                    if c in taught[k]:
                        total = total - 0.7 * (taught[k][c].softmax(0) * answer.log_softmax(0)).sum() / len(y)
                return total

            plain.descend(k, round, models[k].parameters(), loss)
            x, y = plain.data(k)
            sent[k] = plain.class_means(models[k](x), y)
        for k in range(plain.clients):
            for c in range(plain.classes):
                found = [sent[j][c] for j in sent if c in sent[j] and not (leave_out_own and j == k)]
                if found:
                    taught[k][c] = torch.stack(found).mean(0)
    assert_near(ours.rows(), rows_of_modules(models))
    value = ours.federation.values["class_logits"]
    assert value.shape == ((plain.clients,) if leave_out_own else ()) + (plain.classes, plain.classes)
    for k in range(plain.clients):
        for c in range(plain.classes):
            expected = taught[k].get(c, torch.full((plain.classes,), NAN))
            assert_near((value[k] if leave_out_own else value)[c], expected)
    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, plain.test_losses(lambda k, x: models[k](x)))


def exchanged(method: FedDistill, logits: Tensor, before: Tensor, cohort: list[int]) -> Tensor:
    federation = prepared_for(method).federation()
    federation.values["class_logits"] = before
    uploads = Uploads(federation, torch.tensor(cohort), {}, {}, {"class_logits": logits})
    (put,) = method.exchange(uploads)
    assert isinstance(put, Put)
    return put.value


def test_mean_logits_by_hand() -> None:
    # Clients 0 and 2 both have class 0; class 1 is client 2's alone; nobody has class 2.
    logits = torch.tensor([[2.0, NAN, NAN], [6.0, 5.0, NAN]])[:, :, None].expand(2, 3, 3)
    before = torch.tensor([9.0, 8.0, 7.0])[:, None].expand(3, 3)
    assert exchanged(FedDistill(), logits, before, [0, 2])[:, 0].tolist() == [4.0, 5.0, 7.0]
    alone = exchanged(FedDistill(leave_out_own=True), logits, before.expand(4, 3, 3), [0, 2])
    assert alone[:, :, 0].tolist() == [[6.0, 5.0, 7.0], [4.0, 5.0, 7.0], [2.0, 8.0, 7.0], [4.0, 5.0, 7.0]]


def test_logits_however_large_do_not_take_the_others_with_them() -> None:
    """Client 1's own logits leave what it is taught by the others as it is: nothing is taken away from a sum."""
    logits = torch.tensor([2.0, 1e30, 4.0])[:, None, None].expand(3, 3, 3)
    alone = exchanged(FedDistill(leave_out_own=True), logits, torch.full((4, 3, 3), NAN), [0, 1, 2])
    assert alone[1].unique().tolist() == [3.0]
    large = exchanged(FedDistill(), torch.full((3, 3, 3), 3e38), torch.full((3, 3), NAN), [0, 1, 2])
    assert_near(large / 3e38, torch.ones(3, 3))


def test_the_term_by_hand() -> None:
    """Class 0 is taught as 1 : 3 where the model says 1 : 1, so 2 · ln 2; nobody teaches class 1."""
    taught = torch.tensor([[0.0, math.log(3)], [NAN, NAN]])
    batch = SimpleNamespace(value=lambda name: taught, labels=torch.tensor([0, 1]), logits=torch.zeros(2, 2))
    assert ClassTeacher(2.0)(batch).tolist() == pytest.approx([2 * math.log(2), 0.0])  # type: ignore[arg-type]


def test_the_gradient_is_that_of_the_formula_with_probabilities_as_targets() -> None:
    prepared = prepared_for(FedDistill(lam=2.0))
    taught = 3 * torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    taught[1] = NAN

    def arrange(federation: Federation) -> None:
        federation.values["class_logits"] = taught

    phase = prepared.method.recipe(prepared.federation())[0]
    gradients, batch, _ = gradient_at(prepared, phase, client=1, arrange=arrange)
    assert {0, 1} & set(batch.labels.tolist()) == {0, 1}
    module = prepared.problem_base.module
    logits = module(batch.inputs)
    known = batch.labels != 1
    kl = torch.nn.functional.kl_div(
        logits[known].log_softmax(1), taught[batch.labels[known]].softmax(1), reduction="sum"
    )
    loss = cross_entropy(logits, batch.labels) + 2.0 * kl / len(logits)
    expected = torch.autograd.grad(loss, list(module.parameters()))
    assert_near(gradients["model"], torch.cat([one.reshape(-1) for one in expected]))


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_without_strength_it_is_local(join: float) -> None:
    assert torch.equal(play(FedDistill(lam=0), join=join).rows(), play(Local(), join=join).rows())


def test_nobody_is_taught_in_the_first_round() -> None:
    assert_near(play(FedDistill(), rounds=1).rows(), play(Local(), rounds=1).rows(), 1e-7)


def test_it_is_neither_local_nor_fedavg() -> None:
    assert_unlike(play(FedDistill()).rows(), play(Local()).rows(), play(FedAvg()).rows())


@pytest.mark.parametrize("leave_out_own", [False, True])
def test_only_logits_travel_and_nothing_is_mixed(leave_out_own: bool) -> None:
    ours = play(FedDistill(leave_out_own=leave_out_own), join=0.5)
    assert_bytes(ours, up=4 * 3 * 3, down=4 * 3 * 3)
    assert not any(report.mixes for report in ours.reports)


@pytest.mark.thorough
@pytest.mark.parametrize("leave_out_own", [False, True])
def test_relabelling(leave_out_own: bool) -> None:
    assert_relabelling_permutes(FedDistill(leave_out_own=leave_out_own), join=0.5)


def test_refused_options() -> None:
    assert FedDistill().lam == 1.0
    options: dict[str, Any] = {"lam": -1.0}
    with pytest.raises(CoterieError, match=r"^lam = -1.0: must not be negative$"):
        FedDistill(**options)
