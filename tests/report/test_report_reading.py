"""Runs that are not whole: what there is, and in words what there is not."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_tools import CLIENTS, lines_of, small_run
from scipy.stats import spearmanr

from coterie.errors import CoterieError
from coterie.partition import Iid
from coterie.report.learning import agreement, label_overlap
from coterie.report.onerun import run_content
from coterie.report.page import page, report_content
from coterie.report.reading import read_run, run_folders
from coterie.setup.config import FORMAT
from listening import power_cut

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def test_a_killed_run_shows_its_rounds(tmp_path: Path) -> None:
    from coterie.runs.experiment import Experiment

    experiment = Experiment("fedavg", partition=Iid(clients=3), rounds=5, epochs=1, threads=1)
    with power_cut(tmp_path / "cut", 2) as listeners:
        experiment.run(tmp_path / "cut", listeners)
    shown = run_content(read_run(tmp_path / "cut"))
    assert shown["state"] == "not finished: 2 of 5 rounds"
    assert shown["curves"]["received"]["rounds"] == [1, 2]
    (told,) = shown["wrong"]
    assert told.startswith("cut is not finished: 2 of 5 rounds; 'coterie resume ")


def test_a_run_killed_before_its_first_round_shows_its_clients(run: Path) -> None:
    for entry in ("summary.json", "rows.safetensors"):
        (run / entry).unlink()
    shutil.rmtree(run / "mixes")
    (run / "rounds.jsonl").write_text("")
    shown = run_content(read_run(run))
    assert (shown["curves"], shown["final"], shown["learning"]) == ({}, {}, [])
    assert len(shown["counts"]) == CLIENTS
    assert "run: no round is recorded; there are no curves" in shown["wrong"]
    page(report_content([run]))


def test_damaged_lines_are_skipped_and_named(run: Path) -> None:
    lines = (run / "rounds.jsonl").read_text().splitlines()
    short = json.loads(lines[2])
    short["received"]["values"]["accuracy"] = short["received"]["values"]["accuracy"][:-1]
    damaged = [lines[0], '{"round": 2, "coh\x00', json.dumps(short), lines[0], "[1]", lines[3], lines[3][:40]]
    (run / "rounds.jsonl").write_text("\n".join(damaged))
    record = read_run(run)
    assert [line.round for line in record.lines] == [1, 4]
    assert list(record.skipped) == [
        "run: line 2 of rounds.jsonl was skipped (it is no JSON: JSON is malformed: invalid character (byte 17))",
        "run: line 3 of rounds.jsonl was skipped (received: not a number for each of the clients)",
        "run: line 5 of rounds.jsonl was skipped (it is a list, not a table)",
        "run: rounds.jsonl ends within line 7: the run was killed while it wrote",
        "run: line 4 of rounds.jsonl was skipped (its round is 1, after round 1)",
    ]
    content = report_content([run])
    assert content["notes"] == list(record.skipped)
    assert set(record.skipped) <= set(content["runs"][0]["wrong"])


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": {}},
        {"bytes": {"up": "1", "down": 0}},
        {"cohort": [*range(CLIENTS - 1), 99]},
        {"diverged": None},
        {"tuning_diverged": [99]},
        {"received": [1]},
    ],
)
def test_a_line_that_lacks_a_part_is_skipped(run: Path, change: dict[str, object]) -> None:
    first, *rest = lines_of(run)
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [{**first, **change}, *rest]))
    record = read_run(run)
    assert [line.round for line in record.lines] == [2, 3, 4]
    (told,) = record.skipped
    assert re.search(rf"line 1 of rounds.jsonl was skipped \({next(iter(change))}\b", told)


def test_a_number_that_json_does_not_know_costs_its_line(run: Path) -> None:
    first, *rest = lines_of(run)
    first["bytes"] = {"up": math.nan, "down": 0}
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [first, *rest]))
    record = read_run(run)
    assert [line.round for line in record.lines] == [2, 3, 4]
    assert "line 1 of rounds.jsonl was skipped (it is no JSON: " in record.skipped[0]


def test_damaged_files_cost_their_own_figures_alone(run: Path) -> None:
    (run / "mixes" / "00002.safetensors").write_bytes(b"nothing")
    (run / "summary.json").write_text('{"task": {"judged_by": 3}}')
    assert run_content(read_run(run))["metric"]["name"] == "accuracy"
    (run / "summary.json").write_text("{")
    shown = run_content(read_run(run))
    assert shown["learning"][0]["rounds"] == [1, 3, 4]
    assert len(shown["wrong"]) == 2
    assert "its summary cannot be read" in shown["wrong"][0]
    assert "who learned from whom in round 2 cannot be read" in shown["wrong"][1]
    (run / "partition.safetensors").write_bytes(b"nothing")
    without = run_content(read_run(run))
    assert without["clients"] == [str(client) for client in range(CLIENTS)]
    assert (without["counts"], without["sizes"]) == (shown["counts"], [])
    assert without["curves"] == shown["curves"]


def test_diverged_clients_and_warnings_are_told(run: Path) -> None:
    lines = lines_of(run)
    for line in lines[1:3]:
        line["diverged"] = [2]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "log.txt").write_text(
        "2026-01-01 00:00:00,000 INFO all is well\n"
        "2026-01-01 00:00:00,000 WARNING the disk is nearly full\n"
        "2026-01-01 00:00:01,000 WARNING the disk is nearly full\n"
        "2026-01-01 00:00:00,000 WARNING round 2: client 2 diverged (its weights are not finite)\n"
    )
    assert run_content(read_run(run))["wrong"] == [
        "client 2 diverged in 2 of 4 rounds (rounds 2, 3)",
        "the disk is nearly full",
    ]


def test_a_run_of_regression_is_judged_by_its_own_metric(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedavg", data="diabetes", partition=Iid(clients=3))
    for finished in (True, False):
        if not finished:
            (run / "summary.json").unlink()
        shown = run_content(read_run(run))
        assert shown["metric"] == {"name": "mae", "share": False, "higher": False}
        np.testing.assert_allclose(
            shown["final"]["received"], lines_of(run)[-1]["received"]["values"]["mae"], atol=1e-4
        )
        assert shown["why"] == "data 'diabetes' has no classes"
        page(report_content([run]))


def test_a_folder_stands_for_the_runs_in_it(whole: Path, run: Path, tmp_path: Path) -> None:
    assert run_folders(run) == [run]
    assert run_folders(tmp_path) == [run]
    assert run_folders(run / "mixes") == [run / "mixes"]


def test_what_holds_no_run_is_named_and_the_rest_is_shown(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    content = report_content([tmp_path / "empty", run, tmp_path / "nowhere"])
    assert [one["name"] for one in content["runs"]] == ["run"]
    assert [note.partition(": ")[2] for note in content["notes"]] == [
        "holds no run (config.toml is missing)",
        "there is no such file or folder",
    ]
    with pytest.raises(CoterieError, match="empty: holds no run"):
        report_content([tmp_path / "empty"])
    (run / "config.toml").write_text(f"format = {FORMAT}\n")
    with pytest.raises(CoterieError, match=r"its config.toml lacks method, data, rounds, seed"):
        report_content([run])
    (run / "config.toml").write_text(f'format = {FORMAT}\nmethod = "x"\ndata = "y"\nrounds = "z"\nseed = 0\nset = 3\n')
    with pytest.raises(CoterieError, match=r"in its config.toml, rounds, set cannot be read"):
        report_content([run])
    (run / "config.toml").write_text("format = [")
    with pytest.raises(CoterieError, match="not a TOML file"):
        report_content([run])


@given(st.integers(3, 8), st.integers(0, 1000))
def test_agreement_is_spearmans_rank_correlation(clients: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    overlap = label_overlap(draw.integers(0, 5, (clients, 4)) + 1)
    # Coarse weights, so that some are equal.
    weights = np.round(draw.dirichlet(np.ones(clients), clients), 1)
    off = ~np.eye(clients, dtype=bool)
    if np.ptp(weights[off]) > 0 and np.ptp(np.round(overlap[off], 6)) > 0:
        expected = spearmanr(weights[off], np.round(overlap[off], 6)).statistic
        assert agreement(weights, overlap) == pytest.approx(expected, abs=1e-9)
    some = weights.copy()
    some[0] = np.nan
    kept = off & ~np.isnan(some)
    if np.ptp(some[kept]) > 0 and np.ptp(np.round(overlap[kept], 6)) > 0:
        expected = spearmanr(some[kept], np.round(overlap[kept], 6)).statistic
        assert agreement(some, overlap) == pytest.approx(expected, abs=1e-9)
