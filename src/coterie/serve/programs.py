"""Exported programs (`.pt2`, `.onnx`) as modules that predict, without running anything that a file may hold.

PyTorch's loader of `.pt2` unpickles and evaluates parts of a file. So a `.pt2` is read as what it is: a ZIP archive
with a description and plain tensors, which go into the model that the description names. An ONNX file holds a graph of
known operations, which the evaluator of the package `onnx` computes: slowly, but for every model.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.errors import CoterieError, require
from coterie.models import MODELS
from coterie.serve.model_file import About, about_from

DTYPES = {7: torch.float32, 5: torch.int64}
"""The numbers by which `torch.export` names the kinds of tensors that models have here."""
PREFIX = "coterie."
INNER = "model."
"""Where the tensors of a model are in the one that scales its inputs."""


class OnnxModule(nn.Module):
    """A graph of ONNX, computed on the CPU by the evaluator of the package `onnx`."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator(graph)
        (self._input,) = self._evaluator.input_names

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs `[n, C]` for `inputs [n, ...]`."""
        (outputs,) = self._evaluator.run(None, {self._input: inputs.numpy()})
        return torch.from_numpy(outputs)


def read_onnx(path: Path) -> tuple[nn.Module, About]:
    """The graph of an ONNX file that `coterie export` wrote, as a module, and its description."""
    require(
        find_spec("onnx") is not None, f"'{path}': needs a package that is not installed: pip install coterie[onnx]"
    )
    import onnx

    try:
        # Tensors in other files would be read from wherever the file says.
        graph = onnx.load(path, load_external_data=False)
        description = {
            entry.key.removeprefix(PREFIX): entry.value
            for entry in graph.metadata_props
            if entry.key.startswith(PREFIX)
        }
    except Exception as error:  # protobuf's errors have no common class
        raise CoterieError(f"cannot read '{path}': it is not an ONNX file, or damaged ({_first(error)})") from None
    _require_told(path, description)
    texts = {item.name for item in fields(About) if item.type == "str"}
    try:
        values = {key: value if key in texts else json.loads(value) for key, value in description.items()}
    except ValueError as error:
        raise CoterieError(f"'{path}': its description is not that of a model ({error})") from None
    about = _classifying(path, about_from(values, path))
    try:
        module = OnnxModule(graph)
        outputs = module(torch.zeros(1, *about.shape))
    except Exception as error:  # whatever the evaluator meets in a damaged graph
        raise CoterieError(f"'{path}': its graph cannot be computed ({_first(error)})") from None
    expected = (1, about.classes)
    require(tuple(outputs.shape) == expected, f"'{path}': its graph puts out {tuple(outputs.shape)}, not {expected}")
    return module, about


def read_pt2(path: Path) -> tuple[dict[str, Tensor], About]:
    """The tensors of a `.pt2` file that `coterie export` wrote, by name, and its description."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.partition("/")[2]: info for info in archive.infolist()}

            def content(name: str) -> bytes:
                require(name in members, f"'{path}': lacks {name}")
                stored = members[name].compress_type == zipfile.ZIP_STORED  # so it is no larger than the file
                require(stored, f"'{path}': {name} is compressed, which 'coterie export' does not do")
                return archive.read(members[name])

            _require_told(path, members.get("extra/about.json"))
            about = _classifying(path, about_from(json.loads(content("extra/about.json")), path))
            require(
                about.model in MODELS,
                f"'{path}': holds a model of its own ({about.model}), as a program that only torch.export.load runs; "
                "'coterie export --format onnx' writes one for 'coterie predict'",
            )
            about.agreement()
            config = json.loads(content("data/weights/model_weights_config.json"))["config"]
            tensors = {
                str(name): _tensor(entry, content(f"data/weights/{entry['path_name']}"))
                for name, entry in config.items()
            }
            if about.scaling is not None:  # the program is that of a model around the one that is described
                inner = [name for name in tensors if name.startswith(INNER)]
                tensors = {name.removeprefix(INNER): tensors[name] for name in inner}
    except CoterieError:
        raise
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise CoterieError(f"cannot read '{path}': it is not a .pt2 file, or damaged ({_first(error)})") from None
    return tensors, about


def _tensor(described: dict[str, Any], content: bytes) -> Tensor:
    """A tensor as the archive tells of it; a ValueError if that cannot be."""
    meta = described["tensor_meta"]
    if described["use_pickle"] or meta["dtype"] not in DTYPES:
        raise ValueError("a tensor is not kept as plain numbers")
    sizes, strides = ([int(length["as_int"]) for length in meta[key]] for key in ("sizes", "strides"))
    dtype = DTYPES[meta["dtype"]]
    numbers = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    if min(sizes, default=0) < 0 or min(strides, default=0) < 0 or math.prod(sizes) > len(numbers):
        raise ValueError("a tensor is larger than its numbers")
    return numbers.as_strided(sizes, strides, int(meta["storage_offset"]["as_int"])).clone()


def _require_told(path: Path, told: object) -> None:
    require(bool(told), f"'{path}' is no model that Coterie exported ('coterie export' writes one)")


def _classifying(path: Path, about: About) -> About:
    classifies = about.task == "classification"
    require(
        classifies, f"'{path}': tells no classes apart (its task is {about.task}); use another runtime for such files"
    )
    return about


def _first(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
