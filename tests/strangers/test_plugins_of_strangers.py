"""What a stranger can add with one file, and nothing in Coterie changed: each example runs, and does what it says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

import coterie as ct
from coterie.cli import main
from coterie.methods import METHODS
from coterie.registry import PluginFile
from coterie.rng import numpy_stream
from coterie.runs.record import Travelled
from coterie.testing import check_engine, check_method
from coterie.testing.together import Together, agreed, simulated

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "plugins").glob("*.py"))
SMALL = {"partition": ct.Dirichlet(clients=6, alpha=0.3), "rounds": 2, "epochs": 1, "threads": 1}
PLAIN = ("--clients", "6", "--rounds", "2", "--epochs", "1", "--threads", "1")


def plugin(name: str) -> ModuleType:
    """One of the files, loaded as Coterie loads it."""
    return PluginFile.read(ROOT / "examples" / "plugins" / f"{name}.py").load()


def command_of(file: Path) -> list[str]:
    """The command line that a file says runs it, with its path made absolute."""
    (line,) = re.findall(r"^\$ coterie (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(line.replace("./examples/", f"{ROOT}/examples/"))


@pytest.mark.thorough
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_command_in_a_file_runs_it_and_the_run_keeps_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command_of(file), *PLAIN, "--out", "run"]) == 0
    (copy,) = (tmp_path / "run" / "plugins").iterdir()
    assert copy.read_bytes() == file.read_bytes()
    assert ct.open_run("run").accuracy().received.mean["last"] > 0


def test_every_file_is_on_the_page_about_plugins() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert set(re.findall(r"examples/plugins/(\w+\.py)", page)) == {file.name for file in FILES}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fair_mean:FairMean", "kept_momentum:KeptMomentum"])
def test_methods_keep_what_all_methods_promise(name: str) -> None:
    file, _, kind = name.partition(":")
    check_method(METHODS.find(f"{ROOT}/examples/plugins/{file}.py:{kind}")())


def test_a_message_of_its_own_is_what_the_weights_are_made_of() -> None:
    experiment = ct.Experiment(plugin("fair_mean").FairMean(q=2.0), "digits", **SMALL)
    problem = experiment.prepare().problem()
    model = problem.module.eval()
    with torch.no_grad():
        own = [problem.train[client] for client in range(6)]
        losses = [float(torch.nn.functional.cross_entropy(model(problem.inputs[i]), problem.labels[i])) for i in own]
    weights = np.array([len(samples) for samples in own]) * np.array(losses) ** 2
    (mix,) = experiment.run().mixes(1)
    np.testing.assert_allclose(mix.weights[0], weights / weights.sum(), rtol=1e-4)


@pytest.mark.parametrize(("name", "option"), [("fair_mean:FairMean", "q"), ("kept_momentum:KeptMomentum", "momentum")])
def test_without_what_they_add_methods_are_fedavg(name: str, option: str) -> None:
    file, _, kind = name.partition(":")
    method = getattr(plugin(file), kind)(**{option: 0.0})
    ours, theirs = (ct.Experiment(which, "digits", **SMALL).run() for which in (method, "fedavg"))
    for name, tensor in ours.model(0).state_dict().items():
        assert torch.equal(tensor, theirs.model(0).state_dict()[name])


def test_the_state_of_an_optimiser_stays_with_its_client_and_never_travels(tmp_path: Path) -> None:
    method = plugin("kept_momentum").KeptMomentum(momentum=0.9)
    ours, theirs = (
        ct.Experiment(which, "digits", **SMALL).run(out=tmp_path / out)
        for which, out in ((method, "a"), ("fedavg", "b"))
    )
    everyone = ours.federation.everyone
    velocities = ours.federation["velocity"].rows(everyone)
    assert bool((velocities != 0).any(1).all()), "everybody has one of its own"
    assert len(velocities.unique(dim=0)) == 6
    assert ours.summary["bytes"] == theirs.summary["bytes"]
    # The second round starts from where the first one ended: with the velocities forgotten, it would end elsewhere.
    once = ct.Experiment(method, "digits", **SMALL | {"rounds": 1}).run()
    assert not torch.equal(once.federation["velocity"].rows(everyone), velocities)


def test_a_metric_that_is_no_sum_is_told_in_the_end(tmp_path: Path) -> None:
    task = f"{ROOT}/examples/plugins/average_precision.py:Precise"
    result = ct.Experiment("fedper", "digits", task=task, **SMALL).run(out=tmp_path / "run")
    problem, expected = result.prepared.problem(), []
    for client in range(6):
        truth, inputs = problem.labels[problem.test[client]], problem.inputs[problem.test[client]]
        with torch.no_grad():
            scores = result.model(client)(inputs).softmax(1)
        there = truth.unique().tolist()
        each = [average_precision_score((truth == number).numpy(), scores[:, number].numpy()) for number in there]
        expected.append(np.mean(each))
    told = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert told["average_precision"] == pytest.approx(np.mean(expected), rel=1e-6)
    assert {"macro_f1", "auc"} <= told.keys()


def test_a_task_of_another_kind_is_refused_for_a_known_data_set() -> None:
    with pytest.raises(ct.CoterieError, match="the task of data 'digits' is classification; leave task out"):
        ct.Experiment("fedavg", "digits", task="regression", **SMALL).prepare()


BY_SIZE, BFLOAT16 = (f"{ROOT}/examples/plugins/{name}" for name in ("by_size.py:BySize:2", "bfloat16.py:BFloat16"))


def test_a_sampler_in_a_file_asks_large_clients_more_often() -> None:
    partition = ct.Quantity(clients=6, alpha=0.5)
    result = ct.Experiment("fedavg", "digits", partition, sampler=BY_SIZE, rounds=60, epochs=1, threads=1).run()
    cohorts = [line.cohort for line in result.lines]
    assert {len(cohort) for cohort in cohorts} == {2}
    times = np.bincount(np.concatenate(cohorts), minlength=6)
    sizes = result.federation.sizes.numpy()
    assert np.corrcoef(times, sizes)[0, 1] > 0.7
    # The first draw of two, by hand: one with p = n_k / n, then one of the others likewise.
    stream = numpy_stream(0, "by size", 1)
    drawn = stream.choice(6, 2, replace=False, p=sizes / sizes.sum())
    assert cohorts[0] == sorted(drawn.tolist())


def test_a_sampler_and_a_share_are_not_both_said() -> None:
    with pytest.raises(ct.CoterieError, match=r"join = 0.5: sampler = .* says who takes part"):
        ct.Experiment("fedavg", "digits", sampler=BY_SIZE, join=0.5)


@pytest.mark.parametrize("method", ["fedper", "fedproto"])
def test_a_stage_in_a_file_halves_the_bytes_of_uploads_and_says_what_arrives(method: str) -> None:
    ours, theirs = (ct.Experiment(method, "digits", stages=stages, **SMALL).run() for stages in (BFLOAT16, ""))
    for line, plain in zip(ours.lines, theirs.lines, strict=True):
        assert line.bytes.up * 2 == plain.bytes.up
    assert ours.lines[0].bytes.down == theirs.lines[0].bytes.down
    for client in range(6):
        pairs = zip(ours.model(client).parameters(), theirs.model(client).parameters(), strict=True)
        assert all(torch.allclose(one, other, rtol=0.05, atol=0.02) for one, other in pairs)


def test_what_was_sent_as_bfloat16_is_what_is_mixed() -> None:
    experiment = ct.Experiment("fedavg", "digits", stages=BFLOAT16, **SMALL | {"rounds": 1})
    plain = ct.Experiment("local", "digits", **SMALL | {"rounds": 1}).run()
    sent = plain.federation["model"].rows(plain.federation.everyone).bfloat16().float()
    weights = (plain.federation.sizes / plain.federation.sizes.sum()).float()
    torch.testing.assert_close(experiment.run().federation["model"].shared[0], weights @ sent, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["fedper", "fedproto", "scaffold"])
def test_both_halves_do_the_same_between_a_server_and_its_sites(method: str, tmp_path: Path) -> None:
    agreement = agreed(method, stages=BFLOAT16)
    together, serial = Together(agreement, tmp_path), simulated(agreement).run()
    together.run()
    for report, line in zip(together.reports, serial.lines, strict=True):
        assert Travelled(**report.bytes) == line.bytes
    ours, theirs = together.server.federation, serial.federation
    torch.testing.assert_close(ours["model"].shared, theirs["model"].shared, rtol=1e-5, atol=1e-6)
    for name, value in ours.values.items():
        torch.testing.assert_close(value, theirs.values[name], rtol=1e-5, atol=1e-6, equal_nan=True)


def test_two_stages_that_say_how_numbers_travel_are_refused() -> None:
    with pytest.raises(ct.CoterieError, match="BFloat16 and BFloat16 both say how numbers travel"):
        ct.Experiment("fedavg", "digits", stages=f"{BFLOAT16}+{BFLOAT16}", **SMALL).prepare()


@pytest.mark.thorough
def test_an_engine_in_a_file_gives_the_bits_of_the_serial_one() -> None:
    check_engine(plugin("threads").Threads)


def test_an_engine_in_a_file_refuses_what_it_cannot_do() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 10))
    engine = f"{ROOT}/examples/plugins/threads.py:Threads"
    with pytest.raises(ct.CoterieError, match="engine = threads: the model has dropout"):
        ct.Experiment("fedavg", "digits", model=model, classifier="2", engine=engine, **SMALL).run()
