"""A run is carried on as what it was begun as, and shown as what it was: anything else is refused and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.crash.forks import KILLED, in_a_clean_fork
from tests.crash.kills import Killer
from torch import nn

from coterie import open_run, resume
from coterie.cli import main
from coterie.errors import CoterieError
from coterie.methods import FedAvg, FedProx
from coterie.partition import Iid, Partition
from coterie.report.page import report_content
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment, experiment_from
from coterie.runs.reader import mixes_name
from coterie.runs.store import pack
from coterie.runs.tensors import sealed
from coterie.scenarios.presence import Trace
from listening import power_cut


def small(**options: Any) -> Experiment:
    usual = {"rounds": 3, "epochs": 1, "batch": 64, "checkpoint_every": 1, "threads": 1, "share": 0.2, "lr": 0.01}
    settings = {"method": FedAvg(), "data": "digits", "partition": Iid(clients=3), **usual, **options}
    return Experiment(**settings)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its third round, with a checkpoint of the second."""
    path = tmp_path_factory.mktemp("killed") / "run"
    with power_cut(path, 3) as listeners:
        small().run(path, listeners)
    return path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ended") / "run"
    small().run(path)
    return path


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(killed, tmp_path / "run")


@pytest.fixture
def over(ended: Path, tmp_path: Path) -> Path:
    return shutil.copytree(ended, tmp_path / "over")


def files(run: Path) -> dict[str, bytes]:
    found = (path for path in run.rglob("*") if path.is_file() and path.name != "log.txt")
    return {str(path.relative_to(run)): path.read_bytes() for path in found}


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": FedProx(mu=1.0)}, ["method = fedprox (it was fedavg)", "mu = 1.0 (it was not set)"]),
        ({"lr": 0.5, "seed": 7}, ["lr = 0.5 (it was 0.01)", "seed = 7 (it was 0)"]),
        ({"partition": Iid(clients=4)}, ["clients = 4 (it was 3)"]),
        ({"clip": 1.0}, ["clip = 1.0 (it was "]),
        ({"checkpoint_every": 2}, ["checkpoint_every = 2 (it was 1)"]),
        ({"engine": "processes"}, ["engine = processes (it was serial)"]),
        ({"rounds": 9}, ["rounds = 9, the run plans 3", "rounds=9) adds more"]),
    ],
)
def test_another_experiment_is_refused(run: Path, changes: dict[str, Any], named: list[str]) -> None:
    before = files(run)
    with pytest.raises(CoterieError) as caught:
        resume(run, experiment=small(**changes))
    said = str(caught.value)
    assert all(part in said for part in named), said
    assert "\n" not in said
    assert files(run) == before


def test_the_same_experiment_is_carried_on_though_its_rounds_were_planned_anew(run: Path) -> None:
    assert resume(run, experiment=small(), rounds=4).summary["rounds"] == 4
    assert resume(run, experiment=small(), rounds=5).summary["rounds"] == 5
    assert RunDirectory(run).config()["rounds"] == 5


def halves(first: int) -> Partition:
    """Two clients, of whom the first has so many samples."""
    train = np.arange(300)
    test = (np.arange(300, 330), np.arange(330, 359))
    return Partition(train=(train[:first], train[first:]), test=test)


def test_another_partition_or_model_of_the_same_name_is_refused(tmp_path: Path) -> None:
    def model(width: int) -> nn.Module:
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())
        return nn.Sequential(body, nn.Linear(width, 10))

    def experiment(first: int, width: int) -> Experiment:
        return small(partition=halves(first), model=model(width), classifier="1")

    with power_cut(tmp_path / "run", 3) as listeners:
        experiment(100, 8).run(tmp_path / "run", listeners)
    with pytest.raises(CoterieError, match="partition: other clients or samples"):
        resume(tmp_path / "run", experiment=experiment(101, 8))
    with pytest.raises(CoterieError, match=r"the model is not the one .*: parameters = 835 \(it was 610\)"):
        resume(tmp_path / "run", experiment=experiment(100, 11))
    assert resume(tmp_path / "run", experiment=experiment(100, 8)).summary["rounds"] == 3


