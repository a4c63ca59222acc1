"""Options from plain values, and configurations that repeat a run."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from coterie.core.training import Training
from coterie.deployment.agreement import Agreement
from coterie.deployment.agreement_terms import FederationTerms
from coterie.errors import CoterieError
from coterie.methods import METHODS, FedProx, Method
from coterie.models import own_model
from coterie.options import build, coerced
from coterie.partition import PARTITIONS, Dirichlet, Iid
from coterie.runs.experiment import Experiment, experiment_from
from coterie.setup.config import complete, method_name, read_toml, to_toml
from coterie.setup.features import JointTraining
from coterie.setup.run_options import RunOptions
from coterie.setup.settings import make_method, make_rule
from support import final_rows, tiny


@pytest.mark.parametrize(
    ("value", "wanted", "expected"),
    [
        (3, int, 3),
        ("3", int, 3),
        (" 3 ", int, 3),
        (3.0, int, 3),
        (3, float, 3.0),
        ("1e-3", float, 1e-3),
        (True, bool, True),
        ("no", bool, False),
        ("ON", bool, True),
        (0, bool, False),
        ("text", str, "text"),
        ("3", str, "3"),
        (None, int | None, None),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("0.25", int | float, 0.25),
        ("2", int | float, 2),
        (0.25, int | float, 0.25),
        ("mean", Literal["mean", "local"], "mean"),
        ("none", Literal["mean", "local"] | None, None),
    ],
)
def test_values_are_read_without_loss(value: Any, wanted: Any, expected: Any) -> None:
    found = coerced("option", value, wanted)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "wanted", "spoken"),
    [
        (3.5, int, "a whole number"),
        ("3.5", int, "a whole number"),
        (True, int, "a whole number"),
        (float("inf"), int, "a whole number, below 2**63"),
        (None, int, "a whole number"),
        ([1], int, "a whole number"),
        (True, float, "a number"),
        ("much", float, "a number"),
        ("maybe", bool, "true or false"),
        (2, bool, "true or false"),
        (3, str, "text"),
        ("median", Literal["mean", "local"], "one of mean, local"),
        ([], Literal["mean", "local"] | None, "one of mean, local or none"),
        ("x", int | None, "a whole number or none"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(value: Any, wanted: Any, spoken: str) -> None:
    with pytest.raises(CoterieError) as caught:
        coerced("beta", value, wanted)
    assert str(caught.value) == f"beta = {value!r}: must be {spoken}"


@dataclass(frozen=True)
class Needs:
    clients: int
    alpha: float = 0.5


def test_building_from_values() -> None:
    assert build("partition", "needs", Needs, {"clients": "4"}) == Needs(4, 0.5)
    with pytest.raises(CoterieError, match="needs the option 'clients'"):
        build("partition", "needs", Needs, {})
    with pytest.raises(CoterieError, match="did you mean 'alpha'"):
        build("partition", "needs", Needs, {"clients": 4, "alhpa": 1})


def test_names_that_are_not_on_the_list() -> None:
    with pytest.raises(CoterieError, match="unknown method 'fedpre'; did you mean 'fedrep'"):
        make_method("fedpre", {})
    with pytest.raises(CoterieError, match="unknown partition 'dirichle'; did you mean 'dirichlet'"):
        make_rule("dirichle", {})
    for option in ("method", "partition", "model", "engine", "optimizer", "schedule", "stats"):
        with pytest.raises(CoterieError, match="unknown"):
            Experiment(**{option: "nonesuch"})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rounds", 0),
        ("join", 0.0),
        ("join", 1.5),
        ("seed", -1),
        ("partition_seed", -1),
        ("model_seed", -1),
        ("scale", "wide"),
        ("evaluate_every", 0),
        ("record_every", -1),
        ("threads", -1),
    ],
)
def test_impossible_experiments_are_refused(option: str, value: Any) -> None:
    with pytest.raises(CoterieError, match=f"{option} = {value}"):
        Experiment(**{option: value})


def test_the_last_layer_of_own_models_is_found_and_all_layers_are_not() -> None:
    assert tiny("fedavg", classifier="last").prepare().problem_base.layout.classifier == "classifier"
    with pytest.raises(CoterieError, match="classifier = 'all'"):
        tiny("fedavg", classifier="all").prepare()


class Net(nn.Module):
    """A model of one's own for digits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(x))
        return scores


