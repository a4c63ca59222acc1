"""Training on a flat row equals the loop that everybody would write with torch.optim on a module."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.client.batch import Batch
from coterie.client.optimiser import TORCH_OPTIMISERS, TensorSGD, make_optimiser
from coterie.client.recipe import Phase
from coterie.client.terms import Linear, Proximal, task_loss
from coterie.client.trainer import Trainer, train
from coterie.client.views import Batches, TrainerView
from coterie.core.columns import Columns
from coterie.core.training import OPTIMISERS, MemoryFormat, Training
from coterie.errors import CoterieError
from coterie.partition import Partition
from coterie.rng import stream_seed, torch_stream
from coterie.runs.experiment import Experiment
from coterie.setup.prepared import Prepared
from coterie.testing.toys import NormNet, PlainNet, seeded, toy_data
from support import MODELS, seat, tiny, trained_row

CLIENT = 2
# What PyTorch itself offers under the names of the settings.
KINDS = {"sgd": torch.optim.SGD, **TORCH_OPTIMISERS}


def plain_training(
    prepared: Prepared,
    make: Callable[[nn.Module], torch.optim.Optimizer],
    client: int = CLIENT,
    round: int = 1,
    clip: float = 0.0,
    mu: float = 0.0,
) -> Tensor:
    """The oracle: a copy of the module, an optimiser on its parameters, a loop over batches."""
    experiment, problem = prepared.experiment, prepared.problem()
    module = copy.deepcopy(problem.module).train()
    received = [parameter.detach().clone() for parameter in module.parameters()]
    optimiser = make(module)
    own = problem.train[client]
    stream = torch_stream(experiment.seed, "batches:0", round, int(prepared.partition.keys[client]))
    for _ in range(experiment.epochs):
        for part in torch.randperm(len(own), generator=stream).split(experiment.batch):
            if len(part) == 1 and isinstance(module, NormNet):
                continue
            index = own[part]
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(problem.inputs[index]), problem.labels[index])
            for parameter, start in zip(module.parameters(), received, strict=True):
                loss = loss + mu / 2 * (parameter - start).square().sum()
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimiser.step()
    return problem.layout.row(module)


def prepared(model: str = "plain", **options: Any) -> Prepared:
    return tiny("fedavg", model, **{"epochs": 2, "lr": 0.05, **options}).prepare()


SETTINGS: list[tuple[str, dict[str, float]]] = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.01}),
    ("rmsprop", {"momentum": 0.5, "weight_decay": 0.01}),
    ("rprop", {}),
    *((name, {"weight_decay": 0.01}) for name in OPTIMISERS if name not in ("sgd", "rmsprop", "rprop")),
]


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize(("name", "extra"), SETTINGS, ids=lambda value: str(value))
def test_every_optimiser_equals_the_plain_loop(model: str, name: str, extra: dict[str, float]) -> None:
    ready = prepared(model, optimizer=name, lr=0.01, **extra)
    expected = plain_training(ready, lambda module: KINDS[name](module.parameters(), lr=0.01, **extra))
    row = trained_row(ready, (Phase(),), CLIENT)
    assert torch.allclose(row, expected, atol=1e-6)
    assert not torch.allclose(row, ready.federation().initial, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_optimisers_start_afresh_for_every_client_and_round(name: str) -> None:
    """A seat that many clients have used gives the same as one that nobody has."""
    ready = prepared(optimizer=name, lr=0.01, momentum=0.9 if name in ("sgd", "rmsprop") else 0.0)
    worker = seat(ready, CLIENT)
    federation = worker.federation
    for client in (0, 1, 3, CLIENT):
        worker.seat(federation, client)
        train(worker, (Phase(),))
    assert torch.equal(worker.model("model").row, trained_row(ready, (Phase(),), CLIENT))


def test_clipping_equals_pytorch() -> None:
    ready = prepared("norm", clip=0.05)
    expected = plain_training(ready, lambda module: torch.optim.SGD(module.parameters(), lr=0.05), clip=0.05)
    assert torch.allclose(trained_row(ready, (Phase(),), CLIENT), expected, atol=1e-6)
    unclipped = trained_row(prepared("norm"), (Phase(),), CLIENT)
    assert torch.equal(trained_row(prepared("norm", clip=1e6), (Phase(),), CLIENT), unclipped)
    assert not torch.allclose(unclipped, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [("constant", 1.0), ("exponential", 0.5**2), ("cosine", 0.5 * (1 + math.cos(math.pi * 2 / 5)))],
)
def test_schedules_scale_the_rate_by_round(schedule: str, factor: float) -> None:
    ready = prepared(schedule=schedule, decay=0.5, rounds=5)
    expected = plain_training(ready, lambda module: torch.optim.SGD(module.parameters(), lr=0.05 * factor), round=3)
    assert torch.allclose(trained_row(ready, (Phase(),), CLIENT, round=3), expected, atol=1e-6)
    assert Training(lr=0.05, schedule=schedule, decay=0.5).rate(3, 5) == pytest.approx(0.05 * factor)


def test_groups_may_have_rates_of_their_own() -> None:
    """A phase's own rates and lr are scaled by the schedule like the run's."""
    ready = prepared("norm", momentum=0.9, schedule="exponential", decay=0.5)

    def make(module: nn.Module) -> torch.optim.Optimizer:
        head = list(module.classifier.parameters())
        body = [parameter for name, parameter in module.named_parameters() if not name.startswith("classifier")]
        return torch.optim.SGD([{"params": head, "lr": 0.15}, {"params": body, "lr": 0.01}], lr=1.0, momentum=0.9)

    expected = plain_training(ready, make, round=2)
    row = trained_row(ready, (Phase(lr=0.02, rates={"classifier": 0.3}),), CLIENT, round=2)
    assert torch.allclose(row, expected, atol=1e-6)


@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_rates_may_leave_nothing_for_the_rest(name: str) -> None:
    ready = prepared(optimizer=name)
    row = trained_row(ready, (Phase(rates={"classifier": 0.05, "extractor": 0.05}),), CLIENT)
    assert torch.allclose(row, trained_row(ready, (Phase(),), CLIENT), atol=1e-6)


def read_and_step(trainer: TrainerView, batches: Batches) -> None:
    """Plain steps of somebody who wants to see the gradients."""
    for batch in batches:
        trainer.gradient(batch)
        assert any(bool(part.grad.any()) for part in trainer.parts)
        trainer.step()


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str)
@pytest.mark.parametrize(
    "phase",
    [Phase(), Phase(train="extractor"), Phase(train="classifier"), Phase(lr=0.02, rates={"classifier": 0.3})],
    ids=["all", "extractor", "classifier", "rates"],
)
def test_gradients_that_nobody_reads_give_the_same_bits(
    model: str, memory: MemoryFormat, settings: dict[str, float], phase: Phase
) -> None:
    ready = prepared(model, memory=memory, **settings)
    row = trained_row(ready, (phase,), CLIENT)
    assert torch.equal(row, trained_row(ready, (replace(phase, rule=read_and_step),), CLIENT))
    assert not torch.equal(row, ready.federation().initial)


def test_phases_with_and_without_gathered_gradients_may_follow_each_other() -> None:
    ready = prepared(momentum=0.9)
    phases = [Phase(stream=number) for number in range(4)]
    gathered = [replace(phase, rule=read_and_step) for phase in phases]
    expected = trained_row(ready, gathered, CLIENT)
    assert torch.equal(trained_row(ready, [phases[0], gathered[1], phases[2], gathered[3]], CLIENT), expected)
    assert torch.equal(trained_row(ready, [gathered[0], phases[1], gathered[2], phases[3]], CLIENT), expected)


def test_a_tensor_that_is_trained_in_part_is_not_moved_as_a_whole() -> None:
    ready = prepared()
    weight = ready.problem().layout.entries[0]
    half = Columns.of((weight.start, weight.start + 2))
    worker = seat(ready, CLIENT)
    assert worker.model("model").parameters_in(half) is None
    assert worker.model("model").parameters_in(weight.columns) == [next(worker.trunk("model").parameters())]


def test_a_parameter_that_the_loss_does_not_depend_on_decays() -> None:
    used, unused = (nn.Parameter(torch.tensor([2.0])) for _ in range(2))
    sgd = TensorSGD([[used, unused]], momentum=0.0, weight_decay=0.5)
    sgd.start([0.1])
    (3 * used).sum().backward()
    sgd.step()
    assert used.item() == pytest.approx(2 - 0.1 * (3 + 0.5 * 2))
    assert unused.item() == pytest.approx(2 - 0.1 * 0.5 * 2)


def test_a_phase_may_set_its_epochs_and_rate() -> None:
    ready = prepared(epochs=2, lr=0.05)
    row = trained_row(ready, (Phase(epochs=1, lr=0.01),), CLIENT)
    other = prepared(epochs=1, lr=0.01)
    assert torch.equal(row, trained_row(other, (Phase(),), CLIENT))


def count_batches(ready: Prepared, phase: Phase = Phase(), client: int = CLIENT) -> list[Tensor]:  # noqa: B008
    worker = seat(ready, client)
    trainer = Trainer(worker, phase, 0)
    return [batch.labels for batch in trainer.batches()]


def test_every_epoch_sees_every_sample_once_and_keeps_the_partial_batch() -> None:
    ready = prepared(epochs=3, batch=10)
    own = ready.problem().train[CLIENT]
    assert len(own) % 10 not in (0, 1)
    seen: list[Tensor] = []

    def watch(batch: Batch) -> Tensor:
        seen.append(batch.inputs[:, 0])
        return task_loss(batch)

    trained_row(ready, (Phase(terms=(watch,)),), CLIENT)
    per_epoch = math.ceil(len(own) / 10)
    assert len(seen) == 3 * per_epoch
    assert [len(part) for part in seen[:per_epoch]] == [10] * (per_epoch - 1) + [len(own) % 10]
    for epoch in range(3):
        values = torch.cat(seen[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert torch.equal(values.sort().values, ready.problem().inputs[own][:, 0].sort().values)
    assert not torch.equal(seen[0], seen[per_epoch]), "epochs are shuffled anew"


def one_extra_sample(model: str) -> Prepared:
    """A client whose last batch of ten holds a single sample."""
    data = toy_data(60)
    partition = Partition(train=(np.arange(21), np.arange(21, 40)), test=(np.arange(40, 50), np.arange(50, 60)))
    return tiny("fedavg", model, data=data, partition=partition, epochs=1).prepare()


@pytest.mark.parametrize(("model", "batches"), [("norm", 2), ("plain", 3)])
def test_single_samples_are_skipped_only_if_batch_norm_would_fail(model: str, batches: int) -> None:
    ready = one_extra_sample(model)
    assert len(count_batches(ready, client=0)) == batches
    trained_row(ready, (Phase(),), 0)


def test_a_client_of_one_sample_keeps_its_model_under_batch_norm() -> None:
    data = toy_data(30)
    partition = Partition(train=(np.arange(1), np.arange(1, 20)), test=(np.arange(20, 25), np.arange(25, 30)))
    ready = tiny("fedavg", "norm", data=data, partition=partition).prepare()
    assert torch.equal(trained_row(ready, (Phase(),), 0), ready.federation().initial)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam"}], ids=str)
def test_head_only_training_on_cached_features_equals_training_through_the_extractor(settings: dict[str, Any]) -> None:
    ready = prepared("plain", **settings)
    name = settings.get("optimizer", "sgd")
    extra = {key: value for key, value in settings.items() if key != "optimizer"}

    def make(module: nn.Module) -> torch.optim.Optimizer:
        return KINDS[name](module.classifier.parameters(), lr=0.05, **extra)

    row = trained_row(ready, (Phase("classifier"),), CLIENT)
    assert torch.allclose(row, plain_training(ready, make), atol=1e-6)


def test_a_head_phase_after_a_body_phase_sees_the_trained_body() -> None:
    ready = prepared("plain")
    worker = seat(ready, CLIENT)
    train(worker, (Phase("extractor"), Phase("classifier")))
    other = seat(ready, CLIENT)
    train(other, (Phase("extractor"),))
    train(other, (Phase("extractor", epochs=0), Phase("classifier")))
    assert torch.equal(worker.model("model").row, other.model("model").row)
    alone = trained_row(ready, (Phase("classifier"),), CLIENT)
    head = ready.problem().layout.columns("classifier")
    assert not torch.allclose(head.take(worker.model("model").row), head.take(alone), atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize(
    "settings", [{"momentum": 0.9, "weight_decay": 0.5}, {"optimizer": "adamw", "weight_decay": 0.5}], ids=str
)
@pytest.mark.parametrize("group", ["classifier", "extractor", "all - norm", "norm"])
def test_frozen_groups_do_not_move(model: str, settings: dict[str, Any], group: str) -> None:
    ready = prepared(model, **settings)
    layout = ready.problem().layout
    trained = layout.columns(group) & layout.columns("parameters")
    if not trained:
        with pytest.raises(CoterieError, match="holds no trainable parameters"):
            trained_row(ready, (Phase(group),), CLIENT)
        return
    # The whole model moves first, so that momentum and adaptive moments exist.
    worker = seat(ready, CLIENT)
    train(worker, (Phase(),))
    before = worker.model("model").row.clone()
    train(worker, (Phase(group),))
    after = worker.model("model").row
    frozen = layout.columns("parameters") - trained
    assert torch.equal(frozen.take(after), frozen.take(before))
    for entry in layout.entries:
        if entry.columns <= trained:
            assert not torch.equal(entry.columns.take(after), entry.columns.take(before)), entry.name


def test_running_statistics_move_in_training_and_rest_in_head_only_phases() -> None:
    ready = prepared("norm")
    layout = ready.problem().layout
    stats = layout.columns("stats")
    initial = ready.federation().initial
    assert torch.equal(stats.take(trained_row(ready, (Phase("classifier"),), CLIENT)), stats.take(initial))
    moved = stats.take(trained_row(ready, (Phase(),), CLIENT))
    assert not torch.allclose(moved, stats.take(initial), atol=1e-3)
    worker = seat(ready, CLIENT)
    train(worker, (Phase(), Phase("classifier")))
    worker.test(ready.problem().test[CLIENT])
    assert torch.equal(stats.take(worker.model("model").row), moved)


def test_statistics_rest_in_head_only_phases_whatever_a_term_computes() -> None:
    """A term may run the extractor itself, on the same samples under another (or the same) slot."""
    ready = prepared("norm")

    def again(batch: Batch) -> Tensor:
        return task_loss(batch) + 0.1 * batch.under("model").features.square().sum(1)

    stats = ready.problem().layout.columns("stats")
    row = trained_row(ready, (Phase("classifier", terms=(again,)),), CLIENT)
    assert torch.equal(stats.take(row), stats.take(ready.federation().initial))


def test_testing_changes_nothing() -> None:
    for model in MODELS:
        ready = prepared(model)
        worker = seat(ready, CLIENT)
        train(worker, (Phase(),))
        before = worker.model("model").row.clone()
        first = worker.test(ready.problem().test[CLIENT])
        second = worker.test(ready.problem().test[CLIENT])
        assert torch.equal(first.losses, second.losses)
        assert torch.equal(worker.model("model").row, before)


def test_dropout_is_a_function_of_seed_round_and_client() -> None:
    ready = prepared("dropout")
    row = trained_row(ready, (Phase(),), CLIENT)
    torch.rand(5)
    worker = seat(ready, 0)
    train(worker, (Phase(),))
    worker.seat(worker.federation, CLIENT)
    train(worker, (Phase(),))
    assert torch.equal(worker.model("model").row, row)

    def make(module: nn.Module) -> torch.optim.Optimizer:
        torch.manual_seed(stream_seed(0, "dropout", 1, CLIENT))
        return torch.optim.SGD(module.parameters(), lr=0.05)

    assert torch.allclose(plain_training(ready, make), row, atol=1e-6)


def test_rounds_and_clients_draw_different_batches() -> None:
    ready = prepared()
    assert not torch.equal(trained_row(ready, (Phase(),), CLIENT, 1), trained_row(ready, (Phase(),), CLIENT, 2))
    other = replace(ready.experiment, seed=1).prepare()
    assert not torch.equal(trained_row(ready, (Phase(),), CLIENT, 1), trained_row(other, (Phase(),), CLIENT, 1))


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_the_proximal_term_equals_its_penalty_in_the_loss(model: str) -> None:
    ready = prepared(model, momentum=0.5)
    expected = plain_training(ready, lambda module: torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5), mu=0.7)
    row = trained_row(ready, (Phase(row_terms=(Proximal(0.7),)),), CLIENT)
    assert torch.allclose(row, expected, atol=1e-6)
    assert not torch.allclose(row, trained_row(ready, (Phase(),), CLIENT), atol=1e-4)


def test_row_terms_are_the_gradients_of_their_formulas() -> None:
    torch.manual_seed(0)
    row = torch.randn(7, dtype=torch.float64, requires_grad=True)
    anchor = torch.randn(7, dtype=torch.float64)
    formulas: list[tuple[Any, Callable[[Tensor], Tensor]]] = [
        (Proximal(0.3), lambda w: 0.15 * (w - anchor).square().sum()),
        (Linear("dual", -2.0), lambda w: -2.0 * (anchor * w).sum()),
    ]
    for term, formula in formulas:
        given = term.gradient(row.detach(), lambda slot: anchor)
        (expected,) = torch.autograd.grad(formula(row), row)
        assert torch.allclose(given, expected)
        step = 1e-6
        for column in range(len(row)):
            shift = torch.zeros(7, dtype=torch.float64)
            shift[column] = step
            slope = (formula(row.detach() + shift) - formula(row.detach() - shift)) / (2 * step)
            assert float(given[column]) == pytest.approx(float(slope), abs=1e-6)


def test_row_terms_act_on_every_trained_span() -> None:
    """A pull towards zero moves each trained tensor that the loss leaves alone, and no frozen one."""
    ready = prepared("norm", lr=0.1)
    layout = ready.problem().layout

    def no_loss(batch: Batch) -> Tensor:
        return 0 * batch.logits.sum(1)

    worker = seat(ready, CLIENT)
    worker.federation.add_slot("zero", "all").own.zero_()
    before = worker.model("model").row.clone()
    train(worker, (Phase("all - norm", terms=(no_loss,), row_terms=(Proximal(1.0, "zero"),)),))
    after = worker.model("model").row
    steps = 2 * math.ceil(len(ready.problem().train[CLIENT]) / 10)
    pulled = layout.columns("all - norm")
    assert torch.allclose(pulled.take(after), pulled.take(before) * 0.9**steps, atol=1e-5)
    kept = layout.columns("norm") & layout.columns("parameters")
    assert torch.equal(kept.take(after), kept.take(before))


def test_terms_add_up() -> None:
    ready = prepared()

    def half(batch: Batch) -> Tensor:
        return task_loss(batch) / 2

    row = trained_row(ready, (Phase(terms=(half, half)),), CLIENT)
    assert torch.allclose(row, trained_row(ready, (Phase(),), CLIENT), atol=1e-6)


def test_a_phase_on_another_slot_trains_that_slot_on_the_models_features() -> None:
    ready = prepared()
    worker = seat(ready, CLIENT)
    worker.federation.add_slot("teacher", "classifier")
    train(worker, (Phase("classifier", slot="teacher"),))
    model, teacher = worker.model("model").row, worker.model("teacher").row
    assert torch.equal(model, ready.federation().initial)
    head = ready.problem().layout.columns("classifier")
    expected = head.take(trained_row(ready, (Phase("classifier"),), CLIENT))
    assert torch.equal(head.take(teacher), expected)


def test_another_slots_head_is_frozen_while_the_model_trains() -> None:
    ready = prepared()
    worker = seat(ready, CLIENT)
    worker.federation.add_slot("teacher", "classifier").own.mul_(2)
    before = worker.model("teacher").row.clone()

    def both(batch: Batch) -> Tensor:
        return task_loss(batch) + batch.head("teacher").square().sum(1)

    train(worker, (Phase(terms=(both,)),))
    assert torch.equal(worker.model("teacher").row, before)
    assert not torch.allclose(worker.model("model").row, trained_row(ready, (Phase(),), CLIENT), atol=1e-4)


def test_values_reach_the_client_they_are_for() -> None:
    worker = seat(prepared(), CLIENT)
    worker.federation.add_value("shared", torch.tensor([1.0, 2.0]))
    worker.federation.add_value("own", torch.arange(4.0)[:, None], per_client=True)
    assert worker.value("shared").tolist() == [1.0, 2.0]
    assert worker.value("own").tolist() == [float(CLIENT)]


def test_a_phase_without_parameters_is_refused() -> None:
    worker = seat(prepared("norm"), CLIENT)
    worker.federation.add_slot("teacher", "classifier")
    for phase in (Phase("extractor", slot="teacher"), Phase("stats")):
        with pytest.raises(CoterieError, match="holds no trainable parameters"):
            train(worker, (phase,))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", 0),
        ("batch", 0),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("momentum", 1.0),
        ("momentum", -0.5),
        ("weight_decay", -0.1),
        ("clip", -1.0),
        ("decay", 0.0),
        ("decay", 1.5),
        ("schedule", "linear"),
        ("optimizer", "lion"),
    ],
)
def test_impossible_settings_are_refused(option: str, value: Any) -> None:
    with pytest.raises(CoterieError, match=option):
        Training(**{option: value})
    with pytest.raises(CoterieError, match=option):
        Experiment(**{option: value})


def test_the_last_phase_of_the_tested_model_tells_what_was_seen() -> None:
    """Its only batch is run through the model that the phase before it has left."""
    ready = prepared(epochs=1, batch=1000, lr=0.5)
    before, last = Phase(train="extractor"), Phase(train="classifier")
    seen: list[tuple[Tensor, Tensor]] = []
    train(seat(ready, CLIENT), (before, last), seen)
    ((outputs, labels),) = seen
    half_way = seat(ready, CLIENT)
    train(half_way, (before,))
    problem = ready.problem()
    own = problem.train[CLIENT]
    module = problem.layout.load(copy.deepcopy(ready.problem_base.module), half_way.model("model").row)
    assert sorted(labels.tolist()) == sorted(problem.labels[own].tolist())
    torch.testing.assert_close(outputs.sum(0), module(problem.inputs[own]).sum(0), rtol=1e-4, atol=1e-4)


def test_settings_at_their_bounds_are_not() -> None:
    settings = Training(batch=1, decay=1.0, momentum=0.0, optimizer="rprop", weight_decay=0.0, clip=0.0)
    assert (settings.batch, settings.optimizer) == (1, "rprop")


def test_settings_that_would_be_ignored_are_refused() -> None:
    with pytest.raises(CoterieError, match="momentum"):
        Training(optimizer="adam", momentum=0.9)
    with pytest.raises(CoterieError, match="weight_decay"):
        Training(optimizer="rprop", weight_decay=0.1)


def test_a_trainers_parts_are_parameters_only() -> None:
    worker = seat(prepared("norm"), CLIENT)
    layout = worker.problem.layout
    parts = Trainer(worker, Phase(), 0).parts
    assert Columns.of(*(part.span for part in parts)) == layout.columns("parameters")


def test_a_phase_may_train_two_slots_in_one_step() -> None:
    """Each slot's gradient is that of the sum of the losses, and what is not named stays."""
    ready = prepared()
    layout = ready.problem().layout

    def both(batch: Batch) -> Tensor:
        second = nn.functional.cross_entropy(
            batch.head("second", batch.features.detach()), batch.labels, reduction="none"
        )
        return task_loss(batch) + second

    worker = seat(ready, CLIENT)
    worker.federation.add_slot("second", "classifier")
    train(worker, (Phase(terms=(both,), also={"second": "classifier"}),))
    assert torch.allclose(worker.model("model").row, trained_row(ready, (Phase(),), CLIENT), atol=1e-6)
    head = layout.columns("classifier")
    assert not torch.equal(head.take(worker.model("second").row), head.take(ready.federation().initial))
    body = layout.columns("extractor")
    assert torch.equal(body.take(worker.model("second").row), body.take(ready.federation().initial))


