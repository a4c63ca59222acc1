"""What a run says about itself: data, clients, settings as they came out, machine, protocol."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import protocol, resume
from coterie.cli import main
from coterie.data.dataset import fingerprint
from coterie.methods import METHODS, FedAvg, PFedCS, PFedSim
from coterie.options import option_fields
from coterie.partition import Dirichlet
from coterie.runs.about import effective
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.version import VERSION
from listening import power_cut
from support import tiny


def about_of(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "about.json").read_text()))


def test_a_run_describes_data_and_clients(tmp_path: Path) -> None:
    result = tiny(held_out=1).run(tmp_path / "run")
    data, partition, about = result.prepared.data, result.prepared.partition, about_of(tmp_path / "run")
    assert about["data"]["fingerprint"] == fingerprint(data)
    assert about["data"]["shape"] == list(data.shape)
    assert about["data"]["class_names"] == [str(number) for number in range(data.classes)]
    assert [one["classes"] for one in about["clients"]] == partition.class_counts(data).tolist()
    assert [one["train"] for one in about["clients"]] == partition.sizes.tolist()
    assert [one["name"] for one in about["clients"] if not one["takes_part"]] == [
        partition.names[client] for client in partition.held_out
    ]


def test_every_session_is_noted_with_its_machine(tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    experiment = tiny(checkpoint_every=1, threads=1)
    with power_cut(tmp_path / "run", 2) as listeners:
        experiment.run(tmp_path / "run", listeners)
    resume(tmp_path / "run", experiment=experiment)
    first, second = about_of(tmp_path / "run")["sessions"]
    assert (first["after_round"], second["after_round"]) == (0, 2)
    assert before <= datetime.fromisoformat(first["begun"]) <= datetime.fromisoformat(second["begun"])
    assert first["begun"].endswith("Z")
    assert (first["coterie"], first["torch"]) == (VERSION, torch.__version__)
    assert first["python"] == platform.python_version()
    assert first["threads"] == 1
    assert first["cores"] >= 1
    assert first["processor"]


@pytest.mark.thorough
def test_the_protocol_is_recorded_and_changes_nothing(tmp_path: Path) -> None:
    small: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 4, "least": 1, "rounds": 1, "epochs": 1}
    experiment = protocol("fedtc", "fedavg", **small)
    assert experiment == replace(experiment, protocol="")
    experiment.run(tmp_path / "python")
    assert about_of(tmp_path / "python")["protocol"] == "fedtc"
    assert "protocol" not in RunDirectory.open(tmp_path / "python").config()
    words = [text for key, value in small.items() for text in (f"--{key}", str(value))]
    assert main(["run", "fedavg", "--protocol", "fedtc", *words, "--out", str(tmp_path / "cli")]) == 0
    assert about_of(tmp_path / "cli")["protocol"] == "fedtc"
    tiny().run(tmp_path / "none")
    assert about_of(tmp_path / "none")["protocol"] is None


@pytest.mark.processes
def test_parallel_runs_of_a_comparison_record_the_protocol(tmp_path: Path) -> None:
    words = ["--protocol", "fedtc", "--data", "digits", "--model", "mlp", "--clients", "4", "--rounds", "1"]
    words += ["--least", "1", "--epochs", "1", "--seeds", "0", "--jobs", "2", "--out", str(tmp_path / "cmp")]
    assert main(["compare", "local", "fedavg", *words]) == 0
    assert {about_of(tmp_path / "cmp" / f"{name}-s0")["protocol"] for name in ("local", "fedavg")} == {"fedtc"}


def test_settings_left_to_the_run_are_recorded_as_they_came_out() -> None:
    experiment = Experiment("fedbn", partition=Dirichlet(clients=4), seed=7, rounds=5, model_seed=3)
    settings = effective(experiment.prepare())
    assert (settings["partition_seed"], settings["model_seed"]) == (7, 3)
    assert (settings["stats"], settings["classifier"]) == ("local", "classifier")
    assert (settings["test"], settings["validation"]) == (0.25, 0.0)
    assert effective(replace(experiment, test=0.5).prepare())["test"] == 0.5


def test_methods_say_what_became_of_their_options() -> None:
    def set_of(method: Any, **options: Any) -> dict[str, Any]:
        return dict(effective(tiny(method, **options).prepare())["set"])

    assert set_of(PFedCS(), rounds=6)["beta"] == 6
    assert set_of(PFedCS(beta=2), rounds=6)["beta"] == 2
    assert set_of(PFedSim(rho=0.5), rounds=7)["warm_up_rounds"] == 3
    assert set_of("per-fedavg", lr=0.3)["beta"] == 0.3
    assert set_of("fedgh", batch=12)["server_batch"] == 12
    assert set_of("fedbabu", rounds=4)["tuned_round"] == 4
    assert set_of(FedAvg()) == {}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_option_is_left_open(name: str) -> None:
    open_ones = [key for key, item in option_fields(METHODS[name]).items() if "None" in str(item.type)]
    method = METHODS[name](**dict.fromkeys(open_ones))
    found = method.resolved(tiny("fedavg").prepare().bare_federation())
    assert set(open_ones) <= found.keys()
