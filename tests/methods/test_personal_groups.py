"""FedPer and FedRep with other personal groups than the classifier."""

from __future__ import annotations

import pytest
import torch
from by_hand import Hand
from plain_training import assert_bytes, assert_near, play, prepared_for

from coterie.client.recipe import phases
from coterie.errors import CoterieError
from coterie.methods import FedBN, FedPer, FedRep, Method

BIAS = "classifier.bias"


@pytest.mark.parametrize("kind", [FedPer, FedRep])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_shared_weights_and_a_personal_bias_by_hand(kind: type[FedPer], join: float) -> None:
    """FedPer moves both in one phase; FedRep first the bias, then everything else."""
    ours = play(kind(personal=BIAS), join=join)
    hand = Hand(ours.prepared)
    own = hand.layout.columns(BIAS)
    bias = torch.zeros(hand.layout.width)
    own.put(bias, torch.ones(own.size))
    assert own.size == ours.federation.classes
    rows = [hand.initial.clone() for _ in range(hand.clients)]
    for round, cohort in hand.rounds():
        for k in cohort:
            moves = [(0, torch.ones_like(bias))] if kind is FedPer else [(1, bias), (0, 1 - bias)]
            for number, moved in moves:
                for index in hand.batches(k, round, number=number):
                    rows[k] = rows[k] - 0.1 * moved * hand.gradient(rows[k], index)
        mean = hand.mean({k: rows[k] for k in cohort})
        rows = [bias * row + (1 - bias) * mean for row in rows]
    assert_near(ours.rows(), torch.stack(rows))
    assert len(ours.group(BIAS).unique(dim=0)) > 1
    shared = ours.bytes_of(f"all - {BIAS}")
    assert_bytes(ours, up=shared, down=shared)


@pytest.mark.parametrize("kind", [FedPer, FedRep])
def test_the_classifier_said_in_words_is_the_default(kind: type[FedPer]) -> None:
    plain = play(kind(), model="norm")
    for words in ("classifier", "classifier.weight + classifier.bias"):
        assert_near(play(kind(personal=words), model="norm").rows(), plain.rows())


def test_with_batch_norm_personal_fedper_is_fedbn() -> None:
    assert torch.equal(play(FedPer(personal="norm"), model="norm").rows(), play(FedBN(), model="norm").rows())


def test_fedrep_trains_the_personal_group_on_cached_features_where_it_can() -> None:
    prepared = prepared_for(FedRep(personal=BIAS))
    head, body = phases(prepared.method.recipe(prepared.federation()))
    assert (head.train, body.train) == (BIAS, f"all - {BIAS}")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (FedPer(personal="all"), "personal = 'all': leaves nothing to share"),
        (FedRep(personal="stats"), "personal = 'stats': holds no parameters"),
        (FedPer(personal="nowhere"), "unknown group 'nowhere'"),
    ],
)
def test_groups_that_leave_nothing_are_refused(method: Method, words: str) -> None:
    with pytest.raises(CoterieError, match=words):
        prepared_for(method, model="norm").federation()