@pytest.mark.thorough
def test_parameters_that_their_author_froze_do_not_move() -> None:
    module = seeded(PlainNet)
    module.get_parameter("body.0.weight").requires_grad_(False)
    for engine in ("serial", "stacked"):
        result = tiny("local", module, engine=engine, momentum=0.5, weight_decay=0.1).run()
        trained = result.model(0)
        assert torch.equal(trained.get_parameter("body.0.weight"), module.get_parameter("body.0.weight"))
        assert not torch.equal(trained.get_parameter("body.2.weight"), module.get_parameter("body.2.weight"))


def test_row_terms_alone_give_the_whole_gradient() -> None:
    ready = prepared(lr=0.1, epochs=2)
    worker = seat(ready, CLIENT)
    worker.federation.add_slot("push", fill=2.0)
    before = worker.model("model").row.clone()
    train(worker, (Phase(terms=(), row_terms=(Linear("push"),)),))
    steps = int(worker.federation.steps(torch.tensor([CLIENT])))
    assert steps > 1
    assert torch.allclose(worker.model("model").row, before - steps * 0.1 * 2.0, atol=1e-5)


def test_a_phase_without_any_objective_is_refused() -> None:
    with pytest.raises(CoterieError, match="trains 'classifier' of slot 'model' has no objective; give it terms"):
        Phase(train="classifier", terms=())


def test_optimisers_of_pytorch_step_at_the_rate_of_each_group() -> None:
    """Adam's first step is the rate against the gradient's sign, whatever its size; the run's own rate is 1 here."""
    rows = [torch.zeros(2), torch.zeros(2)]
    spans = [[(row, torch.tensor([3.0, -0.5]))] for row in rows]
    optimiser = make_optimiser(spans, Training(epochs=1, batch=1, lr=1.0, optimizer="adam"))
    optimiser.start([0.25, 0.125])
    optimiser.step()
    torch.testing.assert_close(torch.cat(rows), torch.tensor([-0.25, 0.25, -0.125, 0.125]))
