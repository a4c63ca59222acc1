"""Testing a sample of the clients in place of everybody: who, how far off its means are, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.client.scores import Score
from coterie.core.federation import Federation
from coterie.engines import Serial
from coterie.errors import CoterieError
from coterie.report.onerun import run_content
from coterie.report.reading import read_run
from coterie.report.terminal import summary_lines
from coterie.rounds.evaluate import sampling_error
from coterie.rounds.sampler import drawn
from support import tiny


def _experiment(**options: Any) -> ct.Experiment:
    settings: dict[str, Any] = {"rounds": 4, "epochs": 1, "threads": 1, "join": 0.25, "evaluate_clients": 3, **options}
    return ct.Experiment("fedper", "digits", ct.Dirichlet(clients=8, alpha=0.5), **settings)


def test_the_standard_error_of_a_ratio_by_hand() -> None:
    values, sizes = np.array([0.0, 1.0, 1.0]), np.array([2, 1, 1])
    # R = 2 / 4; n (a - R) = (-1, 0.5, 0.5), over the mean size 4/3; s² = (1 + 0.25 + 0.25) / 2 · 9/16
    by_hand = np.sqrt(0.75 * 9 / 16 / 3 * (1 - 3 / 6))
    assert sampling_error(values, 6, sizes) == pytest.approx(by_hand)


def test_standard_errors_are_those_that_samples_scatter_by() -> None:
    stream = np.random.default_rng(0)
    everybody, sizes = stream.random(60), stream.integers(1, 9, 60)
    draws = [stream.choice(60, 20, replace=False) for _ in range(4000)]
    for own in (None, sizes):
        weights = np.ones(60) if own is None else own
        means = [np.average(everybody[drawn], weights=weights[drawn]) for drawn in draws]
        errors = [sampling_error(everybody[drawn], 60, None if own is None else own[drawn]) for drawn in draws]
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(means), rel=0.05)


def test_the_sample_depends_on_seed_and_round_and_follows_relabelled_clients() -> None:
    keys = torch.arange(50)
    first = drawn(keys, 7, purpose="tested", seed=3, round=2)
    assert torch.equal(first, drawn(keys, 7, purpose="tested", seed=3, round=2))
    assert not torch.equal(first, drawn(keys, 7, purpose="tested", seed=3, round=3))
    assert not torch.equal(first, drawn(keys, 7, purpose="tested", seed=4, round=2))
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert sorted(order[drawn(keys[order], 7, purpose="tested", seed=3, round=2)].tolist()) == first.tolist()


def test_a_sample_changes_no_model_and_its_scores_are_those_of_a_run_that_tests_everybody() -> None:
    sampled, whole = _experiment().run(), _experiment(evaluate_clients=0).run()
    assert torch.equal(sampled.federation["model"].own, whole.federation["model"].own)
    for few, all_of_them in zip(sampled.lines, whole.lines, strict=True):
        for moment in ("received", "trained"):
            ours, theirs = getattr(few, moment), getattr(all_of_them, moment)
            assert len(ours.clients) == 3
            assert ours.values["loss"] == [theirs.values["loss"][client] for client in ours.clients]
            assert ours.mean == pytest.approx(np.mean(ours.values["accuracy"]))
            assert ours.error == sampling_error(np.array(ours.values["accuracy"]), 8)
        assert few.cohort_trained == all_of_them.cohort_trained
        assert few.stored is None
    last, everybody = whole.lines[-1], sampled.lines[-1].everybody
    assert everybody["received"] == last.received
    trained = sorted({client for line in whole.lines for client in line.cohort})
    known = [client for client, score in enumerate(everybody["stored"].values["accuracy"]) if score is not None]
    assert known == trained  # of who never trained, nothing is known
    assert [everybody["stored"].values["loss"][k] for k in known] == [last.stored.values["loss"][k] for k in known]
    assert sampled.accuracy().received.mean["last"] == whole.accuracy().received.mean["last"]


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_a_run_of_samples_is_kept_opened_and_shown(tmp_path: Path, validation: float) -> None:
    result = _experiment(validation=validation).run(out=tmp_path / "run")
    opened = ct.open_run(tmp_path / "run")
    assert opened.metric().received.mean == result.metric().received.mean
    assert opened.summary is not None
    assert opened.summary["sampled"] == result.summary["sampled"]
    assert opened.summary["sampled"]["clients"] == 3
    assert opened.summary["sampled"]["of"] == 8
    told = "\n".join(summary_lines(opened.summary))
    assert "each round tests a sample, 3 of 8 clients" in told
    frame = result.to_frame()
    assert len(frame[(frame["round"] == 1) & (frame["moment"] == "received")]) == 3
    content = run_content(read_run(tmp_path / "run"))
    assert not content["wrong"]
    assert "3 of 8 clients" in content["tested"][0]
    assert len(opened.clients) == 8
    assert not opened.clients["received"].isna().any()


def test_a_run_of_samples_goes_on_as_a_longer_one_would(tmp_path: Path) -> None:
    whole = _experiment(rounds=4).run(out=tmp_path / "whole")
    _experiment(rounds=2).run(out=tmp_path / "short")
    ct.resume(tmp_path / "short", rounds=4)
    for name in ("whole", "short"):
        for line in (lines := (tmp_path / name / "rounds.jsonl").read_text().splitlines()):
            assert ("everybody" in json.loads(line)) == (line is lines[-1])
    texts = [
        [{**json.loads(line), "seconds": 0} for line in (tmp_path / name / "rounds.jsonl").read_text().splitlines()]
        for name in ("whole", "short")
    ]
    assert texts[0] == texts[1]
    summary = ct.open_run(tmp_path / "short").summary
    assert summary is not None
    assert summary["clients"] == whole.summary["clients"]


def test_a_stopped_run_of_samples_has_no_numbers_of_everybody(tmp_path: Path) -> None:
    class Stop(ct.Listener):
        def round(self, report: ct.RoundReport) -> None:
            report.stop("enough")

    result = _experiment().run(out=tmp_path / "run", listeners=[Stop()])
    assert result.summary["sampled"]["at_the_end"] is False
    assert np.isnan(result.accuracy().stored.mean["last"])
    assert not np.isnan(result.accuracy().received.mean["last"])


def test_one_client_is_no_sample() -> None:
    with pytest.raises(ct.CoterieError, match="evaluate_clients = 1: must be at least 2, or 0 for everybody"):
        _experiment(evaluate_clients=1)


def test_a_sample_as_large_as_the_federation_is_everybody() -> None:
    result = _experiment(evaluate_clients=100, rounds=1).run()
    assert result.lines[0].received.clients is None
    assert result.lines[0].stored is not None


@pytest.mark.parametrize("damage", [{"everybody": 3}, {"everybody": {"received": {"accuracy": [0.5]}}}])
def test_a_damaged_last_line_is_named_in_reports_and_refused_elsewhere(tmp_path: Path, damage: dict[str, Any]) -> None:
    _experiment(rounds=2).run(out=tmp_path / "run")
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    broken = json.dumps({**json.loads(lines[-1]), **damage})
    (tmp_path / "run" / "rounds.jsonl").write_text("\n".join([*lines[:-1], broken]) + "\n")
    skipped = read_run(tmp_path / "run").skipped
    assert "line 2 of rounds.jsonl was skipped" in skipped[0]
    with pytest.raises(ct.CoterieError, match=r"rounds\.jsonl"):
        print(ct.open_run(tmp_path / "run").history)


@pytest.mark.parametrize("few", [0, 3])
def test_finished_models_are_tested_once(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[int] = []
    plain = Serial.test

    def counted(self: Serial, federation: Federation, clients: torch.Tensor, *more: Any) -> list[Score]:
        tested.append(len(clients))
        return plain(self, federation, clients, *more)

    monkeypatch.setattr(Serial, "test", counted)
    result = _experiment(evaluate_clients=few, rounds=2, join=1.0, engine="serial").run()
    # Before the first round, and after each; a sample is tested where everybody need not be.
    assert tested == ([3, 8] if few else [8, 8, 8])
    assert result.summary["macro_f1"] is not None


JUDGE = """
from coterie.rounds.judge import Judge