EDITS = {
    "lr": ("lr = 0.01", "lr = 0.5", r"lr = 0\.5 \(it was 0\.01\)"),
    "method": ('method = "fedavg"', 'method = "fedper"', r"method = fedper \(it was fedavg\)"),
    "rounds": ("\nrounds = 3", "\nrounds = 8", r"rounds = 8 \(it was 3\)"),
    "fewer rounds": ("\nrounds = 3", "\nrounds = 2", r"rounds = 2 \(it was 3\)"),
    "removed": ("lr = 0.01\n", "", r"lr = not set \(it was 0\.01\)"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_configuration_is_named(run: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, said = EDITS[what]
    edit(run / "config.toml", old, new)
    before = files(run)
    for use in (open_run, resume):
        with pytest.raises(CoterieError, match=rf"config\.toml was changed since the run began: {said}"):
            use(run)
    assert main(["report", str(run), "-o", str(run.parent / "it.html")]) == 2
    assert "config.toml was changed" in capsys.readouterr().err
    assert files(run) == before


def test_an_edited_configuration_of_a_finished_run_is_no_row_of_a_table(
    over: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(over / "config.toml", "lr = 0.01", "lr = 0.5")
    assert main(["table", str(over)]) == 2
    assert "config.toml was changed" in capsys.readouterr().err
    assert main(["runs", str(over.parent)]) == 0
    assert "config.toml was changed" in " ".join(capsys.readouterr().out.split())


def test_data_may_move(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    np.savez(tmp_path / "one.npz", x=stream.normal(size=(90, 4)), y=np.arange(90) % 3)
    with power_cut(tmp_path / "run", 3) as listeners:
        small(data=str(tmp_path / "one.npz"), share=1.0).run(tmp_path / "run", listeners)
    (tmp_path / "one.npz").rename(tmp_path / "two.npz")
    edit(tmp_path / "run" / "config.toml", "one.npz", "two.npz")
    assert resume(tmp_path / "run").summary["rounds"] == 3
    assert open_run(tmp_path / "run").config["data"] == str(tmp_path / "two.npz")


def edited_summary(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    summary["accuracy"]["received"]["mean"]["best"] = 0.999
    (run / "summary.json").write_text(json.dumps(summary))


def unsealed_summary(run: Path) -> None:
    edited_summary(run)
    summary = json.loads((run / "summary.json").read_text())
    del summary["sha256"]
    (run / "summary.json").write_text(json.dumps(summary))


def summary_of_another_form(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    del summary["sha256"]
    (run / "summary.json").write_text(json.dumps(sealed({**summary, "diverged": {"0": ["first"]}})))


def summary_without_scores(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    del summary["sha256"], summary["accuracy"]
    (run / "summary.json").write_text(json.dumps(sealed(summary)))


def others_summary(run: Path) -> None:
    small(lr=0.02).run(run.parent / "other")
    shutil.copy(run.parent / "other" / "summary.json", run / "summary.json")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (edited_summary, "is damaged (its SHA-256 is another)"),
        (unsealed_summary, "is damaged (its SHA-256 is missing)"),
        (summary_of_another_form, "is damaged (diverged[…][0] is a text, not a whole number)"),
        (summary_without_scores, "is damaged (accuracy is missing)"),
        (others_summary, "is of another run than config.toml: lr = 0.02 (it was 0.01)"),
    ],
)
def test_a_summary_that_was_not_written_by_the_run_is_named(
    over: Path, spoil: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(over)
    pack([over], over.parent / "it.zip")
    for where in (over, over.parent / "it.zip"):
        with pytest.raises(CoterieError) as caught:
            print(open_run(where).summary)
        assert f"summary.json {why}" in str(caught.value)
        for command in ("show", "table"):
            assert main([command, str(where)]) == 2
            said = capsys.readouterr()
            assert f"summary.json {why}" in said.err
            assert "0.999" not in said.out
    assert f"summary.json {why}" in str(report_content([over]))
    # The way out that the message names.
    (over / "summary.json").unlink()
    resume(over)
    assert main(["show", str(over)]) == 0


def test_changed_rounds_of_a_packed_run_are_noticed_without_its_rows(over: Path) -> None:
    line = json.loads((over / "rounds.jsonl").read_text().splitlines()[0])
    mean = line["received"]["mean"]
    edit(over / "rounds.jsonl", f'"mean":{mean}', '"mean":0.999')
    (over / "rows.safetensors").unlink()
    (over / "checkpoint.safetensors").unlink()
    pack([over], over.parent / "it.zip")
    with pytest.raises(CoterieError, match=r"rounds\.jsonl is damaged"):
        print(open_run(over.parent / "it.zip").history)


TRACE = "client,probability\n0,0.5\n1,0.9\n"


def test_a_trace_is_kept_with_its_run_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "seen.csv"
    trace.write_text(TRACE)
    whole = small(presence=f"trace:{trace}").run(tmp_path / "whole")
    with power_cut(tmp_path / "run", 3) as listeners:
        small(presence=f"trace:{trace}").run(tmp_path / "run", listeners)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    trace.write_text(TRACE.replace("0.5", "0.1"))
    with pytest.raises(CoterieError, match=r"seen\.csv has changed since"):
        resume(tmp_path / "run")
    with pytest.raises(CoterieError, match=r"presence = 'trace:.*seen\.csv': the file has changed"):
        experiment_from(RunDirectory(tmp_path / "run").config())
    trace.unlink()
    carried = resume(tmp_path / "run")
    assert [line.cohort for line in carried.lines] == [line.cohort for line in whole.lines]
    assert RunDirectory(tmp_path / "run").summary() == json.loads(json.dumps(carried.summary))
    (kept,) = (tmp_path / "again" / "plugins").iterdir()
    kept.write_text(TRACE.replace("0.5", "0.1"))
    with pytest.raises(CoterieError, match=r"its copy of .*seen\.csv was changed"):
        resume(tmp_path / "again")


def test_a_trace_is_read_anew_by_every_run(tmp_path: Path) -> None:
    path = tmp_path / "seen.csv"
    for probability in (0.5, 0.25):
        path.write_text(f"client,probability\n0,{probability}\n")
        trace = Trace(str(path))
        assert trace.lines == (("0", 1, probability),)
        path.write_text("client,probability\n")
        assert trace.lines == (("0", 1, probability),), "but not in the middle of one"


def test_a_partition_file_that_changed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    halves(100).save(file)
    with power_cut(tmp_path / "run", 3) as listeners:
        small(partition=str(file), share=1.0).run(tmp_path / "run", listeners)
    halves(101).save(file)
    with pytest.raises(CoterieError, match=r"mine\.npz has changed since"):
        resume(tmp_path / "run")
    with pytest.raises(CoterieError, match=r"partition = '.*mine\.npz': the file has changed"):
        experiment_from(RunDirectory(tmp_path / "run").config())
    file.unlink()
    assert resume(tmp_path / "run").summary["rounds"] == 3


def lose(file: Path) -> None:
    file.unlink()


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def swap(file: Path) -> None:
    shutil.copy(file.with_name("00002.safetensors"), file)


@pytest.mark.parametrize("spoil", [lose, flip, cut, swap])
def test_lost_and_damaged_mixes_are_named_at_resume(run: Path, spoil: Any, caplog: pytest.LogCaptureFixture) -> None:
    spoil(run / mixes_name(1))
    with caplog.at_level("WARNING", "coterie"):
        resume(run)
    (said,) = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert f"{mixes_name(1)} is " in said
    assert "who learned from whom in round 1 is lost" in said
    if spoil is not lose:
        with pytest.raises(CoterieError, match=r"mixes/00001\.safetensors is damaged"):
            open_run(run).mixes(1)


def test_whole_mixes_are_not_named(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "coterie"):
        resume(run)
        resume(run, rounds=5)
    assert "is lost" not in caplog.text


def extend_until_killed(place: Path, at: int, power: bool) -> None:
    Killer(place, at, power).install()
    resume(place, rounds=5)


@pytest.mark.processes
@pytest.mark.thorough
@pytest.mark.parametrize("power", [False, True])
def test_a_kill_while_more_rounds_are_planned_leaves_a_run_that_can_be_used(
    ended: Path, power: bool, tmp_path: Path
) -> None:
    """As it was, or one that goes on with its models; and what its summary says is there until the new one is."""
    place = tmp_path / "run"
    whole = open_run(ended)
    states = set()
    for at in range(1, 30):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(ended, place)
        assert in_a_clean_fork(extend_until_killed, place, at, power) == KILLED
        assert (place / "summary.json").read_bytes() == (ended / "summary.json").read_bytes()
        opened = open_run(place)
        states.add(opened.status)
        if opened.status == "finished":
            assert (opened.config, opened.summary) == (whole.config, whole.summary)
        else:
            assert (opened.status, opened.summary["rounds"], opened.config["rounds"]) == ("unfinished", opened.done, 5)
        if opened.done == 3:
            mine, theirs = (one.model(1).state_dict() for one in (opened, whole))
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert states == {"finished", "unfinished"}


def test_the_summary_of_a_former_end_stays_until_there_is_a_new_one(over: Path) -> None:
    before = (over / "summary.json").read_bytes()
    with power_cut(over, 5) as listeners:
        resume(over, listeners, rounds=6)
    assert (over / "summary.json").read_bytes() == before
    opened = open_run(over)
    assert (opened.status, opened.summary["rounds"], opened.done) == ("unfinished", 5, 5)
    resume(over)
    assert open_run(over).status == "finished"
    assert open_run(over).summary["rounds"] == 6
