"""FedTC against its equations: two classifiers, one forward pass, gradients that do not mingle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from five import (
    ScaleNet,
    assert_relabelling_permutes,
    assert_valid_mixes,
    break_client,
    part,
    random_rows,
    refused,
    send,
    server,
    sized_partition,
    watch,
)
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from coterie.client.batch import Batch
from coterie.client.recipe import Phase, Recipe
from coterie.client.trainer import Trainer, train
from coterie.client.worker import Worker
from coterie.core.columns import Columns
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.methods import FedPer, FedTC
from coterie.methods.fedtc import own_head_loss
from coterie.rng import torch_stream
from coterie.testing.toys import seeded, toy_data
from support import final_rows, rows_of, seat, tiny


def noise(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def gradient(own_seed: int, shared_seed: int, model: str = "plain") -> tuple[Tensor, Tensor]:
    """The gradient of extractor and local classifier on one batch, for given local and shared classifiers."""
    method = FedTC()
    worker = seat(tiny(method, model).prepare(), client=1)
    federation = worker.federation
    federation["model"].own[1, : federation["shared_head"].width] = noise(federation["shared_head"].width, own_seed)
    federation["shared_head"].shared[0] = noise(federation["shared_head"].width, shared_seed)
    (phase,) = method.recipe(federation)
    trainer = Trainer(worker, phase, 0)
    trainer.gradient(next(trainer.batches()))
    grad, layout = worker.model("model").grad, worker.problem.layout
    return layout.columns("extractor").take(grad).clone(), layout.columns("classifier").take(grad).clone()


class TestGradients:
    @pytest.mark.parametrize("model", ["plain", "norm"])
    def test_the_extractors_does_not_depend_on_the_local_classifier(self, model: str) -> None:
        (first, own), (second, other) = gradient(1, 5, model), gradient(2, 5, model)
        assert torch.equal(first, second)
        assert not torch.allclose(own, other)
        assert bool(first.abs().sum() > 0)

    @pytest.mark.parametrize("model", ["plain", "norm"])
    def test_the_local_classifiers_does_not_depend_on_the_shared_one(self, model: str) -> None:
        (first, own), (second, other) = gradient(1, 5, model), gradient(1, 6, model)
        assert torch.equal(own, other)
        assert not torch.allclose(first, second)
        assert bool(own.abs().sum() > 0)

    def test_the_shared_classifier_stays_as_it_is_all_round(self) -> None:
        method = FedTC(lr_classifier=0.5)
        worker = seat(tiny(method, epochs=3, momentum=0.9, weight_decay=0.1).prepare(), client=0)
        before = worker.model("shared_head").row.clone()
        train(worker, method.recipe(worker.federation))
        assert torch.equal(worker.model("shared_head").row, before)
        assert not torch.equal(worker.model("model").row, worker.federation.initial)


class TestClientRound:
    """Equations (5) and (6), written out one after the other, in either order."""

    @pytest.mark.parametrize("classifier_first", [True, False])
    def test_two_updates_equal_one_pass(self, classifier_first: bool) -> None:
        method = FedTC(lr_classifier=0.3)
        worker = seat(tiny(method, epochs=2, lr=0.1, decay=0.5, schedule="exponential").prepare(), client=2, round=2)
        worker.federation["shared_head"].shared[0] = noise(27, 1)
        worker.federation["model"].own[2] = noise(27, 2)
        train(worker, method.recipe(worker.federation))

        problem = worker.problem
        own = problem.train[2]
        module = seeded(type(problem.module))
        phi, shared = noise(27, 2), noise(27, 1)

        def head(row: Tensor, z: Tensor) -> Tensor:
            return linear(z, row[:24].view(3, 8), row[24:])

        stream = torch_stream(0, "batches:0", 2, 2)
        for _ in range(2):
            for index in torch.randperm(len(own), generator=stream).split(10):
                inputs, labels = problem.inputs[own[index]], problem.labels[own[index]]
                z = module.body(inputs)

                def update_classifier(z: Tensor = z, labels: Tensor = labels) -> None:
                    nonlocal phi
                    phi = phi.detach().requires_grad_()
                    (slope,) = torch.autograd.grad(cross_entropy(head(phi, z.detach()), labels), phi)
                    phi = phi.detach() - 0.5 * 0.3 * slope  # the schedule scales both rates

                def update_extractor(z: Tensor = z, labels: Tensor = labels) -> None:
                    parameters = list(module.body.parameters())
                    slopes = torch.autograd.grad(cross_entropy(head(shared, z), labels), parameters)
                    with torch.no_grad():
                        for parameter, slope in zip(parameters, slopes, strict=True):
                            parameter -= 0.5 * 0.1 * slope

                steps: list[Callable[[], None]] = [update_classifier, update_extractor]
                for step in steps if classifier_first else steps[::-1]:
                    step()
        layout, found = problem.layout, worker.model("model").row
        torch.testing.assert_close(layout.columns("classifier").take(found), phi, atol=1e-5, rtol=1e-4)
        expected = layout.columns("extractor").take(layout.row(module))
        torch.testing.assert_close(layout.columns("extractor").take(found), expected, atol=1e-5, rtol=1e-4)


def own_head_teaches(batch: Batch) -> Tensor:
    """Equation (6) with the client's own classifier in place of the shared one."""
    head = batch._client.model("model").head
    frozen = {name: tensor.detach() for name, tensor in head.named_parameters()}
    logits = torch.func.functional_call(head, frozen, (batch.features,))
    return cross_entropy(logits, batch.labels, reduction="none")


