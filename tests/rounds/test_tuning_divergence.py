"""A model that tuning before a test ruins is tested as it was before, and its client is named."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.client.recipe import Phase, Recipe
from coterie.core.federation import Federation
from coterie.data import Dataset
from coterie.methods import FedBABU
from coterie.partition import Partition
from coterie.report.terminal import summary_lines
from coterie.runs.run import Run
from coterie.testing.together import Together, agreed
from coterie.testing.toys import toy_data, toy_partition
from support import tiny, warnings_in

pytestmark = pytest.mark.thorough

BAD = 1
NAMES = ("ada", "bob", "cyd", "dan")


@dataclass(frozen=True)
class Gentle(FedBABU):
    """FedBABU whose clients hardly move in training: only tuning can diverge."""

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(train="extractor", lr=1e-37),)


def gentle(tune_epochs: int = 2, out: Path | None = None, **options: Any) -> Run:
    """Bob's training inputs are so large that tuning overflows."""
    data = toy_data()
    found = toy_partition(data)
    inputs = data.inputs.clone()
    inputs[found.train[BAD]] *= 1e30
    poisoned = Dataset("poisoned", inputs, data.labels, classes=data.classes)
    partition = Partition(train=found.train, test=found.test, names=NAMES)
    return tiny(Gentle(tune_epochs=tune_epochs), "relu", data=poisoned, partition=partition, **options).run(out)


@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize("engine", ["serial", "stacked", "processes"])
def test_every_engine_names_the_client_and_tests_its_untuned_model(engine: str, join: float) -> None:
    tuned, plain = gentle(engine=engine, join=join), gentle(tune_epochs=0, join=join)
    assert tuned.summary["diverged"] == {}
    assert tuned.summary["tuning_diverged"] == {"bob": [3]}
    assert [line.tuning_diverged for line in tuned.lines] == [[], [], [BAD]]
    for moment in ("received", "trained"):
        ours, untuned = (result.lines[-1].values(moment, "loss") for result in (tuned, plain))
        assert ours[BAD] == pytest.approx(untuned[BAD], rel=1e-4)
        others = [client for client in range(4) if client != BAD]
        assert all(ours[client] < untuned[client] for client in others)


def test_a_client_without_tuning_is_not_named() -> None:
    assert gentle(tune_epochs=0).summary["tuning_diverged"] == {}


def test_log_and_summary_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coterie"):
        gentle(out=tmp_path / "run")
    (said,) = warnings_in(caplog)
    assert said.startswith("round 3: client bob: tuning its model for the test diverged")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["tuning_diverged"] == {"bob": [3]}
    assert "client bob was tested untuned in 1 of 3 rounds: its tuning diverged" in list(summary_lines(summary))


def test_the_finished_model_is_the_untuned_one() -> None:
    inputs = torch.randn(5, 6)
    tuned, plain = gentle(), gentle(tune_epochs=0)
    assert torch.equal(tuned.scores(BAD, inputs), plain.scores(BAD, inputs))
    assert not torch.allclose(tuned.scores(0, inputs), plain.scores(0, inputs), atol=1e-3)


def test_a_site_keeps_its_untuned_model_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    together = Together(agreed("fedbabu", lr=1e-37), tmp_path)
    with caplog.at_level(logging.WARNING, "coterie"):
        together.admit()
        while not together.server.finished:
            together.round()
        assert not warnings_in(caplog)
        ill = together.sites["site-b"]
        ill.problem.inputs[ill.problem.train[ill.client]] = 1e38
        last = together.finish()
    (said,) = warnings_in(caplog)
    assert said.startswith("site site-b: round 3: tuning its model for the test diverged")
    assert last["site-b"]["received"]["loss"] is not None


def test_newcomers_are_named_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coterie"):
        result = gentle(held_out=3)
    assert BAD in result.prepared.partition.held_out
    said = warnings_in(caplog)
    assert [text.partition(":")[0] for text in said] == ["newcomer bob"]
