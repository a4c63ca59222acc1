"""The papers' protocols: every setting is one that exists, and methods take the papers' options."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.cli.merge import experiments, one_experiment
from coterie.errors import CoterieError
from coterie.experiment.protocols import PROTOCOLS, protocol
from coterie.methods import METHODS, MOON, FedGen, FedProx, FedRep, PerFedAvg, PFedCS
from coterie.partition import Dirichlet, Dominant, Iid, Pathological


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_method_fits_every_protocol(name: str) -> None:
    for method in METHODS:
        experiment = protocol(name, method)
        assert type(experiment.method) is METHODS[method]
        for key, value in PROTOCOLS[name].options.get(method, {}).items():
            assert getattr(experiment.method, key) == value


def test_what_is_given_overrides_the_paper() -> None:
    experiment = protocol("pfedcs", "pfedcs", rounds=7, clients=5, set={"beta": 3})
    assert experiment.rounds == 7
    assert experiment.partition == Pathological(clients=5, classes_per_client=2)
    assert experiment.method == PFedCS(beta=3)


def test_what_a_paper_leaves_open_is_the_method_s_default() -> None:
    """PFedCS never says its β, so that it follows the rounds of the run."""
    assert protocol("pfedcs", "pfedcs").method == PFedCS(beta=None)


def test_papers_that_set_a_baseline_s_option_differ() -> None:
    assert protocol("fedrema", "moon").method == MOON(mu=1.0)
    assert protocol("fedrema-cifar10", "moon").method == MOON(mu=5.0)
    assert protocol("fedrema", "fedprox").method == protocol("pfedsim", "fedprox").method == FedProx(mu=1.0)
    assert protocol("pfedcs", "fedprox").method == FedProx()
    assert protocol("pfedsim", "fedrep").method == FedRep(head_epochs=4, body_epochs=1)
    assert protocol("pfedsim", "per-fedavg").method == PerFedAvg(alpha=0.01, beta=0.001)
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
