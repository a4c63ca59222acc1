from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from cli_tools import SMALL, assert_same_run, call
from hypothesis import given
from hypothesis import strategies as st

from coterie.cli.merge import experiments
from coterie.compare.table import Comparison, compare
from coterie.errors import CoterieError
from coterie.experiment.experiment import Experiment
from coterie.methods import FedProx
from coterie.partition import Dirichlet, Iid, Partition
from coterie.report.terminal import spoken_bytes

pytestmark = pytest.mark.thorough

METHODS = ("local", "fedavg", "fedper")
SEEDS = (3, 4)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def summary_of(accuracy: float) -> dict[str, Any]:
    rounds = {"best": accuracy, "last": accuracy, "last5": accuracy}
    return {
        "accuracy": {moment: {"mean": rounds, "weighted": rounds} for moment in ("received", "trained")},
        "worst_decile": {"received": accuracy, "trained": accuracy},
        "bytes": {"per_client_round": {"up": 1.0, "down": 2.0}},
        "seconds": {"per_round": {"train": 0.5, "exchange": 0.1, "evaluate": 0.2}},
        "partition": {"hash": "abc"},
    }


def comparison_of(**accuracies: list[float]) -> Comparison:
    seeds = tuple(range(len(next(iter(accuracies.values())))))
    return Comparison(seeds, {name: [summary_of(value) for value in values] for name, values in accuracies.items()})


def column(accuracy: dict[str, Any], key: str) -> float:
    """A column of the table, read from a summary by its words."""
    moment, mean, at = key.split("_")
    return float(accuracy[moment][mean][at])


def test_a_partition_seed_puts_all_seeds_on_one_partition(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "local", "fedavg", "--seeds", "3", "4", *SMALL, "--jobs", "1", "--json")
    apart, joined = call(capsys, *words).json, call(capsys, *words, "--partition-seed", "4").json
    assert apart["partitions"]["3"] != apart["partitions"]["4"] == joined["partitions"]["4"]
    assert joined["partitions"]["3"] == joined["partitions"]["4"]
    assert joined["runs"]["fedavg"][0]["config"]["partition_seed"] == 4
    values = joined["table"]["fedavg"]["received_mean_last"]["values"]
    assert values[0] != values[1] == apart["table"]["fedavg"]["received_mean_last"]["values"][1]


def test_table_holds_the_numbers_of_the_run_directories(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = [str(seed) for seed in SEEDS]
    answer = call(capsys, "compare", *METHODS, "--seeds", *seeds, *SMALL, "--out", "all")
    assert answer.code == 0
    saved = json.loads(Path("all/comparison.json").read_text())
    keys = ["received_mean_best", "received_mean_last", "trained_mean_best", "trained_mean_last"]
    hashes: dict[int, set[str]] = {seed: set() for seed in SEEDS}
    for method in METHODS:
        runs = [json.loads(Path(f"all/{method}-s{seed}/summary.json").read_text()) for seed in SEEDS]
        for seed, run in zip(SEEDS, runs, strict=True):
            assert (run["config"]["method"], run["config"]["seed"]) == (method, seed)
            hashes[seed].add(run["partition"]["hash"])
        by_column = {key: [column(run["accuracy"], key) for run in runs] for key in keys}
        by_column["received_worst_decile_last"] = [run["worst_decile"]["received"] for run in runs]
        sent = statistics.fmean(sum(run["bytes"]["per_client_round"].values()) for run in runs)
        seconds = statistics.fmean(sum(run["seconds"]["per_round"].values()) for run in runs)
        cells = [
            f"{100 * statistics.fmean(values):.1f}±{100 * statistics.stdev(values):.1f}"
            for values in by_column.values()
        ]
        line = next(line for line in answer.out.splitlines() if line.startswith(method))
        assert line.replace("*", " ").split() == [method, *cells, *spoken_bytes(sent).split(), f"{seconds:.2f}"]
        for key, values in by_column.items():
            assert saved["table"][method][key]["values"] == values
            assert saved["table"][method][key]["mean"] == pytest.approx(statistics.fmean(values))
            assert saved["table"][method][key]["std"] == pytest.approx(statistics.stdev(values))
    assert all(len(found) == 1 for found in hashes.values())
    assert len(set.union(*hashes.values())) == len(SEEDS)
    assert saved["partitions"] == {str(seed): found.pop() for seed, found in hashes.items()}
    assert call(capsys, "show", "all").out in answer.out
    # A run of a comparison is a run like any other.
    assert call(capsys, "run", "fedper", *SMALL, "--seed", "4", "--out", "single").code == 0
    assert_same_run(Path("single"), Path("all/fedper-s4"))


def test_json_and_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "compare", "local", "fedavg", "--seeds", "0", *SMALL, "--json")
    assert answer.code == 0
    assert answer.json["table"]["local"]["trained_mean_last"]["std"] is None
    assert set(answer.json["winners"].values()) == {None}
    assert "one seed says nothing about the spread" in answer.json["note"]
    assert list(Path.cwd().iterdir()) == []


def test_winner_needs_more_than_the_spread() -> None:
    # Standard deviations 0.01 and 0.02: the means must be more than 0.02 apart.
    clear = comparison_of(a=[0.79, 0.80, 0.81], b=[0.75, 0.77, 0.79])
    assert clear.winner("received_mean_last") == "a"
    assert clear.note().startswith("* ")
    close = comparison_of(a=[0.79, 0.80, 0.81], b=[0.765, 0.785, 0.805])
    assert close.winner("received_mean_last") is None
    assert close.note().startswith("No winner is marked")
    assert comparison_of(a=[0.9], b=[0.1]).winner("received_mean_last") is None
    assert comparison_of(a=[0.9, 0.9]).winner("received_mean_last") is None
    assert clear.winner("bytes_per_client_round") is None
    assert clear.mean("a", "bytes_per_client_round") == 3.0
    assert clear.mean("a", "seconds_per_round") == pytest.approx(0.8)


