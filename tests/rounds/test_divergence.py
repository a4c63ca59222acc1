"""A client with non-finite weights is left out of everybody's mix, keeps its last good row, and is named."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.client.batch import Batch
from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.terms import task_loss
from coterie.client.worker import Worker
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import identity
from coterie.data import Dataset
from coterie.methods import FedAvg, FedPer, Method
from coterie.partition import Partition
from coterie.rounds.collect import _finite_rows
from coterie.rounds.listeners import RoundReport
from coterie.runs.run import Run
from coterie.testing.toys import toy_data, toy_partition
from listening import EachRound
from support import final_rows, rows_of, stepwise, tiny

BAD = 1


def poisoned(clients: int = 4) -> tuple[Dataset, Partition]:
    """Client 1's training inputs are so large that its weights overflow."""
    data = toy_data()
    partition = toy_partition(data, clients)
    inputs = data.inputs.clone()
    inputs[partition.train[BAD]] *= 1e30
    return Dataset("poisoned", inputs, data.labels, classes=data.classes), partition


def without(partition: Partition) -> Partition:
    kept = [client for client in range(partition.clients) if client != BAD]
    return Partition(
        train=tuple(partition.train[k] for k in kept),
        test=tuple(partition.test[k] for k in kept),
        names=tuple(partition.names[k] for k in kept),
        keys=partition.keys[kept],
    )


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedbn"])
def test_others_learn_as_if_it_were_not_there(method: str) -> None:
    data, partition = poisoned()
    result = tiny(method, "relu", data=data, partition=partition).run()
    alone = tiny(method, "relu", data=data, partition=without(partition)).run()
    assert torch.allclose(final_rows(result)[[0, 2, 3]], final_rows(alone), atol=1e-5)
    assert bool(torch.isfinite(final_rows(result)).all())


@pytest.fixture
def fedper() -> tuple[Run, list[RoundReport]]:
    data, partition = poisoned()
    reports: list[RoundReport] = []
    result = tiny("fedper", "relu", data=data, partition=partition).run(listeners=[EachRound(reports.append)])
    return result, reports


def test_it_keeps_its_last_good_row(fedper: tuple[Run, list[RoundReport]]) -> None:
    result, _ = fedper
    own = result.federation["model"].own_columns
    assert torch.equal(own.take(final_rows(result))[BAD], own.take(result.federation.initial))
    assert result.federation.taken_part.tolist() == [True, False, True, True]


def test_it_is_named_in_report_summary_and_mixes(fedper: tuple[Run, list[RoundReport]]) -> None:
    result, reports = fedper
    assert [report.diverged for report in reports] == [[BAD]] * 3
    assert result.summary["diverged"] == {"1": [1, 2, 3]}
    for report in reports:
        assert report.cohort == [0, 1, 2, 3]
        assert report.mixes[0].columns.tolist() == [0, 2, 3]
        assert report.mixes[0].weights.shape == (1, 3)


def test_its_result_is_that_of_the_row_it_keeps(fedper: tuple[Run, list[RoundReport]]) -> None:
    """A model of NaN would count every sample of class 0 as right, and its loss could not be written as JSON."""
    result, reports = fedper
    problem = result.prepared.problem()
    layout = result.federation.layout
    index = problem.test[BAD]
    row = rows_of(result.prepared.federation())[BAD]
    module = layout.load(result.prepared.problem_base.module, row).eval()
    with torch.no_grad():
        logits = module(problem.inputs[index])
    first = reports[0].trained
    assert first is not None
    assert first.judged[BAD] == pytest.approx(float((logits.argmax(1) == problem.labels[index]).double().mean()))
    assert np.isfinite(first.loss).all()


def test_it_is_named_in_the_log_and_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, partition = poisoned()
    named = Partition(train=partition.train, test=partition.test, names=("ada", "bob", "cyd", "dan"))
    with caplog.at_level(logging.WARNING, "coterie"):
        tiny("fedavg", "relu", data=data, partition=named).run(tmp_path / "run")
    warnings = [record.getMessage() for record in caplog.records if "diverged" in record.getMessage()]
    assert len(warnings) == 3
    assert all("client bob" in text and f"round {t}" in text for t, text in enumerate(warnings, 1))
    assert (tmp_path / "run" / "log.txt").read_text().count("client bob diverged") == 3
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["diverged"] == {"bob": [1, 2, 3]}


def strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_files_are_strict_json_even_if_losses_overflow(tmp_path: Path) -> None:
    """Finite but huge weights give infinite losses."""
    data = toy_data()
    huge = Dataset("huge", data.inputs * 1e18, data.labels, classes=data.classes)
    result = tiny("fedper", "relu", data=huge, partition=toy_partition(data)).run(tmp_path / "run")
    strictly((tmp_path / "run" / "summary.json").read_text())
    for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines():
        strictly(line)
    assert 0 <= result.accuracy().received.mean["last"] <= 1


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_round_in_which_all_diverge_changes_nothing(method: str) -> None:
    data = toy_data()
    huge = Dataset("huge", data.inputs * 1e30, data.labels, classes=data.classes)
    result = tiny(method, "relu", data=huge, partition=toy_partition(data)).run()
    assert result.summary["diverged"] == {str(client): [1, 2, 3] for client in range(4)}
    assert torch.equal(final_rows(result), rows_of(result.prepared.federation()))


@dataclass(frozen=True)
class RowNorm:
    """A measurement."""

    name: ClassVar[str] = "norm"

    def __call__(self, worker: Worker) -> Tensor:
        return worker.model("model").row.norm()[None]


@dataclass(frozen=True)
class Measured(FedAvg):
    """FedAvg whose clients measure something."""

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(), Measure(RowNorm()))

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        assert uploads.measured["norm"].shape == (len(uploads.cohort), 1)
        assert bool(torch.isfinite(uploads.measured["norm"]).all())
        return super().exchange(uploads)


def test_measurements_of_a_diverged_client_are_left_out_too() -> None:
    data, partition = poisoned()
    result = tiny(Measured(), "relu", data=data, partition=partition).run()
    assert result.summary["diverged"] == {"1": [1, 2, 3]}


def test_bytes_of_measurements_are_known_even_if_all_diverge() -> None:
    data = toy_data()
    huge = Dataset("huge", data.inputs * 1e30, data.labels, classes=data.classes)
    result = tiny(Measured(), "relu", data=huge, partition=toy_partition(data)).run()
    assert len(result.summary["diverged"]) == 4
    assert result.summary["bytes"]["per_client_round"]["up"] == 4 * (result.federation.layout.width + 1)


@dataclass(frozen=True)
class FailsOnce(FedPer):
    """FedPer in which one client's loss is NaN in round 2."""

    def recipe(self, federation: Federation) -> Recipe:
        def loss(batch: Batch) -> Tensor:
            broken = federation.round == 2 and batch._client.client == BAD
            return task_loss(batch) * (float("nan") if broken else 1.0)

        return (Phase(terms=(loss,)),)


def test_a_client_recovers_in_the_next_round() -> None:
    rounds, _ = stepwise(tiny(FailsOnce(), "norm"))
    kept, diverged = [], []
    for _ in range(3):
        diverged.append(rounds.run_round().diverged)
        kept.append(rounds.federation["model"].own.clone())
    assert diverged == [[], [BAD], []]
    assert torch.equal(kept[1][BAD], kept[0][BAD]), "statistics and classifier are those of round 1"
    assert not torch.equal(kept[2][BAD], kept[1][BAD])
    assert not torch.equal(kept[1][0], kept[0][0])


@dataclass(frozen=True)
class LearnsFromSlot(Method):
    """Everybody learns from everybody's stored rows."""

    shared: ClassVar[str] = ""

    def uploads(self, federation: Federation) -> dict[str, str]:
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        count = uploads.federation.clients
        yield Mix(identity(count) / 2 + 0.5 / count, "all", source="model", to="everyone")


def test_stored_rows_of_a_diverged_client_stay_finite() -> None:
    data, partition = poisoned()
    result = tiny(LearnsFromSlot(), "relu", data=data, partition=partition).run()
    assert "1" in result.summary["diverged"]
    assert bool(torch.isfinite(final_rows(result)).all())


def test_rows_whose_sum_overflows_are_still_finite() -> None:
    rows = torch.tensor([[3e38, 3e38], [float("inf"), -float("inf")], [float("nan"), 0.0], [1.0, 2.0]])
    assert _finite_rows(rows).tolist() == [True, False, False, True]


@pytest.mark.parametrize("optimizer", ["adam", "nadam", "adamax", "rmsprop"])
def test_rates_that_an_optimiser_cannot_hold_diverge_like_any_other(optimizer: str) -> None:
    """Adam divides its first rate by 0.1, which float32 does not hold."""
    result = tiny(optimizer=optimizer, lr=3.4e37, rounds=1).run()
    assert set(result.lines[0].diverged) == set(range(4))
