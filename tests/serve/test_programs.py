"""Exported programs as files: what is damaged, foreign or hostile is one line, and nothing of it is run."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from coterie.errors import CoterieError
from coterie.partition import Iid
from coterie.runs.experiment import Experiment
from coterie.runs.run import open_run
from coterie.serve.export import export_client
from coterie.serve.model import load_model, predict
from coterie.serve.programs import read_pt2

onnx = pytest.importorskip("onnx")

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its client 1 in both formats."""
    folder = tmp_path_factory.mktemp("exported")
    settings = {"partition": Iid(clients=2), "rounds": 1, "epochs": 1, "threads": 1}
    Experiment("fedper", **settings).run(folder / "run")
    export_client(open_run(folder / "run"), 1, folder / "it.pt2", "pt2")
    export_client(open_run(folder / "run"), 1, folder / "it.onnx", "onnx")
    return folder


def test_all_formats_give_the_same_scores(exported: Path) -> None:
    inputs = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    wanted = open_run(exported / "run").model(1)(inputs)
    for name in ("it.pt2", "it.onnx"):
        with torch.no_grad():
            torch.testing.assert_close(load_model(exported / name)(inputs), wanted)
        assert predict(exported / name, inputs)[0].tolist() == wanted.argmax(1).tolist()


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes | None], **options: Any) -> Path:
    """A copy of an archive with other members."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", **options) as new:
        for info in old.infolist():
            content = change(info.filename.partition("/")[2], old.read(info))
            if content is not None:
                new.writestr(info.filename, content)
    return target


class Trap:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_nothing_in_an_archive_is_unpickled(exported: Path, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    poison = pickle.dumps(Trap(trap))

    def poisoned(name: str, content: bytes) -> bytes:
        if name.endswith("weights_config.json"):
            told = json.loads(content)
            for one in told["config"].values():
                one["use_pickle"] = True
            return json.dumps(told).encode()
        return poison if name.startswith(("data/weights/weight", "data/sample_inputs")) else content

    with pytest.raises(CoterieError, match="not kept as plain numbers"):
        load_model(rewritten(exported / "it.pt2", tmp_path / "bad.pt2", poisoned))
    assert not trap.exists()

    # A poisoned part that is not needed is not even looked at.
    only = rewritten(exported / "it.pt2", tmp_path / "b.pt2", lambda n, c: poison if "sample_inputs" in n else c)
    assert isinstance(load_model(only), nn.Module)
    assert not trap.exists()


def _config(change: Callable[[dict[str, Any]], None]) -> Callable[[str, bytes], bytes]:
    def changed(name: str, content: bytes) -> bytes:
        if not name.endswith("weights_config.json"):
            return content
        told = json.loads(content)
        change(told["config"]["classifier.weight"]["tensor_meta"])
        return json.dumps(told).encode()

    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda name, content: None if name == "extra/about.json" else content, "is no model that Coterie exported"),
        (lambda name, content: b"{" if name == "extra/about.json" else content, "damaged"),
        (lambda name, content: b"" if name == "data/weights/weight_0" else content, "larger than its numbers"),
        (lambda name, content: content[:-3] if name == "data/weights/weight_0" else content, "damaged"),
        (lambda name, content: None if name == "data/weights/weight_0" else content, "lacks data/weights/weight_0"),
        (_config(lambda meta: meta.update(sizes=[{"as_int": 10**9}] * 2)), "larger than its numbers"),
        (_config(lambda meta: meta.update(storage_offset={"as_int": 10**9})), "damaged"),
        (_config(lambda meta: meta.update(strides=[{"as_int": -1}] * 2)), "larger than its numbers"),
        (_config(lambda meta: meta.update(dtype=99)), "not kept as plain numbers"),
    ],
)
def test_a_damaged_archive_is_one_line(
    change: Callable[[str, bytes], bytes | None], said: str, exported: Path, tmp_path: Path
) -> None:
    with pytest.raises(CoterieError, match=said) as caught:
        load_model(rewritten(exported / "it.pt2", tmp_path / "bad.pt2", change))
    assert "\n" not in str(caught.value)


def test_compressed_members_are_refused(exported: Path, tmp_path: Path) -> None:
    packed = rewritten(
        exported / "it.pt2", tmp_path / "z.pt2", lambda name, content: content, compression=zipfile.ZIP_DEFLATED
    )
    with pytest.raises(CoterieError, match="is compressed"):
        read_pt2(packed)


def test_what_is_no_program_is_named(exported: Path, tmp_path: Path) -> None:
    for suffix in ("pt2", "onnx"):
        (tmp_path / f"text.{suffix}").write_bytes(b"all I have")
        with pytest.raises(CoterieError, match="or damaged"):
            load_model(tmp_path / f"text.{suffix}")
    cut = (exported / "it.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(cut[: len(cut) // 2])
    with pytest.raises(CoterieError):
        load_model(tmp_path / "cut.onnx")
    foreign = onnx.load(exported / "it.onnx")
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "other.onnx")
    with pytest.raises(CoterieError, match="is no model that Coterie exported"):
        load_model(tmp_path / "other.onnx")


class Own(nn.Sequential):
    """A model that no registry knows."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


@pytest.mark.slow
def test_a_model_of_ones_own_goes_as_onnx(tmp_path: Path) -> None:
    settings = {"partition": Iid(clients=2), "rounds": 1, "epochs": 1, "threads": 1}
    experiment = Experiment("fedper", model=Own, classifier="3", **settings)
    experiment.run(tmp_path / "run")
    run = open_run(tmp_path / "run", experiment=experiment)
    inputs = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    export_client(run, 0, tmp_path / "it.onnx", "onnx")
    assert predict(tmp_path / "it.onnx", inputs)[0].tolist() == run.predict(0, inputs).tolist()
    export_client(run, 0, tmp_path / "it.pt2", "pt2")
    with pytest.raises(CoterieError, match="'coterie export --format onnx' writes one"):
        load_model(tmp_path / "it.pt2")


def test_a_regression_is_refused(tmp_path: Path) -> None:
    settings = {"partition": Iid(clients=2), "rounds": 1, "epochs": 1, "threads": 1}
    Experiment("fedper", data="diabetes", **settings).run(tmp_path / "run")
    export_client(open_run(tmp_path / "run"), 0, tmp_path / "it.pt2", "pt2")
    with pytest.raises(CoterieError, match="its task is regression"):
        load_model(tmp_path / "it.pt2")
