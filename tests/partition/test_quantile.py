"""Quantile bins: exact sizes, exact order, all samples dealt out once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.task import Regression
from coterie.data.dataset import Dataset
from coterie.errors import CoterieError
from coterie.partition import PARTITIONS, ByClient, Dirichlet, Iid, Quantile, Rule


def numbers(samples: int, seed: int = 0) -> Dataset:
    """Targets with many equal values."""
    target = np.random.default_rng(seed).integers(0, max(2, samples // 3), samples).astype(np.float32)
    owners = torch.arange(samples) % 3
    return Dataset("toy", torch.zeros(samples, 1), torch.from_numpy(target), owners=owners, task=Regression())


@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_bins_are_ranks_and_their_sizes_differ_by_at_most_one(samples: int, bins: int, seed: int) -> None:
    data, rule = numbers(samples, seed), Quantile(bins=bins)
    if bins > samples:
        with pytest.raises(CoterieError, match=f"bins = {bins}: must be at most {samples}"):
            rule.groups(data)
        return
    groups = rule.groups(data)
    sizes = [len(group) for group in groups]
    assert len(sizes) == bins
    assert max(sizes) - min(sizes) <= 1
    ranked = np.concatenate(groups)
    assert sorted(ranked.tolist()) == list(range(samples))
    values = data.labels.numpy()[ranked]
    assert (np.diff(values) >= 0).all()
    same = np.diff(values) == 0
    assert (np.diff(ranked)[same] > 0).all()  # equal labels in the order of the data


def test_every_sample_goes_to_one_client_and_the_same_seed_repeats_it() -> None:
    data = numbers(600)
    part = Quantile(clients=6, alpha=0.3, bins=4)(data, seed=3)
    held = np.concatenate([*part.train, *part.test])
    assert sorted(held.tolist()) == list(range(600))
    assert part.hash == Quantile(clients=6, alpha=0.3, bins=4)(data, seed=3).hash
    assert part.hash != Quantile(clients=6, alpha=0.3, bins=4)(data, seed=4).hash
    assert part.parameters["bins"] == 4


def test_a_small_alpha_narrows_the_range_of_clients() -> None:
    data = Dataset("toy", torch.zeros(2000, 1), torch.linspace(0, 1, 2000), task=Regression())

    def spread(alpha: float) -> float:
        part = Quantile(clients=5, alpha=alpha, bins=5)(data, seed=0)
        return float(np.mean([data.labels[own].std() for own in part.train]))

    assert spread(0.05) < 0.75 * spread(100.0)
    assert spread(100.0) == pytest.approx(float(data.labels.std()), rel=0.1)


@pytest.mark.parametrize("name", ["dirichlet", "pathological", "dominant", "two_class", "dirichlet_per_client"])
def test_rules_that_share_out_classes_refuse_numbers(name: str) -> None:
    wanted = f"partition = {name}: shares out classes, and the task of data 'toy' is regression; use quantile"
    with pytest.raises(CoterieError, match=wanted):
        PARTITIONS[name]()(numbers(100), 0)


@pytest.mark.parametrize("rule", [Iid(4), ByClient(), Quantile(4)])
def test_other_rules_take_numbers(rule: Rule) -> None:
    data = numbers(90)
    part = rule(data, 0)
    assert sum(map(len, (*part.train, *part.test))) == 90
    assert part.class_counts(data).shape == (part.clients, 0)


def test_quantile_refuses_classes() -> None:
    data = Dataset("toy", torch.zeros(60, 1), torch.arange(60) % 3, classes=3)
    with pytest.raises(CoterieError, match="the labels of data 'toy' are classes; use dirichlet"):
        Quantile(3)(data, 0)
    with pytest.raises(CoterieError, match="bins = 0: must be a whole number"):
        Quantile(bins=0)
    assert Dirichlet(3, 0.5)(data, 0).clients == 3
