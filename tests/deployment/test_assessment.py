"""What a site sees of itself: its models' scores, and beside them those of a model that trained alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coterie.deployment import assessment
from coterie.deployment.assessment import ROW, paired_gain
from coterie.deployment.journal import JOURNAL, Entry
from coterie.deployment.messages import Packed
from coterie.methods import METHODS, Local
from coterie.rounds.sampler import draw_cohort
from coterie.testing.together import SITES, Together, agreed, simulated
from support import every_method

pytestmark = pytest.mark.thorough


def journal(together: Together, site: str) -> list[Entry]:
    return together.sites[site].assessment.journal.entries()


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto"])
def test_the_baseline_is_local_training_bit_for_bit(method: str, tmp_path: Path) -> None:
    agreement = agreed(method, rounds=2, join=0.67)
    together = Together(agreement, tmp_path)
    together.run()
    alone = simulated(replace(agreement, method=Local())).run()
    lines, trained = alone.lines, 0
    for client, site in enumerate(SITES):
        store = together.sites[site].store
        if not store.rounds():  # never drawn
            continue
        trained += 1
        kept = store.snapshot(store.rounds()[-1])
        assert kept is not None
        assert torch.equal(kept[ROW], alone.federation["model"].rows(torch.tensor([client])))
        last = journal(together, site)[-1]
        assert last["finished"]
        assert last["alone"]["accuracy"] == lines[-1].received.values["accuracy"][client]
        assert last["alone"]["loss"] == pytest.approx(lines[-1].received.values["loss"][client])
    assert trained == len({client for line in lines for client in line.cohort})


def test_a_site_that_missed_a_round_has_a_baseline_that_missed_it_too(tmp_path: Path) -> None:
    """Equal steps: what did not count of the federation's model does not count of the baseline either."""
    together = Together(agreed("fedavg", rounds=3), tmp_path)
    together.admit()
    together.round()
    together.round(silent=("site-b",))
    together.round()
    together.finish()
    steps = Together(agreed("fedavg", rounds=3), tmp_path / "again")
    steps.admit()
    steps.round()
    steps.round("site-a", "site-c")
    steps.round()
    one, other = (each.sites["site-b"].store.snapshot(3) for each in (together, steps))
    assert one is not None
    assert other is not None
    assert torch.equal(one[ROW], other[ROW])
    assert [entry["round"] for entry in journal(together, "site-b")] == [1, 3, 3]


def test_the_journal_tells_what_the_site_told_the_server_and_more(tmp_path: Path) -> None:
    together = Together(agreed("fedavg"), tmp_path)
    finals = together.run()
    entries = journal(together, "site-a")
    assert [entry["round"] for entry in entries] == [1, 2, 3, 3]
    report = together.reports[1]
    entry = entries[1]
    for moment, told in (("received", report.received), ("trained", report.trained)):
        sums = told["site-a"]
        assert entry[moment]["accuracy"] == pytest.approx(sums["correct"] / sums["samples"])
    assert entry["shared"] == entry["received"], "FedAvg's model is the one that all share"
    assert entry["bytes"]["down"] == report.bytes["down"] / 3
    assert entry["bytes"]["up"] == report.bytes["up"] / 3
    assert entry["seconds"]["own"] > 0
    assert entry["seconds"]["baseline"] > 0
    last, final = entries[-1], finals["site-a"]["received"]
    assert last["received"]["accuracy"] == pytest.approx(final["correct"] / final["samples"])
    assert sum(last["received"]["support"]) == last["test_samples"] == final["samples"]
    shown = [share for share in last["received"]["recall"] if share is not None]
    assert last["received"]["sensitivity"] == pytest.approx(sum(shown) / len(shown))
    assert last["gain"]["points"] == pytest.approx(100 * (last["received"]["accuracy"] - last["alone"]["accuracy"]))
    assert last["gain"]["sentence"].count("points") == 1


def test_the_shared_model_is_judged_beside_a_personal_one(tmp_path: Path) -> None:
    """Ditto tests its personal model; the shared one is FedAvg's, and scores like it. FedPer has none."""
    scores = {}
    for method in ("ditto", "fedavg", "fedper"):
        together = Together(agreed(method, rounds=2), tmp_path / method)
        together.run()
        scores[method] = journal(together, "site-b")[-1]
    assert scores["ditto"]["shared"] == scores["fedavg"]["received"]
    assert scores["ditto"]["received"]["loss"] != scores["ditto"]["shared"]["loss"]
    assert "shared" not in scores["fedper"]


COVERED = ("fedavg", "fedper", "ditto", "apple", "fedproto")


