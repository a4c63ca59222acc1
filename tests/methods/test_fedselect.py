"""FedSelect: elements that clients keep, and means of those that they share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, play, prepared_for
from torch import Tensor, nn

from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.errors import CoterieError
from coterie.methods import FedAvg
from coterie.methods.fedselect import FedSelect, NextMask
from coterie.partition import Iid
from coterie.testing.toys import toy_data


def grown(mask: Tensor, now: Tensor, share: float, limit: float = 0.8) -> Tensor:
    """The next mask of a layer [2, 4] with biases and a classifier [1, 2] without, all of which began at zero."""
    layout = Layout(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1, bias=False)), "1")
    worker = SimpleNamespace(
        problem=SimpleNamespace(layout=layout),
        value=lambda _: mask,
        model=lambda _: SimpleNamespace(row=now),
        received=lambda _: torch.zeros(12),
    )
    return NextMask(share, limit)(worker)  # type: ignore[arg-type]


def test_a_mask_grows_by_hand() -> None:
    """Of six elements that are shared, half: the three that changed most; of two, one. Biases changed more."""
    mask = torch.zeros(12, dtype=torch.bool)
    mask[:2] = True
    now = torch.tensor([9.0, 9.0, -5.0, 1.0, 4.0, -2.0, 3.0, 0.5, 99.0, -99.0, 0.1, -0.2])
    assert torch.where(grown(mask, now, 0.5))[0].tolist() == [0, 1, 2, 4, 6, 11]
    assert not bool(grown(mask, now, 0.0)[2:].any())
    assert torch.where(~grown(mask, now, 1.0))[0].tolist() == [8, 9]
    # A quarter of the layer is one's own already: not more than the limit of a quarter, but more than one of a fifth.
    assert torch.where(grown(mask, now, 0.5, limit=0.25))[0].tolist() == [0, 1, 2, 4, 6, 11]
    assert torch.where(grown(mask, now, 0.5, limit=0.2))[0].tolist() == [0, 1, 11]
    # 0.6 of six: 6 − round(2.4) = 4; ties go to the first.
    assert torch.where(grown(mask, torch.zeros(12), 0.6))[0].tolist() == [0, 1, 2, 3, 4, 5, 10]


def test_elements_are_those_of_whoever_shares_them() -> None:
    masks: dict[int, Tensor] = {}

    def watch(federation: Federation) -> None:
        masks[federation.round] = federation.values["mask"].clone()

    ours = play(FedSelect(every=1, share=0.5), watch, rounds=4)
    assert not bool(masks[1].any()), "masks first grow after round 2"
    shares = [float(masks[round].float().mean()) for round in (2, 3, 4)]
    assert 0 < shares[0] < shares[1] <= shares[2]
    used, rows = masks[3], ours.rows()  # of round 4
    for column in range(rows.shape[1]):
        shared = rows[~used[:, column], column]
        assert len(shared.unique()) <= 1
    alone = (used.sum(0) == 2).nonzero()[0]
    assert len(rows[used[:, alone[0]], alone[0]].unique()) == 2
    assert bool((masks[3] <= masks[4]).all()), "what is one's own stays"


@pytest.mark.parametrize(("model", "rounds"), [("plain", 5), ("norm", 4)])
def test_with_a_share_of_nothing_it_is_fedavg_with_even_weights(model: str, rounds: int) -> None:
    """From round 5 on an epoch on no element comes first, which batch norm sees all the same."""
    even: dict[str, Any] = {"model": model, "rounds": rounds, "data": toy_data(160), "partition": Iid(clients=4)}
    ours, fedavg = play(FedSelect(share=0.0), **even), play(FedAvg(), stats="local", **even)
    assert len(set(ours.federation.sizes.tolist())) == 1
    assert_near(ours.rows(), fedavg.rows())


def test_own_elements_train_apart_from_the_others() -> None:
    """In the round after masks grew, each turn is a phase of one's own elements, and one of the others'."""
    federation = prepared_for(FedSelect(alternations=2)).federation()
    federation.round = 4
    whole = FedSelect(alternations=2).recipe(federation)
    assert [type(step).__name__ for step in whole] == ["Phase", "Phase", "Measure", "Measure", "Keep"]
    federation.round = 5
    recipe = FedSelect(alternations=2).recipe(federation)
    rules: list[Any] = [step.rule for step in recipe[:4]]  # type: ignore[union-attr]
    assert [rule.own for rule in rules] == [True, False, True, False]
    assert len(recipe) == 5, "masks grow every third round"


def test_bounds_are_allowed() -> None:
    for one in (0.0, 1.0):
        FedSelect(share=one, limit=one, every=1, alternations=1)


def test_models_and_masks_travel() -> None:
    ours = play(FedSelect())
    model = ours.bytes_of("all")
    bits = -(-ours.federation.layout.columns("all").size // 8)
    assert_bytes(ours, up=model + bits, down=model)


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(FedSelect(every=1), join=0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": 1.5}, r"share = 1\.5: must"),
        ({"share": -0.5}, r"share = -0\.5: must"),
        ({"limit": 1.5}, r"limit = 1\.5: must"),
        ({"limit": -0.5}, r"limit = -0\.5: must"),
        ({"every": 0}, "every = 0: must"),
        ({"alternations": 0}, "alternations = 0: must"),
    ],
)
def test_refused_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError, match=f"^{words}"):
        FedSelect(**options)
