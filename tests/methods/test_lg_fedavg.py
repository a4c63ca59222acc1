"""LG-FedAvg: local extractors, a global classifier."""

from __future__ import annotations

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
    rows_of_modules,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.errors import CoterieError
from coterie.methods import FedAvg, FedPer, Local
from coterie.methods.lg_fedavg import LGFedAvg


@pytest.mark.thorough
@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_plain_loops_give_the_same_models(join: float, warmup: int) -> None:
    ours = play(LGFedAvg(warmup), join=join)
    plain = Plain(ours.prepared)
    models = plain.models()
    for round, cohort in plain.rounds():
        for k in cohort:

            def loss(x: Tensor, y: Tensor, k: int = k) -> Tensor:
                return cross_entropy(models[k](x), y)

            plain.descend(k, round, models[k].parameters(), loss)
        mean = plain.mean(models, cohort)
        for model in models:
            copy_into(model.classifier, mean.classifier)
            if round <= warmup:
                copy_into(model.body, mean.body)
    assert_near(ours.rows(), rows_of_modules(models))
    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, plain.test_losses(lambda k, x: models[k](x)))


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_nothing_but_warm_up_is_fedavg(join: float) -> None:
    assert torch.equal(play(LGFedAvg(warmup=3), join=join).rows(), play(FedAvg(), join=join).rows())


@pytest.mark.thorough
def test_it_is_none_of_its_neighbours() -> None:
    assert_unlike(play(LGFedAvg()).rows(), *(play(other).rows() for other in (Local(), FedAvg(), FedPer())))


def test_extractors_are_personal_and_the_classifier_is_not() -> None:
    ours = play(LGFedAvg(), model="norm")
    assert len(ours.group("extractor").unique(dim=0)) == ours.federation.clients
    assert len(ours.group("stats").unique(dim=0)) == ours.federation.clients
    assert len(ours.group("classifier").unique(dim=0)) == 1


def test_only_classifiers_travel_and_mix_by_size() -> None:
    ours = play(LGFedAvg(), join=0.5)
    assert_bytes(ours, up=ours.bytes_of("classifier"), down=ours.bytes_of("classifier"))
    for report in ours.reports:
        (mix,) = report.mixes
        sizes = ours.federation.sizes[report.cohort].double()
        assert mix.group == "classifier"
        assert_near(mix.weights, (sizes / sizes.sum())[None])


def test_whole_models_travel_in_the_warm_up() -> None:
    ours = play(LGFedAvg(warmup=1))
    whole, head = 4 * ours.bytes_of("all"), 4 * ours.bytes_of("classifier")
    assert [report.bytes for report in ours.reports] == [
        {"up": whole, "down": 0},
        {"up": head, "down": whole},
        {"up": head, "down": head},
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("method", [LGFedAvg(), LGFedAvg(warmup=2)])
def test_relabelling(method: LGFedAvg) -> None:
    assert_relabelling_permutes(method, join=0.5)


def test_refused_options() -> None:
    with pytest.raises(CoterieError, match=r"^warmup = -1: must not be negative$"):
        LGFedAvg(warmup=-1)
