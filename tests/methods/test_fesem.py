"""FeSEM: centres, members, empty centres, and whole rounds against plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_rounds import (
    CLIENTS,
    DATA,
    HEAD,
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

from coterie.errors import CoterieError
from coterie.methods.fesem import FeSEM
from coterie.testing.toys import toy_partition
from support import final_rows, tiny


def compared(row: Tensor) -> Tensor:
    """The classifier's weight matrix of a plain row: the head without its bias."""
    return row[WIDTH - HEAD : WIDTH - DATA.classes].double()


def nearest(point: Tensor, centres: list[Tensor]) -> tuple[int, float]:
    distances = [float((point - centre).square().sum()) for centre in centres]
    return distances.index(min(distances)), min(distances)


def plain_assignment(points: dict[int, Tensor], centres: list[Tensor]) -> dict[int, int]:
    """Nearest centres, after every empty one has moved to the point farthest from its own."""
    for _ in centres:
        found = {k: nearest(point, centres) for k, point in points.items()}
        empty = [q for q in range(len(centres)) if q not in {group for group, _ in found.values()}]
        farthest = max(found, key=lambda k: found[k][1])
        if not empty or found[farthest][1] == 0:
            break
        centres[empty[0]] = points[farthest]
    return {k: nearest(point, centres)[0] for k, point in points.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_rounds_equal_plain_loops(join: float, mu: float) -> None:
    models, uploaded = copies(), dict[int, Tensor]()
    centres = [compared(vector(fresh())) for _ in range(2)]
    for t in range(1, 5):
        for k in cohort_of(t, join):
            start = vector(models[k])

            def pull(model: nn.Module, _x: Tensor, _y: Tensor, start: Tensor = start) -> Tensor:
                return mu / 2 * (nn.utils.parameters_to_vector(model.parameters()) - start).square().sum()

            train(models[k], k, t, extra=pull)
            uploaded[k] = vector(models[k])
        points = {k: compared(row) for k, row in uploaded.items()}
        groups = plain_assignment(points, centres)
        for _ in range(5):
            for q in set(groups.values()):
                members = [points[k] for k in points if groups[k] == q]
                centres[q] = torch.stack(members).mean(0)
            groups = plain_assignment(points, centres)
        for k, model in enumerate(models):
            peers = [j for j in uploaded if k not in groups or groups[j] == groups[k]]
            load(model, mean_of([uploaded[j] for j in peers]))
    result, _ = run(FeSEM(centres=2, mu=mu), rounds=4, join=join)
    assert_rows(result, [vector(model) for model in models])
    clusters = result.federation.values["clusters"]
    assert {k: int(clusters[k]) for k in uploaded} == groups
    assert len(set(groups.values())) == 2


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_one_centre_is_the_plain_mean(model: str) -> None:
    result, reports = run(FeSEM(centres=1), model=model)
    rows = final_rows(result)
    assert torch.equal(rows, rows[:1].expand_as(rows))
    for report in reports:
        torch.testing.assert_close(report.mixes[0].weights, torch.full((CLIENTS, CLIENTS), 1 / CLIENTS))


def test_a_centre_for_everybody_is_local_training() -> None:
    ours = final_rows(tiny(FeSEM(centres=CLIENTS + 3)).run())
    torch.testing.assert_close(ours, final_rows(tiny("local").run()), rtol=0, atol=1e-7)


def test_it_is_neither_local_training_nor_fedavg() -> None:
    assert differs_from_both(FeSEM(centres=2))


def test_members_hold_their_centre_and_no_centre_is_empty() -> None:
    partition = toy_partition(DATA, 9)
    result, reports = run(FeSEM(centres=3), rounds=4, partition=partition)
    clusters, rows = result.federation.values["clusters"], final_rows(result)
    assert clusters.unique().tolist() == [0, 1, 2]
    for q in range(3):
        members = rows[clusters == q]
        torch.testing.assert_close(members, members[:1].expand_as(members))
    weights = reports[-1].mixes[0].weights
    same = clusters[:, None] == clusters[None]
    torch.testing.assert_close(weights, same.float() / same.sum(1, keepdim=True))


def test_who_never_took_part_receives_the_mean_of_all_known() -> None:
    result, reports = run(FeSEM(centres=2), rounds=1, join=0.5)
    weights, cohort = reports[0].mixes[0].weights, reports[0].cohort
    resting = [k for k in range(CLIENTS) if k not in cohort]
    assert result.federation.values["clusters"][resting].tolist() == [-1] * len(resting)
    expected = torch.zeros(CLIENTS)
    expected[cohort] = 1 / len(cohort)
    for k in resting:
        torch.testing.assert_close(weights[k], expected)


def test_models_go_up_and_come_down() -> None:
    for report in run(FeSEM(centres=2), join=0.5)[1]:
        assert bytes_a_client(report) == (4 * WIDTH, 4 * WIDTH if report.round > 1 else 0)


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_changes_nothing(FeSEM(centres=3), join=join, partition=toy_partition(DATA, 7))


def test_a_classifier_without_a_matrix_is_refused() -> None:
    class OddNet(PlainNet):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("classifier", nn.Sequential(nn.BatchNorm1d(8)))

    with pytest.raises(CoterieError, match="no weight matrix"):
        tiny(FeSEM(), OddNet()).prepare()


@pytest.mark.parametrize("options", [{"centres": 0}, {"lloyd_steps": 0}, {"mu": -1.0}])
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = "):
        FeSEM(**options)
