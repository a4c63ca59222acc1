"""What a federation's server keeps is opened, reported and watched like a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_coordinator import Trial

import coterie as ct
from coterie.deployment.as_run import lines_with, note_of, partition_of, renumbered
from coterie.deployment.server import Report
from coterie.errors import CoterieError
from coterie.report import report
from coterie.rounds.evaluate import MOMENTS
from coterie.runs.run import Run
from coterie.testing.together import SITES, agreed, simulated

pytestmark = pytest.mark.thorough


def opened(folder: Path, **options: object) -> tuple[Trial, Run]:
    settings = {"rounds": 4, "deadline": 30.0, "gather": 10.0, "patience": 200.0, **options}
    trial = Trial(folder, agreed(**{"method": "fedper", **settings}))
    trial.run()
    return trial, ct.open_run(folder / "server")


def test_its_numbers_are_those_of_the_simulation(tmp_path: Path) -> None:
    trial, run = opened(tmp_path)
    serial = simulated(trial.agreement).run()
    assert (run.status, run.done, run.judged_by) == ("finished", 4, "accuracy")
    for moment in MOMENTS:
        for mean in ("mean", "weighted"):
            ours, theirs = (getattr(getattr(one.accuracy(), moment), mean) for one in (run, serial))
            assert ours == pytest.approx(theirs), (moment, mean)
    np.testing.assert_allclose(run.accuracy().received.by_client, serial.accuracy().received.by_client)
    assert run.bytes == sum(line.bytes.total for line in serial.lines)
    assert run.clients["name"].tolist() == list(SITES)
    assert run.clients["train"].tolist() == serial.prepared.partition.sizes.tolist()
    for round in run.rounds:
        for ours, theirs in zip(run.mixes(round), serial.mixes(round), strict=True):
            np.testing.assert_allclose(ours.weights, theirs.weights)


def test_sites_that_were_away_have_no_number_and_are_remembered(tmp_path: Path) -> None:
    trial, run = opened(tmp_path, join=0.67)
    lines = trial.lines
    assert {len(line.cohort) for line in lines} == {2}
    for line in lines:
        told = line.trained.values["accuracy"]
        assert [value is None for value in told] == [client not in line.cohort for client in range(3)]
    seen = [client for client in range(3) if any(client in line.cohort for line in lines)]
    for client in seen:
        own = [line.trained.values["accuracy"][client] for line in lines if client in line.cohort]
        assert (lines[-1].stored or lines[-1].trained).values["accuracy"][client] == own[-1]
    assert run.history["moment"].tolist().count("trained") == 4


def test_a_report_and_a_watcher_take_it(tmp_path: Path) -> None:
    opened(tmp_path)
    page = report(tmp_path / "server", tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(site in page for site in SITES)


def test_what_the_server_does_not_know_is_not_made_up(tmp_path: Path) -> None:
    _, run = opened(tmp_path, rounds=2)
    assert run.clients["class 0"].isna().all()
    with pytest.raises(CoterieError, match="does not have its sites' models"):
        run.model(0)
    assert "not told which classes" in report(tmp_path / "server", tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_method_that_asks_for_class_counts_has_them_told(tmp_path: Path) -> None:
    trial, run = opened(tmp_path, method="fedpac", rounds=2)
    counts = trial.server.federation.class_counts
    assert run.clients[[f"class {number}" for number in range(3)]].to_numpy().tolist() == counts.tolist()


def test_a_server_that_is_killed_and_started_again_adds_a_session(tmp_path: Path) -> None:
    trial, run = opened(tmp_path, rounds=3)
    assert [one.after_round for one in run.about.sessions] == [0]
    again = Trial(tmp_path, trial.agreement)
    again.together = trial.together
    again.run()
    assert len(ct.open_run(tmp_path / "server").about.sessions) == 2
    assert ct.open_run(tmp_path / "server").done == 3


def test_samples_are_numbered_through(tmp_path: Path) -> None:
    trial, _ = opened(tmp_path, rounds=1, validation=0.2)
    partition = partition_of(trial.server)
    parts = (*partition.train, *partition.validation, *partition.test)
    assert sorted(np.concatenate(parts).tolist()) == list(range(sum(map(len, parts))))
    assert partition.sizes.tolist() == trial.server.federation.sizes.tolist()


def test_lines_follow_sites_that_come_and_leave() -> None:
    before, after = (
        agreed("fedavg", least_sites=1),
        replace(agreed("fedavg"), sites=("site-c", "site-a", "new")),
    )
    report = Report(
        1, list(SITES), ["site-a", "site-c"], diverged=["site-b"], trained={"site-a": sums(1), "site-c": sums(3)}
    )
    (line,) = lines_with([], report, before)
    assert line.trained.values["accuracy"] == [0.25, None, 0.75]
    moved = renumbered(line, after)
    assert (moved.cohort, moved.diverged, note_of(moved).sites) == ([0, 1], [], ["site-c", "site-a", "new"])
    assert moved.trained.values["accuracy"] == [0.75, 0.25, None]
    assert moved.trained.mean == 0.5
    assert note_of(moved).answered == ["site-a", "site-c"], "who took part is not forgotten"
    assert renumbered(moved, after) == moved, "a take-over that is cut off is done again"


def sums(correct: int) -> dict[str, float]:
    return {"correct": correct, "loss": 1.0, "samples": 4}
