from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_tools import SMALL, call
from examples import demo
from PIL import Image

from coterie.cli import app

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_picture_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", "fedrema", *SMALL, "--out", "it").code == 0
    answer = call(capsys, "picture", "it")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "The picture of round 2 is kept in it/picture-round-2.png\n"
    assert Image.open("it/picture-round-2.png").size[0] > 800
    answer = call(capsys, "picture", "it", "--round", "1", "--out", "new/one.png")
    assert answer.out == "The picture of round 1 is kept in new/one.png\n"
    assert Path("new/one.png").is_file()


def test_mistakes_end_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", "local", *SMALL, "--out", "alone").code == 0
    assert call(capsys, "run", "fedavg", *SMALL, "--record-every", "0", "--out", "silent").code == 0
    assert call(capsys, "run", "fedavg", *SMALL, "--out", "it").code == 0
    mistakes = {
        ("picture",): "picture needs RUN",
        ("picture", "nowhere"): "run = nowhere: there is no such file or folder",
        ("picture", "alone"): "run = alone: there is nothing to draw (nobody has learned from others)",
        ("picture", "silent"): "run = silent: there is nothing to draw (record_every = 0)",
        ("picture", "it", "--round", "3"): "round = 3: is not among the rounds",
        ("picture", "it", "--round", "last"): "round = 'last': must be a whole number",
        ("picture", "it", "--out", "it.jpg"): "out = it.jpg: must end in .png, .pdf, .svg",
    }
    for arguments, message in mistakes.items():
        answer = call(capsys, *arguments)
        assert (answer.code, answer.out) == (2, "")
        assert message in answer.err
        assert answer.err.count("\n") == 1


def test_without_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(capsys, "run", "fedavg", *SMALL, "--out", "it").code == 0
    monkeypatch.setitem(sys.modules, "quickjs", None)
    answer = call(capsys, "picture", "it")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (
        'coterie: error: pictures need an extra that is not installed: pip install "coterie[plots]"\n'
    )
    # The demo says so before it trains, not after.
    assert demo.demo() == 2
    assert 'pip install "coterie[plots]"' in capsys.readouterr().err
    assert not Path("runs").exists()


def test_help_names_the_command_and_explains_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert "picture" in call(capsys, "--help").out
    assert all(one.parameter.help for one in app["picture"].assemble_argument_collection() if one.show)


@pytest.mark.slow
def test_demo_runs_twice_and_keeps_a_picture_of_each_method(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "DATA", "--data digits --partition pathological --clients 4")
    monkeypatch.setattr(demo, "TRAINING", "--rounds 2 --epochs 1 --threads 1")
    monkeypatch.setattr(demo, "PICTURES", dict.fromkeys(demo.PICTURES, 1))
    for number in (1, 2):
        assert demo.demo() == 0
        captured = capsys.readouterr()
        assert f"The pictures are in runs/demo-{number}/pictures." in captured.out
        pictures = sorted(file.name for file in Path(f"runs/demo-{number}/pictures").iterdir())
        assert pictures == ["fedcac.png", "fedrema.png", "fedtc.png", "pfedcs.png", "pfedsim.png"]
        rows = {line.split()[0] for line in captured.out.splitlines() if "±" in line}
        assert set(demo.METHODS.split()) <= rows


def test_demo_draws_rounds_that_there_are() -> None:
    assert set(demo.PICTURES) == set(demo.METHODS.split()) - {"local", "fedavg", "fedper"}
    rounds = demo.TRAINING.split()
    last = int(rounds[rounds.index("--rounds") + 1])
    assert all(1 <= round <= last for round in demo.PICTURES.values())
