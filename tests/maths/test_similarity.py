"""Distances, cosines and overlaps: by hand, against plain loops, and where rounding could bite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.core import applying
from coterie.maths.similarity import class_cosines, cosines, mirrored, overlaps, row_normalised, squared_distances


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_squared_distances_equal_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    given = rows(7, 50)
    expected = torch.stack([torch.stack([(a.double() - b.double()).square().sum() for b in given]) for a in given])
    torch.testing.assert_close(squared_distances(given), expected)
    monkeypatch.setattr(applying, "BLOCK", 7)
    torch.testing.assert_close(squared_distances(given), expected)


def test_nearly_equal_rows_keep_their_distances() -> None:
    """Late in training rows differ by little; the expanded square of uncentred float32 rows would be noise."""
    given = 100 + 1e-3 * rows(6, 40)
    expected = torch.cdist(given.double(), given.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    torch.testing.assert_close(squared_distances(given), expected, rtol=1e-9, atol=0)
    gram = given @ given.T
    expanded = gram.diagonal()[:, None] + gram.diagonal()[None] - 2 * gram
    assert not torch.allclose(expanded.double(), expected, rtol=0.1, atol=0)


def test_distances_are_a_metric_of_equal_rows_too() -> None:
    same = rows(1, 30).repeat(4, 1)
    assert torch.equal(squared_distances(same), torch.zeros(4, 4, dtype=torch.float64))
    found = squared_distances(rows(5, 30))
    assert torch.equal(found, found.T)
    assert torch.equal(found.diagonal(), torch.zeros(5, dtype=torch.float64))
    assert squared_distances(rows(1, 30)).tolist() == [[0.0]]


def test_rows_are_normalised_by_their_own_maximum() -> None:
    found = row_normalised(torch.tensor([[0.0, 2.0, 4.0], [2.0, 0.0, 10.0], [4.0, 10.0, 0.0]]).double())
    torch.testing.assert_close(found, torch.tensor([[0, 0.5, 1], [0.2, 0, 1], [0.4, 1, 0]]).double())
    assert float(found[0, 1]) != float(found[1, 0])


def test_rows_of_zeros_stay_zero() -> None:
    assert torch.equal(row_normalised(torch.zeros(3, 3)), torch.zeros(3, 3))


def test_cosines_of_classes_by_hand() -> None:
    a, b, c = [[1.0, 0.0], [3.0, 4.0]], [[0.0, 2.0], [-3.0, -4.0]], [[5.0, 0.0], [0.0, 0.0]]
    first, second = class_cosines(torch.tensor([a, b, c]))
    torch.testing.assert_close(first, torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1]]).double(), atol=1e-7, rtol=0)
    # Opposed rows have cosine −1; a row of zeros has cosine 0 with everything, itself included.
    torch.testing.assert_close(second, torch.tensor([[1, -1, 0], [-1, 1, 0], [0, 0, 0]]).double(), atol=1e-7, rtol=0)


def test_cosines_are_symmetric_and_one_for_the_client_itself() -> None:
    given = torch.cat([rows(4, 9), torch.zeros(1, 9), -2 * rows(4, 9)[:1]])
    found = cosines(given)
    assert torch.equal(found, found.T)
    assert found.diagonal().tolist() == [1.0] * 6
    assert found[4, :4].tolist() == [0.0] * 4
    assert float(found[0, 5]) == pytest.approx(-1.0)
    assert float(found.abs().max()) <= 1.0
    direct = torch.nn.functional.cosine_similarity(given[1].double(), given[2].double(), dim=0)
    assert float(found[1, 2]) == pytest.approx(float(direct))


def test_a_mirror_image_keeps_the_upper_triangle_and_every_bit_of_what_is_symmetric() -> None:
    given = rows(5, 5)
    found = mirrored(given)
    assert torch.equal(found, found.T)
    assert torch.equal(found.triu(), given.triu())
    symmetric = torch.tensor([[0.0, -0.0], [-0.0, torch.nan]])
    assert torch.equal(mirrored(symmetric).view(torch.int32), symmetric.view(torch.int32))


@pytest.fixture
def uneven_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix products as some processors form them: the half below the diagonal is rounded differently."""

    def product(left: Tensor, right: Tensor) -> Tensor:
        exact = torch.matmul(left, right)
        upwards = torch.nextafter(exact, torch.full_like(exact, torch.inf))
        return torch.where(torch.ones_like(exact, dtype=torch.bool).tril(-1), upwards, exact)

    monkeypatch.setattr(Tensor, "__matmul__", product)


@pytest.mark.usefixtures("uneven_products")
def test_distances_and_cosines_are_symmetric_on_every_processor() -> None:
    given = rows(6, 9)
    assert not torch.equal(given @ given.T, (given @ given.T).T), "the stand-in for such a processor is none"
    for found in (squared_distances(given), cosines(given), *class_cosines(rows(6, 3, 9))):
        assert torch.equal(found, found.T)
    assert torch.equal(squared_distances(given).diagonal(), torch.zeros(6, dtype=torch.float64))


def mask(*bits: int) -> list[bool]:
    return [bool(bit) for bit in bits]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (mask(1, 1, 0, 0), mask(1, 1, 0, 0), 1.0),
        (mask(1, 1, 0, 0), mask(1, 0, 1, 0), 0.5),
        (mask(1, 1, 0, 0), mask(0, 0, 1, 1), 0.0),
        (mask(1, 1, 1, 1), mask(1, 1, 1, 1), 1.0),
        (mask(1, 1, 1, 0), mask(1, 0, 0, 0), 1 - 2 / 6),
        (mask(1, 0, 0, 0), mask(1, 1, 1, 0), 1 - 2 / 2),
        (mask(0, 0, 0, 0), mask(1, 1, 0, 0), 0.0),
        (mask(1, 1, 0, 0), mask(0, 0, 0, 0), 0.0),
        (mask(0, 0, 0, 0), mask(0, 0, 0, 0), 0.0),
    ],
)
def test_overlaps_by_hand(first: list[bool], second: list[bool], expected: float) -> None:
    assert float(overlaps(torch.tensor([first, second]))[0, 1]) == pytest.approx(expected)


def test_overlaps_equal_the_loop_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = rows(6, 100) > 0.3
    expected = [[1 - int((a ^ b).sum()) / (2 * int(a.sum())) for b in masks] for a in masks]
    torch.testing.assert_close(overlaps(masks), torch.tensor(expected, dtype=torch.float64))
    monkeypatch.setattr(applying, "BLOCK", 9)
    torch.testing.assert_close(overlaps(masks), torch.tensor(expected, dtype=torch.float64))
