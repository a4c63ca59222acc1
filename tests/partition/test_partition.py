"""The result type: hash, file, relabelling, held-out clients, checks; and the split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from coterie.data.dataset import Dataset
from coterie.errors import CoterieError
from coterie.partition import Dirichlet, Iid, Partition, Split

DATA = Dataset("toy", torch.zeros(500, 1), torch.arange(500) % 5, classes=5)


def example(seed: int = 0) -> Partition:
    return Dirichlet(6, 0.3)(DATA, seed, Split(0.25, validation=0.1))


def test_hash_is_stable_across_machines() -> None:
    given = Partition(
        train=(np.array([1, 2]), np.array([3])),
        test=(np.array([4]), np.array([], dtype=np.int64)),
        rule="given",
        parameters={"seed": 1, "alpha": 0.1},
    )
    assert given.hash == "525fb1005cc56b9ddc677cd5a7eb340c50221d8a9ab0a245e013485ad3978deb"


def test_hash_depends_on_what_matters_and_not_on_order_of_parameters() -> None:
    base: dict[str, Any] = {"train": (np.array([1, 2]), np.array([3])), "test": (np.array([4]), np.array([5]))}
    first = Partition(**base, parameters={"a": 1, "b": 2})
    assert first.hash == Partition(**base, parameters={"b": 2, "a": 1}).hash
    others = [
        Partition(**base, parameters={"a": 1, "b": 3}),
        Partition(**base, parameters={"a": 1, "b": 2}, held_out=(1,)),
        Partition(**base, parameters={"a": 1, "b": 2}, keys=np.array([1, 0])),
        Partition((np.array([1]), np.array([2, 3])), base["test"], parameters={"a": 1, "b": 2}),
    ]
    assert len({first.hash, *(other.hash for other in others)}) == 5
    assert len({first, *others, first}) == 5


def test_save_and_load_round_trip(tmp_path: Path) -> None:
    saved = example().with_held_out(2, seed=1).permuted([3, 1, 2, 0, 5, 4])
    saved.save(tmp_path / "clients.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["clients.safetensors"]
    loaded = Partition.load(tmp_path / "clients.safetensors")
    assert loaded == saved
    assert loaded.hash == saved.hash
    for part in ("train", "validation", "test"):
        for ours, theirs in zip(getattr(saved, part), getattr(loaded, part), strict=True):
            assert np.array_equal(ours, theirs)
            assert theirs.dtype == np.int64
    assert loaded.keys.tolist() == saved.keys.tolist() == [3, 1, 2, 0, 5, 4]
    for name in ("rule", "parameters", "notes", "names", "held_out"):
        assert getattr(loaded, name) == getattr(saved, name)


def test_load_names_the_file_that_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="does not exist"):
        Partition.load(tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("not a partition")
    with pytest.raises(CoterieError, match="cannot be read"):
        Partition.load(tmp_path / "text")
    save_file({"a": np.zeros(2)}, tmp_path / "other")
    with pytest.raises(CoterieError, match="is not a file of the format"):
        Partition.load(tmp_path / "other")
    example().save(tmp_path / "damaged")
    content = bytearray((tmp_path / "damaged").read_bytes())
    content[-8] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    with pytest.raises(CoterieError, match="is damaged"):
        Partition.load(tmp_path / "damaged")


@given(order=st.permutations(range(6)))
@settings(max_examples=20, deadline=None)
def test_permuted_relabels_everything_and_nothing_else(order: list[int]) -> None:
    base = example().with_held_out(2, seed=3)
    moved = base.permuted(order)
    for new, old in enumerate(order):
        for part in ("train", "validation", "test"):
            assert np.array_equal(getattr(moved, part)[new], getattr(base, part)[old])
        assert moved.keys[new] == base.keys[old]
        assert moved.names[new] == base.names[old]
        assert (new in moved.held_out) == (old in base.held_out)
    assert np.array_equal(moved.class_counts(DATA), base.class_counts(DATA)[order])
    assert np.array_equal(moved.sizes, base.sizes[order])
    assert moved.permuted(np.argsort(order).tolist()) == base
    assert example().permuted(order).with_held_out(2, seed=3) == moved


def test_held_out_clients() -> None:
    ten = Iid(10)(DATA, 0)
    held = ten.with_held_out(3, seed=0)
    assert len(set(held.held_out)) == 3
    assert held.hash != ten.hash
    assert held.held_out == ten.with_held_out(3, seed=0).held_out
    assert len({ten.with_held_out(3, seed=seed).held_out for seed in range(8)}) > 1
    assert len(ten.with_held_out(0.2, seed=0).held_out) == 2
    assert len(ten.with_held_out(0.01, seed=0).held_out) == 1
    assert ten.with_held_out(0, seed=0).held_out == ()
    for amount in (10, -1, 1.0, 0.0, 0.99, True):
        with pytest.raises(CoterieError, match=f"held_out = {amount}: must be"):
            ten.with_held_out(amount, seed=0)


def test_check_names_the_client() -> None:
    one = np.array([1])
    example().check(DATA)
    empty = Partition((one, np.array([], dtype=np.int64)), (one + 1, one + 2), names=("north", "south"))
    with pytest.raises(CoterieError, match="client 'south' has no training samples"):
        empty.check(DATA)
    for bad in (-1, 500):
        with pytest.raises(CoterieError, match=rf"client '1': test names sample \[{bad}\]"):
            Partition((one, one), (one + 1, np.array([bad])), names=()).check(DATA)
    with pytest.raises(CoterieError, match="client '0': 1 samples are in both train and test"):
        Partition((one,), (one,)).check(DATA)


def test_inconsistent_partitions_are_refused() -> None:
    one = np.array([1])
    with pytest.raises(CoterieError, match="there are no clients"):
        Partition((), ())
    with pytest.raises(CoterieError, match="test has 1 clients, train has 2"):
        Partition((one, one), (one,))
    with pytest.raises(CoterieError, match="3 names for 1 clients"):
        Partition((one,), (one,), names=("a", "b", "c"))
    with pytest.raises(CoterieError, match="keys must be 2 different numbers"):
        Partition((one, one), (one, one), keys=np.array([1, 1]))
    with pytest.raises(CoterieError, match=r"held_out = \(2,\)"):
        Partition((one, one), (one, one), held_out=(2,))
    unsupported: Any = [1]
    with pytest.raises(CoterieError, match="parameter alpha"):
        Partition((one,), (one,), parameters={"alpha": unsupported})
    with pytest.raises(CoterieError, match=r"order = \[0, 0\]"):
        Partition((one, one), (one, one)).permuted([0, 0])


def test_class_counts_and_sizes() -> None:
    partition = Partition((np.array([0, 1, 5]), np.array([2])), (np.array([3]), np.array([4])))
    assert partition.class_counts(DATA).tolist() == [[2, 1, 0, 0, 0], [0, 0, 1, 0, 0]]
    assert partition.class_counts(DATA, "test").tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert partition.sizes.tolist() == [3, 1]
    assert partition.clients == 2


@given(
    size=st.integers(1, 200),
    test=st.floats(0.01, 0.99),
    validation=st.floats(0, 0.99),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_split_covers_the_pool_and_leaves_no_part_empty(size: int, test: float, validation: float, seed: int) -> None:
    pool = np.arange(100, 100 + size)
    parts = Split(test, validation)(pool, seed, client=0)
    assert sorted(np.concatenate(parts).tolist()) == pool.tolist()
    assert len(parts[0]) >= 1
    assert (len(parts[2]) >= 1) == (size >= 2)
    assert (len(parts[1]) >= 1) == (validation > 0 and size - len(parts[2]) >= 2)


@pytest.mark.parametrize(
    ("test", "size", "train"),
    [
        (0.25, 100, 75),
        (0.25, 99, 74),
        (0.2, 600, 480),
        (0.2, 100, 80),
        (0.5, 601, 300),
        (0.9, 10, 1),
        (0.1, 10, 9),
    ],
)
def test_split_sizes(test: float, size: int, train: int) -> None:
    assert len(Split(test)(np.arange(size), 0, 0)[0]) == train


def test_split_is_random_per_client_and_seed() -> None:
    pool = np.arange(50)
    chosen = {tuple(Split()(pool, seed, client)[0]) for seed in range(2) for client in range(2)}
    assert len(chosen) == 4
    assert tuple(Split()(pool, 0, 0)[0]) == tuple(Split()(pool, 0, 0)[0])


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5])
def test_split_rejects_impossible_shares(value: float) -> None:
    with pytest.raises(CoterieError, match=f"test = {value}: must be"):
        Split(test=value)
    if value:
        with pytest.raises(CoterieError, match=f"validation = {value}: must be"):
            Split(validation=value)


def test_sizes_are_counted_once() -> None:
    # Whoever asks client by client would count all of them as often as there are clients.
    partition = Partition(train=(np.array([0, 1]), np.array([3])), test=(np.array([2]), np.array([4])))
    assert partition.sizes is partition.sizes