@dataclass(frozen=True)
class OwnTeacher(FedTC):
    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(terms=(own_head_loss, own_head_teaches), rates={"classifier": self.lr_classifier}),)


@dataclass(frozen=True)
class TwoRates(FedPer):
    lr_classifier: float = 1e-4

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(rates={"classifier": self.lr_classifier}),)


class TestDegenerateCases:
    @pytest.mark.thorough
    @pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
    @pytest.mark.parametrize("rate", [1e-4, 0.1, 0.4])
    def test_if_the_own_classifier_teaches_it_is_fedper_with_two_rates(self, model: str, rate: float) -> None:
        settings: dict[str, Any] = {"momentum": 0.9, "weight_decay": 1e-3, "rounds": 3}
        ours, theirs = (tiny(method(lr_classifier=rate), model, **settings).run() for method in (OwnTeacher, TwoRates))
        torch.testing.assert_close(final_rows(ours), final_rows(theirs), atol=1e-6, rtol=1e-5)

    def test_with_the_shared_classifier_it_is_not(self) -> None:
        ours, theirs = (tiny(method(lr_classifier=0.1)).run() for method in (FedTC, TwoRates))
        assert not torch.allclose(final_rows(ours), final_rows(theirs), atol=1e-3)

    def test_one_client_is_taught_by_its_own_last_classifier(self) -> None:
        result = tiny(FedTC(lr_classifier=0.1), clients=1).run()
        federation = result.federation
        head = part(federation, rows_of(federation), "classifier")
        assert torch.equal(federation["shared_head"].shared, head)


class TestServer:
    def test_means_of_both_and_a_classifier_that_is_kept(self) -> None:
        method = FedTC()
        federation = server(method)
        rows = random_rows(federation)
        send(method, federation, rows)
        mean = (federation.sizes / federation.sizes.sum()).float() @ rows
        torch.testing.assert_close(federation["shared_head"].shared[0], part(federation, mean, "classifier"))
        torch.testing.assert_close(
            part(federation, rows_of(federation), "extractor")[3], part(federation, mean, "extractor")
        )
        assert torch.equal(part(federation, rows_of(federation), "classifier"), part(federation, rows, "classifier"))

    def test_the_algorithms_reading_resets_it(self) -> None:
        method = FedTC(reset_local_head=True)
        federation = server(method)
        send(method, federation, random_rows(federation))
        heads = part(federation, rows_of(federation), "classifier")
        assert torch.equal(heads, federation["shared_head"].shared.expand(5, -1))

    def test_clients_that_never_took_part_hold_the_newest_shared_classifier(self) -> None:
        method = FedTC()
        federation = server(method)
        for round, cohort in ((1, [0, 1, 2]), (2, [1, 3])):
            federation.round = round
            rows = random_rows(federation, len(cohort), seed=round)
            send(method, federation, rows, cohort)
            heads = part(federation, rows_of(federation), "classifier")
            assert torch.equal(heads[4], federation["shared_head"].shared[0])
        assert torch.equal(heads[[1, 3]], part(federation, rows, "classifier"))
        assert torch.equal(heads[0], part(federation, random_rows(federation, 3, seed=1), "classifier")[0])
        sizes = federation.sizes[[1, 3]]
        mean = (sizes / sizes.sum()).float() @ part(federation, rows, "classifier")
        torch.testing.assert_close(federation["shared_head"].shared[0], mean)


