"""Sites keep the promise of privacy themselves: noise is added there, and each keeps its own account."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.deployment.agreement import Agreement
from coterie.deployment.claims import check_answer
from coterie.deployment.logbook import Logbook
from coterie.deployment.messages import RefusedError
from coterie.deployment.wire import Parcel, pack
from coterie.errors import CoterieError
from coterie.files import sealed_line, unsealed_line
from coterie.privacy.account import ACCOUNT, Release, SiteAccount, epsilon_of, spent
from coterie.testing.together import SITES, SIZES, Together, agreed, simulated

pytestmark = pytest.mark.thorough  # Opacus takes seconds to load
UNITS = pytest.mark.parametrize("unit", ["client", "example"])
SILENT = {"privacy_noise": 0.0, "privacy_clip": 0.0, "size_noise": 0.0}


def private(unit: str, **options: Any) -> Agreement:
    return agreed(options.pop("method", "fedper"), privacy=unit, **options)


def open_account(together: Together, site: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((together.folder / "trial" / site / ACCOUNT).read_text())
    return found


def account_size(together: Together, site: str) -> int:
    return int(open_account(together, site)["size"])


def steps_of(together: Together, site: str) -> int:
    """How many steps with the training's noise are counted."""
    multiplier = together.agreement.promise.multiplier
    return sum(count for noise, _, count in open_account(together, site)["steps"] if noise == multiplier)


@UNITS
def test_a_site_tells_no_exact_numbers_and_no_scores(unit: str, tmp_path: Path) -> None:
    together = Together(private(unit, size_noise=50.0), tmp_path)
    for site in together.sites.values():
        hello = site.hello()
        assert hello["class_counts"] is None
        assert hello["facts"] == {"columns": "", "classes": [0, 2], "magnitudes": []}
        assert hello["test"] == hello["validation"] == 0
        assert hello["samples"] == (1 if unit == "client" else open_account(together, site.name)["size"])
    together.admit()
    tasks = together.server.open_round(list(SITES))
    answer = together.sites["site-a"].work(tasks["site-a"])
    assert answer.note.keys() == {"round", "diverged", "epsilon"}
    final = together.sites["site-a"].finish(together.server.farewells(["site-a"])["site-a"])
    assert final.note["received"] is None


@UNITS
def test_noise_never_repeats(unit: str, tmp_path: Path) -> None:
    uploads = []
    for trial in ("one", "two"):
        together = Together(private(unit, size_noise=0.0), tmp_path / trial)
        together.admit()
        task = together.server.open_round(list(SITES))["site-a"]
        uploads.append(together.sites["site-a"].work(task).tensors["slot.model"])
    assert not torch.allclose(*uploads)


@UNITS
def test_without_noise_and_clip_sites_end_with_the_rows_of_a_simulation(unit: str, tmp_path: Path) -> None:
    batch = 8 if unit == "client" else 1000  # whole batches are the same in any order
    agreement = private(unit, **SILENT, batch=batch)
    together = Together(agreement, tmp_path)
    together.run()
    serial = simulated(agreement).run().federation
    everyone = serial.everyone
    assert torch.allclose(together.server.federation["model"].shared, serial["model"].shared, atol=1e-6), (
        "the shared part"
    )
    for client, site in enumerate(SITES):
        mine = together.sites[site].federation["model"].rows(everyone[client : client + 1])
        assert torch.allclose(mine, serial["model"].rows(everyone[client : client + 1]), atol=1e-6)


