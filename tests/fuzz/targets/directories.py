"""Run directories: whatever happened to their files, they are refused in a line or end as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from tests.fuzz.bases import ODD_NUMBERS, damaged, damages, odd_values, spoilt_json
from tests.fuzz.targets.settings import SPOKEN, TABLE, spoken_settings, write_table
from tests.fuzz.trial import Case, Target, called, contents, must, must_be_one_line, quiet, refused, strict_json

from coterie.partition import Iid
from coterie.rounds.listeners import Listener, RoundReport
from coterie.runs.experiment import Experiment
from coterie.runs.run import open_run

FILES = (
    "config.toml",
    "about.json",
    "partition.safetensors",
    "rounds.jsonl",
    "checkpoint.safetensors",
    "checkpoint-previous.safetensors",
    "mixes/00001.safetensors",
    "log.txt",
)
TABLES = ("about.json",)
TOTAL, CUT = 4, 3


class _CutError(Exception):
    """The run is broken off."""


class _Cut(Listener):
    """Keeps the directory as it is after a round, as a kill would leave it."""

    def __init__(self, directory: Path, image: Path) -> None:
        self._directory, self._image = directory, image

    def round(self, report: RoundReport) -> None:
        if report.round == CUT:
            shutil.copytree(self._directory, self._image)
            raise _CutError


@cache
def home() -> Path:
    """A folder with `killed`, a run that was killed after its third round, and `whole`, the same undisturbed."""
    place = tempfile.TemporaryDirectory(prefix="coterie-fuzz-runs-")
    _kept.append(place)
    folder = Path(place.name)
    write_table(folder)
    settings: dict[str, Any] = {"rounds": TOTAL, "epochs": 1, "batch": 16, "checkpoint_every": 1, "threads": 1}
    experiment = Experiment("fedper", str(folder / TABLE), Iid(clients=3), "mlp", **settings)
    with quiet():
        experiment.run(folder / "whole")
        with contextlib.suppress(_CutError):
            experiment.run(folder / "broken", [_Cut(folder / "broken", folder / "killed")])
    return folder


_kept: list[tempfile.TemporaryDirectory[str]] = []


@st.composite
def spoilt_directories(draw: st.DrawFn) -> Case:
    """One or two files of a killed run were damaged, lost, or say something else."""
    changes = {}
    for name in draw(st.lists(st.sampled_from(FILES), min_size=1, max_size=2, unique=True)):
        changes[name] = draw(_change(name))
    return {"changes": changes}


@st.composite
def _change(draw: st.DrawFn, name: str) -> list[Any]:
    kind = draw(st.sampled_from(("bytes", "bytes", "gone", "other", "lines" if name == "rounds.jsonl" else "values")))
    length = len((home() / "killed" / name).read_bytes())
    if kind == "bytes":
        return ["bytes", draw(damages(length))]
    if kind == "other":
        return ["other", draw(st.sampled_from((b"", b"[]", b"{}", b"null", b"\xff\xfe", b"\0" * 16, b"1"))).hex()]
    if kind == "lines":
        order = draw(st.lists(st.integers(0, CUT - 1), max_size=CUT + 2))
        return ["lines", order]
    if kind == "values" and name in TABLES:
        return ["values", draw(spoilt_json(json.loads((home() / "killed" / name).read_bytes())))]
    return ["gone"]


def spoil(run: Path, changes: dict[str, list[Any]]) -> None:
    """Let it happen."""
    for name, (kind, *more) in changes.items():
        file = run / name
        content = file.read_bytes()
        if kind == "gone":
            file.unlink()
        elif kind == "bytes":
            file.write_bytes(damaged(content, more[0]))
        elif kind == "other":
            file.write_bytes(bytes.fromhex(more[0]))
        elif kind == "lines":
            lines = content.splitlines(keepends=True)
            file.write_bytes(b"".join(lines[number] for number in more[0] if number < len(lines)))
        else:
            file.write_text(json.dumps(more[0]))


def check_directory(case: Case, folder: Path) -> None:
    """Opened or carried on, a run is refused or is what it would have been. What is refused is left as it was."""
    run = folder / "run"
    shutil.copytree(home() / "killed", run)
    spoil(run, case["changes"])
    before = contents(run)
    level = logging.getLogger("coterie").level
    try:
        look(run)
        answer = called(["resume", str(run), "--json"])
    finally:
        logging.getLogger("coterie").setLevel(level)
    if answer.code != 0:
        must_be_one_line(answer)
        left = contents(run)
        changed = sorted(
            name for name in before.keys() | left.keys() if name != "log.txt" and before.get(name) != left.get(name)
        )
        must(not changed, f"refused, but changed: {changed}")
        return
    check_whole(run, home() / "whole")


def look(run: Path) -> None:
    """Whatever can be asked of a run that is opened."""
    questions: list[Callable[[Any], object]] = [
        lambda one: one.history,
        lambda one: one.clients,
        lambda one: one.training,
        lambda one: one.quality,
        lambda one: one.accuracy(),
        lambda one: one.summary,
        lambda one: one.mixes(1),
        lambda one: one.model(0),
        lambda one: repr(one),
    ]
    opened: list[Any] = []
    if refused(lambda: opened.append(open_run(run))) is None:
        for ask in questions:
            refused(lambda ask=ask: ask(opened[0]))


def check_whole(run: Path, whole: Path) -> None:
    """A run is the same as another in every bit of its rows and every number of its rounds."""
    must((run / "rows.safetensors").read_bytes() == (whole / "rows.safetensors").read_bytes(), "other rows")
    ours, theirs = (
        [strict_json(line) for line in (one / "rounds.jsonl").read_text().splitlines()] for one in (run, whole)
    )
    for line in (*ours, *theirs):
        del line["seconds"]
    must(ours == theirs, "other metrics")
    for name in ("summary.json", "about.json"):
        strict_json((run / name).read_bytes())


NUMBERS = ("lr", "momentum", "weight_decay", "clip", "decay", "join", "quarantine", "share_limit", "test", "validation")
METHODS = {
    "fedavg": (),
    "fedprox": ("mu",),
    "pfedcs": ("beta",),
    "ditto": ("lam",),
    "fedamp": ("lam",),
    "pfedsim": ("rho",),
}


@st.composite
def small_runs(draw: st.DrawFn) -> Case:
    """Short runs with numbers at the edge of what is allowed."""
    method = draw(st.sampled_from(sorted(METHODS)))
    words = ["run", method]
    numbers = st.one_of(st.sampled_from(ODD_NUMBERS), st.floats(0, 1e38).map(repr), st.floats(0, 1).map(repr))
    for name in draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3, unique=True)):
        words += [f"--{name.replace('_', '-')}={draw(numbers)}"]
    words += ["--optimizer", draw(st.sampled_from(("sgd", "sgd", "adam", "rmsprop", "rprop")))]
    for option in METHODS[method]:
        if draw(st.booleans()):
            words += ["--set", f"{option}={draw(numbers | odd_values)}"]
    # Defences are not among them: some can tell only in a round that they are undefined.
    for name in draw(st.lists(st.sampled_from(("attack", "presence")), max_size=2, unique=True)):
        words += [f"--{name}={draw(spoken_settings(SPOKEN[name]))}"]
    return {"words": words}


SMALL = ("--clients=3", "--rounds=2", "--epochs=1", "--batch=16", "--threads=1", "--partition=iid", "--json")


def check_run(case: Case, folder: Path) -> None:
    """A run is refused before it begins, or ends with numbers that can be read again and mixes that are mixes."""
    write_table(folder)
    before, out = contents(folder), folder / "run"
    data = ["--data", str(folder / TABLE), "--out", str(out)]
    answer = called([*case["words"], *SMALL, *data])
    if answer.code != 0:
        must_be_one_line(answer)
        must(contents(folder) == before, f"left behind: {sorted(contents(folder).keys() - before.keys())}")
        return
    strict_json(answer.out)
    for name, content in contents(out).items():
        if name.endswith(".json"):
            strict_json(content)
        elif name.endswith(".jsonl"):
            for line in content.splitlines():
                strict_json(line)
    with quiet():
        opened = open_run(out)
        for round in opened.rounds:
            for mix in opened.mixes(round):
                must(bool(mix.weights.isfinite().all()) and float(mix.weights.min()) >= 0, "weights that are none")
                must(bool(((mix.weights.sum(1) - 1).abs() < 1e-4).all()), "weights that do not sum to one")
        must(opened.summary["rounds"] == opened.done, "a summary of other rounds")
        for tensor in opened.model(0).state_dict().values():
            must(bool(torch.isfinite(tensor).all()), "a model that is not finite")


TARGETS = (
    Target("run directories", spoilt_directories(), check_directory, 40),
    Target("runs", small_runs(), check_run, 30),
)
