"""f-FedAP: FedBN first, then mixes by how alike the clients' data look; P once, at download time."""

from __future__ import annotations

import pytest
import torch
from plain_rounds import (
    CLIENTS,
    DATA,
    SIZES,
    TRAIN,
    WIDTH,
    assert_relabelling_changes_nothing,
    assert_rows,
    bytes_a_client,
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

from coterie.errors import CoterieError
from coterie.methods.fedap import FedAP
from coterie.testing.toys import PlainNet, seeded, toy_partition
from support import MODELS, final_rows, tiny


def test_mixing_by_hand() -> None:
    distances = torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]], dtype=torch.float64)
    found = FedAP(m=0.4).nearness(distances)
    expected = torch.tensor([[0.4, 0.45, 0.15], [0.4, 0.4, 0.2], [0.24, 0.36, 0.4]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_clients_that_do_not_differ_share_nearly_all() -> None:
    distances = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 2.0], [2.0, 2.0, 0.0]], dtype=torch.float64)
    found = FedAP().nearness(distances)
    torch.testing.assert_close(found[0], torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    torch.testing.assert_close(FedAP().nearness(torch.zeros(3, 3))[0], torch.tensor([0.5, 0.25, 0.25]).double())
    assert FedAP().nearness(torch.zeros(1, 1)).tolist() == [[1.0]]


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_warming_up_all_the_time_is_fedbn(model: str, join: float) -> None:
    ours, fedbn = (tiny(method, model, join=join).run() for method in (FedAP(warm_up=1.0), "fedbn"))
    assert torch.equal(final_rows(ours), final_rows(fedbn))
    assert ours.numbers.curves("accuracy") == fedbn.numbers.curves("accuracy")


def test_learning_from_oneself_alone_is_local_training() -> None:
    result, reports = run(FedAP(warm_up=0.0, m=1.0), model="norm")
    assert torch.equal(final_rows(result), final_rows(tiny("local", "norm").run()))
    assert all(torch.equal(mix.weights, torch.eye(CLIENTS)) for report in reports for mix in report.mixes)


def test_it_is_neither_local_training_nor_fedavg() -> None:
    assert differs_from_both(FedAP())


def plain_statistics(model: PlainNet, client: int) -> list[tuple[Tensor, Tensor]]:
    x = DATA.inputs[TRAIN[client]]
    first = model.body[0](x).detach().double()
    second = model.body[2](model.body[1](first.float())).detach().double()
    return [(out.mean(0), out.std(0, correction=0)) for out in (first, second)]


def plain_weights(measured: dict[int, list[tuple[Tensor, Tensor]]]) -> dict[int, dict[int, float]]:
    weights: dict[int, dict[int, float]] = {}
    for i, mine in measured.items():
        inverse = {}
        for j, theirs in measured.items():
            if j != i:
                pairs = zip(mine, theirs, strict=True)
                inverse[j] = 1 / sum(
                    float(((a - c).square().sum() + (b - d).square().sum()).sqrt()) for (a, b), (c, d) in pairs
                )
        weights[i] = {j: 0.5 * value / sum(inverse.values()) for j, value in inverse.items()}
        weights[i][i] = 0.5 if inverse else 1.0
    return weights


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_rounds_equal_plain_loops(join: float) -> None:
    stored, measured = copies(), dict[int, list[tuple[Tensor, Tensor]]]()
    weights: dict[int, dict[int, float]] = {}
    for t in range(1, 7):
        cohort = cohort_of(t, join)
        rows = [vector(model) for model in stored]
        for k in cohort:
            if k in weights:
                load(stored[k], mean_of([rows[j] for j in weights[k]], list(weights[k].values())))
            if t > 2 and k not in measured:
                measured[k] = plain_statistics(stored[k], k)
        for k in cohort:
            train(stored[k], k, t)
        if t <= 2:
            mean = mean_of([vector(stored[k]) for k in cohort], [SIZES[k] for k in cohort])
            for model in stored:
                load(model, mean)
        else:
            weights = plain_weights(measured)
    result, _ = run(FedAP(warm_up=0.34), rounds=6, join=join)
    assert_rows(result, [vector(model) for model in stored])


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_who_took_part_after_fedbn_is_measured_and_nobody_else_is_in_a_mix(model: str) -> None:
    partition = toy_partition(DATA, 6)
    result, reports = run(FedAP(warm_up=0.25), model=model, rounds=8, join=0.5, partition=partition)
    after = {k for report in reports[2:] for k in report.cohort}
    known = result.federation.values["statistics"].isfinite().flatten(1).all(1)
    assert set(known.nonzero()[:, 0].tolist()) == after
    mixing = result.federation.values["mixing"]
    unknown = ~known
    assert torch.equal(mixing[unknown], torch.eye(6, dtype=torch.float64)[unknown])
    assert bool((mixing[known][:, unknown] == 0).all())
    torch.testing.assert_close(mixing.sum(1), torch.ones(6, dtype=torch.float64))


def test_the_received_moment_is_tested_with_the_mix_and_the_trained_one_with_the_stored_model() -> None:
    result, _ = run(FedAP(warm_up=0.34), rounds=3)
    stored = final_rows(result)
    mixed = (result.federation.values["mixing"].float() @ stored).unbind(0)
    received, trained = result.numbers.last("received"), result.numbers.last("trained")
    assert received is not None
    assert trained is not None
    for k, index in enumerate(toy_partition(DATA).test):
        x, y = DATA.inputs[torch.from_numpy(index)], DATA.labels[torch.from_numpy(index)]
        for row, evaluation in ((mixed[k], received), (stored[k], trained)):
            model = seeded(MODELS["plain"])
            load(model, row)
            loss = nn.functional.cross_entropy(model(x), y).detach()
            assert float(evaluation.loss[k]) == pytest.approx(float(loss), rel=1e-4)


def test_all_but_batch_norm_travels_and_statistics_once() -> None:
    _, reports = run(FedAP(), rounds=4)
    first, usual, measured = (4 * WIDTH, 0), (4 * WIDTH, 4 * WIDTH), (4 * WIDTH + 4 * 2 * 16, 4 * WIDTH)
    assert [bytes_a_client(report) for report in reports] == [first, usual, measured, usual]
    _, reports = run(FedAP(), rounds=4, model="norm")
    layers = [layer for layer in seeded(MODELS["norm"]).modules() if isinstance(layer, nn.Linear)]
    travels = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
    assert [bytes_a_client(report) for report in reports[:2]] == [(4 * travels, 0), (4 * travels, 4 * travels)]


def test_batch_norm_stays_with_the_client() -> None:
    result, _ = run(FedAP(warm_up=0.34), model="norm")
    norm = result.federation.layout.columns("norm").take(final_rows(result))
    assert not torch.allclose(norm[0], norm[1], atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_changes_nothing(FedAP(warm_up=0.25), join=join, rounds=5, model="norm")


def test_an_extractor_without_layers_is_refused() -> None:
    class Bare(nn.Sequential):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(6, 3)

    with pytest.raises(CoterieError, match=r"^fedap: the extractor has no convolution"):
        tiny(FedAP(), Bare()).prepare()


@pytest.mark.parametrize("options", [{"warm_up": 1.1}, {"m": -0.1}])
def test_wrong_options_are_named(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = "):
        FedAP(**options)
