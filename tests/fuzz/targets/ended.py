"""Ended runs and comparisons whose files were spoilt, and comparisons of odd methods: a line, or what was there."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tests.fuzz.bases import damaged, damages, odd_texts, odd_values, spoilt_json
from tests.fuzz.targets.settings import TABLE, write_table
from tests.fuzz.trial import Answer, Case, Target, called, contents, must, must_be_one_line, quiet, strict_json

from coterie.compare.table import compare
from coterie.partition import Iid
from coterie.runs.experiment import Experiment

RUN, TABLE_OF_RUNS, NEW = "run", "table", "new.csv"
_kept: list[tempfile.TemporaryDirectory[str]] = []


@cache
def home() -> Path:
    """A folder with an ended run and a comparison of two methods with two seeds."""
    place = tempfile.TemporaryDirectory(prefix="coterie-fuzz-ended-")
    _kept.append(place)
    folder = Path(place.name)
    write_table(folder)
    rows = [f"{i / 10},{i % 7}" for i in range(9)]
    (folder / NEW).write_text("\n".join(["a,b", *rows]) + "\n")
    settings: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 16, "threads": 1, "engine": "serial"}
    experiments = {name: Experiment(name, str(folder / TABLE), Iid(clients=3), "mlp", **settings) for name in METHODS}
    with quiet():
        experiments["fedper"].run(folder / RUN)
        compare(experiments, [0, 1], folder / TABLE_OF_RUNS, jobs=1)
    return folder


METHODS = ("fedper", "local")
QUESTIONS = (
    ("show", RUN), ("show", TABLE_OF_RUNS), ("table", RUN, TABLE_OF_RUNS), ("table", TABLE_OF_RUNS), ("runs", "."),
    ("report", RUN, "--out=page.html"), ("report", TABLE_OF_RUNS, "--out=page.html"), ("resume", RUN),
    ("export", RUN, "--client=0", "--out=model.safetensors"), ("export", RUN, "--client=1", "--out=model.safetensors"),
    ("predict", RUN, NEW, "--client=0"), ("pack", RUN, "-o", "packed.zip"), ("pack", TABLE_OF_RUNS, "-o", "packed.zip"),
)  # fmt: skip


@cache
def files() -> list[str]:
    """What may be spoilt."""
    return sorted(name for name in contents(home()) if name not in (TABLE, NEW) and not name.endswith(".lock"))


@st.composite
def spoilt_ends(draw: st.DrawFn) -> Case:
    """One or two files were damaged, lost or say something else, and something is asked."""
    changes: dict[str, list[Any]] = {}
    for name in draw(st.lists(st.sampled_from(files()), min_size=1, max_size=2, unique=True)):
        content = (home() / name).read_bytes()
        kind = draw(st.sampled_from(("bytes", "bytes", "gone", "other", "values")))
        if kind == "values" and name.endswith(".json"):
            changes[name] = ["values", draw(spoilt_json(json.loads(content)))]
        elif kind == "other":
            changes[name] = [
                "other",
                draw(st.sampled_from((b"", b"[]", b"{}", b"null", b"\xff\xfe", b"\0" * 16))).hex(),
            ]
        elif kind == "gone":
            changes[name] = ["gone"]
        else:
            changes[name] = ["bytes", draw(damages(len(content)))]
    return {"changes": changes, "words": list(draw(st.sampled_from(QUESTIONS)))}


def check_end(case: Case, folder: Path) -> None:
    """An answer with exit code 0 is one that can be read; whatever it is, no file is changed by being asked about."""
    place = folder / "place"
    shutil.copytree(home(), place)
    for name, (kind, *more) in case["changes"].items():
        file = place / name
        if kind == "gone":
            file.unlink()
        elif kind == "bytes":
            file.write_bytes(damaged(file.read_bytes(), more[0]))
        elif kind == "other":
            file.write_bytes(bytes.fromhex(more[0]))
        else:
            file.write_text(json.dumps(more[0]))
    before = contents(place)
    names = {RUN, TABLE_OF_RUNS, NEW, "."}
    words = [str(place / word) if word in names else word for word in case["words"]]
    words = [word.replace("--out=", f"--out={folder}/") for word in words]
    words = [str(folder / word) if word == "packed.zip" else word for word in words]
    must_have_answered(called(words))
    after = contents(place)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    changed = [name for name in changed if not name.endswith(("log.txt", ".lock"))]
    must(not changed or case["words"][0] == "resume", f"changed: {changed}")


def must_have_answered(answer: Answer) -> None:
    """A line on stderr, or an answer in words without numbers that are none."""
    if answer.code != 0:
        must_be_one_line(answer)
        return
    must("Traceback" not in answer.err, f"said: {answer.err[-300:]}")


LISTED = ("fedavg", "local", "fedper", "FedAvg", "fedprox:mu=0.1", "fedprox:mu=x", "b=fedavg", "fedavg:lr=0", "a=b=c")


@st.composite
def odd_tables(draw: st.DrawFn) -> Case:
    """A command that compares: odd methods, seeds, columns and settings, and sometimes a file of settings."""
    methods = draw(st.lists(st.one_of(st.sampled_from(LISTED), st.sampled_from(LISTED[:3]), odd_texts), max_size=3))
    words = ["compare", *(word for word in methods if not word.startswith("-"))]
    for name in draw(st.lists(st.sampled_from(("seeds", "columns", "set", "jobs", "out")), max_size=2, unique=True)):
        usual = {"seeds": ("0", "0,0", "-1", "1e3", "0..2"), "columns": ("stored", "bytes", "received.mean.last")}
        if name == "jobs":
            words.append(f"--jobs={draw(st.sampled_from(('-1', 'x', '0.5', '', '1e9')))}")
        else:
            words.append(f"--{name}={draw(st.one_of(st.sampled_from(usual.get(name, ('x',))), odd_values))}")
    case: Case = {"words": words}
    if draw(st.booleans()):
        text = 'rounds = 1\nmethod = "fedavg"\n[set]\nmu = 0.1\n'
        case["file"] = damaged(text.encode(), draw(damages(len(text)))).hex()
    return case


USUAL = ("--clients=3", "--rounds=1", "--epochs=1", "--batch=16", "--threads=1", "--partition=iid", "--json")


def check_table(case: Case, folder: Path) -> None:
    """Refused in a line, or a table of numbers."""
    write_table(folder)
    words = [*case["words"], *USUAL, f"--data={folder / TABLE}"]
    if not any(word.startswith("--seeds") for word in words):
        words.append("--seeds=0")
    if not any(word.startswith("--jobs") for word in words):
        words.append("--jobs=1")
    words = [word.replace("--out=", f"--out={folder}/out") for word in words]
    if "file" in case:
        (folder / "given.toml").write_bytes(bytes.fromhex(case["file"]))
        words.append(f"--config={folder / 'given.toml'}")
    answer = called(words)
    if answer.code != 0:
        must_be_one_line(answer)
        return
    told = strict_json(answer.out)
    must(bool(told["methods"]), "a table of nothing")


TARGETS = (
    Target("spoilt ends", spoilt_ends(), check_end, 40),
    Target("comparisons", odd_tables(), check_table, 30),
)
