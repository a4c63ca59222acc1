"""The embedded digits are copies of one form: their labels say where each begins, and their pixels that they differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold

from coterie.data import embedded, load
from coterie.data.embedded import FORM_STARTS
from coterie.partition import ByClient

DIGITS = load("digits")
LABELS = DIGITS.labels.tolist()
FORM = LABELS[:130]
ODD_ONE = 385  # the last digit of form-2, a 3 where the form has an 8
BORDERS = (*FORM_STARTS, len(LABELS))


def is_part(copy: Sequence[int], form: Sequence[int]) -> bool:
    """Whether a sequence is the form's, with digits missing and none added."""
    rest = iter(form)
    return all(digit in rest for digit in copy)


def owners() -> np.ndarray:
    assert DIGITS.owners is not None
    return DIGITS.owners.numpy()


def aligned() -> list[int]:
    """The labels, but for the one that is another than the form's."""
    assert (LABELS[ODD_ONE], FORM[ODD_ONE - 256]) == (3, 8)
    return [*LABELS[:ODD_ONE], 8, *LABELS[ODD_ONE + 1 :]]


def test_every_copy_is_the_form_s_sequence_with_a_few_digits_missing() -> None:
    labels = aligned()
    lengths = [end - start for start, end in pairwise(BORDERS)]
    assert sorted(lengths) == [122, 123, 126, 128, 128, *[130] * 9]
    for start, end in pairwise(BORDERS):
        assert is_part(labels[start:end], FORM)
    whole = [start for start in range(len(labels) - 129) if labels[start : start + 130] == FORM]
    assert whole == [start for start, length in zip(FORM_STARTS, lengths, strict=True) if length == 130]


def test_the_borders_are_where_copies_meet() -> None:
    """A border that is moved either way makes one of its neighbours longer than the form allows."""
    labels = aligned()
    for before, border, after in zip(BORDERS, BORDERS[1:], BORDERS[2:], strict=False):
        assert not is_part(labels[before : border + 1], FORM) or not is_part(labels[border + 1 : after], FORM)
        assert not is_part(labels[border - 1 : after], FORM) or not is_part(labels[before : border - 1], FORM)


def test_forms_are_the_owners() -> None:
    assert DIGITS.owner_names == tuple(f"form-{form}" for form in range(14))
    assert np.flatnonzero(np.diff(owners(), prepend=-1)).tolist() == list(FORM_STARTS)
    partition = ByClient()(DIGITS, seed=0)
    assert partition.names == DIGITS.owner_names
    assert sorted(np.concatenate([partition.train[3], partition.test[3]]).tolist()) == list(range(386, 516))


def test_a_digit_s_nearest_neighbour_tends_to_be_of_its_form() -> None:
    pixels = DIGITS.inputs.flatten(1).numpy()
    apart = cdist(pixels, pixels)
    np.fill_diagonal(apart, np.inf)
    same = (owners()[apart.argmin(1)] == owners()).mean()
    assert same == pytest.approx(0.537, abs=0.005)
    assert np.square(np.bincount(owners()) / len(owners())).sum() == pytest.approx(0.0715, abs=0.0005)  # by chance


@pytest.mark.thorough
def test_forms_that_were_not_seen_are_harder_than_samples_that_were_not_seen() -> None:
    pixels, labels = (DIGITS.inputs.flatten(1).numpy() + 1) / 2, np.array(LABELS)

    def accuracy(folds: GroupKFold | KFold) -> float:
        right = 0
        for train, test in folds.split(pixels, labels, owners() if isinstance(folds, GroupKFold) else None):
            model = LogisticRegression(max_iter=1000).fit(pixels[train], labels[train])
            right += int((model.predict(pixels[test]) == labels[test]).sum())
        return right / len(labels)

    apart, mixed = accuracy(GroupKFold(14)), accuracy(KFold(14, shuffle=True, random_state=0))
    assert apart == pytest.approx(0.929, abs=0.005)
    assert mixed == pytest.approx(0.968, abs=0.005)


def test_inputs_and_labels_are_scikit_learn_s() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    assert torch.equal(DIGITS.inputs[:, 0], torch.from_numpy(bunch.images).float() / 16 * 2 - 1)
    assert torch.bincount(DIGITS.labels).tolist() == np.bincount(bunch.target).tolist()


@pytest.mark.thorough
def test_the_file_is_read_as_scikit_learn_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = embedded._digits_table()
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)  # where another version keeps it elsewhere
    assert np.array_equal(embedded._digits_table(), found)
    assert found.shape == (1797, 65)