@UNITS
def test_every_site_keeps_an_account_that_the_server_is_told(unit: str, tmp_path: Path) -> None:
    agreement = private(unit, privacy_noise=6.0, size_noise=30.0)
    together = Together(agreement, tmp_path)
    together.admit()
    logbook = Logbook(tmp_path / "server", agreement)
    last: dict[str, float | None] = {}
    for round in (1, 2, 3):
        report = together.round(*(SITES if round < 3 else SITES[:2]))
        logbook.add(report)
        last |= report.epsilon
        for site, epsilon in report.epsilon.items():
            times = round if unit == "client" else 2 * round  # two epochs a round
            size = account_size(together, site)
            assert epsilon == pytest.approx(spent(agreement.promise, size, times, 8), rel=1e-9)
            assert steps_of(together, site) == (times if unit == "client" else times * -(-size // 8))
    for name, task in together.server.farewells(list(SITES)).items():
        together.server.part(name, pack(together.sites[name].finish(task)))
    logbook.finish(together.server)
    told = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert told["finished"] == dict.fromkeys(SITES)
    assert told["privacy"]["sites"] == last
    assert last.keys() == set(SITES)
    assert all(told["privacy"][word] for word in ("unit", "neighbours", "adversary", "delta"))


def test_what_is_asked_again_counts_once_and_what_is_trained_again_twice(tmp_path: Path) -> None:
    together = Together(private("client"), tmp_path)
    together.admit()
    site = together.sites["site-a"]
    task = together.server.open_round(list(SITES))["site-a"]
    first, again = site.work(task), site.work(task)
    assert torch.equal(first.tensors["slot.model"], again.tensors["slot.model"])
    assert steps_of(together, "site-a") == 1
    together.sites["site-a"].store.path.joinpath("answer.safetensors").unlink()
    assert not torch.equal(site.work(task).tensors["slot.model"], first.tensors["slot.model"])
    assert steps_of(together, "site-a") == 2
    (again_started,) = together.site("site-a")._accounts
    assert isinstance(again_started, SiteAccount)
    assert sum(again_started.steps.values()) == 2, "a site that starts again goes on counting"


def test_a_site_stops_when_its_budget_is_spent(tmp_path: Path) -> None:
    agreement = private("client", privacy_noise=8.0, rounds=2)
    enough = spent(agreement.promise, 1, 2, 8)
    together = Together(replace(agreement, epsilon=enough), tmp_path)
    together.admit()
    site = together.sites["site-a"]
    task = together.server.open_round(list(SITES))["site-a"]
    for _ in range(2):
        site.work(task)
        site.store.path.joinpath("answer.safetensors").unlink()
    with pytest.raises(RefusedError, match="privacy budget is spent"):
        site.work(task)
    assert steps_of(together, "site-a") == 2


@UNITS
def test_a_budget_that_cannot_hold_is_refused_before_training(unit: str, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"epsilon = 0\.5"):
        Together(private(unit, epsilon=0.5, size_noise=500.0), tmp_path)


def test_a_server_cannot_ask_for_more_than_was_agreed(tmp_path: Path) -> None:
    together = Together(private("client"), tmp_path)
    together.admit()
    task = together.server.open_round(list(SITES))["site-a"]
    site = together.sites["site-a"]
    with pytest.raises(RefusedError, match="what the method sends is"):
        site.work(Parcel(task.tensors, {**task.note, "uploads": {"model": "all"}}))
    site.work(task)  # so that the snapshot is there
    with pytest.raises(RefusedError, match="does not send in this round"):
        site.work(Parcel(task.tensors, {**task.note, "since": 1, "round": 1}))


def test_an_account_that_is_lost_damaged_or_of_others_is_not_begun_anew(tmp_path: Path) -> None:
    together = Together(private("example"), tmp_path)
    together.admit()
    together.round()
    path = tmp_path / "trial" / "site-a" / ACCOUNT
    whole = path.read_bytes()
    size = open_account(together, "site-a")["size"]
    assert together.site("site-a").hello()["samples"] == size, "a size is told once"
    kinds = (b'{"size":-1,"steps":[],"fingerprint":""}', b'{"size":3,"steps":[[1]]}', b"{}")
    for content in (*map(sealed_line, kinds), b"", whole[:40], whole.replace(b'"size":', b'"size":1'), b"[]"):
        path.write_bytes(content)
        with pytest.raises(CoterieError, match="damaged"):
            together.site("site-a")
    ours = together.agreement.fingerprint.encode()
    path.write_bytes(sealed_line(unsealed_line(whole).replace(ours, b"0" * 16)))
    with pytest.raises(CoterieError, match="another federation"):
        together.site("site-a")
    path.unlink()
    with pytest.raises(CoterieError, match="is missing"):
        together.site("site-a")


def test_sizes_are_told_with_noise(tmp_path: Path) -> None:
    agreement = private("example", size_noise=1000.0)
    sizes = []
    for trial in range(8):
        (tmp_path / str(trial)).mkdir()
        sizes.append(SiteAccount.open(tmp_path / str(trial), ["f"], agreement.promise, SIZES[0]).size)
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("epsilon", [-1.0, float("inf"), "1", True])
def test_an_account_that_is_no_number_is_refused(epsilon: object) -> None:
    with pytest.raises(RefusedError, match="account of privacy"):
        check_answer({"round": 1, "diverged": False, "epsilon": epsilon}, 1, agreed("fedavg").task)


def test_agreements_refuse_validation_and_methods_that_measure() -> None:
    with pytest.raises(CoterieError, match=r"validation = 0\.2"):
        private("client", validation=0.2)
    from coterie.deployment.server import Server

    with pytest.raises(CoterieError, match="FedCAC measures 'critical'"):
        Server(private("client", method="fedcac"))


def test_a_later_version_goes_on_with_the_account_whatever_its_noise(tmp_path: Path) -> None:
    first, later = (private("client", privacy_noise=noise).promise for noise in (4.0, 8.0))
    account = SiteAccount.open(tmp_path, ["one"], first, 30)
    federation = private("client").federation()
    sent = {"model": federation.layout.columns("extractor")}
    alone = account.count(federation, (), sent)
    account = SiteAccount.open(tmp_path, ["two", "one"], later, 30, begun=True)
    both = account.count(federation, (), sent)
    assert both == pytest.approx(epsilon_of([Release(2.0, 1), Release(4.0, 1)], 1e-5), rel=1e-9)
    assert both > alone
