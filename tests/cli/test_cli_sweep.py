"""`coterie sweep`, and comparisons that tune first."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from cli_tools import SMALL, call
from tests.report.report_tools import content_of

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_sweep_ends_in_a_table_and_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sweep", "FedProx", "--grid", "lr=0.001,0.1", "--grid", "mu=0,1", *SMALL, "--jobs", "1")
    answer = call(capsys, *words)
    assert answer.code == 0, answer.err
    out = Path("runs/sweep-fedprox-digits-1")
    best = json.loads((out / "sweep.json").read_text())["best"]
    rows = [line.split() for line in answer.out.splitlines() if line.startswith("fedprox:")]
    assert len(rows) == 4
    assert rows[0][0] == best
    assert [row[2].endswith("*") for row in rows] == [True, False, False, False]
    assert f"'coterie run --config {out}/best.toml' runs it" in answer.out
    run = call(capsys, "run", "--config", out / "best.toml", "--json")
    assert run.code == 0
    assert run.json["config"]["lr"] == float(best.partition("lr=")[2].partition(",")[0])
    again = call(capsys, *words, "--out", out, "--json")
    assert again.json["best"] == best
    # Its page leads with what validation says, and `show` tells the same again.
    search = content_of((out / "report.html").read_text())["search"]
    assert search["best"] == best
    assert search["options"] == ["lr", "mu"]
    shown = {one["name"]: (one["rounds"], one["score"], one["values"]) for one in search["candidates"]}
    told = {one["name"]: (one["rounds"], one["score"]) for one in again.json["candidates"]}
    assert {name: values[:2] for name, values in shown.items()} == told
    assert shown["fedprox:lr=0.1,mu=1"][2] == [0.1, 1.0]
    assert call(capsys, "show", out).out == answer.out
    as_it_was = json.loads((out / "sweep.json").read_text())
    whole_but_odd = ({"judged_by": 3}, {"candidates": []}, {"candidates": [{"name": 4, "rounds": math.inf}]})
    for spoilt in ("{", "[]", "[" * 100_000, *(json.dumps({**as_it_was, **change}) for change in whole_but_odd)):
        (out / "sweep.json").write_text(spoilt)
        assert call(capsys, "show", out).err == (
            f"coterie: error: '{out}/sweep.json' is damaged; the same 'coterie sweep' again writes it anew\n"
        )
    for spoilt in ("{", "[" * 100_000, json.dumps({**as_it_was, "candidates": [{"name": best, "rounds": math.inf}]})):
        (out / "sweep.json").write_text(spoilt)
        answer = call(capsys, "report", out)
        assert answer.code == 0
        assert "sweep.json" in answer.err


def test_optuna_proposes(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    words = ("sweep", "fedprox", "--grid", "lr=0.001..0.5", "--optuna", "3", *SMALL, "--jobs", "1", "--out", "it")
    answer = call(capsys, *words, "--json")
    assert answer.code == 0, answer.err
    assert len(answer.json["candidates"]) == 3
    assert call(capsys, *words, "--json").json == answer.json
    both = call(capsys, *words, "--random", "2")
    assert (both.code, both.err) == (
        2,
        "coterie: error: optuna, random: give one of them: settings are proposed, or drawn by chance\n",
    )


def test_every_method_of_a_comparison_is_tuned_alike(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "local", "fedprox:mu=1", "--tune", "lr=0.0001,0.1", *SMALL, "--jobs", "1", "--seeds", "3", "4")
    answer = call(capsys, *words, "--out", "all")
    assert answer.code == 0, answer.err
    (tuned,) = [
        line for line in answer.out.splitlines() if line.startswith("Tuned on validation samples with seed 3: ")
    ]
    chosen = re.findall(r"(local|fedprox:mu=1) lr=0\.1 \(lr = 0\.1 is the largest that was tried", tuned)
    assert chosen == ["local", "fedprox:mu=1"]
    saved = json.loads(Path("all/comparison.json").read_text())
    assert saved["methods"] == ["local", "fedprox:mu=1"]
    for runs in saved["runs"].values():
        assert [run["config"]["lr"] for run in runs] == [0.1, 0.1]
        assert all("validation" not in run["config"] for run in runs)
    assert sorted(path.name for path in Path("all/tuning").iterdir()) == ["fedprox-mu=1-s3", "local-s3"]
    # Neither a further method nor a table of the comparison is confused by the runs that tuned it.
    more = call(capsys, "compare", "fedavg", *words[3:], "--out", "all")
    assert more.code == 0, more.err
    table = call(capsys, "table", "all", "--columns", "received.mean.best")
    assert [line.split()[0] for line in table.out.splitlines() if "±" in line][:3] == ["fedavg", "fedprox", "local"]
    assert not table.err


def test_only_settings_that_every_method_has_are_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "compare", "local", "fedprox", "--tune", "mu=0,1", *SMALL)
    assert answer.code == 2
    assert "unknown setting to tune 'mu'" in answer.err
    assert "'coterie sweep' for a method's own options" in answer.err