accuracy_lists = st.lists(st.floats(0, 1), min_size=3, max_size=3)


@given(st.lists(accuracy_lists, min_size=2, max_size=4), st.randoms())
def test_winner_is_best_and_does_not_depend_on_the_order(values: list[list[float]], random: Any) -> None:
    named = [(f"m{number}", each) for number, each in enumerate(values)]
    comparison = comparison_of(**dict(named))
    shuffled = random.sample(named, len(named))
    winner = comparison.winner("trained_mean_best")
    assert comparison_of(**dict(shuffled)).winner("trained_mean_best") == winner
    if winner is not None:
        rest = [comparison.mean(name, "trained_mean_best") for name, _ in named if name != winner]
        own_std = comparison.std(winner, "trained_mean_best")
        assert own_std is not None
        assert comparison.mean(winner, "trained_mean_best") - max(rest) > own_std


def test_marks_stand_in_the_winners_cells(capsys: pytest.CaptureFixture[str]) -> None:
    from coterie.cli.commands import print_comparison

    print_comparison(comparison_of(good=[0.90, 0.91], bad=[0.10, 0.12]), None, json=False)
    lines = capsys.readouterr().out.splitlines()
    good, bad = (next(line for line in lines if line.startswith(name)) for name in ("good", "bad"))
    assert good.split()[1:6] == ["90.5±0.7*"] * 5
    assert bad.split()[1:6] == ["11.0±1.4"] * 5


def test_options_for_one_method_and_for_all_that_have_them() -> None:
    chosen = experiments(["fedavg", "fedprox"], None, {}, ["mu=0.5"])
    assert chosen["fedprox"].method == FedProx(mu=0.5)
    chosen = experiments(["fedavg", "fedprox"], None, {}, ["mu=0.5", "fedprox.mu=0.7"])
    assert chosen["fedprox"].method == FedProx(mu=0.7)
    Path("both.toml").write_text("rounds = 9\n[set]\nmu = 1.0\n[set.fedprox]\nmu = 2.0\n")
    assert experiments(["fedprox"], Path("both.toml"), {}, [])["fedprox"].method == FedProx(mu=2.0)
    Path("run.toml").write_text('method = "fedprox"\nrounds = 9\n[set]\nmu = 1.5\n')
    assert experiments(["fedprox", "local"], Path("run.toml"), {}, [])["fedprox"].method == FedProx(mu=1.5)
    assert experiments(["local"], Path("run.toml"), {}, [])["local"].rounds == 9


def test_different_partitions_are_refused_before_any_run() -> None:
    small: dict[str, Any] = {"rounds": 1, "epochs": 1}
    pair = {
        "even": Experiment("local", partition=Iid(clients=3), **small),
        "skewed": Experiment("local", partition=Dirichlet(clients=3), **small),
    }
    with pytest.raises(CoterieError, match="seed 0: 'skewed' has another partition"):
        compare(pair, [0], Path("mixed"))
    assert not Path("mixed").exists()


def test_comparison_survives_a_round_trip_through_json(tmp_path: Path) -> None:
    comparison = comparison_of(a=[0.5, 0.6], b=[0.1, 0.2])
    (tmp_path / "comparison.json").write_text(json.dumps(comparison.as_dict()))
    again = Comparison.load(tmp_path)
    assert again == comparison
    assert all(again.winner(key) == comparison.winner(key) for key in comparison.columns)


PROTOCOL = ["--protocol", "fedtc", "--data", "digits", "--model", "mlp", "--rounds", "1", "--epochs", "1"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_protocol_s_settings_for_one_method_leave_the_others_alone(
    jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ["fedavg", "local", "fedfomo", "scaffold"]
    answer = call(capsys, "compare", *methods, "--seeds", "0", "1", *PROTOCOL, "--jobs", jobs, "--out", "all")
    assert answer.code == 0
    assert (
        "Not all methods ran with the same settings: momentum = 0.0 (scaffold), 0.9 (the others); "
        "validation = 0.2 (fedfomo), unset (the others).\n" in answer.out
    )
    alone = call(capsys, "compare", "fedavg", "--seeds", "0", "1", *PROTOCOL, "--jobs", "1", "--json")
    together = json.loads(Path("all/comparison.json").read_text())
    plain = json.loads(alone.out)
    assert together["partitions"] == plain["partitions"]
    assert together["differing_settings"]["validation"]["fedfomo"] == 0.2
    assert plain["differing_settings"] == {}
    for seed in ("0", "1"):
        whole, cut = (Partition.load(f"all/{name}-s{seed}/partition.safetensors") for name in ("fedavg", "fedfomo"))
        assert all(map(len, cut.validation))
        assert whole == cut.whole() == whole.whole()
        assert whole != cut
    assert "Not all methods ran" in call(capsys, "show", "all").out


def test_validation_may_differ_but_test_samples_may_not() -> None:
    small: dict[str, Any] = {"rounds": 1, "epochs": 1, "partition": Iid(clients=3)}
    found = compare({"a": Experiment("local", **small), "b": Experiment("local", validation=0.3, **small)}, [0])
    assert found.settings_note() == ("Not all methods ran with the same settings: validation = unset (a), 0.3 (b).")
    with pytest.raises(CoterieError, match="seed 0: 'b' has another partition"):
        compare({"a": Experiment("local", **small), "b": Experiment("local", test=0.3, **small)}, [0])
