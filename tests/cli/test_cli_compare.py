from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from cli_tools import SMALL, assert_same_run, call
from hypothesis import given
from hypothesis import strategies as st

import coterie as ct
from coterie.cli.experiments import experiments
from coterie.compare.grid import RULE
from coterie.compare.table import Comparison, compare
from coterie.core.numbers import spoken_bytes
from coterie.errors import CoterieError
from coterie.methods import FedProx
from coterie.partition import Dirichlet, Iid, Partition
from coterie.runs.experiment import Experiment

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
        steps, forward = (
            statistics.fmean(number(run["effort"]) for run in runs)
            for number in (lambda effort: sum(effort["steps"].values()), lambda effort: effort["forward"])
        )
        cells = [
            f"{100 * statistics.fmean(values):.1f}±{100 * statistics.stdev(values):.1f}"
            for values in by_column.values()
        ]
        line = next(line for line in answer.out.splitlines() if line.startswith(method))
        counts = [f"{count:.1f}".removesuffix(".0") for count in (steps, forward)]
        work = [*counts, *spoken_bytes(sent).split(), f"{seconds:.2f}"]
        assert line.replace("*", " ").split() == [method, *cells, *work]
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
    assert answer.json["note"] == "No winner is marked: that takes 3 seeds or more (--seeds 0 1 2)."
    assert list(Path.cwd().iterdir()) == []


CONSTRUCTED: dict[str, tuple[dict[str, list[float]], str | None]] = {
    "a clear lead": ({"a": [0.79, 0.80, 0.81], "b": [0.75, 0.77, 0.79]}, "a"),
    "seeds spread more than the lead, but together": ({"a": [0.5, 0.7, 0.9], "b": [0.49, 0.69, 0.888]}, "a"),
    "two seeds, tied on one": ({"a": [0.700, 0.696], "b": [0.697, 0.696]}, None),
    "two seeds, however clear": ({"a": [0.9, 0.9], "b": [0.1, 0.1]}, None),
    "three seeds, tied on one": ({"a": [0.8, 0.8, 0.7], "b": [0.7, 0.7, 0.7]}, None),
    "one seed the other way": ({"a": [0.8, 0.8, 0.69], "b": [0.7, 0.7, 0.70]}, None),
    "one sign, but one seed does it all": ({"a": [0.9, 0.51, 0.51], "b": [0.5, 0.50, 0.50]}, None),
    "clear against one, not against the other": ({"a": [0.9] * 3, "b": [0.1] * 3, "c": [0.91, 0.85, 0.91]}, None),
    "the best mean without a clear lead, the second behind": ({"a": [0.99, 0.5, 0.5], "b": [0.6, 0.6, 0.6]}, None),
    "alike": ({"a": [0.5] * 3, "b": [0.5] * 3}, None),
    "alone": ({"a": [0.5] * 3}, None),
    "no number": ({"a": [0.9] * 3, "b": [0.1, math.nan, 0.1]}, None),
}


@pytest.mark.parametrize("case", CONSTRUCTED)
def test_a_winner_leads_clearly_over_every_other_method(case: str) -> None:
    accuracies, winner = CONSTRUCTED[case]
    comparison = comparison_of(**accuracies)
    assert comparison.winner("received_mean_last") == winner
    assert comparison.note().startswith("No winner is marked" if winner is None else "* a winner has the best mean")


def test_where_less_is_better_the_smaller_wins() -> None:
    runs = {"a": [0.1, 0.2, 0.3], "b": [0.2, 0.31, 0.4]}
    about = {"judged_by": "accuracy", "metrics": {"accuracy": {"higher_is_better": False, "share": False}}}
    summaries = {name: [{**summary_of(value), "task": about} for value in values] for name, values in runs.items()}
    assert Comparison((0, 1, 2), summaries).winner("received_mean_last") == "a"


def test_costs_have_no_winner() -> None:
    clear = comparison_of(a=[0.79, 0.80, 0.81], b=[0.75, 0.77, 0.79])
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
        own = dict(named)[winner]
        assert all(
            mine > theirs for name, each in named if name != winner for mine, theirs in zip(own, each, strict=True)
        )


