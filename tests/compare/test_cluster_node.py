"""The files of runs on their way between machines, and a node's side of a run."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.listening import power_cut

from coterie.compare import cluster_node
from coterie.compare.cluster_node import Inbox, Outbox, carry_out, scratch_folder
from coterie.compare.one_run import perform
from coterie.compare.workers import PlannedRun, task_of
from coterie.errors import CoterieError
from coterie.files import locked
from coterie.partition import Iid
from coterie.runs.experiment import Experiment
from coterie.runs.store import CHECKPOINT, CONFIG, PREVIOUS, ROUNDS, ROWS, SUMMARY
from coterie.runs.tensors import load_tensors


def small(**options: Any) -> Experiment:
    settings = {"rounds": 3, "epochs": 1, "threads": 1, "engine": "serial", "checkpoint_every": 1, **options}
    return Experiment("fedper", **{"partition": Iid(clients=3), **settings})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_rows(one: Path, other: Path) -> bool:
    """Whether two runs ended with the same bits; the texts beside them tell of times too."""
    ours, theirs = (load_tensors(path / ROWS)[0] for path in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def pair(tmp_path: Path) -> tuple[Path, Path]:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "mixes").mkdir(parents=True)
    return here, there


def test_files_arrive_in_pieces_and_only_changes_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_node, "PIECE", 10)
    here, there = pair(tmp_path)
    for name, content in {"a": b"", "mixes/b": b"x" * 10, "c": b"0123456789" * 3 + b"end"}.items():
        (here / name).write_bytes(content)
    (here / "half.partial").write_bytes(b"written")
    outbox, inbox = Outbox(here), Inbox(there)
    sent = list(outbox.news())
    assert [(one["file"], len(one["piece"])) for one in sent] == [
        ("a", 0),
        ("c", 10),
        ("c", 10),
        ("c", 10),
        ("c", 3),
        ("mixes/b", 10),
    ]
    for message in sent:
        inbox.take(message)
    (here / "half.partial").unlink()
    assert contents(there) == contents(here)
    assert list(outbox.news()) == []
    (here / "a").unlink()
    (here / "c").write_bytes(b"new")
    assert outbox.has_new("c")
    assert not outbox.has_new("mixes/b")
    again = list(outbox.news())
    assert again[0] == {"gone": "a"}
    for message in again:
        inbox.take(message)
    assert contents(there) == contents(here)


def test_what_says_that_a_run_is_over_comes_last_and_rows_after_their_lines(tmp_path: Path) -> None:
    here, _ = pair(tmp_path)
    names = [SUMMARY, CONFIG, ROWS, CHECKPOINT, PREVIOUS, ROUNDS, "zebra", "mixes/00001.safetensors"]
    for name in names:
        (here / name).write_bytes(b"x")
    order = [one["file"] for one in Outbox(here).news()]
    assert order == ["mixes/00001.safetensors", "zebra", ROUNDS, CHECKPOINT, ROWS, CONFIG, SUMMARY]


def test_a_damaged_file_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    here, there = pair(tmp_path)
    (here / "rows").write_bytes(b"right")
    there.mkdir()
    (there / "rows").write_bytes(b"before")
    (message,) = Outbox(here).news()
    with pytest.raises(CoterieError, match="rows': arrived damaged from another machine"):
        Inbox(there).take({**message, "piece": b"wrong"})
    assert contents(there) == {"rows": b"before"}


@pytest.mark.parametrize("name", ["../away", "/etc/passwd", "", "mixes/../../away"])
def test_nothing_is_written_outside_the_folder(tmp_path: Path, name: str) -> None:
    inbox = Inbox(tmp_path / "there")
    for message in ({"gone": name}, {"file": name, "piece": b"", "sha256": None}):
        with pytest.raises(CoterieError, match="a machine sent a file that belongs elsewhere"):
            inbox.take(message)
    assert list(tmp_path.iterdir()) == []


def done_by_a_node(run: PlannedRun, messages: list[dict[str, Any]]) -> None:
    """What a main process makes of a node's messages, without a cluster between them."""
    assert run.directory is not None
    inbox, before = Inbox(run.directory), list(Outbox(run.directory).news())
    for message in carry_out(task_of(run), before, {}, str(Path.cwd())):
        messages.append(message)
        if "file" in message or "gone" in message:
            inbox.take(message)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.mark.thorough
def test_a_node_leaves_what_a_run_here_leaves_and_carries_on_what_was_begun(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = perform(small(), tmp_path / "whole")
    messages: list[dict[str, Any]] = []
    done_by_a_node(PlannedRun("fedper", small(), tmp_path / "elsewhere"), messages)
    assert [one["round"] for one in messages if "round" in one] == [1, 2, 3]
    assert sum(one.get("file") == CHECKPOINT for one in messages) == 3
    assert messages[-1]["summary"]["accuracy"] == whole["accuracy"]
    assert contents(tmp_path / "elsewhere").keys() == contents(tmp_path / "whole").keys()
    assert same_rows(tmp_path / "elsewhere", tmp_path / "whole")
    with power_cut(tmp_path / "cut", round=2) as listeners:
        perform(small(), tmp_path / "cut", listeners)
    carried_on: list[dict[str, Any]] = []
    done_by_a_node(PlannedRun("fedper", small(), tmp_path / "cut"), carried_on)
    assert [one["round"] for one in carried_on if "round" in one] == [3]
    assert same_rows(tmp_path / "cut", tmp_path / "whole")
    assert list(scratch.iterdir()) == []


@pytest.mark.thorough
def test_a_mistake_names_the_directory_in_which_the_run_is_kept(tmp_path: Path, scratch: Path) -> None:
    perform(small(lr=0.3), tmp_path / "run")
    messages: list[dict[str, Any]] = []
    done_by_a_node(PlannedRun("fedper", small(), tmp_path / "run"), messages)
    assert messages[-1]["mistake"].startswith(f"out = {tmp_path / 'run'}: holds a run with other settings (lr)")


def test_folders_of_processes_that_were_killed_are_removed_and_others_left(scratch: Path) -> None:
    with scratch_folder() as first:
        left = scratch / f"{cluster_node.PREFIX}left"
        shutil.copytree(first, left)
        left.with_suffix(".lock").touch()
        busy = scratch / f"{cluster_node.PREFIX}busy"
        busy.mkdir()
        with locked(busy.with_suffix(".lock")), scratch_folder() as second:
            assert first.is_dir()
            assert busy.is_dir()
            assert second.stat().st_mode & 0o077 == 0
            assert not left.exists()
    assert [path.name for path in scratch.iterdir()] == [busy.name]


def test_two_nodes_on_one_machine_have_folders_of_their_own(scratch: Path) -> None:
    found: list[Path] = []

    def enter() -> None:
        with scratch_folder() as folder:
            found.append(folder)

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 4
