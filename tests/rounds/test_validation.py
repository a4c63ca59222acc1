"""Validation samples are scored as test samples are, apart from them, and choose a round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.listening import power_cut

from coterie import open_run
from coterie.core.task import Classification
from coterie.partition import Partition
from coterie.report.terminal import summary_lines
from coterie.rounds.evaluate import Evaluation
from coterie.rounds.listeners import RoundReport
from coterie.runs.experiment import Experiment
from coterie.runs.history import History, as_line
from coterie.runs.resume import resume
from coterie.runs.run import Run
from coterie.testing.toys import toy_data, toy_partition, with_validation
from support import tiny, without_times

pytestmark = pytest.mark.thorough


def validated(method: str, **options: Any) -> Experiment:
    data = toy_data()
    return tiny(method, data=data, partition=with_validation(toy_partition(data, 4)), **options)


def accuracies(result: Run, part: str) -> list[float]:
    """Every client's accuracy on one part of its samples, worked out from its predictions."""
    problem = result.prepared.problem()
    found = []
    for client, index in enumerate(getattr(problem, part)):
        right = result.predict(client, problem.inputs[index]) == problem.labels[index]
        found.append(float(right.double().mean()))
    return found


@pytest.mark.parametrize("engine", ["serial", "stacked", pytest.param("processes", marks=pytest.mark.processes)])
@pytest.mark.parametrize("method", ["fedavg", "fedper", "pfedsim", "fedbabu", "fedfomo"])
def test_what_is_recorded_is_what_is_predicted(method: str, engine: str) -> None:
    result = validated(method, engine=engine).run()
    line = result.lines[-1]
    assert line.received.values["accuracy"] == pytest.approx(accuracies(result, "test"), abs=1e-12)
    assert line.validation.received.values["accuracy"] == pytest.approx(accuracies(result, "validation"), abs=1e-12)
    assert (line.validation.stored, line.validation.cohort_trained) == (None, None)
    assert len(line.validation.trained.values["loss"]) == 4


def test_without_validation_samples_nothing_is_said_of_them() -> None:
    result = tiny("fedavg").run()
    assert all(line.validation is None for line in result.lines)
    assert "validation" not in result.summary
    assert set(result.accuracy().received.mean) == {"best", "last", "last5"}


def test_scoring_validation_samples_changes_no_other_number() -> None:
    experiment = validated("fedper", join=0.5)
    result = experiment.run()
    assert isinstance(experiment.partition, Partition)
    cut = replace(experiment.partition, validation=tuple(part[:0] for part in experiment.partition.train))
    plain = replace(experiment, partition=cut).run()
    for ours, theirs in zip(result.lines, plain.lines, strict=True):
        for moment in ("received", "trained", "stored"):
            assert ours.values(moment, "accuracy") == theirs.values(moment, "accuracy")
            assert ours.values(moment, "loss") == pytest.approx(theirs.values(moment, "loss"), rel=1e-6)


def test_where_some_rest_each_keeps_the_score_of_its_own_last_training() -> None:
    result = validated("fedavg", join=0.5, rounds=5).run()
    held: dict[int, float] = {}
    for line in result.lines:
        own = line.validation.cohort_trained["loss"]
        held |= dict(zip(line.cohort, own, strict=True))
        for client, loss in held.items():
            assert line.validation.stored.values["loss"][client] == loss
        for client, loss in zip(line.cohort, own, strict=True):
            assert line.validation.trained.values["loss"][client] == loss


def test_a_killed_run_records_the_same_validation_scores(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 4, "epochs": 1, "threads": 1, "checkpoint_every": 1, "join": 0.5}
    experiment = Experiment("fedper", validation=0.2, **options)
    whole = experiment.run(tmp_path / "whole")
    with power_cut(tmp_path / "cut", round=2) as listeners:
        experiment.run(tmp_path / "cut", listeners)
    carried_on = resume(tmp_path / "cut")
    assert without_times(carried_on.lines) == without_times(whole.lines)
    assert carried_on.summary["accuracy"] == whole.summary["accuracy"]