def test_marks_stand_in_the_winners_cells(capsys: pytest.CaptureFixture[str]) -> None:
    from coterie.cli.compare import print_comparison

    print_comparison(comparison_of(good=[0.90, 0.91, 0.92], bad=[0.10, 0.12, 0.14]), None, json=False)
    printed = capsys.readouterr().out
    good, bad = (next(line for line in printed.splitlines() if line.startswith(name)) for name in ("good", "bad"))
    assert good.split()[1:6] == ["91.0±1.0*"] * 5
    assert bad.split()[1:6] == ["12.0±2.0"] * 5
    assert RULE in printed


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "newer version of Coterie"),
        ({"format": None}, "older version of Coterie"),
        ({"columns": None}, "is damaged; delete it"),
        ({"runs": 3}, "is damaged; delete it"),
        ({"runs": {}}, "is damaged; delete it"),
        ({"runs": {"a": [{}, {}]}}, "is damaged; delete it"),
        ({"runs": {"a": [3, 4]}}, "is damaged; delete it"),
        ({"seeds": [0]}, "is damaged; delete it"),
        ({"seeds": ["a", "b"]}, "is damaged; delete it"),
        ({"columns": {"x": {"name": "x"}}}, "is damaged; delete it"),
    ],
)
def test_a_comparison_of_another_version_or_a_damaged_one_is_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    content = comparison_of(a=[0.5, 0.6], b=[0.1, 0.2]).as_dict()
    (tmp_path / "comparison.json").write_text(json.dumps(content | change))
    with pytest.raises(CoterieError, match=words):
        Comparison.load(tmp_path)


def test_methods_and_seeds_may_stand_in_lists_with_commas(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--clients", "3", "--rounds", "1", "--json"]
    answer = call(capsys, "compare", "local,fedavg", "fedprox:mu=1,lr=0.1", "--seeds", "0,1", *few)
    found = json.loads(answer.out)
    assert found["methods"] == ["local", "fedavg", "fedprox:mu=1,lr=0.1"]
    assert found["seeds"] == [0, 1]


def test_half_a_comparison_is_refused(tmp_path: Path) -> None:
    for spoilt in ('{"format": 1, "seeds": [0', "[" * 100_000, "[]", "null"):
        (tmp_path / "comparison.json").write_text(spoilt)
        with pytest.raises(CoterieError, match="is damaged"):
            Comparison.load(tmp_path)


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


def test_any_recorded_number_can_be_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    columns = "stored.weighted.last5,worst_decile.trained,std.received,macro_f1,bytes.up,seconds.total"
    words = ("compare", "local", "fedavg", "--seeds", "0", "1", *SMALL, "--join", "0.5", "--jobs", "1")
    answer = call(capsys, *words, "--columns", columns, "--out", "all")
    assert answer.code == 0, answer.err
    assert [line.split()[0] for line in answer.out.splitlines() if "±" in line][:2] == ["local", "fedavg"]
    saved = json.loads(Path("all/comparison.json").read_text())
    run = json.loads(Path("all/fedavg-s1/summary.json").read_text())
    found = {about["name"]: saved["table"]["fedavg"][key]["values"][1] for key, about in saved["columns"].items()}
    assert found == {
        "stored.weighted.last5": run["accuracy"]["stored"]["weighted"]["last5"],
        "worst_decile.trained": run["worst_decile"]["trained"],
        "std.received": run["std"]["received"],
        "macro_f1": run["macro_f1"],
        "bytes.up": run["bytes"]["per_client_round"]["up"],
        "seconds.total": run["seconds"]["total"],
    }
    assert call(capsys, "show", "all").out in answer.out  # with the columns that were chosen


def test_a_misspelt_column_shows_before_the_first_run(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "compare", "local", *SMALL, "--columns", "recieved.mean.best", "--out", "all")
    assert answer.code == 2
    assert "unknown column 'recieved.mean.best'; did you mean 'received.mean.best'?" in answer.err
    assert not Path("all").exists()


def test_a_protocol_says_which_column_is_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "local", "--protocol", "pfedsim", "--data", "digits", "--model", "mlp", "--clients", "5")
    words += ("--least", "2", "--rounds", "1", "--epochs", "1", "--seeds", "0", "--jobs", "1")
    said = "The paper of protocol pfedsim reports stored, mean over test samples, last round: "
    assert f"{said}not shown here; --columns stored.weighted.last does.\n" in call(capsys, *words).out
    answer = call(capsys, *words, "--columns", "stored.weighted.last,received.mean.best")
    assert f"{said}the column 'stored weighted last'.\n" in answer.out


