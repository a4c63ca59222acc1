"""Runs in one file: opened like directories, read without being unpacked, refused where they are not what they say."""

from __future__ import annotations

import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import open_run
from coterie.cli import main
from coterie.errors import CoterieError
from coterie.partition import Iid
from coterie.report.page import report_content
from coterie.runs import store
from coterie.runs.experiment import Experiment
from coterie.runs.run import Run
from coterie.runs.store import pack
from listening import power_cut


def named(method: str = "fedper", **options: Any) -> Experiment:
    settings: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 64, "seed": 2, **options}
    return Experiment(method, "digits", Iid(clients=4), "mlp", **settings)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    named().run(folder / "one")
    named("fedavg").run(folder / "two")
    return folder


def assert_same(packed: Run, kept: Run) -> None:
    assert (packed.status, packed.done, packed.rounds) == (kept.status, kept.done, kept.rounds)
    assert (packed.config, packed.about, packed.summary) == (kept.config, kept.about, kept.summary)
    assert packed.partition == kept.partition
    assert packed.history.equals(kept.history)
    assert packed.clients.equals(kept.clients)
    assert str(packed.accuracy()) == str(kept.accuracy())
    for mine, theirs in zip(packed.mixes(2), kept.mixes(2), strict=True):
        assert torch.equal(mine.weights, theirs.weights)
        assert torch.equal(mine.columns, theirs.columns)


def test_a_packed_run_is_the_run(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "one", tmp_path / "one")
    assert pack([tmp_path / "one"], tmp_path / "it.zip") == ["one"]
    shutil.rmtree(tmp_path / "one")
    before = sorted(tmp_path.rglob("*"))
    opened = open_run(tmp_path / "it.zip")
    assert_same(opened, open_run(two / "one"))
    with pytest.raises(CoterieError, match=r"holds no models .* into a packed run with --models"):
        opened.model(0)
    assert sorted(tmp_path.rglob("*")) == before, "nothing is unpacked"


def test_several_runs_with_models(two: Path, tmp_path: Path) -> None:
    assert pack([two / "one", two / "two"], tmp_path / "it.zip", models=True) == ["one", "two"]
    for name in ("one", "two"):
        opened, kept = open_run(tmp_path / "it.zip" / name), open_run(two / name)
        assert_same(opened, kept)
        for key, tensor in kept.model(3).state_dict().items():
            assert torch.equal(opened.model(3).state_dict()[key], tensor)
    with pytest.raises(CoterieError) as caught:
        open_run(tmp_path / "it.zip")
    zipped = tmp_path / "it.zip"
    assert str(caught.value) == f"run = {zipped}: holds several runs; say which: {zipped}/one, {zipped}/two"
    with pytest.raises(CoterieError, match=r"unknown run in .*it\.zip 'tow'; did you mean 'two'\?"):
        open_run(tmp_path / "it.zip" / "tow")


