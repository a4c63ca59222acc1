"""A run is reused only if everything that decides its numbers is the same; what differs is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.cli_tools import call
from tests.compare.test_one_run import Watch
from torch import nn

from coterie.compare import kept as kept_module
from coterie.compare.kept import kept_tables
from coterie.compare.one_run import EARLIER, perform
from coterie.compare.sweep import sweep
from coterie.compare.table import compare
from coterie.compare.workers import PlannedRun
from coterie.core.task import Classification, CrossEntropy
from coterie.data import from_arrays
from coterie.errors import CoterieError
from coterie.partition import Iid
from coterie.rounds.listeners import StopAfter
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.runs.record import plain
from coterie.runs.resume import resume
from coterie.runs.store import ABOUT
from coterie.runs.tensors import sealed
from coterie.setup import identity as identity_module
from support import warnings_in

pytestmark = pytest.mark.thorough

METHOD = """
from dataclasses import dataclass
from coterie import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    pass
# {note}
"""
NOTEBOOK = """
from dataclasses import dataclass
import torch
from torch import nn
from coterie import FedAvg

SLOPE = {slope}

def squashed(x):
    return torch.tanh({inner} * x)

@dataclass(frozen=True)
class Mine(FedAvg):
    def scale(self, x, by={by}):
        return SLOPE * squashed(x) * by

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 8)
        self.classifier = nn.Linear(8, 10)

    def forward(self, x):
        return self.classifier(squashed(self.body(x.flatten(1))))
"""
USUAL = {"slope": 1.0, "inner": 1.0, "by": 2}


def small(method: Any = "fedavg", **options: Any) -> Experiment:
    settings = {"rounds": 2, "epochs": 1, "threads": 1, "partition": Iid(clients=3), **options}
    return Experiment(method=method, **settings)


def cell(**changed: float) -> dict[str, Any]:
    """The names that a notebook has after its cells have run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(NOTEBOOK.format(**{**USUAL, **changed}), "<cell>", "exec", dont_inherit=True), names)
    return names


def arrays(seed: int = 0, labels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).random((60, 6), dtype=np.float32)
    return x, np.roll(np.arange(60) % 3, labels)


def on(x: np.ndarray, y: np.ndarray, **options: Any) -> Experiment:
    return small(data=from_arrays(x, y), model="mlp", **options)


