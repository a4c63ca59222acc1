"""FedGen: the generator's loss by hand, the clients' terms against autograd, and whole rounds against plain loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from plain_rounds import (
    CLIENTS,
    DATA,
    SIZES,
    TRAIN,
    WIDTH,
    PlainNet,
    assert_relabelling_changes_nothing,
    assert_rows,
    bytes_a_client,
    cohort_of,
    copies,
    differs_from_both,
    fresh,
    load,
    mean_of,
    run,
    train,
    vector,
)
from torch import Tensor, nn

from coterie.client.batch import Batch
from coterie.core.exchange import Uploads
from coterie.core.task import CrossEntropy
from coterie.errors import CoterieError
from coterie.methods.fedgen import FeatureGenerator, FedGen, GeneratedSamples, GeneratedTeacher, ensemble_loss, sameness
from coterie.rng import stream_seed, torch_stream
from support import final_rows, rows_of, seat, tiny

SMALL = FedGen(alpha=2.0, beta=3.0, decay=0.9, noise=4, hidden=6, steps=3, server_lr=0.05, server_batch=12)
COUNTS = torch.stack([torch.bincount(DATA.labels[own], minlength=DATA.classes) for own in TRAIN]).float()
D = 8


def test_the_ensemble_trusts_clients_by_their_share_of_the_label() -> None:
    logits = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 1, 0, 1])
    counts = torch.tensor([[4.0, 0.0], [1.0, 3.0], [0.0, 6.0]])
    total = 0.0
    for b, y in enumerate(labels.tolist()):
        for k in range(3):
            trust = float(counts[k, y] / counts[:, y].sum())
            total -= trust * float(logits[k, b].log_softmax(0)[y]) / 5
    assert float(ensemble_loss(CrossEntropy(), logits.unbind(0), labels, counts)) == pytest.approx(total, rel=1e-5)


def test_sameness_by_loops() -> None:
    stream = torch.Generator().manual_seed(1)
    noise, features = torch.rand(4, 3, generator=stream), torch.randn(4, 5, generator=stream)
    total = 0.0
    for i in range(4):
        for j in range(4):
            total += float((noise[i] - noise[j]).abs().mean() * (features[i] - features[j]).abs().mean()) / 16
    assert float(sameness(noise, features)) == pytest.approx(math.exp(-total), rel=1e-5)


def plain_generator(row: Tensor) -> FeatureGenerator:
    module = FeatureGenerator(DATA.classes, SMALL.noise, SMALL.hidden, D)
    tensors = {**dict(module.named_parameters()), **{n: b for n, b in module.named_buffers() if b.is_floating_point()}}
    start = 0
    for tensor in tensors.values():
        tensor.data.copy_(row[start : start + tensor.numel()].view(tensor.shape))
        start += tensor.numel()
    assert start == len(row)
    return module.eval()


def generator_row(module: FeatureGenerator) -> Tensor:
    floats = [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
    return torch.cat([tensor.detach().flatten() for tensor in floats])


class PlainTerms:
    """The clients' two terms, written out, with a client's streams of a round."""

    def __init__(self, row: Tensor, shares: Tensor, round: int, client: int, alpha: float, beta: float) -> None:
        self.module, self.shares = plain_generator(row), shares
        self.alpha, self.beta = alpha, beta
        self.samples = torch_stream(0, "generated samples", round, client)
        self.teacher = torch_stream(0, "generated teacher", round, client)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(model, PlainNet)
        labels = torch.multinomial(self.shares, len(y), replacement=True, generator=self.samples)
        with torch.no_grad():
            made = self.module(labels, torch.rand(len(y), SMALL.noise, generator=self.samples))
            like_x = self.module(y, torch.rand(len(y), SMALL.noise, generator=self.teacher))
            target = model.classifier(like_x).softmax(1)
        classified = nn.functional.cross_entropy(model.classifier(made), labels)
        taught = (target * (target.log() - model(x).log_softmax(1))).sum(1).mean()
        total: Tensor = self.alpha * classified + self.beta * taught
        return total


@pytest.mark.parametrize("kind", ["samples", "teacher"])
def test_terms_and_their_gradients(kind: str) -> None:
    worker = seat(tiny(SMALL).prepare(), client=1, round=2)
    federation, shape = worker.federation, SMALL.shape(worker.federation)
    shares = federation.values["label_shares"] = torch.tensor([0.2, 0.5, 0.3])
    term = GeneratedSamples(2.0, shape, shares) if kind == "samples" else GeneratedTeacher(2.0, shape)
    network = worker.model("model")
    network.train_only(federation.layout.columns("all"))
    loss = term(Batch(worker, "model", TRAIN[1][:7]))
    assert loss.shape == (7,)
    loss.mean().backward()
    weights = (2.0, 0.0) if kind == "samples" else (0.0, 2.0)
    plain = PlainTerms(federation.values["generator"], shares, 2, 1, *weights)
    model = fresh()
    expected = plain(model, DATA.inputs[TRAIN[1][:7]], DATA.labels[TRAIN[1][:7]])
    expected.backward()
    assert float(loss.mean().detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    gradient = torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )
    torch.testing.assert_close(network.grad, gradient, rtol=1e-4, atol=1e-6)
    assert float(gradient.abs().max()) > 1e-3


def plain_server_step(row: Tensor, heads: list[nn.Linear], counts: Tensor, round: int) -> Tensor:
    module = plain_generator(row).train()
    optimiser = torch.optim.Adam(module.parameters(), lr=SMALL.server_lr)
    stream = torch_stream(0, "generator training", round)
    for _ in range(SMALL.steps):
        labels = torch.multinomial(counts.sum(0), SMALL.server_batch, replacement=True, generator=stream)
        noise = torch.rand(SMALL.server_batch, SMALL.noise, generator=stream)
        features = module(labels, noise)
        loss = torch.zeros(())
        for head, count in zip(heads, counts, strict=True):
            trust = (count / counts.sum(0))[labels]
            loss = loss + (trust * nn.functional.cross_entropy(head(features), labels, reduction="none")).mean()
        optimiser.zero_grad()
        (loss + SMALL.diversity * sameness(noise, features)).backward()
        optimiser.step()
    return generator_row(module)


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_rounds_equal_plain_loops(join: float) -> None:
    result, _ = run(SMALL, join=join)
    row = SMALL.shape(result.federation).initial(stream_seed(0, "generator"))
    models, shares, known = copies(), torch.zeros(DATA.classes), set[int]()
    for t in range(1, 4):
        cohort = cohort_of(t, join)
        for k in cohort:
            decay = 0.9 ** (t - 1)
            terms = None if t == 1 else PlainTerms(row, shares, t, k, 2.0 * decay, 3.0 * decay)
            train(models[k], k, t, extra=terms)
        row = plain_server_step(row, [models[k].classifier for k in cohort], COUNTS[cohort], t)
        known |= set(cohort)
        shares = COUNTS[sorted(known)].sum(0) / COUNTS[sorted(known)].sum()
        mean = mean_of([vector(models[k]) for k in cohort], [SIZES[k] for k in cohort])
        for model in models:
            load(model, mean)
    assert_rows(result, [vector(model) for model in models])
    torch.testing.assert_close(result.federation.values["generator"], row, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result.federation.values["label_shares"], shares)


@pytest.mark.thorough
def test_the_generator_learns_to_please_the_classifiers() -> None:
    losses = []
    for steps in (1, 200):
        method = FedGen(steps=steps, server_lr=0.01)
        result, _ = run(method, rounds=1)
        federation, labels = result.federation, torch.arange(60) % DATA.classes
        row = federation.values["generator"]
        features = method.shape(federation).generate(row, labels, torch.Generator().manual_seed(0))
        heads = federation.layout.columns("classifier").take(final_rows(result)[:1])
        losses.append(
            float(ensemble_loss(CrossEntropy(), federation.head_logits(heads, features), labels, torch.ones(1, 3)))
        )
    assert losses[1] < 0.5 * losses[0]


def test_classifiers_that_overflow_do_not_spoil_the_generator() -> None:
    prepared = tiny(SMALL).prepare()
    federation = prepared.federation()
    rows = 3e38 * rows_of(federation).sign()
    uploads = Uploads(federation, federation.everyone, {"model": rows}, {"model": federation.layout.columns("all")})
    assert torch.equal(SMALL.trained_generator(uploads), federation.values["generator"])


@pytest.mark.parametrize("counts", [[0, 30, 0], [1, 400, 0], [9, 12, 7]])
def test_the_generator_does_not_follow_rounding_noise(counts: list[int]) -> None:
    """Batches of one label give the label's weights no gradient; classifiers that differ by a millionth give others
    by a millionth: not whole steps of Adam in other directions."""
    method = FedGen(steps=20)
    prepared = tiny(method).prepare()
    federation = prepared.federation()
    federation.round, federation.class_counts = 1, torch.tensor([counts] * CLIENTS)
    stream = torch.Generator().manual_seed(0)
    rows = rows_of(federation) + 0.1 * torch.randn(CLIENTS, WIDTH, generator=stream)
    everything, trained = {"model": federation.layout.columns("all")}, []
    for noise in (0.0, 1e-7):
        nearly = rows * (1 + noise * torch.randn(rows.shape, generator=stream))
        uploads = Uploads(federation, federation.everyone, {"model": nearly}, everything)
        trained.append(method.trained_generator(uploads))
    assert float((trained[0] - trained[1]).abs().max()) < 0.01 * method.server_lr
    assert float((trained[0] - federation.values["generator"]).abs().max()) > method.server_lr


@pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
def test_without_its_terms_it_is_fedavg(model: str) -> None:
    ours = tiny(FedGen(alpha=0, beta=0), model, join=0.5).run()
    assert torch.equal(final_rows(ours), final_rows(tiny("fedavg", model, join=0.5).run()))


def test_the_first_round_is_fedavg() -> None:
    assert torch.equal(final_rows(tiny(FedGen(), rounds=1).run()), final_rows(tiny("fedavg", rounds=1).run()))


def test_it_is_neither_local_training_nor_fedavg() -> None:
    assert differs_from_both(SMALL)


def test_classes_that_nobody_has_shown_are_not_drawn() -> None:
    """Alone, the first client sends a generator for its own classes only."""
    result, reports = run(SMALL, rounds=1, join=0.25)
    (client,) = reports[0].cohort
    shares = result.federation.values["label_shares"]
    torch.testing.assert_close(shares, COUNTS[client] / COUNTS[client].sum())
    assert bool(result.federation.values["generator"].isfinite().all())


def test_the_generator_comes_down_from_round_two_on() -> None:
    result, reports = run(SMALL, join=0.5)
    extra = result.federation.values["generator"].numel() + DATA.classes
    later = (4 * WIDTH, 4 * (WIDTH + extra))
    assert [bytes_a_client(report) for report in reports] == [(4 * WIDTH, 0), later, later]
    for report in reports:
        (mix,) = report.mixes
        torch.testing.assert_close(
            mix.weights[0], torch.tensor([SIZES[k] for k in report.cohort]) / sum(SIZES[k] for k in report.cohort)
        )


def test_everybody_holds_the_global_model() -> None:
    rows = final_rows(tiny(SMALL, join=0.5).run())
    assert torch.equal(rows, rows[:1].expand(CLIENTS, -1))


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_changes_nothing(SMALL, join=join)


@pytest.mark.parametrize(
    "options",
    [
        *({name: -1.0} for name in ("alpha", "beta", "diversity", "decay", "server_lr")),
        {"decay": 0.0},
        *({name: 0} for name in ("noise", "hidden", "steps")),
        {"server_batch": 1},
    ],
)
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = "):
        FedGen(**options)
