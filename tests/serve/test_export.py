"""A client's model out of a run: the files predict what the opened run predicts."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from coterie import ByClient, FedPer, FedRod, Regression, from_arrays, from_frame, load_model, open_run
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.partition import Iid
from coterie.rounds.listeners import StopAfter
from coterie.runs.experiment import Experiment
from coterie.serve.export import FORMATS, export_client
from coterie.serve.model import predict
from coterie.serve.model_file import read_model
from support import DropNet, every_method, tiny

pytestmark = pytest.mark.thorough


def named(method: str = "fedper", **options: Any) -> Experiment:
    settings: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 64, "seed": 2, "model": "mlp", **options}
    return Experiment(method, "digits", Iid(clients=5), **settings)


@pytest.mark.thorough
@pytest.mark.parametrize("name", every_method())
def test_predictions_of_every_method(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"validation": 0.2} if name == "fedfomo" else {}
    result = named(name, join=0.5, **options).run(tmp_path / "run")
    run, inputs = open_run(tmp_path / "run"), result.prepared.data.inputs[:40]
    if METHODS[name].predicts_with_samples:
        with pytest.raises(
            CoterieError, match="predicts with its own training samples, which no file of a model holds"
        ):
            export_client(run, 3, tmp_path / "it.safetensors")
        return
    about = export_client(run, 3, tmp_path / "it.safetensors")
    labels, _ = predict(tmp_path / "it.safetensors", inputs)
    assert torch.equal(labels, run.predict(3, inputs))
    with torch.no_grad():
        torch.testing.assert_close(load_model(tmp_path / "it.safetensors")(inputs), result.scores(3, inputs))
    assert (about.method, about.model, about.round, about.rounds) == (name, "mlp", 2, 2)


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_the_exported_model_is_that_of_the_opened_run(model: str, tmp_path: Path) -> None:
    named("fedbn", model=model).run(tmp_path / "run")
    run, inputs = open_run(tmp_path / "run"), torch.randn(7, 1, 8, 8)
    export_client(run, 3, tmp_path / "it.safetensors")
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "it.safetensors")(inputs), run.model(3)(inputs))
    _, about = read_model(tmp_path / "it.safetensors")
    assert (about.site, about.class_name(4), about.finished, about.note) == ("3", "4", True, "")


def test_a_program_needs_no_coterie(tmp_path: Path) -> None:
    result = named().run(tmp_path / "run")
    inputs = result.prepared.data.inputs[:9]
    export_client(open_run(tmp_path / "run"), 3, tmp_path / "it.pt2", "pt2")
    np.save(tmp_path / "inputs.npy", inputs.numpy())
    source = (
        "import sys; sys.modules['coterie'] = None\nimport numpy, torch\n"
        "model = torch.export.load('it.pt2').module()\n"
        "numpy.save('outputs.npy', model(torch.from_numpy(numpy.load('inputs.npy'))).detach().numpy())"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = torch.from_numpy(np.load(tmp_path / "outputs.npy"))
    torch.testing.assert_close(found, result.scores(3, inputs))
    with zipfile.ZipFile(tmp_path / "it.pt2") as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("about.json")]
        assert json.loads(archive.read(name))["method"] == "fedper"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs.npy", "it.pt2", "outputs.npy", "run"]


@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_methods_that_predict_with_more_are_no_program(format: str, tmp_path: Path) -> None:
    named("fedrod").run(tmp_path / "run")
    with pytest.raises(CoterieError, match="fedrod predicts with more than its model puts out"):
        export_client(open_run(tmp_path / "run"), 0, tmp_path / f"it.{format}", format)


def test_an_onnx_program(tmp_path: Path) -> None:
    onnx, reference = pytest.importorskip("onnx"), pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    result = named("fedper", model="lenet5").run(tmp_path / "run")
    export_client(open_run(tmp_path / "run"), 3, tmp_path / "it.onnx", "onnx")
    model = onnx.load(tmp_path / "it.onnx")
    onnx.checker.check_model(model)
    for inputs in (result.prepared.data.inputs[:5], result.prepared.data.inputs[:1]):
        (outputs,) = reference.ReferenceEvaluator(model).run(None, {"inputs": inputs.numpy()})
        torch.testing.assert_close(torch.from_numpy(outputs), result.scores(3, inputs), atol=1e-5, rtol=1e-4)
    assert {one.key: one.value for one in model.metadata_props}["coterie.method"] == "fedper"


def test_onnx_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named().run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(CoterieError, match=r'format = onnx: needs packages .* pip install "coterie\[onnx\]"'):
        export_client(open_run(tmp_path / "run"), 0, tmp_path / "it.onnx", "onnx")
    assert not (tmp_path / "it.onnx").exists()


def test_a_model_of_ones_own_is_exported_as_a_program(tmp_path: Path) -> None:
    experiment = tiny("fedper", DropNet())
    result = experiment.run(tmp_path / "run")
    run = open_run(tmp_path / "run", experiment=experiment)
    with pytest.raises(CoterieError, match=r"format = safetensors: holds models by name, and the run's \(given"):
        export_client(run, 1, tmp_path / "it.safetensors")
    export_client(run, 1, tmp_path / "it.pt2", "pt2")
    inputs = result.prepared.data.inputs[:9]
    torch.testing.assert_close(torch.export.load(tmp_path / "it.pt2").module()(inputs), result.scores(1, inputs))


def test_regression_is_exported_as_a_program(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(120, 5))
    data = from_arrays(x, x.sum(1).astype("float32"), name="sums", task=Regression())
    result = Experiment("fedper", data, Iid(clients=3), rounds=1, epochs=1).run(tmp_path / "run")
    run = open_run(tmp_path / "run")
    with pytest.raises(CoterieError, match=r"is for models that tell classes apart, .* is regression; use pt2"):
        export_client(run, 0, tmp_path / "it.safetensors")
    export_client(run, 0, tmp_path / "it.pt2", "pt2")
    outputs = torch.export.load(tmp_path / "it.pt2").module()(data.inputs[:4])
    torch.testing.assert_close(outputs[:, 0], result.predict(0, data.inputs[:4]))


def test_a_run_that_has_not_ended_says_so(tmp_path: Path) -> None:
    named(rounds=4).run(tmp_path / "run", [StopAfter(1)])
    about = export_client(open_run(tmp_path / "run"), 0, tmp_path / "it.safetensors")
    assert about.note == "the run has not ended: this is the model of round 1"
    assert read_model(tmp_path / "it.safetensors")[1] == about


def test_mistakes_write_nothing(tmp_path: Path) -> None:
    named(rounds=1).run(tmp_path / "run")
    run = open_run(tmp_path / "run")
    (tmp_path / "there.pt2").touch()
    for client, name, format, message in [
        (9, "it.safetensors", "safetensors", r"client = 9: must lie in 0\.\.4"),
        (0, "it.pt", "pt2", r"it\.pt: must end in \.pt2"),
        (0, "there.pt2", "pt2", "is there already; name another file"),
        (0, "it.bin", "bin", rf"unknown format 'bin' \(allowed: {', '.join(sorted(FORMATS))}\)"),
    ]:
        with pytest.raises(CoterieError, match=message):
            export_client(run, client, tmp_path / name, format)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "there.pt2"]


@dataclass(frozen=True)
class Own(FedPer):
    """A method that stands in no list."""


@pytest.mark.parametrize("format", FORMATS)
def test_models_of_ones_own_method_are_exported_and_used(format: str, tmp_path: Path) -> None:
    if format == "onnx":
        pytest.importorskip("onnxscript")
    experiment = named(Own(), rounds=1)
    result = experiment.run(tmp_path / "run")
    file = tmp_path / f"it.{format}"
    about = export_client(open_run(tmp_path / "run", experiment=experiment), 2, file, format)
    assert (about.method, about.plain) == ("Own", True)
    inputs = result.prepared.data.inputs[:9]
    assert torch.equal(predict(file, inputs)[0], result.predict(2, inputs))
    torch.testing.assert_close(load_model(file)(inputs), result.scores(2, inputs), atol=1e-5, rtol=1e-4)


@dataclass(frozen=True)
class OwnPredicting(FedRod):
    """A method that stands in no list and predicts in its own way."""


def test_a_method_that_nobody_else_has_and_predictions_need_is_named(tmp_path: Path) -> None:
    experiment = named(OwnPredicting(), rounds=1)
    experiment.run(tmp_path / "run")
    with pytest.raises(CoterieError, match=r"method = OwnPredicting: predicts with more .*; make it a package"):
        export_client(open_run(tmp_path / "run", experiment=experiment), 0, tmp_path / "it.safetensors")


def test_group_norm_is_exported(tmp_path: Path) -> None:
    result = named(model="resnet8", norm="group", rounds=1).run(tmp_path / "run")
    export_client(open_run(tmp_path / "run"), 0, tmp_path / "it.safetensors")
    inputs = result.prepared.data.inputs[:3]
    torch.testing.assert_close(load_model(tmp_path / "it.safetensors")(inputs), result.scores(0, inputs))


AGES = pd.DataFrame({"age": np.linspace(-1, 1, 60), "pressure": np.tile([0.5, -0.5], 30)})


@pytest.fixture(params=FORMATS)
def of_a_table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model that knows what its inputs are called."""
    if request.param == "onnx":
        pytest.importorskip("onnxscript")
    table = AGES.assign(outcome=np.where(AGES.age > 0, "well", "sick"), ward=np.tile(["north", "south", "west"], 20))
    data = from_frame(table, "outcome", "ward", name="visits")
    Experiment("fedper", data, ByClient(), rounds=1, epochs=1, threads=1).run(tmp_path / "run")
    file = tmp_path / f"it.{request.param}"
    about = export_client(open_run(tmp_path / "run"), "south", file, request.param)
    assert (about.feature_names, about.site, about.class_names) == (("age", "pressure"), "south", ("sick", "well"))
    return file


