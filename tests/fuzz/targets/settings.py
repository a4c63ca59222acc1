"""Options of the command line, `--set` and configuration files: refused in a line, or a run that can be repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import tomli_w
from hypothesis import strategies as st
from tests.fuzz.bases import damaged, damages, odd_numbers, odd_texts, odd_values, spoilt_json
from tests.fuzz.trial import Case, Target, called, contents, must, must_be_one_line, strict_json

from coterie.cli.options import GivenSettings
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import experiment_from
from coterie.setup.config import complete

SAMPLES = 60
TABLE = "small.csv"
TEXTS = ("data", "label", "client_column", "task", "scale", "partition", "model", "memory", "device", "ray_address")
TEXTS = (*TEXTS, "protocol", "classifier", "stats", "schedule", "optimizer", "variant", "engine")
NAMES = {
    "data": (TABLE, "digits", "diabetes"),
    "partition": ("iid", "dirichlet", "pathological", "by_client", "quantity", "dominant", "quantile", "nowhere.npz"),
    "model": ("mlp", "lenet5", "cnn"),
    "task": ("classification", "regression"),
    "engine": ("auto", "serial", "stacked", "processes", "adaptive", "ray"),
    "optimizer": ("sgd", "adam", "rprop"),
    "schedule": ("constant", "cosine", "exponential"),
    "stats": ("mean", "local"),
    "memory": ("auto", "contiguous", "channels_last"),
    "protocol": ("pfedcs", "fedrema", "fedtc"),
}
SPOKEN = {
    "attack": ("label-flip", "sign-flip", "scaling", "noise", "nan", "free-rider", "copycat"),
    "defence": ("clip", "median", "trimmed-mean", "krum", "multi-krum", "influence"),
    "presence": ("dropout", "stragglers", "available", "late", "leave", "trace"),
    "privacy": ("client", "example"),
}
"""Settings that are names with numbers after them, `NAME:0.2:OPTION=1`, some of them several joined by +."""
OPTIONS = tuple(name for name in option_fields(GivenSettings) if name not in ("cap", "unbalanced"))
FLAGS = {"client_column": "--client"}


class AcceptedError(BaseException):
    """A run was about to begin: everything that is checked before it has been."""


def write_table(folder: Path) -> None:
    """A small table of three classes and three clients."""
    rows = [f"{i / 10},{i % 7},{i % 3},{'xyz'[i % 3]}" for i in range(SAMPLES)]
    (folder / TABLE).write_text("\n".join(["a,b,label,client", *rows]) + "\n")


@contextlib.contextmanager
def not_trained() -> Iterator[None]:
    """Runs are prepared and their directories begun, but no round is run."""
    with mock.patch("coterie.runs.running.finish", side_effect=AcceptedError):
        yield


@st.composite
def spoken_settings(draw: st.DrawFn, names: tuple[str, ...]) -> str:
    """A name, perhaps with numbers, perhaps several: as they should be, or odd."""
    parts = []
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)):
        numbers = draw(st.lists(st.sampled_from(("0.2", "0.5", "1", "2")) | odd_values, max_size=2))
        parts.append(":".join([name, *numbers]))
    return "+".join(parts)


def value_of(name: str) -> st.SearchStrategy[str]:
    """Values for an option: those that it may have, and those that it may not."""
    if name in SPOKEN:
        return spoken_settings(SPOKEN[name])
    if name in NAMES:
        return st.one_of(st.sampled_from(NAMES[name]), odd_texts)
    return odd_values if name in TEXTS else st.one_of(odd_numbers, odd_numbers, odd_texts)


@st.composite
def command_lines(draw: st.DrawFn) -> Case:
    """`run` with one to four odd options."""
    words = ["run", draw(st.sampled_from(("fedavg", "fedper", "pfedcs", "local", "fedrema"))), "--data", TABLE]
    for name in draw(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=4, unique=True)):
        flag, value = FLAGS.get(name, f"--{name.replace('_', '-')}"), draw(value_of(name))
        words += [f"{flag}={value}"] if draw(st.booleans()) else [flag, value]
    if draw(st.integers(0, 9)) == 0:
        words += [draw(st.sampled_from(("--seed", "--config", "--listener", "--set", "--out", "")) | odd_texts)]
        words += [draw(odd_values)]
    return {"words": words}


@st.composite
def method_options(draw: st.DrawFn) -> Case:
    """`run METHOD --set` with odd values for its options."""
    name = draw(st.sampled_from(sorted(METHODS)))
    known = sorted(option_fields(METHODS[name])) or ["mu"]
    words = ["run", name, "--data", TABLE]
    for option in draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)):
        key = draw(st.sampled_from((option, option, option, f"{name}.{option}", option.upper(), f".{option}")))
        words += ["--set", f"{key}={draw(odd_values)}"]
    return {"words": words}


toml_values = st.recursive(
    st.one_of(st.booleans(), st.integers(-3, 12), st.integers(), st.floats(), odd_texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


def whole_configuration() -> dict[str, Any]:
    """A configuration that is whole: all settings as a run writes them."""
    return complete(experiment_from({"method": "pfedcs", "data": "digits", "clients": 3, "rounds": 2}))


@st.composite
def configurations(draw: st.DrawFn) -> Case:
    """A configuration file in which something is not as it was."""
    if draw(st.booleans()):
        spoilt = draw(spoilt_json(whole_configuration(), toml_values))
        try:
            content = tomli_w.dumps(spoilt if isinstance(spoilt, dict) else {"method": spoilt}).encode()
        except (TypeError, ValueError, UnicodeEncodeError):
            content = str(spoilt).encode(errors="replace")
    else:
        whole = tomli_w.dumps(whole_configuration()).encode()
        content = damaged(whole, draw(damages(len(whole))))
    return {"toml": content.hex()}


def check_words(case: Case, folder: Path) -> None:
    """A command line is refused in a line that leaves nothing, or begins a run whose configuration repeats it."""
    write_table(folder)
    words = list(case["words"])
    out = folder / "run"
    _check(words if "--out" in words else [*words, "--out", str(out)], folder)


def check_toml(case: Case, folder: Path) -> None:
    """The same for a configuration file."""
    write_table(folder)
    (folder / "spoilt.toml").write_bytes(bytes.fromhex(case["toml"]))
    _check(["run", "--config", "spoilt.toml", "--out", str(folder / "run")], folder)


def _check(words: list[str], folder: Path) -> None:
    before = contents(folder)
    with contextlib.chdir(folder), not_trained():
        try:
            answer = called(words)
        except AcceptedError:
            check_begun(folder)
            return
    if answer.code == 0:
        must(any(word in ("--help", "-h", "--version") for word in words), f"nothing was run: {answer.out[:200]}")
        return
    must_be_one_line(answer)
    must(contents(folder) == before, f"left behind: {sorted(contents(folder).keys() - before.keys())}")


def check_begun(folder: Path) -> None:
    """What was begun can be repeated, and everything in it can be read by anybody."""
    (begun,) = [path.parent for path in folder.rglob("config.toml")]
    directory = RunDirectory.open(begun)
    directory.require_complete()
    strict_json(directory.store.content("about.json"))
    config = directory.own_config()
    must(complete(experiment_from(config)) == config, "its configuration does not repeat it")
    directory.partition()


TARGETS = (
    Target("options", command_lines(), check_words, 110),
    Target("set", method_options(), check_words, 80),
    Target("toml", configurations(), check_toml, 100),
)
