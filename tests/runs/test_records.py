"""The run directory: whole files, refusals, and runs that were killed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from coterie import resume
from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size, identity
from coterie.errors import CoterieError
from coterie.files import write_whole
from coterie.methods import FedPer, Method
from coterie.partition import Iid
from coterie.rounds.listeners import RoundReport
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.runs.run import Run
from coterie.runs.tensors import load_tensors, save_tensors
from listening import EachRound, power_cut
from support import final_rows, tiny, without_times


def named(**options: Any) -> Experiment:
    """An experiment that its configuration file describes in full."""
    settings: dict[str, Any] = {"rounds": 4, "epochs": 1, "batch": 64, "join": 0.5, "seed": 2, "checkpoint_every": 2}
    return Experiment("fedper", "digits", Iid(clients=4), "mlp", **{**settings, **options})


def same_results(one: Run, other: Run) -> None:
    assert torch.equal(final_rows(one), final_rows(other))
    for (name, tensor), (again, copy) in zip(one.federation.state(), other.federation.state(), strict=True):
        assert name == again
        assert torch.equal(tensor, copy), name
    assert without_times(one.summary) == without_times(other.summary)
    assert without_times(one.lines) == without_times(other.lines)


def test_a_run_directory_holds_what_the_run_gave(tmp_path: Path) -> None:
    out = tmp_path / "a" / "run"
    result = named().run(str(out))
    directory = RunDirectory.open(out)
    assert directory.finished
    assert directory.lines() == result.lines
    assert directory.summary() == json.loads(json.dumps(result.summary))
    state, metadata = load_tensors(out / "rows.safetensors")
    assert json.loads(metadata["layout"])["round"] == 4
    for name, tensor in result.federation.state():
        assert torch.equal(state[name], tensor)
    assert directory.partition() == result.prepared.partition
    assert directory.recorded_rounds() == [1, 2, 3, 4]
    assert not list(out.rglob("*.partial"))


def test_recorded_mixes_say_who_learned_from_whom(tmp_path: Path) -> None:
    reports: list[RoundReport] = []
    named(record_every=2).run(tmp_path / "run", listeners=[EachRound(reports.append)])
    directory = RunDirectory.open(tmp_path / "run")
    assert directory.recorded_rounds() == [2, 4]
    (mix,) = directory.mixes(2)
    (made,) = reports[1].mixes
    assert torch.equal(mix.weights, made.weights)
    assert mix.columns.tolist() == reports[1].cohort
    assert (mix.group, mix.target, mix.gated, mix.rows.tolist()) == ("extractor", "model", False, [])


def test_mixes_are_recorded_never_if_asked_so(tmp_path: Path) -> None:
    named(record_every=0).run(tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").recorded_rounds() == []


@dataclass(frozen=True)
class Many(Method):
    """Several mixes among the cohort in a round, and the same tensor put twice."""

    shared: ClassVar[str] = "extractor"

    def init(self, federation: Federation) -> None:
        for name in ("sizes", "again"):
            federation.add_value(name, torch.zeros(federation.clients, dtype=torch.int64))

    def uploads(self, federation: Federation) -> dict[str, str]:
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        yield Mix(by_size(uploads), "extractor")
        yield Mix(identity(len(uploads.cohort)), "classifier")
        yield Mix(identity(uploads.federation.clients), "classifier", source="model", to="everyone")
        yield Put("sizes", uploads.federation.sizes)
        yield Put("again", uploads.federation.values["sizes"])


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_tensors_that_share_memory_can_be_recorded_and_resumed(tmp_path: Path, join: float) -> None:
    experiment = tiny(Many(), join=join, checkpoint_every=1, rounds=4)
    with power_cut(tmp_path / "run", 2) as listeners:
        experiment.run(tmp_path / "run", listeners)
    directory = RunDirectory.open(tmp_path / "run")
    assert [mix.group for mix in directory.mixes(2)] == ["extractor", "classifier", "classifier"]
    again = resume(tmp_path / "run", experiment=experiment)
    same_results(experiment.run(tmp_path / "other"), again)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_killed_run_ends_like_one_that_was_not(tmp_path: Path, last: int) -> None:
    """Killed before the first checkpoint, at one, and after one."""
    whole = named().run(tmp_path / "whole")
    with power_cut(tmp_path / "killed", last) as listeners:
        named().run(tmp_path / "killed", listeners)
    assert not RunDirectory.open(tmp_path / "killed").finished
    again = resume(str(tmp_path / "killed"))
    same_results(whole, again)
    assert RunDirectory.open(tmp_path / "killed").finished
    for name in ("config.toml", "rows.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_resuming_starts_after_the_last_checkpoint(tmp_path: Path) -> None:
    with power_cut(tmp_path / "run", 3) as listeners:
        named().run(tmp_path / "run", listeners)
    rounds: list[int] = []
    resume(tmp_path / "run", listeners=[EachRound(lambda report: rounds.append(report.round))])
    assert rounds == [3, 4]


@pytest.mark.thorough
def test_a_run_may_be_killed_twice_and_resumed_with_held_out_clients(tmp_path: Path) -> None:
    experiment = named(held_out=1, evaluate_every=3, checkpoint_every=1)
    whole = experiment.run(tmp_path / "whole")
    with power_cut(tmp_path / "killed", 1) as listeners:
        experiment.run(tmp_path / "killed", listeners)
    with power_cut(tmp_path / "killed", 3) as listeners:
        resume(tmp_path / "killed", listeners)
    again = resume(tmp_path / "killed")
    same_results(whole, again)
    assert whole.summary["newcomers"] == again.summary["newcomers"]


@pytest.mark.thorough
def test_a_run_that_was_killed_after_its_last_round_is_finished_by_resume(tmp_path: Path) -> None:
    whole = named().run(tmp_path / "whole")
    with power_cut(tmp_path / "killed", 4) as listeners:
        named().run(tmp_path / "killed", listeners)
    same_results(whole, resume(tmp_path / "killed"))


@pytest.mark.thorough
def test_a_half_written_line_is_passed_over(tmp_path: Path) -> None:
    whole = named().run(tmp_path / "whole")
    with power_cut(tmp_path / "killed", 3) as listeners:
        named().run(tmp_path / "killed", listeners)
    file = tmp_path / "killed" / "rounds.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert [line.round for line in RunDirectory.open(tmp_path / "killed").lines()] == [1, 2]
    same_results(whole, resume(tmp_path / "killed"))
    assert [json.loads(line)["round"] for line in file.read_text().splitlines()] == [1, 2, 3, 4]


def test_a_finished_run_is_not_resumed(tmp_path: Path) -> None:
    named(rounds=1).run(tmp_path / "run")
    with pytest.raises(CoterieError, match="finished"):
        resume(tmp_path / "run")
    with pytest.raises(CoterieError, match="holds no run"):
        resume(tmp_path)


@pytest.mark.thorough
def test_a_run_of_own_objects_needs_them_again(tmp_path: Path) -> None:
    experiment = tiny("fedper", checkpoint_every=1)
    with power_cut(tmp_path / "run", 1) as listeners:
        experiment.run(tmp_path / "run", listeners)
    with pytest.raises(CoterieError, match="Python objects"):
        resume(tmp_path / "run")
    same_results(
        tiny("fedper", checkpoint_every=1).run(tmp_path / "whole"), resume(tmp_path / "run", experiment=experiment)
    )


def test_existing_directories_are_refused(tmp_path: Path) -> None:
    experiment = named(rounds=1, checkpoint_every=0)
    experiment.run(tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").read_bytes()
    with pytest.raises(CoterieError, match="already holds a run"):
        experiment.run(tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(CoterieError, match="not empty"):
        experiment.run(tmp_path / "full")
    (tmp_path / "file").write_text("")
    with pytest.raises(CoterieError, match="is a file"):
        experiment.run(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    experiment.run(tmp_path / "empty")


def test_checkpoints_need_a_directory() -> None:
    with pytest.raises(CoterieError, match="checkpoint_every = 2"):
        named().run()


def test_a_directory_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoterieError, match="is a file"):
        replace(named(), data="no such data").run(tmp_path / "file")


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_whole(target, b"old")

    def fails(fd: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        write_whole(target, b"new and longer")
    assert target.read_bytes() == b"old"


def test_tensors_and_texts_survive_the_disk(tmp_path: Path) -> None:
    base = torch.arange(6.0).view(2, 3)
    tensors = {"view": base[:, 1:], "same": base, "bits": torch.tensor([True, False]), "none": base[:0]}
    save_tensors(tmp_path / "file", tensors, {"about": "é"})
    found, texts = load_tensors(tmp_path / "file")
    assert texts == {"about": "é"}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype
    with pytest.raises(CoterieError, match="no such file"):
        load_tensors(tmp_path / "other")


def test_one_clients_saved_row_is_its_model(tmp_path: Path) -> None:
    """Personal parameters can be saved, loaded and served alone."""
    result = tiny(FedPer(), "norm").run(tmp_path / "run")
    state, _ = load_tensors(tmp_path / "run" / "rows.safetensors")
    federation = result.prepared.federation()
    federation.restore(state)
    module, client = result.prepared.problem_base.module, 2
    row = torch.zeros(federation.layout.width)
    federation["model"].copy_row(client, row)
    loaded = federation.layout.load(module, row).eval()
    inputs = result.prepared.data.inputs[:7]
    with torch.no_grad():
        assert torch.equal(loaded(inputs), result.model(client)(inputs))


def test_runs_of_other_formats_are_refused_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    named(rounds=1).run(out)
    config = out / "config.toml"
    text = config.read_text()
    assert text.startswith("format = 3\n")
    assert "format" not in RunDirectory.open(out).config()
    for now, message in [
        ("", f"run = {out}: was written by an older version of Coterie (this one reads format 3); run it again"),
        (
            "format = 2\n",
            f"run = {out}: was written by an older version of Coterie (this one reads format 3); run it again",
        ),
        ("format = 4\n", f"run = {out}: was written by a newer version of Coterie (format 4, this one reads 3)"),
    ]:
        config.write_text(text.replace("format = 3\n", now))
        with pytest.raises(CoterieError) as caught:
            RunDirectory.open(out)
        assert str(caught.value) == message
