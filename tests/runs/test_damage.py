"""Damaged run directories, two processes at one run, full disks: nothing is lost, and nothing wrong is accepted."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coterie import open_run, resume
from coterie.cli import main
from coterie.errors import CoterieError
from coterie.files import link_whole
from coterie.partition import Iid
from coterie.runs.directory import RunDirectory, alone, lock_of
from coterie.runs.experiment import Experiment
from coterie.runs.store import CHECKPOINT, CONFIG, PARTITION, PREVIOUS, ROUNDS
from listening import power_cut
from support import final_rows


def small(data: str = "digits", **options: object) -> Experiment:
    settings = {"rounds": 4, "epochs": 1, "batch": 64, "checkpoint_every": 1, "threads": 1, "share": 0.2, **options}
    return Experiment("fedper", data, Iid(clients=3), "mlp", **settings)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its third round, whose last checkpoint is of the second."""
    path = tmp_path_factory.mktemp("killed") / "run"
    with power_cut(path, 3) as listeners:
        small().run(path, listeners)
    return path


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(killed, tmp_path / "run")


def flip(path: Path, place: int = -5) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def lines(run: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of the metrics."""
    file = run / ROUNDS
    file.write_text("".join(f"{line}\n" for line in change(file.read_text().splitlines())))


LINES: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "removed": (lambda old: old[1:], "line 1 tells of round 2"),
    "doubled": (lambda old: [old[0], *old], "line 2 tells of round 1"),
    "moved": (lambda old: old[::-1], "line 1 tells of round 3"),
    "cut off": (lambda old: old[:1], "the checkpoint is of round"),
    "damaged": (lambda old: [old[0][:9], *old[1:]], "line 1: it is no JSON"),
    "another thing": (lambda old: ["[1]", *old[1:]], "line 1: it is a list, not a table"),
    "bare": (lambda old: ['{"round": 1}', *old[1:]], "line 1: it lacks cohort"),
}


@pytest.mark.parametrize("what", LINES)
def test_lines_must_be_those_of_all_rounds_in_their_order(run: Path, what: str) -> None:
    change, message = LINES[what]
    lines(run, change)
    before = (run / ROUNDS).read_bytes()
    with pytest.raises(CoterieError, match=f"{ROUNDS} is damaged .*{message}"):
        resume(run)
    assert (run / ROUNDS).read_bytes() == before


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were put on the disk, in order."""
    names: list[str] = []
    flush = os.fsync

    def note(file: int) -> None:
        names.append(Path(f"/proc/self/fd/{file}").readlink().name)
        flush(file)

    monkeypatch.setattr("os.fsync", note)
    return names


def test_lines_are_on_the_disk_before_the_checkpoint(tmp_path: Path, flushed: list[str]) -> None:
    small(rounds=1).run(tmp_path / "run")
    assert flushed.index(ROUNDS) < flushed.index(f"{CHECKPOINT}.partial")


@pytest.mark.thorough
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_fallen_back_on(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = small().run(tmp_path / "whole")
    flip(run / CHECKPOINT)
    with caplog.at_level("WARNING", "coterie"):
        result = resume(run)
    assert f"{CHECKPOINT} is damaged (its SHA-256 is another); falling back on the checkpoint before" in caplog.text
    assert final_rows(result).equal(final_rows(whole))
    assert not (run / PREVIOUS).exists()


def test_a_missing_checkpoint_is_named_and_the_one_before_is_fallen_back_on(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run / CHECKPOINT).unlink()
    with caplog.at_level("WARNING", "coterie"):
        assert resume(run).summary["rounds"] == 4
    assert f"{CHECKPOINT} is missing; falling back on the checkpoint before" in caplog.text


def test_without_another_checkpoint_a_damaged_one_is_an_error(run: Path) -> None:
    flip(run / CHECKPOINT)
    (run / PREVIOUS).unlink()
    with pytest.raises(CoterieError, match=r"its SHA-256 is another.*there is no other checkpoint"):
        resume(run)


FILES = (CONFIG, "about.json", PARTITION, ROUNDS, CHECKPOINT)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[]", b"{}", b"\x08" + bytes(7) + b'{"a":1}}'])
def test_damaged_files_are_one_line(run: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    (run / PREVIOUS).unlink()
    assert main(["resume", str(run)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("coterie: error: ")
    assert "Traceback" not in "".join(said)


@pytest.mark.parametrize("place", [220, 700, 1061, -40])
def test_a_bit_of_what_describes_the_run_is_noticed(run: Path, place: int) -> None:
    """A name of a metric, of a class or of a key: whoever reads on would miss it, or tell something else."""
    flip(run / "about.json", place)
    for use in (open_run, resume):
        with pytest.raises(CoterieError, match=r"about.json is damaged"):
            use(run)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\x08" + bytes(7) + b"{       "])
def test_damaged_mixes_and_summaries_are_one_line(run: Path, content: bytes) -> None:
    (run / "mixes" / "00001.safetensors").write_bytes(content)
    (run / "summary.json").write_bytes(content)
    opened = open_run(run)
    with pytest.raises(CoterieError, match=r"mixes/00001.safetensors is damaged"):
        opened.mixes(1)
    with pytest.raises(CoterieError, match=r"summary.json is damaged"):
        print(opened.summary)


def test_replaced_data_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a relative path holds wherever one is."""
    numbers = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", x=numbers.normal(size=(90, 4)), y=np.arange(90) % 3)
    with power_cut(tmp_path / "run", 2) as listeners:
        small(data="mine.npz", share=1.0).run(tmp_path / "run", listeners)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    assert resume(tmp_path / "again").summary["rounds"] == 4
    np.savez(tmp_path / "mine.npz", x=numbers.normal(size=(90, 4)), y=np.arange(90) % 3)
    with pytest.raises(CoterieError, match=r"the data have changed since it began \(inputs of 'mine'\)"):
        resume(tmp_path / "run")


def test_two_processes_are_never_at_one_run(run: Path) -> None:
    before = (run / ROUNDS).read_bytes()
    lock = lock_of(run)
    with alone(run):
        assert lock.exists()
        with alone(run):  # whoever is at a run may begin or carry it on
            pass
        assert lock.exists()
    assert not lock.exists()
    holder = os.open(lock, os.O_CREAT | os.O_RDWR)
    fcntl = pytest.importorskip("fcntl")
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(CoterieError, match="another process is at it; wait until that has ended"):
        resume(run)
    assert (run / ROUNDS).read_bytes() == before
    os.close(holder)
    assert resume(run).summary["rounds"] == 4


def test_a_run_that_was_killed_before_it_began_can_be_started_again(run: Path, tmp_path: Path) -> None:
    """Not what somebody else may have put there."""
    for name in (CONFIG, CHECKPOINT, PREVIOUS, "log.txt"):
        (run / name).unlink()
    with pytest.raises(CoterieError, match="is not empty"):
        small(rounds=1).run(run)
    lock_of(run).touch()  # which a kill leaves behind
    small(rounds=1).run(run)
    assert RunDirectory.open(run).finished
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all I have")
    lock_of(tmp_path / "mine").touch()
    with pytest.raises(CoterieError, match="is not empty"):
        small(rounds=1).run(tmp_path / "mine")


def test_a_full_disk_names_the_file_and_the_way_on(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = run.rename(run.with_name("my run"))

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert main(["resume", str(spaced)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "my run/" in said
    assert "No space left on device" in said
    assert f"`coterie resume '{spaced}'`" in said
    assert resume(spaced).summary["rounds"] == 4


def test_what_a_full_disk_kept_from_beginning_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*run/"):
            small(rounds=1).run(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())
    assert json.loads(json.dumps(small(rounds=1).run(tmp_path / "run").summary))["rounds"] == 1


def test_a_line_that_was_changed_is_noticed(run: Path) -> None:
    """The checkpoint knows what the lines said; only the seconds may be anybody's."""

    def change(old: list[str]) -> list[str]:
        line = json.loads(old[0])
        line["received"]["mean"] += 0.25
        return [json.dumps(line), *old[1:]]

    lines(run, change)
    with pytest.raises(CoterieError, match=f"{ROUNDS} is damaged .*tells something else of the first 3 rounds"):
        resume(run)
    with pytest.raises(CoterieError, match=f"{ROUNDS} is damaged"):
        print(open_run(run).history)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bytes", {"up": 1}, "bytes lacks down"),
        ("bytes", [1], "bytes is a list, not a table"),
        ("seconds", {"train": 1.0}, "seconds lacks exchange"),
        ("cohort", [0.5], r"cohort\[0\] is a number, not a whole number"),
        ("cohort", [-1], r"cohort\[0\] must be a whole number >= 0"),
        ("seconds", {"train": "long", "exchange": 0, "evaluate": 0}, "seconds.train is a text, not a number"),
        ("parts", {"presence": {"missing": 3}}, "parts.presence: missing is a whole number, not a list"),
        ("received", {"mean": 1.0}, "received lacks weighted"),
        ("training", {"loss": [1.0, "x"]}, r"training\[…\]\[1\] is a text, not a number or nothing"),
        ("training", {"loss": [1.0]}, "training: not a number for each of the 3 clients of the round"),
        ("validation", 3, "validation is a whole number, not a table or nothing"),
    ],
)
def test_a_line_that_no_round_writes_is_one_line(run: Path, key: str, value: object, message: str) -> None:
    lines(run, lambda old: [json.dumps({**json.loads(old[0]), key: value}), *old[1:]])
    with pytest.raises(CoterieError, match=f"line 1: {message}"):
        print(open_run(run).history)


def test_a_refused_run_is_left_as_it_was(run: Path) -> None:
    (run / "stopped.json").write_text("{}")
    lines(run, lambda old: old[1:])
    before = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file() and file.name != "log.txt"}
    with pytest.raises(CoterieError, match="tells of round 2"):
        resume(run)
    after = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file() and file.name != "log.txt"}
    assert after == before


def test_a_partition_is_on_the_disk_before_its_run_begins(tmp_path: Path, flushed: list[str]) -> None:
    small(rounds=1).run(tmp_path / "run")
    assert flushed.index(f"{PARTITION}.partial") < flushed.index(f"{CONFIG}.partial")


def test_a_checkpoint_that_is_linked_already_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"rows")
    for _ in range(2):
        link_whole(tmp_path / "one", tmp_path / "two")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one", "two"]
