"""Regression from end to end: embedded and own data, all engines, the files of a run, and who refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.cli import main
from coterie.compare.table import compare
from coterie.core.task import Regression
from coterie.methods import METHODS
from coterie.runs.resume import resume
from listening import power_cut
from support import without_times

pytestmark = pytest.mark.thorough

NEED_CLASSES = {
    "fedas",
    "feddistill",
    "fedem",
    "fedgen",
    "fedgh",
    "fedpac",
    "fedproto",
    "fedrema",
    "fedrod",
    "gpfl",
    "knn-per",
    "pfedcs",
    "pfedfda",
}
QUICK: dict[str, Any] = {"data": "diabetes", "rounds": 3, "epochs": 1, "threads": 1}


def run(method: str, **options: Any) -> ct.Run:
    settings = QUICK | {"partition": ct.Quantile(clients=5)} | options
    return ct.Experiment(method=method, **settings).run()


def test_diabetes_is_embedded_and_standardised() -> None:
    data = ct.load("diabetes")
    assert (len(data), data.shape, data.classes) == (442, (10,), 0)
    for values in (data.inputs.double(), data.labels.double()):
        torch.testing.assert_close(values.mean(0), torch.zeros_like(values[0]), atol=1e-6, rtol=0)
        torch.testing.assert_close(values.std(0, correction=0), torch.ones_like(values[0]), atol=1e-6, rtol=0)
    assert ct.load("diabetes", task="regression").of_task == Regression()
    with pytest.raises(ct.CoterieError, match="task = classification: the task of data 'diabetes' is regression"):
        ct.load("diabetes", task="classification")


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto"])
def test_engines_agree(method: str) -> None:
    serial, stacked, processes = (run(method, engine=engine) for engine in ("serial", "stacked", "processes"))
    assert without_times(processes.lines) == without_times(serial.lines)
    for metric in ("mae", "rmse", "r2", "loss"):
        for moment in ("received", "trained"):
            ours, theirs = (getattr(one.metric(metric), moment).by_client for one in (serial, stacked))
            np.testing.assert_allclose(theirs, ours, atol=1e-5)
    assert serial.metric().received.mean == serial.metric("mae").received.mean


def test_the_numbers_are_those_of_the_models() -> None:
    result = run("fedper")
    problem = result.prepared.problem()
    for client, test in enumerate(problem.test):
        labels = problem.labels[test].double()
        errors = result.predict(client, problem.inputs[test]).double() - labels
        found = {name: result.metric(name).received.by_client[client] for name in ("mae", "rmse", "r2")}
        spread = (labels - labels.mean()).square().sum()
        assert found["mae"] == pytest.approx(float(errors.abs().mean()))
        assert found["rmse"] == pytest.approx(float(errors.square().mean().sqrt()))
        assert found["r2"] == pytest.approx(float(1 - errors.square().sum() / spread))


class LinearModel(nn.Module):
    """Linear regression."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


def test_a_linear_model_beats_predicting_the_mean() -> None:
    options = {"partition": ct.Iid(clients=4), "rounds": 10, "epochs": 5, "lr": 0.02}
    result = run("fedavg", model=LinearModel(), classifier="head", **options)
    problem = result.prepared.problem()
    mean = torch.cat([problem.labels[own] for own in problem.train]).mean()
    by_mean = [float((problem.labels[own] - mean).abs().mean()) for own in problem.test]
    assert result.metric("mae").received.mean["last"] < 0.8 * np.mean(by_mean)
    assert result.summary["pooled_r2"] > 0.35  # least squares reaches about 0.5 on its own training data


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_run_or_say_that_they_need_classes(name: str) -> None:
    if name in NEED_CLASSES:
        with pytest.raises(ct.CoterieError, match=f"task = 'regression': {name} works with classes"):
            run(name)
        return
    result = run(name, rounds=2, validation=0.2)
    assert np.isfinite(result.metric().trained.by_client).all()
    assert result.metric().trained.mean["last"] < 5