def test_the_same_runs_make_the_same_bytes(two: Path, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        pack([two / "one"], tmp_path / name, models=True)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_an_unfinished_run_takes_its_checkpoint_along(tmp_path: Path) -> None:
    with power_cut(tmp_path / "run", 2) as listeners:
        named(rounds=3, checkpoint_every=1).run(tmp_path / "run", listeners)
    pack([tmp_path / "run"], tmp_path / "it.zip", models=True)
    opened, kept = open_run(tmp_path / "it.zip"), open_run(tmp_path / "run")
    assert opened.status == "unfinished"
    assert torch.equal(
        opened.model(1).state_dict()["classifier.weight"], kept.model(1).state_dict()["classifier.weight"]
    )


def test_logs_and_code_stay_behind(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "one", tmp_path / "one")
    (tmp_path / "one" / "plugins").mkdir()
    (tmp_path / "one" / "plugins" / "mine.py").touch()
    pack([tmp_path / "one"], tmp_path / "it.zip", models=True)
    with zipfile.ZipFile(tmp_path / "it.zip") as archive:
        names = archive.namelist()
    assert names == [
        f"one/{name}"
        for name in (
            *("config.toml", "about.json", "partition.safetensors", "rounds.jsonl", "quality.safetensors"),
            *("summary.json", "rows.safetensors"),
            *("mixes/00001.safetensors", "mixes/00002.safetensors"),
        )
    ]


def test_code_in_a_packed_run_is_not_run(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import coterie as ct\n\n\nclass Mine(ct.FedPer):\n    pass\n")
    experiment = named(f"{mine}:Mine")
    experiment.run(tmp_path / "run")
    pack([tmp_path / "run"], tmp_path / "it.zip", models=True)
    with pytest.raises(CoterieError, match=r"files of one's own are not packed \(.*mine\.py\); pass what it was run"):
        open_run(tmp_path / "it.zip").model(0)
    assert open_run(tmp_path / "it.zip").accuracy().received.mean["last"] > 0
    open_run(tmp_path / "it.zip", experiment=experiment).model(0)


def repacked(source: Path, target: Path, **changed: bytes) -> None:
    """The same archive with other members."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, changed.pop(name.split("/")[1].split(".")[0], old.read(name)))


def test_members_that_are_too_large_are_refused(two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack([two / "one"], tmp_path / "it.zip")
    repacked(tmp_path / "it.zip", tmp_path / "bomb.zip", about=b" " * 100_000)
    monkeypatch.setattr(store, "MOST", 50_000)
    open_run(tmp_path / "it.zip")
    with pytest.raises(CoterieError, match=r"about\.json is too large \(100000 bytes, at most 50000\)"):
        open_run(tmp_path / "bomb.zip")


def test_names_that_lead_outside_are_never_followed(two: Path, tmp_path: Path) -> None:
    pack([two / "one"], tmp_path / "it.zip")
    with zipfile.ZipFile(tmp_path / "it.zip", "a") as archive:
        archive.writestr("../outside.txt", "x")
        archive.writestr("/tmp/outside.txt", "x")
        archive.writestr("one/mixes/../../outside.safetensors", "x")
        archive.writestr("../config.toml", "x")
    before = sorted(tmp_path.rglob("*"))
    assert open_run(tmp_path / "it.zip" / "one").rounds == [1, 2]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"config": b"\xff = ["}, "config.toml is not a TOML file"),
        ({"config": b"rounds = 2"}, "was written by an older version of Coterie"),
        ({"about": b"{"}, "about.json is damaged"),
        ({"about": b"[1]"}, r"about.json is damaged \(it is a list, not a table\)"),
        ({"about": b"{}"}, r"about.json is damaged \(it lacks protocol\)"),
        ({"about": b'{"protocol": null, "data": {}}'}, r"about.json is damaged \(data lacks name\)"),
    ],
)
def test_damaged_members_are_refused_in_one_line(
    changed: dict[str, bytes], message: str, two: Path, tmp_path: Path
) -> None:
    pack([two / "one"], tmp_path / "it.zip")
    repacked(tmp_path / "it.zip", tmp_path / "other.zip", **changed)
    with pytest.raises(CoterieError, match=message) as caught:
        open_run(tmp_path / "other.zip")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_damaged_tensors_are_refused_in_one_line(content: bytes, two: Path, tmp_path: Path) -> None:
    pack([two / "one"], tmp_path / "it.zip", models=True)
    repacked(tmp_path / "it.zip", tmp_path / "other.zip", rows=content, partition=content)
    opened = open_run(tmp_path / "other.zip")
    with pytest.raises(CoterieError):
        _ = opened.partition
    repacked(tmp_path / "it.zip", tmp_path / "third.zip", rows=content)
    with pytest.raises(CoterieError, match=r"rows\.safetensors is damaged|its rows are damaged"):
        open_run(tmp_path / "third.zip").model(0)


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "it.zip").write_bytes(b"nothing of the kind")
    with pytest.raises(CoterieError, match=r"it\.zip: is no \.zip of runs, or damaged \(File is not a zip file\)"):
        open_run(tmp_path / "it.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(CoterieError, match=r"empty\.zip: holds no run"):
        open_run(tmp_path / "empty.zip")


def test_mistakes_in_packing(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "two", tmp_path / "one")
    (tmp_path / "there.zip").touch()
    for runs, out, message in [
        ([two / "one"], "it.tar", r"it\.tar: must end in \.zip"),
        ([two / "one"], "there.zip", "is there already; name another file"),
        ([two / "one", tmp_path / "one"], "it.zip", "another run is called one too; rename one of them"),
        ([tmp_path], "it.zip", r"holds no run \(config\.toml is missing\)"),
        ([], "it.zip", "name at least one run"),
    ]:
        with pytest.raises(CoterieError, match=message):
            pack(runs, tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "there.zip"]


@pytest.mark.thorough
def test_the_command_line(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pack", str(two / "one"), str(two / "two"), "--models", "-o", "it.zip"]) == 0
    assert capsys.readouterr().out.startswith("one, two: with their models, ")
    assert main(["show", str(two / "one")]) == 0
    shown = capsys.readouterr().out
    assert main(["show", "it.zip/one"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["export", "it.zip/one", "--client", "2", "--out", "it.safetensors"]) == 0
    assert main(["picture", "it.zip/two", "--round", "1"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.safetensors", "it.zip", "picture-round-1.png"]


def test_packed_runs_are_listed_reported_and_tabled(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pack([two / "one", two / "two"], tmp_path / "both.zip")
    monkeypatch.chdir(tmp_path)

    def said(*words: str) -> tuple[str, str]:
        assert main(list(words)) == 0
        return capsys.readouterr()

    listed, kept = said("runs", "both.zip", "--json")[0], said("runs", str(two), "--json")[0]
    assert listed == kept
    tabled, kept = (said("table", where, "--format", "csv")[0] for where in ("both.zip", str(two)))
    assert tabled == kept
    assert len(tabled.splitlines()) == 3
    assert said("table", "both.zip/one", "--format", "csv")[0].splitlines()[1] == tabled.splitlines()[1]
    contents = [report_content([path]) for path in (Path("both.zip"), two)]
    # Logs stay behind, and nothing else does.
    assert contents[0] == contents[1]
    Path("bad.zip").write_bytes(b"no archive")
    out, err = said("report", "both.zip", "bad.zip")
    assert out == "The report is kept in report.html\n"
    assert err.startswith("coterie: warning: run = bad.zip: is no .zip of runs, or damaged")


def changed(content: bytes, stream: random.Random) -> bytes:
    """An archive that was cut off, of which bits flipped, or whose tables say something else."""
    spoilt = bytearray(content)
    kind = stream.randrange(3)
    if kind == 0:
        return bytes(spoilt[: stream.randrange(len(spoilt))])
    first = 0 if kind == 1 else len(spoilt) - 1500
    for _ in range(stream.choice([1, 1, 2, 8])):
        spoilt[stream.randrange(first, len(spoilt))] ^= 1 << stream.randrange(8)
    return bytes(spoilt)


def test_a_spoilt_archive_is_read_as_it_was_or_named_in_one_line(two: Path, tmp_path: Path) -> None:
    pack([two / "one"], tmp_path / "whole.zip", models=True)
    content, stream = (tmp_path / "whole.zip").read_bytes(), random.Random(0)
    refused: list[str] = []
    for _ in range(60):
        (tmp_path / "it.zip").write_bytes(changed(content, stream))
        try:
            opened = open_run(tmp_path / "it.zip")
            _ = opened.summary, opened.history, opened.clients, opened.partition, opened.quality, opened.model(0)
            for round in opened.rounds:
                opened.mixes(round)
        except CoterieError as error:
            refused.append(str(error))
    assert len(refused) > 30
    assert all("it.zip" in said and "\n" not in said for said in refused)


def test_a_bit_of_a_compressed_member_is_noticed(two: Path, tmp_path: Path) -> None:
    """Whatever decompressing comes to, it names the file."""
    pack([two / "one"], tmp_path / "it.zip")
    content = bytearray((tmp_path / "it.zip").read_bytes())
    with zipfile.ZipFile(tmp_path / "it.zip") as archive:
        first = archive.getinfo("one/config.toml")
    begin = first.header_offset + 30 + len("one/config.toml")
    for bit in (1, 2):  # the kind of the first block: one of them is that of none
        spoilt = bytearray(content)
        spoilt[begin] ^= 1 << bit
        (tmp_path / "it.zip").write_bytes(spoilt)
        with pytest.raises(CoterieError, match=r"it\.zip: is no \.zip of runs, or damaged \(") as caught:
            open_run(tmp_path / "it.zip")
        assert "\n" not in str(caught.value)
