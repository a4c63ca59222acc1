"""The real files, where COTERIE_DATA says where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import requires_data
from coterie.core.pixels import whole
from coterie.data import load


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "shape", "train_size", "per_class"),
    [
        pytest.param("mnist", (1, 28, 28), 60_000, None, marks=requires_data("mnist")),
        pytest.param(
            "fashion_mnist", (1, 28, 28), 60_000, 7_000, marks=[requires_data("fashion_mnist"), pytest.mark.slow]
        ),
        pytest.param("cifar10", (3, 32, 32), 50_000, 6_000, marks=[requires_data("cifar10"), pytest.mark.slow]),
    ],
)
def test_real_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    shape: tuple[int, ...],
    train_size: int,
    per_class: int | None,
) -> None:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    data = load(name, progress=False)
    assert (data.shape, data.train_size, len(data)) == (shape, train_size, train_size + 10_000)
    counts = torch.bincount(data.labels, minlength=10)
    assert per_class is None or counts.tolist() == [per_class] * 10
    assert (float(whole(data.inputs).min()), float(whole(data.inputs).max())) == (-1.0, 1.0)
    again = load(name, progress=False)
    assert torch.equal(whole(again.inputs), whole(data.inputs))
    assert torch.equal(again.labels, data.labels)
