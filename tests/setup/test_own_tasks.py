"""A loss and a metric of one's own, and inputs that are whole numbers, on every engine."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import coterie as ct
from coterie.core.task import Sums
from coterie.data import Dataset
from coterie.engines.ray.actor import arrays_of, with_arrays
from coterie.testing.toys import seeded, toy_data, toy_partition
from support import final_rows, tiny, trained_row, without_times

pytestmark = pytest.mark.thorough


@dataclass(frozen=True)
class SmoothedCrossEntropy(ct.Loss):
    smoothing: float = 0.1

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels, reduction="none", label_smoothing=self.smoothing)


@dataclass(frozen=True)
class TopK(ct.Metric):
    k: int = 2

    @property
    def scale(self) -> ct.Scale:
        return ct.Scale(f"top{self.k}", share=True)

    def quantities(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {self.scale.name: (outputs.topk(self.k).indices == labels[:, None]).any(1)}


@dataclass(frozen=True)
class Doubt(ct.Metric):
    """The root of the mean squared distance to certainty: not a mean, and the lower the better."""

    @property
    def scale(self) -> ct.Scale:
        return ct.Scale("doubt", higher_is_better=False)

    def quantities(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"gap": (1 - outputs.softmax(1).amax(1)).square()}

    def value(self, sums: Sums) -> float:
        assert sums["gap"] is not None
        assert sums["samples"] is not None
        return float(np.sqrt(sums["gap"] / sums["samples"]))


OWN = ct.Classification(loss=SmoothedCrossEntropy(0.2), metrics=(TopK(2), Doubt()))


def own_data(task: ct.Classification = OWN) -> Dataset:
    toy = toy_data()
    return Dataset("toy", toy.inputs, toy.labels, classes=3, task=task)


def test_a_loss_of_ones_own_is_what_training_makes_small() -> None:
    data = own_data()
    prepared = tiny(data=data, batch=1000).prepare()
    row, own = prepared.problem_base.layout.row(prepared.problem_base.module), prepared.problem().train[0]
    module = prepared.problem_base.module
    loss = cross_entropy(module(data.inputs[own]), data.labels[own], label_smoothing=0.2)
    slopes = torch.autograd.grad(loss, list(module.parameters()))
    expected = row - 0.1 * torch.cat([slope.flatten() for slope in slopes])
    torch.testing.assert_close(trained_row(prepared, prepared.method.recipe(prepared.federation())), expected)


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "moon", "fedrod", "fedtc"])
def test_engines_agree_on_a_task_of_ones_own(method: str, caplog: pytest.LogCaptureFixture) -> None:
    data = own_data()
    with caplog.at_level(logging.WARNING, "coterie"):
        serial, stacked = (tiny(method, data=data, engine=engine).run() for engine in ("serial", "stacked"))
    assert "one by one" not in caplog.text
    torch.testing.assert_close(final_rows(stacked), final_rows(serial), atol=1e-5, rtol=1e-5)
    usual = tiny(method, data=toy_data()).run()
    assert not torch.allclose(final_rows(usual), final_rows(serial), atol=1e-4)
    for name in ("accuracy", "loss", "top2", "doubt"):
        ours, theirs = (one.metric(name).received.by_client for one in (serial, stacked))
        np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_worker_processes_import_a_task_of_ones_own() -> None:
    data = own_data()
    serial, processes = (tiny(data=data, engine=engine, threads=1).run() for engine in ("serial", "processes"))
    assert without_times(processes.lines) == without_times(serial.lines)


def test_metrics_of_ones_own_are_recorded_and_may_be_judged_by() -> None:
    result = tiny("fedper", data=own_data()).run()
    problem = result.prepared.problem()
    for client, test in enumerate(problem.test):
        scores = result.scores(client, problem.inputs[test])
        hits = (scores.topk(2).indices == problem.labels[test][:, None]).any(1)
        assert result.metric("top2").received.by_client[client] == pytest.approx(float(hits.double().mean()))
    assert result.summary["task"]["judged_by"] == "accuracy"
    assert list(result.lines[0].received.values) == ["accuracy", "loss", "top2", "doubt"]
    assert set(result.summary) >= {"accuracy", "top2", "doubt"}

    judged = ct.Classification(metrics=(Doubt(),), judged_by="doubt")
    other = tiny("fedper", data=own_data(judged)).run()
    curve = [np.mean(line.received.values["doubt"]) for line in other.lines]
    assert other.summary["doubt"]["received"]["mean"]["best"] == pytest.approx(min(curve))
    assert other.lines[-1].received.worst_decile == max(other.lines[-1].received.values["doubt"])


def test_known_data_take_a_loss_of_ones_own() -> None:
    data = ct.load("digits", task=OWN)
    assert (data.of_task.loss, data.classes, data.of_task.outputs) == (OWN.loss, 10, 10)
    assert "top2" in [metric.scale.name for metric in data.of_task.metrics]
    with pytest.raises(ct.CoterieError, match="task = regression: the task of data 'digits' is classification"):
        ct.load("digits", task=ct.Regression())


class BagOfWords(nn.Module):
    def __init__(self, words: int = 40, width: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.hidden = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        assert tokens.dtype == torch.int64
        out: Tensor = self.classifier(self.hidden(self.words(tokens).mean(1)).tanh())
        return out


def texts() -> Dataset:
    stream = np.random.default_rng(0)
    topics = stream.integers(0, 3, 150)
    tokens = stream.integers(0, 20, (150, 7)) + 10 * topics[:, None]
    return ct.from_arrays(tokens.astype(np.int32), topics, keep_dtype=True)


def read(**options: Any) -> ct.Run:
    data = texts()
    settings = {"model": seeded(BagOfWords), "partition": toy_partition(data), "threads": 1, "lr": 0.5, **options}
    return tiny(data=data, **settings).run()


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedrep"])
def test_whole_numbers_reach_the_model_on_every_engine(method: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coterie"):
        serial, stacked, processes = (
            read(method=method, engine=engine) for engine in ("serial", "stacked", "processes")
        )
    assert "one by one" not in caplog.text
    assert torch.equal(final_rows(processes), final_rows(serial))
    torch.testing.assert_close(final_rows(stacked), final_rows(serial), atol=1e-5, rtol=1e-5)
    assert serial.predict(0, texts().inputs[:4]).shape == (4,)


def test_embeddings_learn_from_whole_numbers() -> None:
    assert read(rounds=15, epochs=5).accuracy().received.mean["last"] > 0.8


def test_dtype_and_shape_are_kept_only_if_asked_for() -> None:
    tokens, labels = np.arange(24).reshape(2, 3, 4), [0, 1]
    kept = ct.from_arrays(tokens, labels, keep_dtype=True)
    assert kept.inputs.dtype == torch.int64
    assert torch.equal(kept.inputs, torch.from_numpy(tokens))
    usual = ct.from_arrays(tokens, labels)
    assert (usual.inputs.dtype, usual.shape) == (torch.float32, (1, 3, 4))
    assert ct.from_arrays(tokens / 2, labels, keep_dtype=True).inputs.dtype == torch.float32
    with pytest.raises(ct.CoterieError, match="inputs must be float32, or int64"):
        Dataset("toy", torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0, 1]), classes=2)


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
def test_arrays_for_ray_and_other_memory_formats_keep_whole_numbers(memory: Any) -> None:
    data = Dataset("toy", torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5), torch.tensor([0, 1]), classes=2)
    model = nn.Sequential(nn.Flatten(), nn.Embedding(200, 2), nn.Flatten(), nn.Linear(120, 2))
    partition = ct.Partition(train=(np.array([0]),), test=(np.array([1]),))
    prepared = tiny(data=data, model=model, classifier="3", partition=partition, memory=memory).prepare()
    problem = prepared.problem()
    again = with_arrays(problem, arrays_of(problem))
    assert again.inputs.dtype == torch.int64
    assert torch.equal(again.inputs, data.inputs)
    assert again.inputs.stride() == problem.inputs.stride()
