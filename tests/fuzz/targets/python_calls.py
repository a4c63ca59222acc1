"""Coterie called from Python: odd arrays, settings and comparisons are refused in words, or what comes is whole."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tests.fuzz.trial import Case, Target, must, refused, strict_json

import coterie as ct
from coterie.core.pixels import whole
from coterie.options import option_fields
from coterie.partition import Iid
from coterie.setup.settings import Settings

N = 12
KINDS = ("<f4", "<f8", "<f2", "|u1", "|i1", "<i4", "<i8", "<u8", "|b1", "<U3", "<c8", "<M8[s]", ">f4", "|O")
SPOTS = ("nan", "inf", "-inf", "1e39", "1e308", "-1", "1e18", "-0.0", "0.5", "3", "x", "none", "list")
HOLDERS = ("numpy", "numpy", "torch", "list", "tuple", "strided", "grad", "nested", "scalar")
ODD_OBJECTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "zero": lambda: 0,
    "one": lambda: 1,
    "minus": lambda: -1,
    "half": lambda: 0.5,
    "whole float": lambda: 2.0,
    "huge": lambda: 10**400,
    "large": lambda: 2**63,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "tiny": lambda: 5e-324,
    "empty": lambda: "",
    "word": lambda: "x",
    "number in words": lambda: "3",
    "null byte": lambda: "a\0b",
    "bytes": lambda: b"x",
    "list": list,
    "ones": lambda: [1],
    "words": lambda: ["fedavg", "fedavg"],
    "dict": dict,
    "tuple": tuple,
    "set": lambda: {1, 2},
    "object": object,
    "class": lambda: object,
    "function": lambda: len,
    "numpy float": lambda: np.float32(0.1),
    "numpy int": lambda: np.int64(2),
    "numpy bool": lambda: np.bool_(True),
    "numpy array": lambda: np.ones(2),
    "tensor": lambda: torch.tensor(2),
    "vector": lambda: torch.ones(3),
    "complex": lambda: 1j,
    "path": lambda: Path("/nowhere/at/all"),
    "generator": lambda: (i for i in range(2)),
    "method class": lambda: ct.FedPer,
    "method": lambda: ct.FedAvg(),
    "module": lambda: torch.nn.Linear(2, 3),
    "module class": lambda: torch.nn.Linear,
    "rule": lambda: Iid(clients=3),
    "rule class": lambda: Iid,
    "experiment": lambda: ct.Experiment(),
}
# What takes long or asks another machine, whatever its value; and what would be a long run.
LEFT_OUT = ("rounds", "epochs", "engine", "device", "ray_address", "ray_gpus", "workers", "threads", "data")
FIELDS = tuple(name for name in option_fields(Settings) if name not in LEFT_OUT)


@st.composite
def odd_array(draw: st.DrawFn, labels: bool) -> dict[str, Any]:
    """How an array is made: kind, shape, content, and what is put at some of its places."""
    usual = (N,) if labels else draw(st.sampled_from(((N, 3), (N, 4, 4), (N, 1, 4, 4), (N, 4, 4, 3))))
    shape = draw(
        st.one_of(
            st.just(usual),
            st.just(usual),
            st.sampled_from(
                ((N, 1), (1, N), (N, 3), (N,), (0,), (0, 3), (N, 0), (3, 4), (2, 2, 3), (), (1,), (N + 1,))
            ),
            st.lists(st.integers(0, 5), max_size=5).map(tuple),
        )
    )
    spots = draw(st.lists(st.tuples(st.integers(0, 63), st.sampled_from(SPOTS)), max_size=2))
    return {
        "kind": draw(st.sampled_from(("<i8", "<i8", *KINDS) if labels else ("<f4", "<f4", *KINDS))),
        "shape": list(shape),
        "spots": [list(spot) for spot in spots],
        "holder": draw(st.sampled_from(HOLDERS)),
        "modulus": draw(st.sampled_from((3, 3, 2, 1, 7))),
    }


def spot(word: str) -> Any:
    """What stands at a place."""
    return {"x": "x", "none": None, "list": [1, 2]}.get(word) if word in ("x", "none", "list") else float(word)


def made(how: dict[str, Any]) -> Any:
    """The array, in whatever holds it."""
    shape, kind = tuple(how["shape"]), np.dtype(how["kind"])
    count = math.prod(shape)
    plain = np.arange(count) % how["modulus"]
    content: Any = [f"{int(one)}" for one in plain] if kind.kind == "U" else plain
    array = np.array(content, dtype=object).reshape(shape)
    for place, word in how["spots"]:
        if count:
            array.reshape(-1)[place % count] = spot(word)
    # A spot that this kind cannot say makes it an array of objects.
    with contextlib.suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        array = array.astype(kind)
    return held(array, how["holder"])


def held(array: np.ndarray, holder: str) -> Any:
    """The same in a list, a tensor and so on."""
    if holder == "torch" or holder == "grad":
        try:
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            return tensor.requires_grad_() if holder == "grad" else tensor
        except (TypeError, ValueError, RuntimeError):
            return array
    if holder == "list":
        return array.tolist()
    if holder == "tuple":
        found = array.tolist()
        return tuple(found) if isinstance(found, list) else found
    if holder == "strided" and array.ndim:
        return np.concatenate([array, array])[::2] if len(array) else array
    if holder == "nested" and array.ndim:
        return list(array)
    if holder == "scalar" and array.size:
        return array.reshape(-1)[0]
    return array


@st.composite
def array_calls(draw: st.DrawFn) -> Case:
    """A call of `from_arrays`."""
    case: Case = {"x": draw(odd_array(False)), "y": draw(odd_array(True)), "task": draw(st.sampled_from(TASKS))}
    if draw(st.integers(0, 3)) == 0:
        case["owners"] = draw(odd_array(True))
    if draw(st.integers(0, 3)) == 0:
        case["test"] = [draw(odd_array(False)), draw(odd_array(True))]
    for name in draw(st.lists(st.sampled_from(("classes", "class_names", "name", "keep_dtype")), max_size=1)):
        case[name] = draw(st.sampled_from(sorted(ODD_OBJECTS)))
    return case


TASKS = ("", "", "classification", "regression")


def check_arrays(case: Case, folder: Path) -> None:
    """Refused, or a data set whose numbers are those that were given."""
    given = {name: made(case[name]) for name in ("x", "y", "owners") if name in case}
    if "test" in case:
        given["test"] = tuple(made(one) for one in case["test"])
    given |= {
        name: ODD_OBJECTS[case[name]]() for name in ("classes", "class_names", "name", "keep_dtype") if name in case
    }
    x, y = given.pop("x"), given.pop("y")
    made_here: list[ct.Dataset] = []
    if refused(lambda: made_here.append(ct.from_arrays(x, y, task=case["task"], **given))) is not None:
        return
    (data,) = made_here
    must(len(data) == len(data.labels) == len(data.inputs) > 0, "inputs and labels differ in number")
    inputs = whole(data.inputs)
    must(bool(inputs.isfinite().all()), "inputs are not finite")
    must(all(size > 0 for size in inputs.shape), f"inputs of shape {tuple(inputs.shape)}")
    must(bool(data.labels.isfinite().all()), "labels are not finite")
    if case["task"] != "regression":
        must(data.classes >= 2, f"{data.classes} classes")
        must(int(data.labels.min()) >= 0 and int(data.labels.max()) < data.classes, "labels beyond the classes")
    must_be_given(data, x, y, inputs)
    if data.owners is not None:
        must(len(data.owners) == len(data), "owners of some samples only")
        must(int(data.owners.min()) >= 0 and int(data.owners.max()) < len(data.owner_names), "owners without a name")


def must_be_given(data: ct.Dataset, x: Any, y: Any, inputs: torch.Tensor) -> None:
    """What a data set holds is what it was made of: nothing wrapped around, rounded away or shuffled."""
    shape = np.shape(y.detach() if isinstance(y, torch.Tensor) else y)
    must(sum(size != 1 for size in shape) <= 1, f"labels of shape {shape}")
    labels = np.asarray(y.detach() if isinstance(y, torch.Tensor) else y, dtype=object).reshape(-1)
    ours = data.labels[: data.train_size].tolist()
    whole_numbers = not data.labels.is_floating_point()
    if (
        whole_numbers
        and all(isinstance(one, int) and not isinstance(one, bool) for one in labels)
        and not data.class_names
    ):
        must(ours == list(labels), f"labels {list(labels)[:6]} became {ours[:6]}")
    plain = np.asarray(x.detach() if isinstance(x, torch.Tensor) else x)
    must(not np.iscomplexobj(plain), "the imaginary part is lost")
    if plain.dtype.kind == "f" and plain.size == inputs[: data.train_size].numel():
        same = np.sort(plain.astype(np.float32).reshape(-1)) == np.sort(
            inputs[: data.train_size].float().numpy().reshape(-1)
        )
        must(bool(same.all()), "numbers were changed")


@cache
def small_data() -> ct.Dataset:
    """Three classes in the plane."""
    labels = torch.arange(30) % 3
    return ct.from_arrays(torch.stack([labels.float(), torch.linspace(0, 1, 30)], 1), labels)


@st.composite
def odd_experiments(draw: st.DrawFn) -> Case:
    """One to three settings that are odd objects."""
    names = draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True))
    return {"given": {name: draw(st.sampled_from(sorted(ODD_OBJECTS))) for name in names}}


def check_experiment(case: Case, folder: Path) -> None:
    """Refused when it is made or prepared, or a run of one round that ends with numbers."""
    given = {name: ODD_OBJECTS[key]() for name, key in case["given"].items()}
    usual = {"partition": Iid(clients=3), "model": "mlp", "rounds": 1, "epochs": 1, "threads": 1, "engine": "serial"}
    results: list[ct.Run] = []

    def run() -> None:
        experiment = ct.Experiment(data=small_data(), **{**usual, **given})
        must(hash(repr(experiment)) is not None, "no words")
        results.append(experiment.run())

    if refused(run) is None:
        must_be_whole(results[0])


def must_be_whole(result: ct.Run) -> None:
    """Scores between 0 and 1 of a model that is finite."""
    shown = result.summary["accuracy"]["received"]["mean"]["last"]
    must(shown is None or 0 <= shown <= 1, f"an accuracy of {shown}")
    if not result.summary.get("diverged"):
        for tensor in result.model(0).state_dict().values():
            must(bool(torch.isfinite(tensor.float()).all()), "a model that is not finite")


@st.composite
def odd_comparisons(draw: st.DrawFn) -> Case:
    """A call of `compare` with odd arguments."""
    objects = st.sampled_from(sorted(ODD_OBJECTS))
    case: Case = {
        "methods": draw(st.lists(st.sampled_from(("fedavg", "local", "", "a/b", "..", "x y", "ä")), max_size=3))
    }
    for name in draw(st.lists(st.sampled_from(ARGUMENTS), min_size=1, max_size=2, unique=True)):
        case[name] = draw(objects)
    return case


ARGUMENTS = ("seeds", "columns", "jobs", "listeners", "experiments", "cluster", "one")


def check_comparison(case: Case, folder: Path) -> None:
    """Refused, or a table whose numbers can be read."""
    usual: dict[str, Any] = {"rounds": 1, "epochs": 1, "threads": 1, "engine": "serial", "checkpoint_every": 0}
    chosen: Any = {
        name: ct.Experiment("local" if name == "local" else "fedavg", small_data(), Iid(clients=3), "mlp", **usual)
        for name in case["methods"]
    }
    given = {name: ODD_OBJECTS[case[name]]() for name in ARGUMENTS[:6] if name in case}
    if "one" in case and chosen:
        chosen = {**chosen, next(iter(chosen)): ODD_OBJECTS[case["one"]]()}
    chosen = given.pop("experiments", chosen)
    tables: list[Any] = []
    if refused(lambda: tables.append(ct.compare(chosen, **{"seeds": [0], "jobs": 1, **given}))) is None:
        (table,) = tables
        must(bool(chosen) and len(table.as_dict()["methods"]) == len(chosen), "methods are missing")
        strict_json(json.dumps(table.as_dict()))


TARGETS = (
    Target("arrays from Python", array_calls(), check_arrays, 120),
    Target("experiments from Python", odd_experiments(), check_experiment, 40),
    Target("comparisons from Python", odd_comparisons(), check_comparison, 20),
)
