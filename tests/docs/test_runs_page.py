"""The lines on the page about runs that load a client's model: they work as written, and without Coterie."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_docs import ROOT, blocks

from coterie.methods import FedReMa, Method
from coterie.partition import Iid
from coterie.runs.experiment import Experiment
from coterie.testing.toys import seeded
from support import MODELS, tiny

pytestmark = pytest.mark.thorough

RUN = "fedrema-run"
ALONE = "import sys\nsys.modules['coterie'] = None\n"  # whoever imports it now fails
PREDICT = """
from safetensors.torch import load_file, save_file
with torch.no_grad():
    save_file({"outputs": model.eval()(load_file("inputs.safetensors")["inputs"])}, "outputs.safetensors")
"""


def the_lines() -> str:
    (found,) = [body for body in blocks(ROOT / "docs" / "runs.md", "python") if "safe_open" in body]
    assert "coterie" not in found
    assert len([line for line in found.splitlines() if line.strip()]) <= 25
    return found


def run_alone(source: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ALONE + source], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_guard_works(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="import of coterie halted"):
        run_alone("import coterie", tmp_path)


def test_the_lines_load_client_3_as_it_is_tested(tmp_path: Path) -> None:
    result = Experiment(FedReMa(delta=0), partition=Iid(clients=6), rounds=2, epochs=1).run(tmp_path / RUN)
    inputs = result.prepared.data.inputs[:9]
    save_file({"inputs": inputs}, tmp_path / "inputs.safetensors")
    run_alone(the_lines() + PREDICT, tmp_path)
    outputs = load_file(tmp_path / "outputs.safetensors")["outputs"]
    with torch.no_grad():
        assert torch.equal(outputs, result.model(3)(inputs))


@pytest.mark.parametrize(
    ("method", "memory"),
    [("fedavg", "contiguous"), ("ditto", "contiguous"), ("fedbn", "channels_last"), ("local", "channels_last")],
)
def test_the_lines_fit_every_kind_of_slot_and_memory(method: str | Method, memory: str, tmp_path: Path) -> None:
    model = seeded(MODELS["norm"]) if memory == "contiguous" else "lenet5"
    if isinstance(model, str):
        experiment = Experiment(method, partition=Iid(clients=6), model=model, rounds=1, epochs=1, memory=memory)
    else:
        experiment = tiny(method, model, clients=6)
    result = experiment.run(tmp_path / RUN)
    tensors, _, _ = the_lines().partition("model = ")
    run_alone(
        f"{tensors}\nfrom safetensors.torch import save_file\n"
        "save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, 'tensors.safetensors')",
        tmp_path,
    )
    found, wanted = load_file(tmp_path / "tensors.safetensors"), result.model(3).state_dict()
    assert {name for name in wanted if not name.endswith("num_batches_tracked")} == found.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, wanted[name]), name