def sized(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def first_row(experiment: Experiment) -> torch.Tensor:
    return experiment.prepare().federation().initial


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "classifier"), [(Net, "head"), (sized, "1"), (own_model("mine", Net), "head")])
def test_models_given_as_classes_and_functions_are_drawn_from_the_seed(
    model: Any, classifier: str, caplog: pytest.LogCaptureFixture
) -> None:
    def of(seed: int) -> torch.Tensor:
        return first_row(Experiment(model=model, classifier=classifier, seed=seed))

    state = torch.get_rng_state()
    assert torch.equal(of(1), of(1))
    assert not torch.equal(of(1), of(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert not caplog.records
    with caplog.at_level("WARNING", logger="coterie"):
        assert Experiment(model=model).prepare().problem_base.layout.classifier == classifier, "there is no other"
    assert f"'{classifier}'" in caplog.text
    with pytest.raises(CoterieError, match="Python objects"):
        experiment_from(complete(Experiment(model=model, classifier=classifier)))


def test_a_model_given_as_an_instance_keeps_its_weights_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    given = Net()
    prepared = Experiment(model=given, classifier="head").prepare()
    assert torch.equal(prepared.problem_base.module.get_parameter("head.weight"), given.head.weight)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "model = Net: its first weights are those it was given with" in record.getMessage()


def test_what_is_no_model_is_refused() -> None:
    def clumsy(width: int) -> nn.Module:
        return nn.Linear(width, 10)

    def no_model() -> Any:
        return Dirichlet()

    with pytest.raises(CoterieError, match="model 'FedProx': must be a class that extends"):
        Experiment(**{"model": FedProx})
    with pytest.raises(CoterieError, match="model = 3: must be a Module, a ModelSpec, a function or text"):
        Experiment(**{"model": 3})
    with pytest.raises(CoterieError, match="model 'clumsy': must take"):
        Experiment(model=clumsy, classifier="x").prepare()
    with pytest.raises(CoterieError, match="made Dirichlet, no"):
        Experiment(model=no_model, classifier="x").prepare()


def test_methods_are_given_by_name_as_classes_or_as_instances() -> None:
    assert Experiment(method=FedProx).method == Experiment("fedprox").method == Experiment(FedProx()).method

    @dataclass(frozen=True)
    class Needy(Method):
        strength: float

    with pytest.raises(CoterieError, match="method 'Needy' needs the option 'strength'"):
        Experiment(method=Needy)


def test_every_setting_stands_once() -> None:
    assert issubclass(Experiment, RunOptions)
    assert issubclass(RunOptions, JointTraining)
    assert issubclass(Agreement, JointTraining)
    # The protocol's name is for the record: it sets nothing by itself.
    assert {item.name for item in fields(Experiment)} - {"protocol"} == {item.name for item in fields(RunOptions)}
    assert {item.name for item in fields(Agreement)} == {item.name for item in fields(FederationTerms)}
    for item in (*fields(RunOptions), *fields(FederationTerms)):
        assert item.metadata["help"]
    assert type(Experiment(lr=0.5).training) is Training
    assert Experiment(lr=0.5).training == Training(lr=0.5)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_survives_its_configuration(name: str) -> None:
    experiment = Experiment(method=name)
    config = tomllib.loads(to_toml(complete(experiment)))
    again = experiment_from(config)
    assert again == experiment
    assert method_name(again.method if isinstance(again.method, Method) else METHODS[name]()) == name


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_every_rule_survives_its_configuration(name: str) -> None:
    try:
        experiment = Experiment(partition=name)
    except CoterieError as error:
        pytest.skip(f"needs options: {error}")
    assert experiment_from(tomllib.loads(to_toml(complete(experiment)))) == experiment


def test_every_setting_survives_its_configuration() -> None:
    changed = Experiment(
        method=FedProx(mu=0.3),
        partition=Dirichlet(alpha=0.7, clients=6),
        model="lenet5",
        classifier="all",
        rounds=7,
        join=0.3,
        epochs=2,
        batch=5,
        lr=0.02,
        momentum=0.5,
        weight_decay=0.1,
        clip=1.0,
        schedule="exponential",
        decay=0.9,
        stats="local",
        test=0.4,
        validation=0.1,
        held_out=0.2,
        threads=1,
        seed=9,
        partition_seed=7,
        model_seed=8,
        scale="published",
        evaluate_every=2,
        record_every=3,
        checkpoint_every=4,
    )
    assert experiment_from(tomllib.loads(to_toml(complete(changed)))) == changed
    assert experiment_from({}) == Experiment()
    named = {item.name for item in fields(Experiment) if getattr(changed, item.name) is not None}
    assert named - {"protocol"} <= set(complete(changed))


def test_configurations_with_mistakes_are_refused() -> None:
    for config, message in [
        ({"round": 3}, "did you mean 'rounds'"),
        ({"rounds": "many"}, "rounds = 'many': must be a whole number"),
        ({"partition": "iid", "alpha": 0.5}, "partition 'iid' has no option 'alpha'"),
        ({"method": "fedprox", "set": {"mo": 1}}, "unknown option of fedprox 'mo'"),
        ({"partition": "given (iid)"}, "Python objects"),
        ({"data": "given (toy)"}, "Python objects"),
    ]:
        with pytest.raises(CoterieError) as caught:
            experiment_from(config)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="no such file"):
        read_toml(tmp_path / "none.toml")
    for content in (b"rounds = ", b"\xff\xfe"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(CoterieError, match="not a TOML file"):
            read_toml(tmp_path / "bad.toml")


@pytest.mark.thorough
def test_the_written_configuration_repeats_the_run(tmp_path: Path) -> None:
    first = Experiment("fedprox", "digits", Iid(clients=3), "mlp", rounds=2, epochs=1, lr=0.05, seed=4).run(
        tmp_path / "run"
    )
    again = experiment_from(read_toml(tmp_path / "run" / "config.toml")).run()
    assert torch.equal(final_rows(first), final_rows(again))
    assert first.summary["partition"]["hash"] == again.summary["partition"]["hash"]