def test_the_files_of_a_run_say_what_it_is_judged_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = f"run fedavg --data diabetes --partition quantile --rounds 3 --epochs 1 --held-out 2 --out {out}"
    assert main(words.split()) == 0
    assert capsys.readouterr().out.startswith("mae ")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["task"]["judged_by"] == "mae"
    assert "accuracy" not in summary
    lines = [json.loads(line)["received"] for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert list(lines[0]["values"]) == ["mae", "rmse", "r2", "loss"]
    curve = [np.mean(line["values"]["mae"]) for line in lines]
    assert summary["mae"]["received"]["mean"]["best"] == pytest.approx(min(curve))
    assert lines[-1]["worst_decile"] == max(lines[-1]["values"]["mae"])
    assert summary["worst_decile"]["received"] == max(lines[-1]["values"]["mae"])
    assert summary["newcomers"]["received"]["mean"] == pytest.approx(np.mean(summary["newcomers"]["received"]["mae"]))
    assert main(["show", str(out)]) == 0
    assert "\nmae " in capsys.readouterr().out


def test_a_resumed_run_ends_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    experiment = ct.Experiment(
        method="fedper", partition=ct.Quantile(clients=5), join=0.4, checkpoint_every=2, **(QUICK | {"rounds": 4})
    )
    whole = experiment.run(tmp_path / "whole")

    with power_cut(tmp_path / "stopped", round=3) as listeners:
        experiment.run(tmp_path / "stopped", listeners)
    assert without_times(resume(tmp_path / "stopped").summary) == without_times(whole.summary)


def test_the_winner_of_a_comparison_has_the_lowest_error() -> None:
    runs = {
        name: ct.Experiment(method="local", partition=ct.Iid(clients=3), **(QUICK | {"rounds": rounds, "lr": lr}))
        for name, rounds, lr in (("still", 1, 1e-9), ("learns", 3, 0.02))
    }
    comparison = compare(runs, seeds=[0, 1, 2], jobs=1)
    assert comparison.winner("received_mean_last") == "learns"
    assert comparison.note().startswith("* a winner")
    assert comparison.columns["received_mean_last"].title == "mae received mean last"
    assert comparison.as_dict()["columns"]["received_mean_last"]["unit"] == "number"


def test_own_tables_and_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = np.random.default_rng(0)
    x = stream.normal(size=(60, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.25
    csv = tmp_path / "dose.csv"
    cells = [[*map(str, row), str(label), "xyz"[n % 3]] for n, (row, label) in enumerate(zip(x, y, strict=True))]
    csv.write_text("\n".join(["a,b,c,dose,client", *map(",".join, cells)]))
    data = ct.load_own(csv, label="dose", task="regression")
    torch.testing.assert_close(data.labels, torch.tensor(y, dtype=torch.float32), atol=1e-5, rtol=1e-5)
    assert data.owner_names == ("x", "y", "z")
    with pytest.raises(ct.CoterieError, match=r"is no integer .*task='regression'"):
        ct.load_own(csv, label="dose")
    np.savez(tmp_path / "dose.npz", x=x, y=y)
    assert ct.load_own(tmp_path / "dose.npz", task="regression").of_task == Regression()
    made = ct.from_arrays(x, y.astype(int), task="regression", test=(x[:5], y[:5]))
    assert (made.labels.dtype, made.train_size, len(made)) == (torch.float32, 60, 65)
    with pytest.raises(ct.CoterieError, match="the task regression needs numbers"):
        ct.from_arrays(x, ["low"] * 60, task="regression")
    with pytest.raises(ct.CoterieError, match="the task regression has no classes"):
        ct.from_arrays(x, y, task="regression", classes=3)
    words = ["run", "fedavg", "--data", str(csv), "--label", "dose", "--task", "regression"]
    assert main([*words, "--partition", "by_client", "--rounds", "2", "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("mae ")


def test_wishes_that_do_not_fit_are_refused() -> None:
    data = ct.load("digits")
    with pytest.raises(ct.CoterieError, match="task = regression: the task of data 'digits' is classification"):
        ct.Experiment(data=data, task="regression").prepare()
    with pytest.raises(ct.CoterieError, match="unknown task 'regressions'"):
        ct.Experiment(task="regressions")
    with pytest.raises(ct.CoterieError, match="model: it has 3 outputs; the task 'regression' needs 1"):
        run("fedavg", model=nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 3)), classifier="1")
    with pytest.raises(ct.CoterieError, match="unknown metric of the task 'regression' 'accuracy'"):
        run("fedavg", rounds=1).accuracy()