def test_a_method_may_stand_there_several_times_with_options_and_settings() -> None:
    chosen = experiments(["FedProx", "fedprox:mu=1", "fedprox:mu=1,lr=0.5", "fedavg:rounds=3"], None, {"lr": 0.2}, [])
    assert list(chosen) == ["fedprox", "fedprox:mu=1", "fedprox:mu=1,lr=0.5", "fedavg:rounds=3"]
    assert [experiment.lr for experiment in chosen.values()] == [0.2, 0.2, 0.5, 0.2]
    assert chosen["fedprox:mu=1"].method == chosen["fedprox:mu=1,lr=0.5"].method == FedProx(mu=1.0)
    assert (chosen["fedprox"].method, chosen["fedavg:rounds=3"].rounds) == (FedProx(), 3)
    own = experiments(["fedprox", "fedprox:mu=1"], None, {}, ["fedprox.mu=2"])
    assert [experiment.method for experiment in own.values()] == [FedProx(mu=2.0), FedProx(mu=1.0)]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (["pfedcs:betta=1"], "unknown option of pfedcs and of a run 'betta'; did you mean 'beta'?"),
        (["fedprox:momentun=1"], "did you mean 'momentum'?"),
        (["fedprox:alpha=0.1"], "share the data and the partition; give alpha once, --alpha"),
        (["fedprox:partition_seed=1"], "give partition_seed once, --partition-seed"),
        (["fedprox:seed=1"], "give them once, --seeds"),
        (["fedprox:mu=x"], "fedprox:mu=x: mu = 'x': must be a number"),
        (["fedprox:mu=1,mu=2"], "mu is given twice"),
        (["fedprox:mu"], "'fedprox:mu': must be NAME or NAME:OPTION=VALUE,OPTION=VALUE"),
        (["fedprox", "fedprox"], "method 'fedprox' is given twice"),
        (["fedprox", "fedprox:mu=0.01"], "'fedprox' and 'fedprox:mu=0.01' are the same run; leave one out"),
    ],
)
def test_entries_that_cannot_be_are_refused_in_a_line(entries: list[str], said: str) -> None:
    with pytest.raises(CoterieError) as caught:
        experiments(entries, None, {}, [])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_comparison_of_variants_is_kept_and_extended(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--seeds", "0", "1", *SMALL, "--jobs", "1", "--out", "all")
    assert call(capsys, "compare", "fedavg", "fedprox:mu=1", *words).code == 0
    stamp = Path("all/fedprox-mu=1-s0/summary.json").stat().st_mtime_ns
    before = json.loads(Path("all/comparison.json").read_text())
    assert call(capsys, "compare", "fedavg", "fedprox:mu=1", *words).code == 0  # nothing is left to do
    answer = call(capsys, "compare", "fedprox:lr=0.5", "--seeds", "2", *SMALL, "--jobs", "1", "--out", "all")
    assert answer.code == 0, answer.err
    after = json.loads(Path("all/comparison.json").read_text())
    assert (after["methods"], after["seeds"]) == (["fedavg", "fedprox:mu=1", "fedprox:lr=0.5"], [0, 1, 2])
    for method in before["methods"]:
        assert after["runs"][method][:2] == before["runs"][method]
        assert len(after["runs"][method]) == 3
    assert Path("all/fedprox-mu=1-s0/summary.json").stat().st_mtime_ns == stamp
    other = call(capsys, "compare", "local", "--seeds", "0", *SMALL, "--lr", "0.9", "--batch", "7", "--out", "all")
    assert other.code == 2
    assert "holds a run with other settings (batch, lr); name another directory" in other.err
    assert json.loads(Path("all/comparison.json").read_text()) == after


def test_python_compares_experiments_by_any_name() -> None:
    few: dict[str, Any] = {"rounds": 1, "epochs": 1, "partition": Iid(clients=3)}
    pair = {"a/b": Experiment("local", **few), "c": Experiment("local", lr=0.5, **few)}
    found = ct.compare(pair, seeds=[0, 1], out="both", jobs=1, columns=["received.mean.last"])
    assert sorted(path.name for path in Path("both").iterdir() if not path.name.startswith(".")) == [
        "a-b-s0",
        "a-b-s1",
        "c-s0",
        "c-s1",
        "comparison.json",
    ]
    frame = found.to_frame()
    assert list(frame.columns) == ["method", "seed", "received_mean_last"]
    assert frame.groupby("method")["received_mean_last"].mean()["c"] == pytest.approx(
        found.mean("c", "received_mean_last")
    )
    with pytest.raises(CoterieError, match="holds a comparison that has a/b too"):
        ct.compare({"c": pair["c"]}, seeds=[0], out="both")
    with pytest.raises(CoterieError, match="two names are the same as names of directories"):
        ct.compare({"a/b": pair["a/b"], "a:b": pair["c"]}, seeds=[0], out="twice")
