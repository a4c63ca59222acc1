from __future__ import annotations

import json
import logging
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from cli_tools import SMALL, assert_same_run, call

from coterie.cli.experiments import one_experiment
from coterie.data import load
from coterie.partition import Dirichlet
from coterie.runs.directory import RunDirectory
from coterie.setup.config import complete


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_json_is_the_summary_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "run", "fedavg", *SMALL, "--json")
    assert answer.code == 0
    assert answer.json == RunDirectory(Path("runs/fedavg-digits-1")).summary()
    assert "runs/fedavg-digits-1" in answer.err
    accuracy = answer.json["accuracy"]
    assert set(accuracy) == {"received", "trained", "stored"}
    assert all(set(means["mean"]) == {"best", "last", "last5"} for means in accuracy.values())


def test_result_table_and_the_next_free_directory(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        answer = call(capsys, "run", "local", *SMALL)
        assert f"The run is kept in runs/local-digits-{number}\n" in answer.out
    summary = json.loads(Path("runs/local-digits-2/summary.json").read_text())
    weighted = summary["accuracy"]["trained"]["weighted"]
    row = next(line.split() for line in answer.out.splitlines() if line.startswith("trained   test samples"))
    assert row[3:] == [f"{weighted[at]:.4f}" for at in ("best", "last", "last5")]


def test_options_override_the_file_and_the_rest_takes_defaults() -> None:
    Path("some.toml").write_text('method = "fedprox"\nrounds = 7\nalpha = 0.5\nlr = 0.5\n[set]\nmu = 3\n')
    config = complete(one_experiment(None, Path("some.toml"), {"rounds": 4, "seed": 2}, []))
    assert (config["method"], config["rounds"], config["alpha"], config["lr"]) == ("fedprox", 4, 0.5, 0.5)
    assert (config["seed"], config["set"], config["batch"], config["clients"]) == (2, {"mu": 3.0}, 32, 20)
    assert complete(one_experiment(None, Path("some.toml"), {}, ["mu=4"]))["set"] == {"mu": 4.0}


def test_another_method_or_rule_leaves_the_file_options_of_the_old_one_aside() -> None:
    Path("some.toml").write_text('method = "fedprox"\nclients = 6\nalpha = 0.5\n[set]\nmu = 3\n')
    config = complete(one_experiment("fedavg", Path("some.toml"), {"partition": "iid"}, []))
    assert (config["method"], config["partition"], config["clients"]) == ("fedavg", "iid", 6)
    assert "alpha" not in config
    assert config["set"] == {}


@pytest.mark.thorough
def test_written_configuration_repeats_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--alpha", "0.3", "--no-cap", "--join", "0.5", "--held-out", "0.25", "--momentum", "0.5", "--seed", "5")
    assert call(capsys, "run", "fedprox", *SMALL, *options, "--set", "mu=0.3", "--out", "first").code == 0
    assert call(capsys, "run", "--config", "first/config.toml", "--out", "second").code == 0
    assert_same_run(Path("first"), Path("second"))
    config = tomllib.loads(Path("first/config.toml").read_text())
    assert config == tomllib.loads(Path("second/config.toml").read_text())
    assert (config["set"], config["cap"], config["held_out"]) == ({"mu": 0.3}, False, 0.25)
    Path("other.toml").write_text(tomli_w.dumps({**config, "seed": 6}))
    assert call(capsys, "run", "--config", "other.toml", "--out", "third").code == 0
    assert Path("first/rows.safetensors").read_bytes() != Path("third/rows.safetensors").read_bytes()


@pytest.mark.thorough
def test_a_partition_from_a_file_and_seeds_of_their_own_repeat_too(capsys: pytest.CaptureFixture[str]) -> None:
    Dirichlet(clients=3)(load("digits"), 4).save("p.npz")
    options = ("--partition", "p.npz", "--validation", "0.2", "--held-out", "1")
    seeds = ("--partition-seed", "5", "--model-seed", "6")
    short = SMALL[2:]  # but for the clients, which the file has
    assert call(capsys, "run", "fedavg", *short, *options, *seeds, "--out", "first").code == 0
    config = tomllib.loads(Path("first/config.toml").read_text())
    assert (config["partition"], config["partition_seed"], config["model_seed"]) == (str(Path("p.npz").resolve()), 5, 6)
    Path("away").mkdir()
    assert call(capsys, "run", "--config", "first/config.toml", "--out", "away/second").code == 0
    assert_same_run(Path("first"), Path("away/second"))
    partition = RunDirectory.open(Path("first")).partition()
    assert (partition.rule, partition.clients, len(partition.held_out), partition.parameters["seed"]) == (
        "file",
        3,
        1,
        5,
    )
    # The file takes the place of the rule and its options; another rule takes the file's.
    assert call(capsys, "run", "--config", "first/config.toml", "--partition", "iid", "--out", "third").code == 0
    assert tomllib.loads(Path("third/config.toml").read_text())["clients"] == 20


def test_own_table_with_own_column_names(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{rng.normal():.3f},{('cat', 'dog')[i % 2]},{'abc'[i % 3]}" for i in range(90)]
    Path("pets.csv").write_text("\n".join(["u,v,kind,site", *rows]) + "\n")
    own = ("--data", "pets.csv", "--label", "kind", "--client", "site", "--partition", "by_client")
    answer = call(capsys, "run", "fedper", *own, "--rounds", "2", "--epochs", "1", "--json")
    assert answer.code == 0
    assert [client["client"] for client in answer.json["clients"]] == ["a", "b", "c"]
    assert (answer.json["config"]["label"], answer.json["config"]["client_column"]) == ("kind", "site")
    assert Path("runs/fedper-pets-1/config.toml").is_file()


def test_diverged_clients_are_named_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "run", "fedavg", *SMALL, "--lr", "1e30", "--json")
    assert answer.code == 0
    warnings = [line for line in answer.err.splitlines() if line.startswith("coterie: warning: ")]
    assert any("round 1: client 0 diverged" in line for line in warnings)
    assert answer.json["diverged"]["0"] == [1, 2]
    assert not logging.getLogger("coterie").handlers


def test_show_prints_clients_and_who_learns_from_whom(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", "fedper", *SMALL, "--seed", "3", "--out", "it").code == 0
    summary = json.loads(Path("it/summary.json").read_text())
    shown = call(capsys, "show", "it")
    assert shown.code == 0
    assert shown.out.startswith("fedper (personal=classifier) on digits, 4 clients, model mlp, seed 3\n")
    for client in summary["clients"]:
        cells = [client["client"], str(client["size"]), f"{client['received']:.4f}", f"{client['trained']:.4f}"]
        assert cells in [line.split() for line in shown.out.splitlines()]
    (mix,) = RunDirectory(Path("it")).mixes(2)
    sizes = np.array([client["size"] for client in summary["clients"]])
    np.testing.assert_allclose(mix.weights.numpy()[0], sizes / sizes.sum(), rtol=1e-6)
    largest = int(sizes.argmax())
    assert "Who learns from whom (round 2):\nextractor, into model:\n" in shown.out
    assert f"  everybody alike from {largest} ({sizes[largest] / sizes.sum():.1%})" in shown.out
    assert call(capsys, "show", "it", "--json").json == RunDirectory(Path("it")).summary()


@pytest.mark.thorough
def test_show_says_why_there_is_nothing_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", "local", *SMALL, "--out", "alone").code == 0
    assert "nobody learned from others" in call(capsys, "show", "alone").out
    assert call(capsys, "run", "fedavg", *SMALL, "--record-every", "0", "--out", "silent").code == 0
    assert "it was not recorded (record_every = 0)" in call(capsys, "show", "silent").out


@pytest.mark.thorough
def test_an_unfinished_run_is_shown_as_far_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", "fedper", *SMALL, "--out", "it").code == 0
    whole = call(capsys, "show", "it", "--json").json
    shown = call(capsys, "show", "it").out
    Path("it/summary.json").unlink()
    answer = call(capsys, "show", "it")
    assert answer.code == 0
    told = "unfinished, round 2 of 2; 'coterie resume it' carries it on if nobody is at it\n\n"
    assert told in answer.out
    assert answer.out.replace(told, "") == shown
    so_far = call(capsys, "show", "it", "--json").json
    assert so_far.pop("unfinished") == "round 2 of 2"
    assert so_far == {key: value for key, value in whole.items() if key not in ("macro_f1", "auc", "identity")}


@pytest.mark.thorough
def test_any_recorded_round_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", "fedper", *SMALL, "--join", "0.5", "--out", "it").code == 0
    first, last = (call(capsys, "show", "it", *words).out for words in (("--round", "1"), ()))
    assert "Who learns from whom (round 1):" in first
    assert first.partition("Who learns")[0] == last.partition("Who learns")[0]
    answer = call(capsys, "show", "it", "--round", "9")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "round = 9: is not among the rounds that were recorded (1 to 2, 2 of them)" in answer.err