def evaluation(values: list[float], sizes: list[int], validation: Evaluation | None = None) -> Evaluation:
    scores = {"accuracy": np.array(values), "loss": 1 - np.array(values)}
    return Evaluation(Classification(2).primary.scale, scores, np.array(sizes), validation)


def history(rounds: list[tuple[list[float], list[float]]]) -> History:
    """Rounds in which two clients (1 and 3 test samples, 3 and 1 for validation) have accuracies on both parts."""
    lines = []
    for round, (test, held) in enumerate(rounds, start=1):
        both = evaluation(test, [1, 3], evaluation(held, [3, 1]))
        cost = {"seconds": {"train": 1.0, "exchange": 0.0, "evaluate": 0.0}, "bytes": {"up": 8, "down": 8}}
        lines.append(as_line(RoundReport(round, [0, 1], received=both, trained=both, **cost)))
    return History(Classification(2), [1, 3], lines, [3, 1])


def test_validation_chooses_the_round_and_test_samples_give_the_score() -> None:
    found = history([([0.9, 0.9], [0.1, 0.1]), ([0.2, 0.6], [0.8, 0.0]), ([0.4, 0.4], [0.2, 0.7])])
    received = found.curves("accuracy")["received"]
    # By clients alike the third round is best (0.45 against 0.4), by samples the second (0.6 against 0.325).
    assert received["mean"]["by_validation"] == pytest.approx(0.4)
    assert received["weighted"]["by_validation"] == pytest.approx((0.2 + 3 * 0.6) / 4)
    assert received["mean"]["best"] == pytest.approx(0.9)
    # Other metrics are read in the same round.
    assert found.curves("loss")["received"]["mean"]["by_validation"] == pytest.approx(0.6)
    assert found.curves("accuracy")["stored"] == found.curves("accuracy")["trained"]


def test_of_rounds_that_are_alike_the_first_is_chosen_and_missing_numbers_never_are() -> None:
    alike = history([([0.1, 0.1], [0.5, 0.5]), ([0.9, 0.9], [0.5, 0.5])])
    assert alike.curves("accuracy")["received"]["mean"]["by_validation"] == pytest.approx(0.1)
    gone = history([([0.1, 0.1], [np.nan, np.nan]), ([0.9, 0.9], [0.5, np.nan])])
    assert gone.curves("accuracy")["received"]["mean"]["by_validation"] == pytest.approx(0.9)
    never = history([([0.1, 0.1], [np.nan, np.nan])])
    assert never.curves("accuracy")["received"]["mean"]["by_validation"] is None


def test_a_client_without_validation_samples_does_not_count() -> None:
    data = toy_data()
    whole = with_validation(toy_partition(data, 3))
    partition = Partition(
        train=whole.train, test=whole.test, validation=(whole.validation[0][:0], *whole.validation[1:])
    )
    result = tiny("fedavg", data=data, partition=partition).run()
    found = result.lines[-1].validation.received
    assert found.values["accuracy"][0] is None
    assert found.mean == pytest.approx(np.mean(found.values["accuracy"][1:]))


def test_the_summary_tells_how_many_samples_and_who_else_uses_them() -> None:
    for method, uses in (("fedavg", False), ("fedfomo", True)):
        result = validated(method).run()
        told = result.summary["validation"]
        assert told["samples"] == sum(map(len, result.prepared.partition.validation))
        assert told["used_by_method"] is uses
        said = [line for line in summary_lines(result.summary) if "learns from the validation samples" in line]
        assert bool(said) is uses
        reading = result.accuracy().received.mean["by_validation"]
        rounds = [line.validation.received.mean for line in result.lines]
        assert reading == pytest.approx(result.lines[int(np.argmax(rounds))].received.mean)


def test_a_run_that_is_opened_again_has_the_same_readings(tmp_path: Path) -> None:
    result = Experiment("fedper", validation=0.2, rounds=3, epochs=1, threads=1, join=0.5).run(tmp_path / "run")
    opened = open_run(tmp_path / "run").accuracy()
    for moment in ("received", "trained", "stored"):
        ours, theirs = getattr(opened, moment), getattr(result.accuracy(), moment)
        assert (ours.mean, ours.weighted) == (theirs.mean, theirs.weighted)
        assert "by_validation" in ours.weighted