@pytest.mark.parametrize("name", every_method(COVERED))
def test_nothing_of_it_leaves_the_site(name: str, tmp_path: Path) -> None:
    """Answers are those of a site without a baseline, bit for bit, but for the seconds; the server knows no more."""
    answers: list[list[str]] = []
    for baseline in (True, False):
        agreement = agreed(METHODS[name](), rounds=2, validation=0.2, baseline=baseline)
        together = Together(agreement, tmp_path / str(baseline))
        together.admit()
        told = []
        for _ in range(2):
            for site, task in together.server.open_round(list(SITES)).items():
                packed = together.answer(site, task)
                note = json.loads(packed.text)
                note["note"].pop("seconds")
                told.append(Packed(packed.buffers, json.dumps(note)).digest)
                together.server.receive(site, packed)
            together.server.close_round()
        together.finish()
        answers.append(told)
    assert answers[0] == answers[1]


def test_an_error_in_it_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("no baseline today")

    together = Together(agreed("fedavg", rounds=2), tmp_path)
    together.admit()
    monkeypatch.setattr(assessment.Baseline, "train", broken)
    assert together.round().answered == list(SITES)
    monkeypatch.undo()
    assert together.round().answered == list(SITES)
    entries = journal(together, "site-a")
    assert [entry["no_baseline"] for entry in entries] == [assessment.FAILED] * 2, "it lacks a round from now on"
    assert "alone" not in entries[1]
    assert entries[1]["received"]["accuracy"] >= 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"method": "local"}, assessment.ALONE),
        ({"method": "fedavg", "baseline": False}, assessment.OFF),
        ({"method": "fedavg", "deadline": 1e-9}, "a round's own work took"),
    ],
)
def test_where_there_is_no_baseline_the_journal_says_why(options: dict[str, object], why: str, tmp_path: Path) -> None:
    together = Together(agreed(**{"rounds": 2, **options}), tmp_path)
    together.run()
    entries = journal(together, "site-a")
    assert all(entry["no_baseline"].startswith(why) for entry in entries)
    assert not any("gain" in entry for entry in entries[1:])


def test_a_site_whose_disk_is_lost_at_the_end_has_no_baseline_to_compare_with(tmp_path: Path) -> None:
    together = Together(agreed("fedavg", rounds=2), tmp_path)
    together.admit()
    together.round()
    together.round()
    for path in together.sites["site-a"].store.path.iterdir():
        path.unlink()
    together.finish()
    (last,) = journal(together, "site-a")
    assert last["no_baseline"] == assessment.LATE
    assert "gain" not in last
    assert last["received"]["accuracy"] >= 0


def test_a_site_that_begins_anew_does_so_with_its_baseline(tmp_path: Path) -> None:
    together = Together(agreed("fedavg", rounds=3), tmp_path)
    together.admit()
    together.round()
    store = together.sites["site-a"].store
    for path in store.path.iterdir():
        path.unlink()
    assert together.round().lost == ["site-a"]
    together.round()
    other = Together(agreed("fedavg", rounds=3), tmp_path / "late")
    other.admit()
    for present in (SITES[1:], SITES[1:], SITES):
        other.round(*present)
    one, late = store.snapshot(3), other.sites["site-a"].store.snapshot(3)
    assert one is not None
    assert late is not None
    assert torch.equal(one[ROW], late[ROW]), "as one that joined in that round"


def test_rounds_that_are_done_again_are_written_once(tmp_path: Path) -> None:
    together = Together(agreed("fedavg", rounds=2), tmp_path)
    together.admit()
    task = together.server.open_round(list(SITES))["site-a"]
    together.answer("site-a", task)
    together.answer("site-a", task)
    path = together.sites["site-a"].store.path / JOURNAL
    assert len(path.read_text().splitlines()) == 1
    path.write_bytes(path.read_bytes() + b'{"round": 2, "rece')  # torn by a power cut
    together.sites["site-a"].assessment.journal.add({"round": 2})
    assert [entry["round"] for entry in journal(together, "site-a")] == [1, 2]


def test_cohorts_of_the_trial_leave_somebody_out() -> None:
    """The test above on partial participation would show nothing if everybody took part."""
    drawn = draw_cohort(torch.arange(3), 0.67, 0, 1)
    assert len(drawn) == 2


def test_the_interval_is_bonett_and_prices() -> None:
    """By hand, 8 and 2 of 50: (9 − 3)/52 ± 1.959964·√((12/52 − (6/52)²)/52) = 0.115385 ± 0.126745."""
    gain = paired_gain(8, 2, 50)
    assert gain is not None
    assert gain.points == pytest.approx(12.0)
    assert gain.low == pytest.approx(100 * (6 / 52 - 0.126745), abs=0.01)
    assert gain.high == pytest.approx(100 * (6 / 52 + 0.126745), abs=0.01)
    assert not gain.clear
    assert paired_gain(0, 0, 0) is None
    none = paired_gain(0, 0, 3)
    assert none is not None
    assert none.low < 0 < none.high, "three samples on which both are right prove nothing"
    clear = paired_gain(0, 30, 60)
    assert clear is not None
    assert clear.sentence.startswith("Taking part costs you −50.0 points")
