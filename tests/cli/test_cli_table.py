"""Tables of runs that are kept: which stand together, what they are called, what is left out."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from cli_tools import SMALL, call

from coterie.compare.grid import chosen_columns
from coterie.partition import Iid
from coterie.runs.experiment import Experiment
from coterie.runs.tensors import sealed

pytestmark = pytest.mark.thorough

USUAL = ("--columns", "received.mean.last,bytes")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two methods with three seeds, one of them with two options, and one on another partition."""
    folder = tmp_path_factory.mktemp("kept")
    few = {"rounds": 2, "epochs": 1, "threads": 1}
    for seed in range(3):
        for name, options in (("local", {}), ("fedavg", {}), ("slow", {"lr": 0.001})):
            method = "fedavg" if name == "slow" else name
            one = Experiment(method, partition=Iid(clients=3), seed=seed, **few, **options)
            one.run(folder / "runs" / f"{name}-{seed}")
    Experiment("local", partition=Iid(clients=4), **few).run(folder / "other")
    return folder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_runs_are_grouped_by_configuration_and_named_by_what_differs(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = call(capsys, "table", kept / "runs", *USUAL, "--format", "csv")
    assert answer.code == 0, answer.err
    rows = {row["method"]: row for row in csv.DictReader(answer.out.splitlines())}
    assert set(rows) == {"local", "fedavg:lr=0.01", "fedavg:lr=0.001"}
    assert {row["table"] for row in rows.values()} == {"digits, iid (clients=3)"}
    assert {row["seeds"] for row in rows.values()} == {"3"}
    runs = [json.loads((kept / f"runs/slow-{seed}/summary.json").read_text()) for seed in range(3)]
    values = [chosen_columns(run, ["received.mean.last"])["received_mean_last"].read(run) for run in runs]
    assert float(rows["fedavg:lr=0.001"]["received_mean_last"]) == pytest.approx(sum(values) / 3)
    text = call(capsys, "table", kept / "runs", *USUAL).out
    assert "Not all methods ran with the same settings: lr = 0.001 (fedavg:lr=0.001), 0.01 (the others)." in text


def test_runs_on_other_partitions_are_kept_apart(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "table", kept / "runs", kept / "other", *USUAL)
    assert answer.code == 0
    assert "2 tables, since data or partition differ" in answer.err
    first, second = answer.out.index("digits, iid (clients=3)\n"), answer.out.index("digits, iid (clients=4)\n")
    assert "fedavg:lr=0.001" in answer.out[first:second]
    assert "fedavg" not in answer.out[second:]


def test_the_same_settings_with_another_partition_are_kept_apart(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(kept / "runs" / "local-0", tmp_path / "changed")
    path = tmp_path / "changed" / "summary.json"
    summary = json.loads(path.read_text())
    summary["partition"]["whole_hash"] = "0" * 64
    del summary["sha256"]
    path.write_text(json.dumps(sealed(summary)))
    answer = call(capsys, "table", kept / "runs", "changed", *USUAL)
    assert "digits, iid (clients=3), another partition (2)" in answer.out


def test_damaged_unfinished_and_repeated_runs_are_named_and_left_out(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cut", "open", "empty", "again"):
        shutil.copytree(kept / "runs" / "local-1", tmp_path / "all" / name)
    (tmp_path / "all/cut/summary.json").write_text('{"accuracy": ')
    (tmp_path / "all/open/summary.json").unlink()
    (tmp_path / "all/empty/config.toml").write_text("")
    answer = call(capsys, "table", kept / "runs" / "local-1", "all", *USUAL)
    assert answer.code == 0
    said = answer.err.splitlines()
    assert len(said) == 4
    assert "run = all/empty: " in said[1]
    assert "all/cut: summary.json is damaged (it is no JSON" in said[0]
    assert "all/open is not finished (2 of 2 rounds)" in said[2]
    assert said[3].startswith("coterie: left out: all/again repeats ")
    assert [line.split()[0] for line in answer.out.splitlines() if "kB" in line or " B" in line] == ["local"]
    shutil.rmtree(tmp_path / "all" / "again")
    nothing = call(capsys, "table", "all")
    assert nothing.code == 2
    assert "none of these runs is whole" in nothing.err


def test_a_comparison_is_a_folder_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "fedavg", "local", "--seeds", "0", "1", *SMALL, "--jobs", "1", "--out", "all")
    table = call(capsys, *words).out.partition("\nThe runs")[0]
    again = call(capsys, "table", "all").out.partition("\n\n")[2].rstrip()
    assert again == table.rstrip()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "run = nowhere: there is no such file or folder"),
        ((), "run: name at least one directory"),
        (("nowhere", "--format", "html"), "unknown format 'html'"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "table", *words)
    assert answer.code == 2
    assert said in answer.err
