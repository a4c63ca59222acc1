"""Critical parameters: which elements of a tensor, with ties, dead units and shares at the edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.client.trainer import train
from coterie.client.worker import Worker
from coterie.methods import FedCAC
from coterie.methods.fedcac import CriticalMask, critical, uncritical
from support import seat, tiny


def chosen(scores: list[float], share: float) -> list[int]:
    return critical(torch.tensor(scores), share).int().tolist()


@pytest.mark.parametrize(
    ("scores", "share", "expected"),
    [
        ([0.1, 0.4, 0.3, 0.2], 0.5, [0, 1, 1, 0]),
        ([0.1, 0.4, 0.3, 0.2], 0.25, [0, 1, 0, 0]),
        ([0.1, 0.4, 0.3, 0.2], 0.74, [0, 1, 1, 0]),  # int(2.96) = 2
        ([0.1, 0.4, 0.3, 0.2], 0.0, [0, 0, 0, 0]),
        ([0.1, 0.4, 0.3, 0.2], 0.2, [0, 0, 0, 0]),  # int(0.8) = 0
        ([0.1, 0.4, 0.3, 0.2], 1.0, [1, 1, 1, 1]),
        ([0.3, 0.3, 0.3, 0.1], 0.25, [1, 1, 1, 0]),  # ties with the last one taken
        ([0.3, 0.3, 0.3, 0.3], 0.5, [1, 1, 1, 1]),
        ([0.7], 0.99, [0]),
        ([0.7], 1.0, [1]),
        ([0.0], 1.0, [1]),
    ],
)
def test_the_highest_scores(scores: list[float], share: float, expected: list[int]) -> None:
    assert chosen(scores, share) == expected


def test_dead_elements_do_not_become_critical_by_a_tie_at_zero() -> None:
    assert chosen([0.0, 0.0, 0.0, 0.2], 0.5) == [0, 0, 0, 1]
    assert chosen([0.0, 1e-15, 0.0, 0.2], 0.5) == [0, 1, 0, 1]  # the cut moves up to the smallest that is not zero
    assert chosen([0.0, 1e-21, 0.0, 0.2], 0.5) == [0, 1, 0, 1]  # however small


def test_small_scores_are_scores_like_any_other() -> None:
    """At small rates all of them are tiny; the cut stays where it is."""
    assert chosen([1e-12, 2e-12, 3e-12, 4e-12], 0.5) == [0, 0, 1, 1]
    assert chosen([1e-11, 1e-12, 1e-13, 0.2], 0.5) == [1, 0, 0, 1]


def test_of_a_tensor_that_never_moved_nothing_is_critical() -> None:
    assert chosen([0.0, 0.0, 0.0], 0.5) == [0, 0, 0]


def test_with_share_one_dead_elements_are_critical_too() -> None:
    assert chosen([0.0, 0.0, 0.3, 0.2], 1.0) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("scores", "share", "expected"),
    [
        ([0.1, 0.4, 0.3, 0.2], 0.5, [1, 0, 0, 1]),
        ([0.1, 0.4, 0.3, 0.2], 0.0, [0, 0, 0, 0]),
        ([0.1, 0.4, 0.3, 0.2], 1.0, [1, 1, 1, 1]),
        ([0.0, 0.0, 0.0, 0.2], 0.25, [1, 1, 1, 0]),
        ([3e-9, 1e-9, 2e-9, 1.0], 0.25, [0, 1, 0, 0]),  # 1 − 1e-9 and 1 − 3e-9 are the same float32
    ],
)
def test_the_lowest_scores(scores: list[float], share: float, expected: list[int]) -> None:
    assert uncritical(torch.tensor(scores), share).int().tolist() == expected


def trained_worker(model: str = "plain", client: int = 1, round: int = 1, **options: object) -> Worker:
    method = FedCAC()
    worker = seat(tiny(method, model, **options).prepare(), client, round)
    train(worker, method.recipe(worker.federation))
    return worker


def tensors(worker: Worker, mask: Tensor) -> dict[str, Tensor]:
    """A mask over `all` by tensor name."""
    layout = worker.problem.layout
    whole = torch.zeros(layout.width, dtype=torch.bool)
    layout.columns("all").put(whole, mask)
    return {entry.name: whole[entry.start : entry.stop] for entry in layout.entries}


def test_sensitivity_is_the_rounds_displacement_times_the_weight() -> None:
    worker = trained_worker()
    masks = tensors(worker, CriticalMask(0.5)(worker))
    start = worker.problem.layout.views(worker.federation.initial)
    end = worker.problem.layout.views(worker.model("model").row)
    for name, mask in masks.items():
        scores = ((end[name] - start[name]) * end[name]).abs().flatten().tolist()
        take = int(0.5 * len(scores))
        least = sorted(scores)[-take]
        if least == 0:
            least = min((score for score in scores if score > 0), default=float("inf"))
        assert mask.tolist() == [score >= least for score in scores], name
    assert masks["classifier.weight"].float().mean() == 0.5


@pytest.mark.parametrize("kind", ["sensitivity", "random", "reverse"])
@pytest.mark.parametrize(("share", "expected"), [(0.0, False), (1.0, True)])
def test_shares_at_the_edges(kind: str, share: float, expected: bool) -> None:
    mask = CriticalMask(share, kind)(trained_worker())
    assert mask.tolist() == [expected] * len(mask)


@pytest.mark.parametrize("kind", ["sensitivity", "random", "reverse"])
@pytest.mark.parametrize("stats", ["mean", "local"])
def test_statistics_that_travel_are_critical(kind: str, stats: str) -> None:
    worker = trained_worker("norm", stats=stats)
    mask = CriticalMask(0.0, kind)(worker)
    assert len(mask) == worker.problem.layout.columns("all").size
    for entry in worker.problem.layout.entries:
        travels = stats == "mean" and entry.is_buffer
        assert tensors(worker, mask)[entry.name].tolist() == [travels] * (entry.stop - entry.start)


def test_random_masks_depend_on_client_and_round_alone() -> None:
    def draw(client: int, round: int) -> Tensor:
        return CriticalMask(0.5, "random")(trained_worker(client=client, round=round))

    assert torch.equal(draw(1, 1), draw(1, 1))
    assert not torch.equal(draw(1, 1), draw(1, 2))
    assert not torch.equal(draw(1, 1), draw(2, 1))
    assert float(draw(1, 1).float().mean()) == pytest.approx(0.5, abs=0.02)


def test_reverse_takes_the_least_sensitive() -> None:
    worker = trained_worker()
    most, least = (tensors(worker, CriticalMask(0.25, kind)(worker)) for kind in ("sensitivity", "reverse"))
    assert not bool((most["classifier.weight"] & least["classifier.weight"]).any())
    assert int(least["classifier.weight"].sum()) == 6
