from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest
from cli_tools import call, finish, start

import coterie
from coterie.cli import app
from coterie.cli.options import GivenSettings
from coterie.methods import METHODS
from coterie.models import MODELS
from coterie.options import BY_RULE, option_fields
from coterie.partition import PARTITIONS
from coterie.runs.experiment import Experiment

pytestmark = pytest.mark.thorough


def test_the_help_of_run_is_short_and_all_of_it_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    brief = call(capsys, "run", "--help").out.splitlines()
    assert 20 <= len(brief) <= 28
    assert len([line for line in brief if line.startswith("  coterie run ")]) == 3
    whole = call(capsys, "run", "--help-all").out
    for option in ("--lr", "--label", "--presence", "--checkpoint-every"):
        assert option in whole
    assert "--presence" not in "\n".join(brief)


@pytest.mark.parametrize(
    ("given", "meant"), [("--learning-rate", "--lr"), ("--num_clients", "--clients"), ("--local-epochs", "--epochs")]
)
def test_options_as_others_call_them_lead_to_ours(given: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "run", "fedavg", given, "1")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert f"did you mean '{meant}'?" in answer.err


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["run", "--help"], ["run", "--alhpa", "1"]])
def test_help_and_typing_errors_load_no_pytorch(arguments: list[str]) -> None:
    after = "print([name for name in ('torch', 'sklearn', 'pyarrow', 'scipy', 'numpy') if name in sys.modules])"
    answer = finish(start(*arguments, after=after))
    assert answer.out.splitlines()[-1] == "[]"
    wrong = "--help" not in arguments
    assert answer.code == (2 if wrong else 0)
    assert answer.err.count("\n") == (1 if wrong else 0)


def test_every_setting_of_an_experiment_is_an_option() -> None:
    own = {item.name for item in dataclasses.fields(Experiment)} - {"method", "seed"}
    rules = {name for rule in PARTITIONS.values() for name in option_fields(rule)}
    assert {item.name for item in dataclasses.fields(GivenSettings)} == own | rules | {"protocol"}


def test_help_shows_the_defaults_that_hold() -> None:
    defaults = {item.name: item.default for item in dataclasses.fields(Experiment)}
    shown = {
        name: get_args(hint)[1].show_default
        for name, hint in get_type_hints(GivenSettings, include_extras=True).items()
    }
    free_text = {
        "attack",
        "augment",
        "checkpoint_every",
        "client_column",
        "defence",
        "epsilon",
        "evaluate_clients",
        "judge",
        "model_seed",
        "norm",
        "partition",
        "partition_seed",
        "privacy",
        "presence",
        "protocol",
        "sampler",
        "scale",
        "server",
        "server_beta1",
        "server_lr",
        "stages",
        "stats",
        "steps",
        "task",
        "topology",
    }
    checked = [name for name in shown if shown[name] != BY_RULE and name not in free_text]
    assert {name: shown[name] for name in checked} == {name: str(defaults[name]) for name in checked}
    for name, text in shown.items():
        if text == BY_RULE:
            assert defaults.get(name) is None


@pytest.mark.parametrize("command", ["run", "compare", "resume", "show"])
def test_every_option_is_explained(command: str) -> None:
    for argument in app[command].assemble_argument_collection():
        if argument.show:
            assert argument.parameter.help, argument.name


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys)
    assert answer.code == 0
    assert "compare" in answer.out
    assert answer.err == ""


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    answer = call(capsys, *arguments)
    assert (answer.code, answer.out.strip()) == (0, coterie.__version__)


def test_bash_completes_options_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    script = call(capsys, "completion", "bash").out
    ask = "COMP_WORDS=({words}); COMP_CWORD={place}; _coterie; echo ${{COMPREPLY[@]}}"
    for words, expected in (("run --clie", "--client"), ("comp", "compare"), ("federation se", "server")):
        code = f"{script}\n{ask.format(words=f'coterie {words}', place=len(words.split()))}"
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
        assert expected in done.stdout.split(), done.stderr
    assert "unknown shell 'tcsh' (allowed: bash, fish, zsh)" in call(capsys, "completion", "tcsh").err


def test_the_list_of_methods_trains_none(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.engines.serial.Serial.train", None)
    assert call(capsys, "methods").code == 0
    assert call(capsys, "methods", "fedper").code == 0


def test_lists_name_everything_with_its_description(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = call(capsys, "methods").out.splitlines()
    assert max(map(len, narrow)) <= 150
    with monkeypatch.context() as terminal:
        terminal.setattr(sys.stdout, "isatty", lambda: True)
        terminal.setenv("COLUMNS", "500")
        terminal.setenv("TERM", "xterm")
        methods = call(capsys, "methods").out
    for name, cls in METHODS.items():
        line = next(line for line in methods.splitlines() if line.startswith(f"{name} "))
        assert (cls.__doc__ or "").splitlines()[0] in line
        assert cls.extra_cost in line
        assert any(line.startswith(f"{name} ") and (cls.__doc__ or "").splitlines()[0] in line for line in narrow)
    assert re.search(r"^pfedcs .* model; later extractor +extractor \+ teacher  ", methods, re.MULTILINE)
    assert re.search(r"^pfedsim .* model +model; later extractor  ", methods, re.MULTILINE)
    about = call(capsys, "methods", "fedprox").out
    assert "mu=0.01" in about
    assert "Li et al., MLSys 2020" in about
    models = call(capsys, "models").out
    assert all(spec.description in models for spec in MODELS.values())
    assert "1,797 handwritten digits" in call(capsys, "datasets").out
    partitions = call(capsys, "partitions").out.splitlines()
    dirichlet = next(line for line in partitions if line.startswith("dirichlet "))
    assert "Deal out each class" in dirichlet
    assert "clients=20, alpha=0.1, cap=True, least=None" in dirichlet
    for name in ("quantity ", "extended_dirichlet ", "FILE.npz "):
        assert any(line.startswith(name) for line in partitions)
    assert all(line == line.rstrip() for line in partitions)
