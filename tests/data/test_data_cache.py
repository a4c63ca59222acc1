from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import hub_table, pixels, scaled

from coterie.core.pixels import whole
from coterie.data import Dataset, load, tables
from coterie.data.archives import user_cache
from coterie.data.images import decoded_folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    images = pixels(4, 3, 64)
    domains = ["real", "sketch", "real", "sketch"]
    for split, part in (("train", slice(0, 3)), ("test", slice(3, 4))):
        columns: dict[str, list[int] | list[str]] = {"label": [0, 5, 344, 2][part], "domain": domains[part]}
        hub_table(tmp_path / "domainnet" / f"{split}.parquet", images[part], columns)
    return tmp_path


def count_decoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    real = tables.decode_all

    def counted(*args: Any) -> object:
        calls.append(1)
        return real(*args)

    monkeypatch.setattr(tables, "decode_all", counted)
    return calls


def same(a: Dataset, b: Dataset) -> bool:
    assert a.owners is not None
    assert b.owners is not None
    tensors = zip((whole(a.inputs), a.labels, a.owners), (whole(b.inputs), b.labels, b.owners), strict=True)
    facts = [(d.train_size, d.classes, d.class_names, d.owner_names, d.name) for d in (a, b)]
    return all(torch.equal(x, y) for x, y in tensors) and facts[0] == facts[1]


def only_entry(root: Path) -> Path:
    (entry,) = (root / "cache").iterdir()
    return entry


def test_a_hit_gives_identical_tensors_without_decoding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_decoding(monkeypatch)
    first, second = load("domainnet", root), load("domainnet", root)
    assert len(calls) == 1
    assert same(first, second)
    np.testing.assert_allclose(second.inputs.numpy(), scaled(pixels(4, 3, 64)), atol=1e-7)


@pytest.mark.parametrize("damage", ["flip", "truncate", "no images", "no facts", "bad facts", "pickled"])
def test_a_damaged_entry_is_rebuilt(root: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    first = load("domainnet", root)
    images, facts = only_entry(root) / "images.npy", only_entry(root) / "entry.json"
    content = bytearray(images.read_bytes())
    if damage == "flip":
        content[-5] ^= 1
        images.write_bytes(content)
    elif damage == "truncate":
        images.write_bytes(content[:-100])
    elif damage == "no images":
        images.unlink()
    elif damage == "no facts":
        facts.unlink()
    elif damage == "bad facts":
        facts.write_text("[1, 2]")
    else:
        np.save(images, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    calls = count_decoding(monkeypatch)
    assert same(load("domainnet", root), first)
    assert same(load("domainnet", root), first)
    assert len(calls) == 1, "the first load rebuilds the entry, the second finds it"
    assert len(list((root / "cache").iterdir())) == 1


def test_a_changed_source_is_decoded_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("domainnet", root)
    calls = count_decoding(monkeypatch)
    os.utime(root / "domainnet" / "test.parquet", (1, 1))
    load("domainnet", root)
    assert len(calls) == 1


def test_a_cache_that_cannot_be_written_is_not_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("domainnet", root)
    shutil.rmtree(root / "cache")
    (root / "cache").write_text("a file where the folder should be")
    calls = count_decoding(monkeypatch)
    assert same(load("domainnet", root), first)
    assert same(load("domainnet", root), first)
    assert len(calls) == 2


def test_without_settings_the_cache_lies_in_the_users_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "xdg"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    shutil.copytree(root / "domainnet", root / "xdg" / "coterie" / "data" / "domainnet")
    load("domainnet")
    (entry,) = (root / "xdg" / "coterie" / "decoded").iterdir()
    assert entry.name.startswith("domainnet-")


def test_the_root_argument_goes_before_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(root))
    assert len(load("domainnet")) == 4
    hub_table(root / "b" / "domainnet" / "train.parquet", pixels(1, 3, 64), {"label": [0], "domain": ["real"]})
    hub_table(root / "b" / "domainnet" / "test.parquet", pixels(1, 3, 64), {"label": [0], "domain": ["real"]})
    assert len(load("domainnet", root / "b")) == 2


def test_the_users_own_cache_is_never_touched_by_tests() -> None:
    mine = Path(os.environ["COTERIE_TEST_CACHE"])
    assert user_cache() == mine
    assert decoded_folder() == mine / "coterie" / "decoded"
