"""Noise is normal, samples are Poisson samples, and at sites neither repeats."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest

from coterie.privacy.noise import DerivedNoise, NoiseSource, SecureNoise

SOURCES = [DerivedNoise(0, "noise", 1, 2), SecureNoise()]
NEVER = 1e-9  # the chance that a sound source fails a test here


@pytest.mark.parametrize("source", SOURCES, ids=["derived", "secure"])
def test_noise_is_standard_normal(source: NoiseSource) -> None:
    drawn = source.normal(20_000)
    assert drawn.dtype == torch.float32
    assert kstest(drawn.numpy(), "norm").pvalue > NEVER
    halves = torch.corrcoef(torch.stack([drawn[:10_000], drawn[10_000:]]))
    assert abs(float(halves[0, 1])) < 0.07  # seven deviations of the mean of 10,000 products


@pytest.mark.parametrize("source", SOURCES, ids=["derived", "secure"])
def test_a_poisson_sample_draws_each_place_on_its_own(source: NoiseSource) -> None:
    drawn = torch.zeros(2_000, 50)
    for row in drawn:
        row[source.chosen(50, 0.2)] = 1
    counts = drawn.sum(1)
    assert float(counts.mean()) == pytest.approx(50 * 0.2, abs=0.5)
    assert float(counts.var()) == pytest.approx(50 * 0.2 * 0.8, rel=0.25)  # of shuffled batches it would be 0
    together = torch.corrcoef(drawn.T) - torch.eye(50)
    assert float(together.abs().max()) < 0.17


def test_odd_counts_none_and_all() -> None:
    for source in SOURCES:
        assert source.normal(7).shape == (7,)
        assert source.normal(0).shape == (0,)
        assert source.chosen(0, 0.5).tolist() == []
        assert source.chosen(3, 1.0).tolist() == [0, 1, 2]


def test_derived_noise_repeats_and_secure_noise_does_not() -> None:
    assert torch.equal(DerivedNoise(0, "a", 1, 2).normal(9), DerivedNoise(0, "a", 1, 2).normal(9))
    assert not torch.equal(DerivedNoise(0, "a", 1, 2).normal(9), DerivedNoise(0, "a", 2, 2).normal(9))
    torch.manual_seed(0)
    first = SecureNoise().normal(9)
    torch.manual_seed(0)
    assert not torch.equal(first, SecureNoise().normal(9))
