"""The moment `stored`: every client's score right after its own last training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.listening import EachRound, power_cut
from tests.support import tiny

from coterie.rounds.listeners import RoundReport
from coterie.runs.resume import resume

pytestmark = pytest.mark.thorough


def reports_of(**options: object) -> list[RoundReport]:
    """The reports of a run in which half of six clients take part in each round."""
    found: list[RoundReport] = []
    tiny(clients=6, join=0.5, rounds=6, **options).run(listeners=[EachRound(found.append)])
    return found


@pytest.mark.parametrize("method", ["fedavg", "fedper", "pfedsim", "fedbabu"])
def test_the_cohort_is_stored_as_trained_and_who_rests_keeps_its_score(method: str) -> None:
    held = None
    for report in reports_of(method=method):
        assert report.stored is not None
        assert report.trained is not None
        assert report.cohort_trained is not None
        stored, trained = report.stored.values["loss"], report.trained.values["loss"]
        assert stored[report.cohort].tolist() == trained[report.cohort].tolist()
        assert stored[report.cohort].tolist() == report.cohort_trained.values["loss"].tolist()
        resting = [client for client in range(6) if client not in report.cohort]
        if held is not None:
            assert stored[resting].tolist() == held[resting].tolist()
        held = stored
    assert held is not None


def test_resting_clients_of_fedavg_show_the_newest_model_as_trained_but_not_as_stored() -> None:
    last = reports_of(method="fedavg")[-1]
    assert last.stored is not None
    assert last.trained is not None
    resting = [client for client in range(6) if client not in last.cohort]
    assert np.all(last.stored.values["loss"][resting] != last.trained.values["loss"][resting])


def test_clients_that_never_trained_count_with_the_first_model() -> None:
    first = reports_of(method="fedavg")[0]
    untrained = tiny(clients=6, rounds=1, lr=1e-30).run().lines[0].received.values["loss"]
    assert first.stored is not None
    for client in set(range(6)) - set(first.cohort):
        assert first.stored.values["loss"][client] == pytest.approx(untrained[client], rel=1e-6)


def test_stored_scores_do_not_depend_on_how_often_everybody_is_tested() -> None:
    often, seldom = reports_of(), reports_of(evaluate_every=3)
    assert [report.stored is not None for report in seldom] == [False, False, True, False, False, True]
    for one, other in zip(often, seldom, strict=True):
        if other.stored is not None and one.stored is not None:
            assert one.stored.values["loss"].tolist() == other.stored.values["loss"].tolist()
            assert other.received is not None
            assert other.trained is not None


def test_where_everybody_takes_part_stored_is_trained() -> None:
    accuracy = tiny(rounds=3).run().accuracy()
    assert accuracy.stored.mean == accuracy.trained.mean
    assert accuracy.stored.by_client.tolist() == accuracy.trained.by_client.tolist()
    assert "stored" not in str(accuracy)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_resumed_run_has_the_same_stored_scores(tmp_path: Path, cut: int) -> None:
    experiment = tiny("fedper", clients=6, join=0.5, rounds=6, evaluate_every=3, checkpoint_every=1)
    whole = experiment.run(tmp_path / "whole").lines
    with power_cut(tmp_path / "run", round=cut) as listeners:
        experiment.run(tmp_path / "run", listeners)
    resumed = resume(tmp_path / "run", experiment=experiment).lines
    assert [line.stored for line in resumed] == [line.stored for line in whole]