class EveryOther(Judge):
    @property
    def is_due(self):
        return self.federation.round % 2 == 0
"""


def test_a_judge_in_a_file_says_when_clients_are_tested(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(JUDGE, encoding="utf-8")
    judge = f"{tmp_path}/mine.py:EveryOther"
    result = tiny(judge=judge, rounds=4).run()
    assert [line.received is not None for line in result.lines] == [False, True, False, True]
    with pytest.raises(CoterieError, match="evaluate_clients = 2 says who is tested"):
        tiny(judge=judge, evaluate_clients=2)


def test_a_judge_adds_a_final_metric_that_is_no_sum(tmp_path: Path) -> None:
    file = tmp_path / "balanced.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from coterie.rounds.judge import Judge\n"
        "class Balanced(Judge):\n"
        "    def finished(self, labels):\n"
        "        finished = super().finished(labels)\n"
        "        hits, support = (finished.quality[name].double() for name in ('hits', 'support'))\n"
        "        balanced = (hits / support).nanmean(1).mean()\n"
        "        return replace(finished, metrics={**finished.metrics, 'balanced_accuracy': float(balanced)})\n"
    )
    result = _experiment(rounds=1, evaluate_clients=0, judge=f"{file}:Balanced").run()
    problem, of_clients = result.prepared.problem(), []
    for client, test in enumerate(problem.test):
        truth = problem.labels[test]
        with torch.no_grad():
            right = result.model(client)(problem.inputs[test]).argmax(1) == truth
        of_clients.append(np.mean([right[truth == label].double().mean() for label in truth.unique()]))
    assert result.summary["balanced_accuracy"] == pytest.approx(np.mean(of_clients), rel=1e-6)
    assert "macro_f1" in result.summary
