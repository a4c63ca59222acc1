"""FedRep: classifier first, then extractor; the classifier stays."""

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
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedrep import FedRep


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_plain_loops_give_the_same_models(join: float) -> None:
    ours = play(FedRep(head_epochs=3, body_epochs=2), join=join)
    plain = Plain(ours.prepared)
    models = plain.models()
    for round, cohort in plain.rounds():
        for k in cohort:

            def loss(x: Tensor, y: Tensor, k: int = k) -> Tensor:
                return cross_entropy(models[k](x), y)

            plain.descend(k, round, models[k].classifier.parameters(), loss, epochs=3, number=1)
            plain.descend(k, round, models[k].body.parameters(), loss, epochs=2, number=0)
        body = plain.mean([model.body for model in models], cohort)
        for model in models:
            copy_into(model.body, body)
    assert_near(ours.rows(), rows_of_modules(models))
    assert ours.reports[-1].received is not None
    assert_near(ours.reports[-1].received.loss, plain.test_losses(lambda k, x: models[k](x)))


def test_without_classifier_epochs_it_is_fedbabu_before_tuning() -> None:
    ours, theirs = play(FedRep(head_epochs=0, body_epochs=None)), play(FedBABU())
    assert torch.equal(ours.rows(), theirs.rows())


def test_no_body_epochs_given_means_those_of_the_run() -> None:
    assert torch.equal(play(FedRep(1, None), epochs=3).rows(), play(FedRep(1, 3), epochs=1).rows())


@pytest.mark.thorough
def test_it_is_none_of_its_neighbours() -> None:
    assert_unlike(play(FedRep(2, 2)).rows(), *(play(other).rows() for other in (Local(), FedAvg(), FedPer())))


def test_only_extractors_travel_and_mix_by_size() -> None:
    ours = play(FedRep(1, 1), join=0.5)
    assert_bytes(ours, up=ours.bytes_of("extractor"), down=ours.bytes_of("extractor"))
    for report in ours.reports:
        (mix,) = report.mixes
        sizes = ours.federation.sizes[report.cohort].double()
        assert mix.group == "extractor"
        assert_near(mix.weights, (sizes / sizes.sum())[None])


def test_batch_norm_statistics_stay_with_their_client() -> None:
    ours = play(FedRep(1, 1), model="norm")
    assert len(ours.group("stats").unique(dim=0)) == ours.federation.clients
    assert len(ours.group("extractor").unique(dim=0)) == 1


def test_clients_that_sat_out_keep_the_initial_classifier() -> None:
    ours = play(FedRep(1, 1), rounds=1, join=0.5)
    group = ours.federation.layout.columns("classifier")
    moved = (ours.group("classifier") != group.take(ours.federation.initial)).any(1)
    assert moved.nonzero()[:, 0].tolist() == ours.reports[0].cohort


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(FedRep(2, 1), join=join)


@pytest.mark.parametrize("options", [{"head_epochs": -1}, {"body_epochs": 0}])
def test_refused_options(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        FedRep(**options)
