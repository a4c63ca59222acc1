"""Data that name each sample's client are taken at their word: in Python, in TOML and on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import coterie as ct
from coterie.cli import main
from coterie.data import load
from coterie.errors import CoterieError
from coterie.partition import ByClient, Dirichlet, Iid
from coterie.runs.experiment import experiment_from
from coterie.setup.config import complete, overridden

ROWS = "".join(f"{row % 5}.5,{row % 3},{'ab'[row % 2]},{'nsw'[row % 3]}\n" for row in range(60))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    path.write_text("age,pressure,label,client\n" + ROWS, encoding="utf-8")
    return path


def owned(**about: object) -> ct.Dataset:
    x, y = np.zeros((12, 2), np.float32), np.arange(12) % 2
    return ct.from_arrays(x, y, owners=np.arange(12) % 3, **about)


def test_in_python_owners_are_clients() -> None:
    assert ct.Experiment(data=owned()).partition == ByClient()
    assert ct.Experiment(data=owned()).prepare().partition.clients == 3
    assert ct.Experiment(data=owned(), partition=Iid(clients=2)).partition == Iid(clients=2)
    assert ct.Experiment(data="natural/exam").partition == ByClient()


def test_data_without_clients_are_dealt_out_as_ever() -> None:
    bare = TensorDataset(torch.zeros(8, 2), torch.arange(8) % 2)
    assert ct.Experiment(data=bare).partition == Dirichlet()
    assert ct.Experiment().partition == ct.Experiment(data=load("digits")).partition == Dirichlet()
    assert ct.Experiment(data="mnist").partition == Dirichlet()


def test_a_configuration_says_the_rule_that_was_chosen(table: Path) -> None:
    written = complete(experiment_from({"data": str(table)}))
    assert written["partition"] == "by_client"
    assert experiment_from(written) == experiment_from({"data": str(table)})
    assert complete(experiment_from({}))["partition"] == "dirichlet"


def test_an_option_that_only_a_rule_has_asks_for_that_rule(table: Path) -> None:
    assert experiment_from({"data": str(table), "alpha": 0.5}).partition == Dirichlet(alpha=0.5)
    assert experiment_from({"data": str(table), "clients": 2}).partition == ByClient(clients=2)
    assert overridden({"data": "natural/exam", "clients": 2}, {"partition": "iid"})["clients"] == 2


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet", "folder"])
def test_files_that_name_clients(kind: str, tmp_path: Path, table: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = {"csv": table, "npz": tmp_path / "a.npz", "parquet": tmp_path / "a.parquet", "folder": tmp_path / "set"}[
        kind
    ]
    if kind == "npz":
        np.savez(path, x=np.zeros((6, 2)), y=np.arange(6) % 2, client=np.arange(6) % 2)
    elif kind == "parquet":
        pq.write_table(pa.table({"x": [0.5, 1.0], "label": ["a", "b"], "client": ["n", "s"]}), path)
    elif kind == "folder":
        path.mkdir()
        table.rename(path / "train.csv")
    assert ct.Experiment(data=path).partition == ByClient()


def test_a_client_column_is_clients_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("age,pressure,label,ward\n" + ROWS, encoding="utf-8")
    assert ct.Experiment(data=path).partition == Dirichlet()
    assert ct.Experiment(data=path, client_column="ward").partition == ByClient()


def test_a_function_of_ones_own_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    made = "import numpy as np\nimport coterie as ct\n\ndef mine():\n    x, y = np.zeros((8, 2)), np.arange(8) % 2\n"
    file.write_text(f"{made}    return ct.from_arrays(x, y, owners=np.arange(8) // 4)\n", encoding="utf-8")
    assert ct.Experiment(data=f"{file}:mine").partition == ByClient()


@pytest.mark.parametrize("name", ["nowhere.csv", "broken.npz", "empty.csv"])
def test_what_cannot_be_read_is_said_when_it_is_loaded(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name != "nowhere.csv":
        path.write_bytes(b"PK broken" if name == "broken.npz" else b"")
    experiment = ct.Experiment(data=path)
    assert experiment.partition == Dirichlet()
    with pytest.raises(CoterieError, match=name.partition(".")[0]):
        experiment.prepare()


def test_the_command_says_whose_the_clients_are(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "fedavg", "--data", str(table), "--rounds", "1", "--out"]
    assert main([*command, str(tmp_path / "own")]) == 0
    told = "The clients are those that visits.csv names; --partition RULE deals its samples out otherwise."
    assert told in " ".join(capsys.readouterr().out.split())
    assert main([*command, str(tmp_path / "dealt"), "--partition", "iid", "--clients", "2"]) == 0
    assert "The clients are those" not in capsys.readouterr().out
    compared = ["compare", "local", "fedavg", "--data", str(table), "--rounds", "1", "--seeds", "0", "--jobs", "1"]
    assert main(compared) == 0
    assert told in " ".join(capsys.readouterr().out.split())
