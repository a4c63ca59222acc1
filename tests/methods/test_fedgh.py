"""FedGH: the server trains the classifier on class means."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from plain_training import (
    Plain,
    assert_bytes,
    assert_near,
    assert_relabelling_permutes,
    assert_unlike,
    copy_into,
    play,
    prepared_for,
    rows_of_modules,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.core.applying import apply
from coterie.core.exchange import Uploads
from coterie.core.federation import Federation
from coterie.core.tracks import exchange_mark
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.fedgh import FedGH
from coterie.rng import torch_stream
from support import final_rows, tiny, warnings_in


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"server_epochs": 3, "server_batch": 2}])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_plain_loops_give_the_same_models(join: float, options: dict[str, int]) -> None:
    ours = play(FedGH(server_lr=0.5, **options), join=join, batch=4)
    plain = Plain(ours.prepared)
    models, head = plain.models(), copy.deepcopy(plain.initial.classifier)
    for round, cohort in plain.rounds():
        sent: list[tuple[Tensor, int]] = []
        for k in cohort:
            copy_into(models[k].classifier, head)

            def loss(x: Tensor, y: Tensor, k: int = k) -> Tensor:
                return cross_entropy(models[k](x), y)

            plain.descend(k, round, models[k].parameters(), loss)
            x, y = plain.data(k)
            sent += [(mean, c) for c, mean in plain.class_means(models[k].body(x), y).items()]
        means, classes = torch.stack([mean for mean, _ in sent]), torch.tensor([c for _, c in sent])
        optimiser = torch.optim.SGD(head.parameters(), lr=0.5)
        stream = torch_stream(plain.experiment.seed, "server-head", round)
        for _ in range(options.get("server_epochs", 1)):
            for part in torch.randperm(len(classes), generator=stream).split(options.get("server_batch", 4)):
                optimiser.zero_grad()
                cross_entropy(head(means[part]), classes[part]).backward()
                optimiser.step()
    for model in models:
        copy_into(model.classifier, head)
    assert_near(ours.rows(), rows_of_modules(models))
    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, plain.test_losses(lambda k, x: models[k](x)))


def test_a_server_step_by_hand() -> None:
    # From a zero classifier every class has probability 1/3, so a step on (mean, class 0) moves the weights of
    # class 0 by 2/3 of the mean and the others by −1/3, times the rate.
    method = FedGH(server_lr=0.3)
    federation = prepared_for(method).federation()
    federation.round = 1
    head = federation.layout.columns("classifier")
    federation["model"].write_shared(head, torch.zeros(1, head.size))
    means = torch.full((1, 3, 8), torch.nan)
    means[0, 0] = torch.arange(8.0)
    uploads = Uploads(federation, torch.tensor([2]), {}, {}, {"class_means": means})
    apply(method.exchange(uploads), federation, uploads, exchange_mark(1))
    weight, bias = federation["model"].rows(federation.everyone, head)[3].split([24, 3])
    assert_near(weight.view(3, 8), torch.outer(torch.tensor([0.2, -0.1, -0.1]), torch.arange(8.0)))
    assert_near(bias, [0.2, -0.1, -0.1])


def test_no_client_s_training_touches_the_server_s_classifier() -> None:
    heads: list[Tensor] = []

    def watch(federation: Federation) -> None:
        heads.append(federation["model"].shared.clone())

    ours = play(FedGH(server_epochs=0), watch=watch)
    initial = ours.federation.layout.columns("classifier").take(ours.federation.initial)
    assert all(torch.equal(head[0], initial) for head in heads)
    assert not torch.equal(ours.group("extractor")[0], ours.group("extractor")[1])
    assert_near(torch.cat([p.detach().reshape(-1) for p in ours.federation.head.parameters()]), initial, 0)


def test_dropout_in_the_classifier_does_not_make_the_server_random() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        body = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        head = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3))
        module = nn.Sequential(body, head)
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        results.append(play(FedGH(server_lr=0.5), model=module, classifier="1").rows())
    assert torch.equal(*results)


def test_a_client_that_sits_out_keeps_its_extractor_and_gets_the_newest_classifier() -> None:
    ours = play(FedGH(server_lr=0.5), rounds=1, join=0.5)
    extractor = ours.federation.layout.columns("extractor").take(ours.federation.initial)
    moved = (ours.group("extractor") != extractor).any(1)
    assert moved.nonzero()[:, 0].tolist() == ours.reports[0].cohort
    assert len(ours.group("classifier").unique(dim=0)) == 1


def test_it_is_neither_local_nor_fedavg() -> None:
    assert_unlike(play(FedGH()).rows(), play(Local()).rows(), play(FedAvg()).rows())


def test_class_means_go_up_and_the_classifier_comes_down() -> None:
    ours = play(FedGH(), join=0.5)
    assert_bytes(ours, up=4 * 3 * 8, down=ours.bytes_of("classifier"))
    assert not any(report.mixes for report in ours.reports)


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(FedGH(server_lr=0.5, server_batch=2), join=join)


@pytest.mark.parametrize("options", [{"server_lr": 0.0}, {"server_epochs": -1}, {"server_batch": 0}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        FedGH(**options)


def test_means_that_overflowed_or_do_not_exist_teach_nothing() -> None:
    method = FedGH()
    federation = prepared_for(method).federation()
    federation.round = 1
    means = torch.full((2, 3, 8), torch.nan)
    means[1, 2] = torch.inf
    uploads = Uploads(federation, torch.tensor([0, 1]), {}, {}, {"class_means": means})
    apply(method.exchange(uploads), federation, uploads, exchange_mark(1))
    head = federation.layout.columns("classifier")
    assert torch.equal(federation["model"].rows(federation.everyone[:1], head)[0], head.take(federation.initial))


def test_a_server_step_that_overflows_is_not_blamed_on_clients(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coterie"):
        result = tiny(FedGH(server_lr=3e38, server_batch=1, server_epochs=5)).run()
    assert result.summary["diverged"] == {}
    assert bool(final_rows(result).isfinite().all())
    said = warnings_in(caplog)
    assert len(said) == 3
    assert all(text.startswith(f"round {t}: the server step of FedGH") for t, text in enumerate(said, 1))