def run_anew(first: Experiment, second: Experiment, folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Perform one experiment and then another in its directory: what is said of that the second is run anew."""
    before = perform(first, folder / "run")
    caplog.clear()
    after = perform(second, folder / "run")
    assert (folder / EARLIER / "run-1" / "summary.json").is_file()
    assert RunDirectory(folder / "run").summary() == json.loads(json.dumps(after))
    assert before["identity"] != after["identity"]
    (line,) = [line for line in warnings_in(caplog) if "run anew" in line]
    assert perform(second, folder / "run") == json.loads(json.dumps(after)), "the second is known now"
    assert not (folder / EARLIER / "run-2").exists()
    return line.partition("differs in ")[2].partition(";")[0]


def test_a_changed_plug_in_file_is_run_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "mine.py"
    file.write_text(METHOD.format(note="first"))
    first = small(f"{file}:Mine")
    perform(first, tmp_path / "unfinished", [StopAfter(1)])
    file.write_text(METHOD.format(note="second"))
    said = run_anew(first, small(f"{file}:Mine"), tmp_path, caplog)
    assert said == "its plug-in files (mine.py)"
    assert perform(small(f"{file}:Mine"), tmp_path / "unfinished")["rounds"] == 2
    assert (tmp_path / EARLIER / "unfinished-1").is_dir()


@pytest.mark.parametrize("changed", [{"slope": 0.5}, {"inner": 0.5}, {"by": 3}])
def test_a_changed_class_of_a_notebook_is_run_anew_and_the_same_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: dict[str, float]
) -> None:
    first, again, second = (cell(**change)["Mine"]() for change in ({}, {}, changed))
    summary = perform(small(first), tmp_path / "same")
    assert perform(small(again), tmp_path / "same") == json.loads(json.dumps(summary))
    assert not (tmp_path / EARLIER).exists()
    assert run_anew(small(first), small(second), tmp_path, caplog) == "its Python classes (Mine)"


def test_a_changed_model_is_run_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"classifier": "classifier"}
    first, second = (small(model=cell(**change)["Net"], **options) for change in ({}, {"inner": 0.5}))
    assert run_anew(first, second, tmp_path / "forward", caplog) == "its Python classes (Net)"

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.classifier = nn.Linear(64, width), nn.Linear(width, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.classifier(self.body(x.flatten(1)).relu())

    width = 8
    perform(small(model=Wide, **options), tmp_path / "width" / "run")
    width = 9
    caplog.clear()
    perform(small(model=Wide, **options), tmp_path / "width" / "run")
    assert "its Python classes (Wide) and its model (structure)" in caplog.text

    said = run_anew(small(model=Wide(), **options), small(model=Wide(), **options), tmp_path / "weights", caplog)
    assert said == "its model (given weights)"


def test_changed_arrays_and_changed_labels_are_run_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, y = arrays()
    other = x.copy()
    other[17, 2] += 1
    assert run_anew(on(x, y), on(other, y), tmp_path / "inputs", caplog) == "its data (inputs)"
    swapped = y.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert run_anew(on(x, y), on(x, swapped), tmp_path / "labels", caplog) == "its data (labels)"


def test_a_changed_file_of_data_is_run_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, y = arrays()
    np.savez(tmp_path / "own.npz", x=x, y=y)
    mine = small(data=str(tmp_path / "own.npz"), model="mlp")
    perform(mine, tmp_path / "run")
    np.savez(tmp_path / "own.npz", x=x, y=y[::-1])
    perform(mine, tmp_path / "run")
    assert "differs in its data (labels)" in caplog.text


def test_a_changed_loss_and_a_changed_trace_are_run_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, y = arrays()

    def losing(weight: float) -> Experiment:
        class Weighted(CrossEntropy):
            def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
                return weight * nn.functional.cross_entropy(outputs, labels, reduction="none")

        return small(data=from_arrays(x, y, task=Classification(3, loss=Weighted())), model="mlp")

    assert run_anew(losing(1.0), losing(2.0), tmp_path / "loss", caplog) == "its Python classes (Weighted)"
    trace = tmp_path / "seen.csv"
    trace.write_text("client,probability\n")
    present = small(presence=f"trace:{trace}")
    perform(present, tmp_path / "run")
    trace.write_text("client,probability\n0,0.0\n")
    perform(present, tmp_path / "run")
    assert "differs in its files (seen.csv)" in caplog.text


def test_other_code_of_coterie_is_run_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform(small(), tmp_path / "run")
    monkeypatch.setattr(identity_module, "code_digest", lambda: "another version")
    perform(small(), tmp_path / "run")
    assert "differs in Coterie's own code; what was there is now" in caplog.text


def test_the_digest_of_coterie_is_that_of_the_sources_that_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(identity_module.__file__).parents[1]
    copy = tmp_path / "coterie"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("__pycache__"))
    digest = identity_module.code_digest.__wrapped__
    monkeypatch.setattr(identity_module, "__file__", str(copy / "setup" / "identity.py"))
    as_it_was = digest()
    assert as_it_was == identity_module.code_digest()
    for other in ("report/page.py", "cli/__init__.py", "runs/about.py", "testing/toys.py"):
        (copy / other).write_text("changed\n")
    assert digest() == as_it_was
    for part in ("rng.py", "maths/similarity.py", "methods/fedavg.py", "setup/prepared.py"):
        (copy / part).write_text(f"changed {part}\n")
        assert digest() != as_it_was
        as_it_was = digest()


def test_a_run_recorded_without_identity_is_run_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    perform(small(), tmp_path / "run")
    without_identity(tmp_path / "run")
    perform(small(), tmp_path / "run")
    assert "differs in what was not recorded of it (data, code, first weights);" in caplog.text


def without_identity(run: Path) -> None:
    about = plain(RunDirectory(run).about())
    del about["identity"]
    (run / ABOUT).write_text(json.dumps(sealed(about)))


def test_an_identity_that_is_not_whole_is_damage(tmp_path: Path) -> None:
    perform(small(), tmp_path / "run")
    about = plain(RunDirectory(tmp_path / "run").about())
    for spoilt in (7, {"data": {}}, None):
        (tmp_path / "run" / ABOUT).write_text(json.dumps(sealed({**about, "identity": spoilt})))
        with pytest.raises(
            CoterieError, match=r"about\.json is damaged \((it has no whole identity|identity is .*, not a table)\)"
        ):
            perform(small(), tmp_path / "run")


def test_another_machine_must_have_the_same_data_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = identity_module.on_any_machine(small().prepare().identity)
    assert perform(small(), tmp_path / "run", known=known)["rounds"] == 2
    with pytest.raises(CoterieError, match=r"here the run differs in its data \(labels\)"):
        perform(small(), tmp_path / "run", known={**known, "data": {**known["data"], "labels": "other"}})
    monkeypatch.setattr(identity_module, "code_digest", lambda: "another version")
    with pytest.raises(CoterieError, match="differs in Coterie's own code; every machine needs the same"):
        perform(small(), None, known=known)


def test_methods_on_different_data_are_not_compared() -> None:
    (x, y), (other, _) = arrays(), arrays(seed=1)
    with pytest.raises(CoterieError, match=r"'second' differs from the others in its data \(inputs\)"):
        compare({"first": on(x, y), "second": on(other, y)}, seeds=[0], jobs=1)


def test_a_comparison_runs_anew_what_changed_and_nothing_else(tmp_path: Path) -> None:
    x, y = arrays()
    pair = {"a": on(x, y), "b": on(x, y, method="local")}
    kept = [compare(pair, [0], tmp_path, jobs=1).summaries for _ in range(2)]
    assert kept[0] == kept[1]
    changed = {name: on(x + 1, y, method=one.method) for name, one in pair.items()}
    assert compare(changed, [0], tmp_path, jobs=1).summaries["a"] != kept[0]["a"]
    assert sorted(path.name for path in (tmp_path / EARLIER).iterdir()) == ["a-s0-1", "b-s0-1"]
    assert compare(changed, [0], tmp_path, jobs=1).summaries["a"] != kept[0]["a"], "a folder with runs set aside"


def test_a_search_runs_anew_what_changed(tmp_path: Path) -> None:
    def search(x: np.ndarray, y: np.ndarray) -> list[float]:
        grid = {f"lr={rate}": on(x, y, lr=rate) for rate in (0.01, 0.1)}
        found = sweep(grid, [0], tmp_path, lambda runs: nullcontext(Watch()), jobs=1, full=True)
        return [one.score for one in found.candidates]

    x, y = arrays()
    first = search(x, y)
    assert search(x, y) == first
    search(x, np.sort(y))
    assert len(list((tmp_path / EARLIER).iterdir())) == 2


@pytest.mark.parametrize("left", ["folder", "sweep.json.partial", "best.toml.partial"])
def test_a_search_that_was_interrupted_at_any_place_carries_on(tmp_path: Path, left: str) -> None:
    grid = {"lr=0.1": small(lr=0.1)}
    if left == "folder":
        (tmp_path / "lr=0.1-s0").mkdir()
    else:
        (tmp_path / left).write_text("{")
    assert sweep(grid, [0], tmp_path, lambda runs: nullcontext(Watch()), jobs=1).best.name == "lr=0.1"


def tabled(folder: Path) -> dict[str, list[int]]:
    tables, _ = kept_tables([folder])
    return {row: sorted(runs) for table in tables for row, runs in table.runs.items()}


def test_a_table_does_not_average_different_data_as_seeds(tmp_path: Path) -> None:
    (x, y), (other, _) = arrays(), arrays(seed=1)
    on(x, y).run(tmp_path / "first")
    on(other, y, seed=1).run(tmp_path / "second")
    on(x, y, seed=2).run(tmp_path / "third")
    tables, _ = kept_tables([tmp_path])
    assert [sorted(table.runs["fedavg"]) for table in tables] == [[0, 2], [1]]
    assert list(kept_module.keys_of(tables))[1].endswith("other data (2)")


def test_a_table_keeps_seeds_of_other_code_apart_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (0, 1):
        small(cell()["Mine"](), seed=seed).run(tmp_path / f"m{seed}")
    small(cell(slope=0.5)["Mine"](), seed=2).run(tmp_path / "m2")
    assert tabled(tmp_path) == {"Mine": [0, 1], "Mine (differs in its Python classes (Mine))": [2]}
    small(seed=0).run(tmp_path / "v0")
    monkeypatch.setattr(identity_module, "code_digest", lambda: "another version")
    for seed in (1, 2):
        small(seed=seed).run(tmp_path / f"v{seed}")
    (other,) = [row for row in tabled(tmp_path) if row.startswith("fedavg (")]
    assert tabled(tmp_path)[other] == [1, 2]
    assert other == "fedavg (differs in Coterie's own code)"


def test_a_table_averages_no_runs_that_do_not_say_what_they_are(tmp_path: Path) -> None:
    for seed in (0, 1):
        small(seed=seed).run(tmp_path / f"s{seed}")
        without_identity(tmp_path / f"s{seed}")
    words = "fedavg (differs in what was not recorded of it (data, code, first weights))"
    assert tabled(tmp_path) == {"fedavg": [0], words: [1]}


def test_a_share_of_the_data_is_the_same_data_for_all_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        small(seed=seed, share=0.5).run(tmp_path / f"s{seed}")
    assert tabled(tmp_path) == {"fedavg": [0, 1]}


def test_the_command_line_says_what_is_run_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(METHOD.format(note="first"))
    words = ["compare", f"{file}:Mine", "fedavg", "--rounds", "1", "--epochs", "1", "--seeds", "0"]
    words += ["--jobs", "1", "--out", str(tmp_path / "out")]
    assert call(capsys, *words).code == 0
    file.write_text(METHOD.format(note="second"))
    again = call(capsys, *words)
    assert again.code == 0
    assert again.err.count("is run anew, as it differs in its plug-in files (mine.py)") == 1


def test_identities_are_equal_in_another_process(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    print_it = "import json, coterie as ct\n"
    print_it += "made = ct.Experiment(Mine(), model=Net, classifier='classifier').prepare()\n"
    print_it += "print(json.dumps(made.identity))\n"
    file.write_text(NOTEBOOK.format(**USUAL) + "\nNAMES = {'b', 'a', 'c'}\nMine.names = NAMES\n" + print_it)
    told = [
        subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert set(json.loads(told[0])["classes"]) == {"Mine", "Net"}


def test_what_is_carried_on_and_extended_is_the_run_that_it_would_have_been(tmp_path: Path) -> None:
    perform(small(), tmp_path / "cut", [StopAfter(1)])
    whole, cut = perform(small(), tmp_path / "whole"), perform(small(), tmp_path / "cut")
    assert whole["identity"] == cut["identity"]
    resume(tmp_path / "cut", rounds=3)
    assert RunDirectory(tmp_path / "cut").identity() == small(rounds=3).prepare().identity
    assert perform(small(rounds=3), tmp_path / "cut")["rounds"] == 3
    assert PlannedRun("a", small()).experiment.prepare().identity != small(seed=1).prepare().identity