@dataclass(frozen=True)
class Shuffled(FedTC):
    """FedTC whose mixes are listed the other way round: an exchange is simultaneous."""

    def exchange(self, uploads: Uploads) -> list[Action]:
        return [mix for mix in list(super().exchange(uploads))[::-1] if isinstance(mix, Mix)]


class TestFederationsAtTheEdges:
    @pytest.mark.parametrize("reset", [True, False])
    @pytest.mark.parametrize("clients", [1, 2, 3])
    def test_few_clients(self, clients: int, reset: bool) -> None:
        watched = watch(tiny(FedTC(reset_local_head=reset), clients=clients, join=0.5))
        assert_valid_mixes(watched)
        assert bool(torch.isfinite(final_rows(watched.result)).all())

    @pytest.mark.thorough
    @pytest.mark.parametrize("join", [1.0, 0.5])
    def test_relabelling_permutes(self, join: float) -> None:
        assert_relabelling_permutes(FedTC(lr_classifier=0.05), rounds=4, join=join)

    def test_the_order_of_mixes_does_not_matter(self) -> None:
        ours, theirs = (final_rows(tiny(kind(lr_classifier=0.1), join=0.5).run()) for kind in (FedTC, Shuffled))
        assert torch.equal(ours, theirs)

    def test_clients_without_some_classes(self) -> None:
        data = toy_data(60)
        order = data.labels.argsort(stable=True)
        data = type(data)("sorted", data.inputs[order], data.labels[order], classes=3)
        watched = watch(tiny(FedTC(lr_classifier=0.1), data=data, partition=sized_partition([10, 10, 10, 10])))
        counts = watched.result.federation.class_counts
        assert bool((counts == 0).any())
        assert bool(torch.isfinite(final_rows(watched.result)).all())

    def test_a_diverged_client_is_left_out_and_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        method = FedTC(lr_classifier=0.1)
        before = final_rows(tiny(method, rounds=1).run())
        break_client(monkeypatch, client=2, round=2)
        watched = watch(tiny(method, rounds=2))
        rows, head = final_rows(watched.result), watched.result.federation.layout.columns("classifier")
        assert bool(torch.isfinite(rows).all())
        assert torch.equal(head.take(rows[2]), head.take(before[2]))
        assert watched.result.summary["diverged"] == {"2": [2]}
        assert all(mix.columns.tolist() == [0, 1, 3] for mix in watched.mixes[1])
        assert bool(torch.isfinite(watched.result.federation["shared_head"].shared).all())


def test_ledger() -> None:
    watched = watch(tiny(FedTC(), join=0.5))
    layout = watched.result.federation.layout
    whole, head = (4 * layout.columns(group).size for group in ("all", "classifier"))
    assert watched.sent("up") == [whole] * 3
    # Whoever takes part for the first time after round 1 begins with the shared classifier as its own, too.
    cohorts = [set(line.cohort) for line in watched.result.lines]
    first_timers = [len(cohort - set().union(*cohorts[:number])) for number, cohort in enumerate(cohorts)]
    first_timers[0] = 0
    extra = [head * count / len(cohort) for count, cohort in zip(first_timers, cohorts, strict=True)]
    assert sum(first_timers) > 0
    assert watched.sent("down") == [0, *(whole + more for more in extra[1:])]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_bad_options_are_refused(rate: float) -> None:
    with refused("lr_classifier = "):
        FedTC(lr_classifier=rate)


def test_any_classifier_will_do() -> None:
    assert bool(torch.isfinite(final_rows(tiny(FedTC(), seeded(ScaleNet)).run())).all())


def test_a_worker_never_trains_the_shared_slot() -> None:
    prepared = tiny(FedTC()).prepare()
    worker = Worker(prepared.problem(), prepared.method, 0)
    worker.seat(prepared.federation(), 0)
    train(worker, prepared.method.recipe(worker.federation))
    assert not any(parameter.requires_grad for parameter in worker.model("shared_head").head.parameters())
    assert worker.model("shared_head")._trained == Columns()


@pytest.mark.parametrize(("given", "rate"), [(None, 0.002), (0.3, 0.3)])
def test_the_local_classifier_has_a_hundredth_of_the_rate_unless_told_otherwise(
    given: float | None, rate: float
) -> None:
    method = FedTC() if given is None else FedTC(lr_classifier=given)
    federation = tiny(method, lr=0.2).prepare().federation()
    (phase,) = method.recipe(federation)
    assert isinstance(phase, Phase)
    assert phase.rates == {"classifier": pytest.approx(rate)}
    assert method.resolved(federation) == {"lr_classifier": pytest.approx(rate)}