def test_a_frames_columns_are_found_by_name(of_a_table: Path) -> None:
    swapped = AGES[["pressure", "age"]].assign(label="well", client="south")
    expected = predict(of_a_table, AGES.to_numpy())[1]
    assert torch.equal(predict(of_a_table, swapped)[1], expected)
    torch.testing.assert_close(load_model(of_a_table)(swapped).softmax(1), expected)
    for odd, message in (
        (AGES[["age"]], "the frame: the model's input 'pressure' is missing"),
        (AGES.rename(columns={"age": "Age"}), "input 'age' is missing; 'Age' is no input of the model"),
        (AGES.assign(weight=1.0, height=2.0), "'weight', 'height' are no input of the model"),
    ):
        for attempt in (lambda odd=odd: predict(of_a_table, odd), lambda odd=odd: load_model(of_a_table)(odd)):
            with pytest.raises(CoterieError, match=message) as caught:
                attempt()
            assert "\n" not in str(caught.value)


def test_frames_for_models_without_names_are_refused(tmp_path: Path) -> None:
    named(rounds=1).run(tmp_path / "run")
    export_client(open_run(tmp_path / "run"), 0, tmp_path / "it.safetensors")
    with pytest.raises(CoterieError, match="the model does not say what its inputs are called"):
        predict(tmp_path / "it.safetensors", AGES)


def test_clients_are_named_or_numbered(tmp_path: Path) -> None:
    data = from_frame(AGES.assign(label=[0, 1] * 30, client=np.tile(["a", "b", "7"], 20)), name="visits")
    Experiment("local", data, ByClient(), rounds=1, epochs=1, threads=1).run(tmp_path / "run")
    run = open_run(tmp_path / "run")
    for number, (client, name) in enumerate({"b": "b", "7": "7", "2": "b", 1: "a"}.items()):
        assert export_client(run, client, tmp_path / f"{number}.safetensors").site == name
    with pytest.raises(CoterieError, match=r"unknown client 'c' \(allowed: 7, a, b\)"):
        export_client(run, "c", tmp_path / "c.safetensors")
