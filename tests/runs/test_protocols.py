"""The papers' protocols: every setting is one that exists, and methods take the papers' options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main
from coterie.cli.experiments import experiments, one_experiment
from coterie.data import DATASETS
from coterie.errors import CoterieError
from coterie.methods import METHODS, MOON, FedCAC, FedGen, FedProx, FedRep, PerFedAvg, PFedCS
from coterie.partition import Dirichlet, Dominant, Iid, Pathological
from coterie.runs.protocols import PROTOCOLS, protocol


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_method_fits_every_protocol(name: str) -> None:
    for method in METHODS:
        experiment = protocol(name, method)
        assert type(experiment.method) is METHODS[method]
        for key, value in PROTOCOLS[name].options.get(method, {}).items():
            assert getattr(experiment.method, key) == value


def test_what_is_given_overrides_the_paper() -> None:
    assert "beta" not in PROTOCOLS["pfedcs"].options["pfedcs"]
    experiment = protocol("pfedcs", "pfedcs", rounds=7, clients=5, set={"beta": 3})
    assert experiment.rounds == 7
    assert experiment.partition == Pathological(clients=5, classes_per_client=2)
    assert experiment.method == PFedCS(beta=3, tune_epochs=1)


def test_what_a_paper_leaves_open_is_the_method_s_default() -> None:
    """PFedCS never says its β, so that it follows the rounds of the run."""
    assert protocol("pfedcs", "pfedcs").method == PFedCS(beta=None, tune_epochs=1)


def test_papers_that_set_a_baseline_s_option_differ() -> None:
    assert protocol("fedrema", "moon").method == MOON(mu=1.0)
    assert protocol("fedrema-cifar10", "moon").method == MOON(mu=5.0)
    assert protocol("fedrema", "fedprox").method == protocol("pfedsim", "fedprox").method == FedProx(mu=1.0)
    assert protocol("pfedcs", "fedprox").method == FedProx()
    assert protocol("pfedsim", "fedrep").method == FedRep(head_epochs=4, body_epochs=1)
    assert protocol("pfedsim", "per-fedavg").method == PerFedAvg(alpha=0.01, beta=0.001, tune_epochs=1)
    assert protocol("pfedsim", "fedgen").method == FedGen(diversity=0.0)
    assert protocol("fedtc", "fedgen").method == FedGen(diversity=1.0)


def test_the_command_line_starts_from_a_protocol() -> None:
    run = one_experiment("moon", None, {"protocol": "fedrema", "rounds": 3}, ["temperature=0.1"])
    assert run.method == MOON(mu=1.0, temperature=0.1)
    assert (run.rounds, run.batch, run.classifier, run.partition) == (3, 100, "all", Dominant())
    several = experiments(["fedprox", "local"], None, {"protocol": "pfedsim"}, ["fedprox.mu=0.5"])
    assert several["fedprox"].method == FedProx(mu=0.5)
    assert several["local"].join == 0.1
    assert several["local"].partition == Dirichlet(clients=100, alpha=0.1, least=40)


def test_another_rule_leaves_the_protocol_s_rule_options_aside(tmp_path: Path) -> None:
    run = one_experiment("fedavg", None, {"protocol": "pfedsim", "partition": "iid"}, [])
    assert run.partition == Iid(clients=100)
    file = tmp_path / "mine.toml"
    file.write_text('protocol = "pfedsim"\nalpha = 0.5\nmethod = "fedprox"\n', encoding="utf-8")
    from_file = one_experiment(None, file, {}, [])
    assert from_file.method == FedProx(mu=1.0)
    assert from_file.partition == Dirichlet(clients=100, alpha=0.5, least=40)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(CoterieError, match="unknown protocol 'pfedsin'; did you mean 'pfedsim'"):
        one_experiment("fedavg", None, {"protocol": "pfedsin"}, [])


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROTOCOLS)
def test_no_method_is_refused_by_a_protocol_s_settings(name: str) -> None:
    """A method that needs validation samples or plain SGD gets them, and nobody else does."""
    for method in METHODS:
        experiment = protocol(name, method, data="digits", model="mlp", partition="iid", clients=4)
        experiment.prepare()
        assert experiment.validation == (0.2 if method == "fedfomo" else None)
        assert experiment.momentum == (0.0 if method == "scaffold" else PROTOCOLS[name].settings.get("momentum", 0.0))


@pytest.mark.parametrize(
    ("name", "data", "settings"),
    [
        ("pfedcs", "tiny_imagenet", {"model": "resnet18", "lr": 0.1, "partition": Pathological(20, 20)}),
        ("pfedcs", "cifar100", {"model": "cnn", "lr": 0.005, "partition": Pathological(20, 10)}),
        ("pfedcs", "cifar10", {"model": "cnn", "lr": 0.005, "partition": Pathological(20, 2)}),
        ("fedtc", "cifar100", {"model": "resnet18", "lr": 0.01}),
        ("fedcac", "cifar100", {"model": "resnet10", "method": FedCAC(tau=0.5, beta=170)}),
        ("fedcac", "tiny_imagenet", {"model": "resnet10", "method": FedCAC(tau=0.5, beta=170)}),
        ("fedcac", "cifar10", {"model": "resnet8", "method": FedCAC(tau=0.5, beta=100)}),
        ("pfedsim", "tiny_imagenet", {"model": "mobilenet_v2"}),
        ("pfedsim", "cinic10", {"model": "lenet5"}),
    ],
)
def test_a_data_set_brings_what_the_paper_changes_with_it(name: str, data: str, settings: dict[str, Any]) -> None:
    from_python = protocol(name, name, data=data)
    from_run = one_experiment(name, None, {"protocol": name, "data": data}, [])
    from_compare = experiments([name, "local"], None, {"protocol": name, "data": data}, [])[name]
    assert from_python == from_run == from_compare
    assert {key: getattr(from_python, key) for key in settings} == settings


def test_what_is_given_overrides_methods_and_data_sets_too(tmp_path: Path) -> None:
    assert protocol("pfedcs", "fedfomo", data="tiny_imagenet", lr=0.3, validation=0.5).lr == 0.3
    assert protocol("pfedcs", "fedfomo", validation=0.5).validation == 0.5
    assert protocol("fedcac", "fedcac", data="cifar100", set={"beta": 3}).method == FedCAC(tau=0.5, beta=3)
    assert protocol("fedtc", "scaffold", momentum=0.5).momentum == 0.5
    given = {"protocol": "fedcac", "data": "cifar100", "model": "cnn", "validation": 0.1}
    several = experiments(["fedcac", "fedfomo"], None, given, ["fedcac.beta=7"])
    assert several["fedcac"].method == FedCAC(tau=0.5, beta=7)
    assert [one.model for one in several.values()] == ["cnn", "cnn"]
    assert [one.validation for one in several.values()] == [0.1, 0.1]
    file = tmp_path / "mine.toml"
    file.write_text('protocol = "fedcac"\ndata = "cifar100"\nmomentum = 0.3\nmethod = "scaffold"\n', encoding="utf-8")
    from_file = one_experiment(None, file, {}, [])
    assert (from_file.model, from_file.momentum) == ("resnet10", 0.3)


def test_another_rule_leaves_rule_options_aside_from_python_too() -> None:
    assert protocol("pfedcs", "fedavg", partition="dirichlet", alpha=0.05).partition == Dirichlet(
        clients=20, alpha=0.05
    )


@pytest.mark.parametrize("name", PROTOCOLS)
def test_settings_and_options_of_methods_and_data_sets_exist(name: str) -> None:
    found = PROTOCOLS[name]
    assert found.assumed
    assert all(sentence.endswith(".") for sentence in found.assumed)
    for method in found.for_method:
        protocol(name, method)
    for data, changes in found.for_data.items():
        assert data in DATASETS
        for method in ("fedavg", *changes.options):
            protocol(name, method, data=data)


def test_what_is_not_the_paper_s_is_said() -> None:
    for name, found in PROTOCOLS.items():
        said = " ".join(found.assumed)
        assert ("SCAFFOLD: momentum 0, which is not the paper's" in said) == ("scaffold" in found.for_method)
        # pFedSim's paper states FedFomo's validation share.
        assert ("FedFomo: a fifth" in said) == (name != "pfedsim")


def run_cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_tells_all_about_one_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_cli(capsys, "protocols", "fedcac")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert "\x1b" not in out
    for line in (
        "model resnet8",
        "model resnet10 data cifar100",
        "validation 0.2 method fedfomo",
        "momentum 0.0 method scaffold",
        "fedcac beta=170 data tiny_imagenet",
        "SCAFFOLD: momentum 0, which is not the paper's: its controls are defined for plain SGD.",
    ):
        assert line in lines
    assert run_cli(capsys, "protocols")[1].startswith("protocol ")
    assert run_cli(capsys, "protocols", "fedcaf")[2].startswith(
        "coterie: error: unknown protocol 'fedcaf'; did you mean"
    )
