"""What the author of a method or a model is told: one line with the place, and nothing is left in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_tools import SMALL, Answer, call

METHOD = """\
from dataclasses import dataclass
import torch
import coterie as ct

@dataclass(frozen=True)
class Mine(ct.Method):
    '''Mine.'''
    {fields}
    def exchange(self, uploads):
        {body}
"""
MODEL = """\
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(64, {hidden}), nn.Linear({hidden}, 10)

    def forward(self, x):
        return self.out(self.body(x.flatten(1)).relu())
"""


def tried(capsys: pytest.CaptureFixture[str], body: str, fields: str = "shared = 'all'") -> Answer:
    Path("mine.py").write_text(METHOD.format(fields=fields, body=body))
    return call(capsys, "run", "./mine.py:Mine", *SMALL, "--out", "it")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_that_broke_in_its_first_round_leaves_nothing_in_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="my own bug") as caught:
        tried(capsys, "raise ValueError('my own bug')")
    assert not hasattr(caught.value, "__notes__")  # of what could be resumed
    assert not Path("it").exists()
    # Mended, it runs under the same name.
    answer = tried(capsys, "yield ct.Mix(torch.full((1, 4), 0.25))")
    assert answer.code == 0, answer.err
    assert Path("it/summary.json").is_file()


def test_a_run_that_broke_later_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        tried(capsys, "yield ct.Mix(torch.full((1, 4), 1 / (4 if uploads.federation.round == 1 else 0)))")
    assert "resume" in caught.value.__notes__[0]
    assert len(Path("it/rounds.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yield ct.Mix([[1]])", "gives a Mix a list as weights; make it a tensor"),
        (
            "yield ct.Mix(torch.tensor([[1.0]]))",
            "mix of 'all': 1 weights a row for 4 source rows; make it one weight each, such as "
            "torch.full((1, 4), 1 / 4) or by_size(uploads)",
        ),
        (
            "yield ct.Mix(torch.eye(4))",
            "what is shared is one row for all: give one row of weights [1, 4], or make 'all' personal",
        ),
        ("return ct.Mix(torch.eye(4))", "returns a Mix by itself; let it yield each Mix, Put or Drop"),
        ("ct.Mix(torch.eye(4))", "returns None; let it yield each Mix, Put or Drop"),
    ],
)
def test_faults_of_an_exchange_are_named_with_their_place(
    body: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = tried(capsys, body)
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert message in answer.err
    assert f"Mine.exchange ({Path('mine.py').resolve()}, line 9)" in answer.err
    assert not Path("it").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("mu: float", "method 'Mine' needs the option 'mu' ({file}, line 5): give it (--set mu=…), or a default"),
        (
            "def __init__(self, mu): self.mu = mu",
            "method 'Mine' asks for 'mu' in its __init__ ({file}, line 5): options are fields of a frozen dataclass",
        ),
    ],
)
def test_options_without_a_default_are_named_with_their_place(
    fields: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = tried(capsys, "yield ct.Mix(torch.full((1, 4), 0.25))", fields)
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert message.format(file=Path("mine.py").resolve()) in answer.err


def test_the_last_layer_of_ones_own_model_is_its_classifier_if_that_is_clear(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("mine.py").write_text(MODEL.format(hidden=16))
    answer = call(capsys, "run", "fedper", "--model", "./mine.py:Net", *SMALL, "--out", "it")
    assert answer.code == 0, answer.err
    assert "classifier = 'out': it is the only fully connected layer of Net with 10 outputs" in answer.err
    assert (
        call(capsys, "run", "fedper", "--model", "./mine.py:Net", "--classifier", "out", *SMALL, "--out", "named").code
        == 0
    )
    assert Path("it/rows.safetensors").read_bytes() == Path("named/rows.safetensors").read_bytes()
    Path("mine.py").write_text(MODEL.format(hidden=10))
    answer = call(capsys, "run", "fedper", "--model", "./mine.py:Net", *SMALL)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "name the module of your model that is its classifier: 'body' or 'out' may be it" in answer.err
