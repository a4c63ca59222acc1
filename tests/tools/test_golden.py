"""The golden comparison itself: it sees what differs, and calls nothing different that is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file
from tools.golden import Case, Difference, Run, allowed, compared, read_run, report

CASE = Case("fedavg", "serial", 0.5, "mlp")


def recorded() -> Run:
    """What a run of two clients might have left."""
    return {
        "partition": {"train.indices": np.arange(4)},
        "rows": {"slot.model.shared": np.array([1.0, np.nan, 0.0], np.float32)},
        "values": {"value.seen": np.array([True, False])},
        "W": {"round 1, 0.weights": np.array([[0.5, 0.5]]), "round 1, mixes": np.array("all")},
        "metrics": {"round 1, received.accuracy": np.array([0.25, 0.5])},
        "bytes": {"round 1, up": np.array(100), "round 2, up": np.array(100)},
    }


def test_equal_runs_have_no_differences() -> None:
    assert compared(recorded(), recorded()) == []


@pytest.mark.parametrize(
    ("kind", "name", "value", "text"),
    [
        ("partition", "train.indices", np.array([0, 1, 3, 2]), "2 of 4 differ"),
        ("rows", "slot.model.shared", np.array([1, np.nan, -0.0], np.float32), "1 of 3 differ, by 0 at most"),
        ("rows", "slot.model.shared", np.array([1.5, np.nan, 0], np.float32), "1 of 3 differ, by 0.5 at most"),
        ("rows", "slot.model.shared", np.array([1, 2, 0], np.float32), "1 of 3 differ, in what is finite"),
        ("rows", "slot.model.shared", np.array([1, np.nan, 0]), "float32 [3] became float64 [3]"),
        ("values", "value.seen", np.array([True, True]), "1 of 2 differ"),
        ("W", "round 1, 0.weights", np.array([0.5, 0.5]), "float64 [1, 2] became float64 [2]"),
        ("W", "round 1, mixes", np.array("norm"), "'all' became 'norm'"),
        ("metrics", "round 1, received.accuracy", np.array([0.25, 0.75]), "1 of 2 differ, by 0.25 at most"),
        ("bytes", "round 1, up", np.array(96), "100 became 96"),
    ],
)
def test_every_kind_of_difference_is_named(kind: str, name: str, value: np.ndarray, text: str) -> None:
    new = recorded()
    new[kind][name] = value
    assert compared(recorded(), new) == [Difference(kind, name, text)]


def test_names_of_one_side_alone_are_reported_and_a_new_name_for_the_same_bits_is_recognised() -> None:
    new = recorded()
    new["rows"]["slot.row.shared"] = new["rows"].pop("slot.model.shared")
    del new["values"]["value.seen"]
    new["rows"]["mark.model"] = np.arange(3)
    assert compared(recorded(), new) == [
        Difference("rows", "mark.model", "only new", absent=True),
        Difference("rows", "slot.model.shared", "is now called slot.row.shared (same bits)", absent=True),
        Difference("values", "value.seen", "only old", absent=True),
    ]


def test_only_announced_differences_are_allowed() -> None:
    fewer, mark = Difference("bytes", "round 1, up", "…"), Difference("rows", "mark.model", "only new", absent=True)
    assert allowed(fewer, "fedcac", ["fedcac"], [])
    assert not allowed(fewer, "fedpac", ["fedcac"], [])
    assert allowed(mark, "fedavg", [], ["mark.*"])
    assert not allowed(mark, "fedavg", [], ["slot.*"])
    # A name may be allowed to be missing, never to have another content.
    assert not allowed(Difference("rows", "mark.model", "1 of 3 differ"), "fedavg", [], ["mark.*"])


def write_run(directory: Path, up: int, shared: float = 1.0) -> None:
    """A run directory as a run of one round leaves it."""
    (directory / "mixes").mkdir(parents=True)
    rows: dict[str, np.ndarray] = {"slot.model.shared": np.full(2, shared, np.float32), "value.seen": np.zeros(2)}
    save_file(rows, directory / "rows.safetensors")
    save_file({"train.indices": np.arange(3)}, directory / "partition.safetensors")
    save_file({"0.weights": np.eye(2)}, directory / "mixes" / "00001.safetensors", {"mixes": "[]"})
    line = {
        "round": 1,
        "cohort": [0, 1],
        "seconds": {"train": np.random.default_rng().random()},
        "bytes": {"up": up, "down": 8},
        "received": {"mean": 0.5, "loss": [0.5, None]},
    }
    (directory / "rounds.jsonl").write_text(json.dumps(line) + "\n")


def test_a_run_directory_is_read_kind_by_kind_and_time_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "run", up=16)
    run = read_run(tmp_path / "run")
    assert {kind: set(entries) for kind, entries in run.items()} == {
        "partition": {"train.indices"},
        "rows": {"slot.model.shared"},
        "values": {"value.seen"},
        "W": {"round 1, 0.weights", "round 1, mixes"},
        "metrics": {f"round 1, {name}" for name in ("round", "cohort", "received.mean", "received.loss")},
        "bytes": {"round 1, up", "round 1, down"},
    }
    np.testing.assert_array_equal(run["metrics"]["round 1, received.loss"], [0.5, np.nan])


def test_the_report_counts_what_was_not_allowed_and_shows_the_bytes(tmp_path: Path) -> None:
    outs = (tmp_path / "old", tmp_path / "new")
    write_run(outs[0] / CASE.folder, up=16)
    write_run(outs[1] / CASE.folder, up=12)
    console = Console(record=True, width=200, quiet=False, file=(tmp_path / "report.txt").open("w"))
    found = {CASE: compared(*(read_run(out / CASE.folder) for out in outs))}
    assert report(console, found, [], [], outs) == 1
    assert report(console, found, ["fedavg"], [], outs) == 0
    text = console.export_text()
    assert "{'up': 16, 'down': 8}" in text
    assert "{'up': 12, 'down': 8}" in text
    assert "rows: 1 of 1 cases bit-equal" in text
    assert "bytes: 0 of 1 cases bit-equal" in text
