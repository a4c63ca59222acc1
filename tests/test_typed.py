"""What Python users hand in is checked against annotations: each mistake is one line that says what would fit."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coterie as ct
from coterie.errors import CoterieError
from coterie.methods import Method
from coterie.runs.run import Run
from coterie.typed import TypedOptions, typed

FEW: dict[str, Any] = {"rounds": 1, "epochs": 1, "threads": 1}


@pytest.fixture(scope="module")
def result() -> Run:
    return ct.Experiment("fedavg", partition=ct.Iid(clients=3), **FEW).run()


class SevenOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Flatten()
        self.head = nn.Linear(64, 7)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": None}, "method = None: must be a Method, a class that extends Method or text, such as 'fedavg'"),
        ({"method": int}, "method = the class int: must be a Method"),
        ({"partition": {"clients": 3}}, "partition = {'clients': 3}: must be a Rule,"),
        ({"partition": 3}, "such as 'iid' or ct.Dirichlet(clients=20, alpha=0.1)"),
        ({"rounds": "5"}, "rounds = '5': must be a whole number"),
        ({"rounds": 2.5}, "rounds = 2.5: must be a whole number"),
        ({"rounds": None}, "rounds = None: must be a whole number"),
        ({"rounds": True}, "rounds = True: must be a whole number"),
        ({"lr": "0.1"}, "lr = '0.1': must be a number"),
        ({"lr": torch.tensor(0.1)}, "lr = a Tensor: must be a number"),
        ({"seed": "zero"}, "seed = 'zero': must be a whole number"),
        ({"seed": 1.5}, "seed = 1.5: must be a whole number"),
        ({"optimizer": torch.optim.Adam}, "optimizer = the class Adam: must be text"),
        ({"engine": None}, "engine = None: must be text"),
        ({"device": torch.device("cpu")}, "device = a device: must be text"),
        ({"task": ct.Regression()}, "task = a Regression: must be text"),
        ({"test": "a tenth"}, "test = 'a tenth': must be a number or None"),
        ({"stats": "meen"}, "unknown stats 'meen'; did you mean 'mean'? (allowed: local, mean)"),
        ({"data": None}, "data = None: must be a Dataset, a TensorDataset, a tuple, a Path or text, such as 'digits'"),
        ({"data": torch.zeros(3, 2)}, "data = a Tensor: must be a Dataset"),
        ({"data": (torch.zeros(3, 2),)}, "holds inputs and labels (x, y), not 1 things"),
        ({"model": None}, "model = None: must be a Module, a ModelSpec, a function or text"),
        ({"clients": 5}, "'clients' is an option of the partition: partition=ct.Dirichlet(clients=5)"),
        ({"mu": 0.1}, "'mu' is an option of a method: method=ct."),
        ({"round": 5}, "unknown setting 'round'; did you mean 'rounds'?"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_wrong_settings_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ct.CoterieError) as error:
        ct.Experiment(**given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda any: ct.FedProx(mu=any("0.1")), "mu = '0.1': must be a number"),
        (lambda any: ct.FedProx(any(None)), "mu = None: must be a number"),
        (lambda any: ct.FedProx(**any({"nu": 1})), "unknown option of FedProx 'nu' (allowed: mu)"),
        (lambda any: ct.PFedCS(beta=any("3")), "beta = '3': must be a whole number or None"),
        (lambda any: ct.Dirichlet(alpha=any(None)), "alpha = None: must be a number"),
        (lambda any: ct.FromFile(any(3)), "path = 3: must be text or a Path"),
        (lambda any: ct.FromFile(**any({})), "FromFile needs path: text or a Path"),
        (lambda any: ct.Experiment(*any(["local"] * 9)), "without names it takes method, data, partition, model"),
        (lambda any: ct.Partition(any(3), any(3)), "partition: train = 3: must hold the numbers of each client's"),
        (lambda any: ct.Partition(any([[0.5]]), any([[1]])), "partition: train = [[0.5]]: must hold the numbers"),
        (lambda any: ct.Dataset("x", any([[1.0]]), any([0])), "inputs = [[1.0]]: must be a Tensor"),
        (lambda any: ct.open_run(any(None)), "path = None: must be text or a Path"),
        (lambda any: ct.resume(any(3)), "path = 3: must be text or a Path"),
        (lambda any: ct.resume("nowhere", experiment=any("fedavg")), "experiment = 'fedavg': must be an Experiment"),
        (lambda any: ct.load(any(None)), "name = None: must be text or a Path"),
        (lambda any: ct.protocol(*any(["pfedsim"])), "protocol needs method: text"),
        (lambda any: ct.Classification(any("3")), "classes = '3': must be a whole number"),
        (lambda any: ct.Classification(loss=any(nn.CrossEntropyLoss())), "loss = a CrossEntropyLoss: must be a Loss"),
        (lambda any: ct.Regression(metrics=any(["mae"])), "metrics = ['mae']: must be a list, each of it a Metric"),
        (lambda any: ct.from_arrays(*any([[[1.0]]])), "from_arrays needs y: a ndarray, a Tensor or a list"),
        (lambda any: ct.from_arrays([[1, 2], [3]], [0, 1]), "[[1, 2], [3]] makes no array: its rows are not of one"),
        (lambda any: ct.from_arrays([[1.0]], [0], test=any([[1.0]])), "test = [[1.0]]: must be (x, y) or (x, y, own"),
        (lambda any: ct.from_arrays([[1.0]], [0], class_names=any("ab")), "class_names = 'ab': must be a list"),
        (lambda any: ct.load_model(any(None)), "path = None: must be text or a Path"),
        (lambda any: ct.Partition.load(any(None)), "path = None: must be text or a Path"),
        (lambda any: ct.Comparison.load(any(None)), "folder = None: must be text or a Path"),
        (lambda any: ct.Iid(clients=3)(any([1.0]), 0), "dataset = [1.0]: must be a Dataset"),
        (lambda any: ct.Experiment().run(any(3)), "out = 3: must be text, a Path or None"),
        (lambda any: ct.Experiment().run(listeners=any(["tensorbord"])), "did you mean 'tensorboard'?"),
        (lambda any: ct.compare(**any({"out": "x"})), "compare needs experiments: a table of names, each with an Exp"),
        (lambda any: ct.compare({"a": any("fedavg")}), "experiments = {'a': 'fedavg'}: must be a table of names"),
        (lambda any: ct.compare({"a": ct.Experiment()}, seeds=any(3)), "seeds = 3: must be a list, each of it a whole"),
        (lambda any: ct.compare({"a": ct.Experiment()}, seeds=any("012")), "seeds = '012': must be a list"),
        (lambda any: ct.compare({"a": ct.Experiment()}, columns=any("bytes")), "columns = 'bytes': must be a list"),
        (
            lambda any: ct.compare({"a": ct.Experiment()}, **any({"seed": 1})),
            "argument of compare 'seed'; did you mean",
        ),
    ],
)
def test_wrong_arguments_are_one_line(wrong: Any, message: str) -> None:
    """`any` hides from the type checker what it would find."""
    with pytest.raises(ct.CoterieError) as error:
        wrong(lambda value: value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_of_seven_outputs_is_refused_for_ten_classes() -> None:
    with pytest.raises(ct.CoterieError, match="it has 7 outputs; the data has 10 classes"):
        ct.Experiment(model=SevenOutputs, classifier="head").prepare()


def test_what_means_the_same_is_taken_as_such() -> None:
    many, odd = np.int64(2), np.float64(0.5)
    made = ct.Experiment(ct.FedPer, partition=ct.Iid, rounds=many, lr=odd, clip=1)
    assert made == ct.Experiment("fedper", partition="iid", rounds=2, lr=0.5, clip=1.0)
    assert [type(value) for value in (made.rounds, made.lr, made.clip)] == [int, float, float]
    # A partition is the same, and has the same hash, however its options were written.
    assert repr(ct.Dirichlet(alpha=1)) == repr(ct.Dirichlet(alpha=1.0))
    # A share of clients stays a share.
    assert isinstance(ct.Experiment(held_out=1.0).held_out, float)


def test_arrays_and_tensors_are_data() -> None:
    x, y = torch.arange(120.0).reshape(60, 2), torch.arange(60) % 3
    known = ct.from_arrays(x, y)
    for given in (TensorDataset(x, y), (x, y), (x.numpy(), y.tolist())):
        data = ct.Experiment(data=given).data
        assert isinstance(data, ct.Dataset)
        assert torch.equal(data.inputs, known.inputs)
        assert torch.equal(data.labels, known.labels)
        assert data.classes == 3
    numbers = ct.Experiment(data=(x, x[:, 0]), task="regression").data
    assert isinstance(numbers, ct.Dataset)
    assert numbers.of_task.name == "regression"


def test_a_path_is_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((12, 4), np.float32), y=np.arange(12) % 2)
    assert len(ct.Experiment(data=tmp_path / "own.npz", partition=ct.Iid(clients=2)).prepare().data) == 12


@pytest.mark.parametrize(
    ("client", "message"),
    [(99, "client = 99: must lie in 0..2"), (-1, "client = -1: must lie in 0..2"), ("0", "must be a whole number")],
)
def test_models_of_clients_that_there_are_not(result: Run, client: Any, message: str) -> None:
    with pytest.raises(ct.CoterieError, match=message):
        result.model(client)


def test_predictions_take_arrays(result: Run) -> None:
    inputs = result.prepared.data.inputs[:5]
    wanted = result.predict(0, inputs)
    assert torch.equal(result.predict(0, inputs.numpy()), wanted)
    assert torch.equal(result.predict(0, inputs.double().tolist()), wanted)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((2, 5)), r"samples have the shape \(5,\); the model takes \(1, 8, 8\)"),
        (torch.zeros(1, 8, 8), "several at a time"),
        (np.zeros((2, 1, 8, 8), np.uint8), "inputs: are uint8; the model takes float32, prepared as its data were"),
        ("x", "must be a tensor or an array"),
    ],
)
def test_inputs_that_the_model_does_not_take(result: Run, inputs: Any, message: str) -> None:
    with pytest.raises(ct.CoterieError, match=message):
        result.predict(0, inputs)


def test_tables_name_the_columns_and_methods_that_they_have() -> None:
    few = ct.Experiment(partition=ct.Iid(clients=3), **FEW)
    table = ct.compare({"plain": few}, seeds=[0], jobs=1, columns=["bytes"])
    assert table.values("plain", "bytes") == table.values("plain", "bytes_per_client_round")
    with pytest.raises(ct.CoterieError, match="unknown column of this table 'byts'; did you mean 'bytes'"):
        table.mean("plain", "byts")
    with pytest.raises(ct.CoterieError, match="unknown method of this table 'fedavg'"):
        table.std("fedavg", "bytes")


def test_notebooks_see_what_things_are_called_with() -> None:
    assert list(inspect.signature(ct.FedProx).parameters) == ["mu"]
    assert list(inspect.signature(ct.Experiment).parameters)[:4] == ["method", "data", "partition", "model"]
    assert list(inspect.signature(ct.compare).parameters)[:3] == ["experiments", "seeds", "out"]


def test_what_cannot_be_checked_passes() -> None:
    class Unseen:
        pass

    @dataclass(frozen=True)
    class Own(metaclass=TypedOptions):
        thing: Unseen

    @dataclass(frozen=True, init=False)
    class ByHand(metaclass=TypedOptions):
        number: int

        def __init__(self, text: str) -> None:
            object.__setattr__(self, "number", int(text))

    @typed
    def anything(*things: object, key: Any = None, **more: int) -> int:
        return len(things) + len(more)

    assert isinstance(Own(Unseen()).thing, Unseen)
    assert ByHand("3").number == 3
    assert anything(1, "2", key=[], one=1) == 3


def test_what_takes_the_place_of_a_method_must_be_one() -> None:
    with pytest.raises(CoterieError, match=r"^Sends.uploads = 3: must be a method"):
        type("Sends", (Method,), {"uploads": 3})
    # A variable of the class, or anything that can be called, is as good as ever.
    named = type("Named", (Method,), {"paper": "mine", "uploads": staticmethod(dict), "extra": 3})
    assert issubclass(named, Method)


def test_defaults_are_numbers_like_any_that_is_given() -> None:
    @dataclass(frozen=True)
    class Endless(Method):
        beta: float = math.nan

    with pytest.raises(CoterieError, match=r"beta = nan: must be a number, finite"):
        Endless()
    assert Endless(beta=0.5).beta == 0.5


def test_no_test_has_a_deadline() -> None:
    """One would fail on a busy machine."""
    assert settings().deadline is None
