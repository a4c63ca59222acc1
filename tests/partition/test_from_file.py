"""A partition from a file: what is read, where it is looked for, and what is refused."""

from __future__ import annotations

import hashlib
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import requires_data
from coterie import resume
from coterie.compare.table import compare
from coterie.compare.workers import obstacle
from coterie.data import load
from coterie.data.dataset import Dataset
from coterie.errors import CoterieError
from coterie.partition import Dirichlet, FromFile, Iid, Partition, Split
from coterie.runs.experiment import Experiment, experiment_from
from coterie.runs.protocols import protocol
from coterie.setup.config import complete, overridden, to_toml
from listening import power_cut
from support import final_rows

DATA = Dataset("toy", torch.zeros(12, 1), torch.arange(12) % 3, classes=3, train_size=8)
GOOD: dict[str, Any] = {
    "train": np.array([0, 1, 2, 9, 3], np.int32),
    "train_offsets": np.array([0, 3, 5], np.uint16),
    "test": np.array([8, 4, 5]),
    "test_offsets": np.array([0, 1, 3]),
}
WITH_VALIDATION = {**GOOD, "validation": np.array([10, 6, 7, 11]), "validation_offsets": np.array([0, 1, 4])}


def written(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def lists(parts: tuple[np.ndarray, ...]) -> list[list[int]]:
    return [part.tolist() for part in parts]


def test_the_file_says_who_holds_what(tmp_path: Path) -> None:
    path = written(tmp_path / "two.npz", **GOOD)
    partition = FromFile(path)(DATA, seed=5)
    assert lists(partition.train) == [[0, 1, 2], [3, 9]]
    assert lists(partition.test) == [[8], [4, 5]]
    assert lists(partition.validation) == [[], []]
    assert partition.names == ("0", "1")
    assert partition.rule == "file"
    assert partition.parameters == {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "clients": 2,
        "seed": 5,
        "test": "given",
        "validation": 0.0,
        "data": "toy",
        "data_size": 12,
    }
    assert partition.notes == ("read from two.npz",)


def test_the_hash_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    here, there = written(tmp_path / "a.npz", **GOOD), written(tmp_path / "far" / "b.npz", **GOOD)
    other = written(tmp_path / "c.npz", **GOOD, comment=np.array([1]))
    assert FromFile(here)(DATA, 0).hash == FromFile(there)(DATA, 0).hash
    assert FromFile(here)(DATA, 0).hash != FromFile(other)(DATA, 0).hash


def test_the_test_share_is_ignored_and_the_validation_share_is_honoured(tmp_path: Path) -> None:
    plain, full = written(tmp_path / "a.npz", **GOOD), written(tmp_path / "b.npz", **WITH_VALIDATION)
    assert lists(FromFile(plain)(DATA, 0, Split(test=0.9)).test) == [[8], [4, 5]]
    drawn = FromFile(plain)(DATA, 0, Split(validation=0.4))
    assert [len(part) for part in drawn.validation] == [1, 1]
    assert sorted([*drawn.train[0], *drawn.validation[0]]) == [0, 1, 2]
    given = FromFile(full)(DATA, 0)
    assert lists(given.validation) == [[10], [6, 7, 11]]
    assert lists(given.train) == [[0, 1, 2], [3, 9]]
    again = FromFile(full)(DATA, 0, Split(validation=0.5))
    assert [len(part) for part in again.validation] == [2, 2]
    # Methods that set other shares aside are still compared on the same samples.
    assert again.whole() == given.whole()


@pytest.mark.parametrize("rule", [Dirichlet(clients=4, alpha=0.5, least=2)])
def test_any_partition_can_be_handed_over(tmp_path: Path, rule: Dirichlet) -> None:
    data = Dataset("toy", torch.zeros(90, 1), torch.arange(90) % 3, classes=3)
    drawn = replace(rule(data, 0, Split(validation=0.3)), names=("nörd", "b", "c", "d")).with_held_out(1, seed=0)
    drawn.save(tmp_path / "handed.npz")
    for found in (Partition.load(tmp_path / "handed.npz"), FromFile(tmp_path / "handed.npz")(data, seed=3)):
        for part in ("train", "validation", "test"):
            assert lists(getattr(found, part)) == lists(getattr(drawn, part))
        assert found.names == drawn.names
        assert found.held_out == ()
    with np.load(tmp_path / "handed.npz", allow_pickle=False) as arrays:
        assert arrays["names"].dtype.kind == "U"
    assert not list(tmp_path.glob("*.partial"))


def test_paths_come_first_and_bare_names_are_also_found_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "partitions").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "here")
    kept = written(tmp_path / "data" / "partitions" / "p.npz", **GOOD)
    assert FromFile("p.npz").path == str(kept)
    assert FromFile("./p.npz").path == str(tmp_path / "here" / "p.npz")  # no bare name
    assert FromFile("sub/p.npz").path == str(tmp_path / "here" / "sub" / "p.npz")
    own = written(tmp_path / "here" / "p.npz", **GOOD)
    assert FromFile("p.npz").path == str(own)
    with pytest.raises(CoterieError, match=rf"q\.npz: there is no such file; .*{tmp_path}/data/partitions$"):
        FromFile("q.npz")(DATA, 0)
    with pytest.raises(CoterieError, match=r"partition = q\.txt: must be a file FILE\.npz"):
        FromFile("q.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": None}, "has no array 'test' (needed: train, train_offsets, test, test_offsets)"),
        (
            {"train": np.array([0.0, 1, 2, 9, 3])},
            "'train' is float64 of shape (5,); it must be a list of whole numbers",
        ),
        ({"train": np.array([[0, 1, 2, 9, 3]])}, "'train' is int64 of shape (1, 5)"),
        ({"test_offsets": np.array([False, True])}, "'test_offsets' is bool of shape (2,)"),
        ({"train_offsets": np.array([1, 3, 5])}, "'train_offsets' must start at 0, never fall, and end at 5"),
        ({"train_offsets": np.array([0, 6, 5])}, "'train_offsets' must start at 0, never fall, and end at 5"),
        ({"train_offsets": np.array([0, 3, 4])}, "'train_offsets' must start at 0, never fall, and end at 5"),
        ({"test_offsets": np.array([0, 3])}, "'test' is of 1 clients, 'train' of 2"),
        ({"validation": np.array([6])}, "has no array 'validation_offsets'"),
        ({"test": np.array([8, 4, 12])}, "client '1': test names sample [12], but data 'toy' has samples 0..11"),
        ({"train": np.array([0, 1, -2, 9, 3])}, "client '0': train names sample [-2]"),
        ({"train_offsets": np.array([0, 0, 5])}, "client '0' has no training samples"),
        ({"test_offsets": np.array([0, 0, 3])}, "client '0' has no test samples"),
        ({"test": np.array([8, 4, 9])}, "client '1': 1 samples are in both train and test"),
        (
            {"validation": np.array([8, 6]), "validation_offsets": np.array([0, 1, 2])},
            "client '0': 1 samples are in both validation and test",
        ),
        ({"names": np.array([1, 2])}, "'names' is int64 of shape (2,); it must be 2 texts"),
        ({"names": np.array(["a", "b", "c"])}, "'names' is <U1 of shape (3,); it must be 2 texts"),
        ({"names": np.array(["a", None])}, "cannot be loaded when allow_pickle=False"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_file_s_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    arrays = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    path = written(tmp_path / "bad.npz", **arrays)
    with pytest.raises(CoterieError) as caught:
        FromFile(path)(DATA, 0)
    assert message in str(caught.value).replace("Object arrays ", "")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    with pytest.raises(CoterieError, match=r"cannot read .*bad\.npz"):
        FromFile(tmp_path / "bad.npz")(DATA, 0)


def handed_over(path: Path, clients: int = 3) -> Path:
    Dirichlet(clients=clients, alpha=0.5)(load("digits"), seed=1).save(path)
    return path


def test_an_experiment_takes_a_file_and_its_configuration_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = handed_over(tmp_path / "p.npz")
    experiment = Experiment(partition="p.npz", rounds=2, epochs=1)
    assert experiment.partition == FromFile(path)
    config = tomllib.loads(to_toml(complete(experiment)))
    assert config["partition"] == str(path)
    assert "path" not in config
    assert experiment_from(config) == experiment
    drawn = Dirichlet(clients=3, alpha=0.5)(load("digits"), seed=1)
    assert torch.equal(final_rows(experiment.run()), final_rows(replace(experiment, partition=drawn).run()))
    with pytest.raises(CoterieError, match=r"partition 'p\.npz' has no option 'alpha' \(it has: none\)"):
        experiment_from({"partition": "p.npz", "alpha": 0.1})


def test_a_file_takes_the_place_of_a_rule_with_all_its_options(tmp_path: Path) -> None:
    path = handed_over(tmp_path / "p.npz")
    assert overridden({"partition": "iid", "clients": 3, "rounds": 2}, {"partition": str(path)}) == {
        "partition": str(path),
        "rounds": 2,
    }
    assert protocol("pfedsim", "fedavg", partition=str(path)).partition == FromFile(path)
    assert experiment_from(overridden({"partition": str(path)}, {"partition": "iid"})).partition == Iid()


@pytest.mark.thorough
def test_a_run_carries_on_without_the_file(tmp_path: Path) -> None:
    path = handed_over(tmp_path / "p.npz")
    experiment = Experiment(partition=str(path), rounds=3, epochs=1, checkpoint_every=1, threads=1)
    whole = replace(experiment, checkpoint_every=0).run()
    with power_cut(tmp_path / "run", round=2) as listeners:
        experiment.run(tmp_path / "run", listeners)
    path.unlink()
    assert torch.equal(final_rows(resume(tmp_path / "run")), final_rows(whole))


@pytest.mark.slow
@pytest.mark.processes
def test_workers_of_comparisons_and_engines_take_it_too(tmp_path: Path) -> None:
    path = handed_over(tmp_path / "p.npz")
    experiment = Experiment(partition=str(path), rounds=2, epochs=1, threads=1)
    assert obstacle(experiment) is None
    compared = compare({"fedavg": experiment}, [0, 1], jobs=2)
    alone = compare({"fedavg": experiment}, [0, 1], jobs=1)
    assert compared.values("fedavg", "received_mean_last") == alone.values("fedavg", "received_mean_last")
    other = replace(experiment, engine="processes", workers=2)
    assert torch.equal(final_rows(other.run()), final_rows(experiment.run()))


@requires_data("partitions")
@requires_data("cifar10")
@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "spread"), [("0.1", 487.0), ("0.5", 170.4)])
def test_the_published_partitions_of_pfedsim(alpha: str, spread: float) -> None:
    """Table 4 of the paper: 600 samples a client, standard deviation 487 and 170."""
    rule = FromFile(f"pfedsim-cifar10-dir{alpha}.npz")
    assert rule.path == str((Path(os.environ["COTERIE_DATA"]) / "partitions" / Path(rule.path).name).resolve())
    partition = rule(load("cifar10", progress=False), seed=0)
    sizes = np.array([len(a) + len(b) for a, b in zip(partition.train, partition.test, strict=True)])
    assert partition.clients == 100
    assert sizes.mean() == 600
    assert sizes.std() == pytest.approx(spread, abs=0.05)
    assert len(np.unique(np.concatenate([*partition.train, *partition.test]))) == 60_000
