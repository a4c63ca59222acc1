"""A client's model out of a run, as one file: for `coterie predict`, or as a program that needs no Coterie."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import torch

from coterie.core.task import Classification
from coterie.errors import CoterieError, require, unknown
from coterie.files import write_whole
from coterie.methods import METHODS
from coterie.models import MODELS
from coterie.runs.run import Run
from coterie.serve.model import client_tensors
from coterie.serve.model_file import About, is_plain, require_exportable, write_model
from coterie.setup.config import method_name

FORMATS = ("safetensors", "pt2", "onnx")
INPUTS, OUTPUTS = "inputs", "outputs"
"""What the input and the output of a program are called."""


def export_client(run: Run, client: int | str, out: Path, format: str = "safetensors") -> About:
    """Write the model of a client (its number or name), as received after the last round, into a new file.

    Returns its description.

    `safetensors` holds tensors by their names. `pt2` is a program for `torch.export.load`, `onnx` one for ONNX runtimes
    (with the extra `onnx`): both take samples `[n, ...]` and give outputs `[n, C]`. `load_model` and `coterie predict`
    take all three.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    require(out.suffix == f".{format}", f"out = {out}: must end in .{format}")
    require(not out.exists(), f"out = {out}: is there already; name another file")
    if format == "onnx":
        found = all(find_spec(name) is not None for name in ("onnx", "onnxscript"))
        require(found, 'format = onnx: needs packages that are not installed: pip install "coterie[onnx]"')
    require_exportable(run.prepared.method)
    client = _number_of(run, client)
    about = _about(run, client)
    if format == "safetensors":
        _require_known(run)
        write_model(out, client_tensors(about, run, client), about)
        return about
    with _quiet():
        program = _program(run, client, about)
        content = _as_pt2(program, about, out) if format == "pt2" else _as_onnx(program, about)
    write_whole(out, content)
    return about


def _number_of(run: Run, client: int | str) -> int:
    """A client's number, whether it was named or numbered."""
    names = [one.name for one in run.about.participants]
    if client in names:
        return names.index(str(client))
    if isinstance(client, str) and not client.isdecimal():
        raise unknown("client", client, names)
    number = int(client)
    require(0 <= number < len(names), f"client = {client}: must lie in 0..{len(names) - 1}")
    return number


def _about(run: Run, client: int) -> About:
    models, data = run.models, run.about.data
    names = [one.name for one in run.about.participants]
    round, rounds = models.federation.round, int(run.config["rounds"])
    notes = [] if run.status == "finished" else [f"the run has not ended: this is the model of round {round}"]
    if (scale := run.config.get("scale")) == "published":
        notes.append(f"inputs must be scaled as the run's were: {scale}")
    layout, method = models.prepared.problem_base.layout, models.prepared.method
    return About(
        model=str(run.config["model"]),
        shape=tuple(data.shape),
        classes=data.outputs,
        class_names=tuple(data.class_names),
        classifier=layout.classifier,
        stats=layout.stats,
        method=method_name(method),
        set=dict(run.config["set"]),
        federation=run.path.stem,
        site=names[client],
        round=round,
        rounds=rounds,
        finished=run.status == "finished",
        note="; ".join(notes),
        task=models.prepared.problem_base.task.name,
        feature_names=tuple(data.feature_names),
        norm=run.config.get("norm"),
        plain=is_plain(method),
        scaling=data.scaling,
    )


def _require_known(run: Run) -> None:
    """An error if whoever reads the file could not build the model by its name."""
    task, model = run.prepared.problem_base.task, str(run.config["model"])
    require(
        isinstance(task, Classification),
        f"format = safetensors: is for models that tell classes apart, and the run's task is {task.name}; use pt2",
    )
    require(
        model in MODELS,
        f"format = safetensors: holds models by name, and the run's ({model}) is of its own; use pt2, which holds it "
        "whole",
    )
    method = run.prepared.method
    require(
        is_plain(method) or METHODS.name_of(type(method)) is not None,
        f"method = {method_name(method)}: predicts with more than its model puts out, so whoever reads the file needs "
        "it; make it a package with an entry point (docs/plugins.md)",
    )


def _program(run: Run, client: int, about: About) -> torch.export.ExportedProgram:
    """The model as a graph, for any number of samples."""
    require(
        is_plain(run.prepared.method),
        f"format: {about.method} predicts with more than its model puts out, which no program can; use safetensors",
    )
    example = torch.zeros(2, *about.shape, dtype=run.prepared.data.inputs.dtype)
    any_number = ({0: torch.export.Dim("samples")},)
    try:
        return torch.export.export(run.model(client), (example,), dynamic_shapes=any_number)
    except Exception as error:  # whatever PyTorch cannot turn into a graph
        first = " ".join(str(error).split())[:200]
        raise CoterieError(f"model: PyTorch cannot export it ({type(error).__name__}: {first})") from None


def _as_pt2(program: torch.export.ExportedProgram, about: About, out: Path) -> bytes:
    partial = out.with_name(f"{out.name}.partial.pt2")  # PyTorch writes to paths with this ending alone
    try:
        torch.export.save(program, partial, extra_files={"about.json": json.dumps(asdict(about))})
        return partial.read_bytes()
    finally:
        partial.unlink(missing_ok=True)


def _as_onnx(program: torch.export.ExportedProgram, about: About) -> bytes:
    made = torch.onnx.export(program, input_names=[INPUTS], output_names=[OUTPUTS], dynamo=True, verbose=False)
    assert made is not None
    model = made.model_proto
    for key, value in asdict(about).items():
        model.metadata_props.add(key=f"coterie.{key}", value=value if isinstance(value, str) else json.dumps(value))
    content: bytes = model.SerializeToString()
    return content


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say of packages that nobody needs here."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
