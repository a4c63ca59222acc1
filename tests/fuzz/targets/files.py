"""Model files, first weights and partition files: refused in a line, or finite and as agreed."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import save
from tests.fuzz.bases import damaged, damages, spoilt_json
from tests.fuzz.trial import Case, Target, must, refused
from torch import nn

from coterie.data import Dataset
from coterie.models.weights import load_weights
from coterie.partition import FromFile, Partition
from coterie.serve.model import export_model, predict
from coterie.testing.together import Together, agreed

SAMPLES = 12


@cache
def whole_model() -> bytes:
    """The file of a site's model."""
    with tempfile.TemporaryDirectory() as folder:
        together = Together(agreed("fedper", rounds=1, epochs=1), Path(folder))
        together.run()
        export_model(together.sites["site-a"].store, Path(folder) / "model.safetensors")
        return (Path(folder) / "model.safetensors").read_bytes()


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The JSON at the beginning of a safetensors file, and the numbers after it."""
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header: Any, numbers: bytes) -> bytes:
    """A safetensors file with that JSON at its beginning."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


@st.composite
def model_files(draw: st.DrawFn) -> Case:
    """A model's file that was damaged, or whose description or list of tensors says something else."""
    whole = whole_model()
    header, numbers = header_of(whole)
    kind = draw(st.sampled_from(("bytes", "list", "description", "numbers")))
    if kind == "bytes":
        content = damaged(whole, draw(damages(len(whole))))
    elif kind == "list":
        content = with_header(draw(spoilt_json(header)), numbers)
    elif kind == "description":
        about = draw(spoilt_json(json.loads(header["__metadata__"]["coterie"])))
        header["__metadata__"]["coterie"] = json.dumps(about)
        content = with_header(header, numbers)
    else:
        odd = draw(st.sampled_from((float("nan"), float("inf"), -float("inf"), 3e38)))
        place = draw(st.integers(0, len(numbers) // 4 - 1)) * 4
        content = with_header(header, numbers[:place] + struct.pack("<f", odd) + numbers[place + 4 :])
    return {"model": content.hex()}


def check_model(case: Case, folder: Path) -> None:
    """A model that is read predicts probabilities."""
    file = folder / "model.safetensors"
    file.write_bytes(bytes.fromhex(case["model"]))

    def use() -> None:
        classes, probabilities = predict(file, torch.zeros(2, 6))
        must(bool(probabilities.isfinite().all()), "probabilities are not finite")
        must(bool(((probabilities.sum(1) - 1).abs() < 1e-4).all()), "probabilities do not sum to one")
        must(len(classes) == 2, "two samples are two predictions")

    refused(use)


def small() -> nn.Module:
    """A model of two layers."""
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))


@st.composite
def weight_files(draw: st.DrawFn) -> Case:
    """First weights of which some have other names, shapes, kinds or numbers."""
    state = small().state_dict()
    for name in draw(st.lists(st.sampled_from(sorted(state)), max_size=2, unique=True)):
        action = draw(st.sampled_from(("shape", "kind", "number", "missing", "name")))
        tensor = state.pop(name)
        if action == "shape":
            state[name] = torch.zeros(draw(st.lists(st.integers(0, 4), max_size=3)))
        elif action == "kind":
            kinds = (
                torch.float16,
                torch.float64,
                torch.int64,
                torch.bool,
                torch.uint8,
                torch.bfloat16,
                torch.complex64,
            )
            state[name] = tensor.to(draw(st.sampled_from(kinds)))
        elif action == "number":
            odd = draw(st.sampled_from((float("nan"), float("inf"), 1e300)))
            state[name] = torch.full(tensor.shape, odd, dtype=torch.float64)
        elif action == "name":
            state[draw(st.text(max_size=5))] = tensor
    content = save({name: tensor.contiguous() for name, tensor in state.items()})
    if draw(st.booleans()):
        content = damaged(content, draw(damages(len(content))))
    return {"weights": content.hex()}


def check_weights(case: Case, folder: Path) -> None:
    """All weights are taken or none, and those that are taken are finite."""
    file, module = folder / "w.safetensors", small()
    file.write_bytes(bytes.fromhex(case["weights"]))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    why = refused(lambda: load_weights(module, file))
    after = module.state_dict()
    must(all(bool(tensor.isfinite().all()) for tensor in after.values()), "weights are not finite")
    same = all(before[name].equal(tensor) for name, tensor in after.items())
    must(why is None or same, "refused, but some weights were taken")


def toy() -> Dataset:
    """A dozen samples of two classes."""
    return Dataset("toy", torch.zeros(SAMPLES, 2), torch.arange(SAMPLES) % 2, classes=2)


def whole_arrays() -> dict[str, Any]:
    """A partition of two clients, as lists."""
    return {"train": [0, 1, 2, 6, 7], "train_offsets": [0, 3, 5], "test": [3, 8, 9], "test_offsets": [0, 1, 3]}


whole_numbers = st.one_of(st.integers(-3, 15), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3))
array_values = st.one_of(whole_numbers, st.lists(whole_numbers, max_size=4))


@st.composite
def partition_files(draw: st.DrawFn) -> Case:
    """Partition files in either format, damaged or with other numbers in them."""
    if draw(st.booleans()):
        spoilt = draw(spoilt_json(whole_arrays(), array_values))
        file = io.BytesIO()
        arrays = {}
        for name, value in spoilt.items() if isinstance(spoilt, dict) else ():
            try:
                arrays[name if name.isidentifier() else "other"] = np.array(value)
            except ValueError:
                arrays["ragged"] = np.array([str(value)])
        np.savez(file, **{name: array for name, array in arrays.items() if array.dtype != object})
        content, suffix = file.getvalue(), ".npz"
    else:
        suffix = draw(st.sampled_from((".npz", ".safetensors")))
        content = whole_partition(suffix)
    if draw(st.booleans()):
        content = damaged(content, draw(damages(len(content))))
    return {"suffix": suffix, "content": content.hex()}


@cache
def whole_partition(suffix: str) -> bytes:
    """The file of a partition that is whole."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"part{suffix}"
        parts = np.array([0, 1, 2]), np.array([6, 7])
        Partition(train=parts, test=(np.array([3]), np.array([8, 9])), rule="mine").save(file)
        return file.read_bytes()


def check_partition(case: Case, folder: Path) -> None:
    """What is read names samples that there are, each client's own for one purpose alone."""
    file = folder / f"part{case['suffix']}"
    file.write_bytes(bytes.fromhex(case["content"]))
    if case["suffix"] == ".safetensors":
        found: list[Partition] = []
        if refused(lambda: found.append(Partition.load(file))) is None:
            whole = folder / "whole.safetensors"
            whole.write_bytes(whole_partition(".safetensors"))
            must(found[0].hash == Partition.load(whole).hash, "another partition was read than was written")
        return

    def use() -> None:
        partition = FromFile(file)(toy(), seed=0)
        must(len(partition.names) == partition.clients > 0, "clients without names")
        for client in range(partition.clients):
            own = [*partition.train[client], *partition.validation[client], *partition.test[client]]
            must(all(0 <= sample < SAMPLES for sample in own), "samples that there are not")
            must(len(partition.train[client]) > 0 and len(partition.test[client]) > 0, "a client without samples")
            must(not set(partition.train[client]) & set(partition.test[client]), "tested on training samples")
        must(partition.parameters["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest(), "another file's hash")

    refused(use)


TARGETS = (
    Target("model files", model_files(), check_model, 90),
    Target("first weights", weight_files(), check_weights, 90),
    Target("partition files", partition_files(), check_partition, 110),
)
