"""A promise of privacy is kept: clipped and noisy uploads, what is refused, what is spent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

import coterie
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import METHODS, FedPer
from coterie.partition import Iid
from coterie.privacy.account import Release, epsilon_of, spent, told_size
from coterie.privacy.noise import noise_of
from coterie.privacy.promise import Privacy
from coterie.privacy.stage import Private, clipped
from coterie.rounds.listeners import Listener, RoundReport, StopAfter
from coterie.rounds.stages import Incoming
from coterie.runs.record import PRIVACY
from coterie.runs.run import open_run
from support import final_rows, rows_of, stepwise, tiny

CLIENT, EXAMPLE = {"privacy": "client"}, {"privacy": "example"}
UNITS = pytest.mark.parametrize("unit", ["client", "example"])


def federation(method: str = "fedavg", **options: Any) -> Federation:
    experiment = tiny(method, **options)
    found = experiment.prepare().federation()
    PROMISES[id(found)] = experiment.promise
    return found


PROMISES: dict[int, Privacy] = {}  # what was promised in each federation of a test


def sent_of(fed: Federation, held: dict[str, Tensor], declared: dict[str, Columns]) -> Mapping[str, Tensor]:
    """What clients send of what they hold: the client half of the promise that `federation` was given."""
    incoming = Incoming(fed.everyone, held, declared, {})
    return Private(PROMISES[id(fed)]).client(fed, incoming).held


def moved(federation: Federation, by: float) -> Tensor:
    """Everybody's model, every number of it moved."""
    return rows_of(federation) + by


def test_an_upload_is_a_clipped_change_by_hand() -> None:
    fed = federation(**CLIENT, privacy_noise=0.0, privacy_clip=2.0)
    declared = {"model": fed.layout.columns("all")}
    before = rows_of(fed)
    found = sent_of(fed, {"model": moved(fed, 1.0)}, declared)["model"]
    # Every change is a vector of ones, of length √P: it is scaled to 2.
    assert torch.allclose(found - before, torch.full_like(before, 2 / math.sqrt(before.shape[1])), atol=1e-6)
    near = sent_of(fed, {"model": moved(fed, 1e-3)}, declared)["model"]
    assert torch.allclose(near, moved(fed, 1e-3))


def test_all_that_is_sent_is_clipped_together() -> None:
    fed = federation(**CLIENT, privacy_noise=0.0, privacy_clip=1.0)
    fed.add_slot("second", "classifier")
    sent = {"model": fed.layout.columns("extractor"), "second": fed.layout.columns("classifier")}
    held = {"model": moved(fed, 1.0), "second": rows_of(fed, "second") + 1.0}
    found = sent_of(fed, held, sent)
    change = torch.cat([sent["model"].take(found["model"] - rows_of(fed)), found["second"] - rows_of(fed, "second")], 1)
    assert torch.allclose(torch.linalg.vector_norm(change, dim=1), torch.ones(fed.clients), atol=1e-5)
    stays = fed.layout.columns("classifier")
    assert torch.equal(stays.take(found["model"]), stays.take(held["model"])), "what is not sent stays as it is"
    assert torch.equal(held["model"], moved(fed, 1.0)), "nobody else's rows are written on"


def test_noise_is_a_multiple_of_the_clip_for_every_number_that_is_sent() -> None:
    fed = federation(clients=12, **CLIENT, privacy_noise=5.0, privacy_clip=0.1)
    fed.round = 1
    sent = fed.layout.columns("all")
    found = sent_of(fed, {"model": rows_of(fed)}, {"model": sent})["model"]
    noise = (sent.take(found) - sent.take(rows_of(fed))) / 0.5
    assert float(noise.std()) == pytest.approx(1.0, rel=0.05)  # the seed is fixed
    assert kstest(noise.flatten().numpy(), "norm").pvalue > 0.01
    assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 0.4, "everybody has noise of its own"


def test_whatever_the_data_uploads_differ_by_at_most_twice_the_clip() -> None:
    far = [clipped(sign * 1e6 * torch.randn(50, generator=torch.Generator().manual_seed(0)), 0.7) for sign in (1, -1)]
    assert float((far[0] - far[1]).norm()) == pytest.approx(1.4, rel=1e-5)
    assert Privacy(privacy="client", privacy_noise=3.0).multiplier == 1.5  # 3 clips of noise, 2 of change


def test_clients_go_on_from_what_they_sent_and_keep_the_rest() -> None:
    rounds, engine = stepwise(tiny("fedrema", **CLIENT, privacy_noise=1.0))
    rounds.run_round()
    fed = rounds.federation
    head = fed.layout.columns("classifier")
    trained = head.take(engine.trained.rows["model"])
    assert fed["model"].tracks.unknown(fed.everyone, head) is None
    assert not torch.allclose(head.take(rows_of(fed)), trained)
    rounds, engine = stepwise(tiny("fedper", **CLIENT, privacy_noise=1.0))
    rounds.run_round()
    assert torch.equal(head.take(rows_of(rounds.federation)), head.take(engine.trained.rows["model"]))


def test_a_client_that_diverges_sends_noise_and_nobody_is_told() -> None:
    rounds, engine = stepwise(tiny(**CLIENT, privacy_noise=0.1))
    plain = engine.train

    def broken(federation: Federation, work: Any, cohort: Tensor) -> Any:
        trained = plain(federation, work, cohort)
        trained.rows["model"][1] = torch.nan
        return trained

    engine.train = broken
    report = rounds.run_round()
    assert report.diverged == []
    assert bool(rows_of(rounds.federation).isfinite().all())


def test_sizes_are_told_with_noise_or_not_at_all() -> None:
    true = federation().sizes
    assert len(set(true.tolist())) > 1
    assert federation(**CLIENT).sizes.tolist() == [1] * len(true)
    told = federation(**EXAMPLE, size_noise=3.0).sizes
    assert told.tolist() != true.tolist()
    assert torch.equal(told, federation(**EXAMPLE, size_noise=3.0).sizes), "they are told once, and stay"
    assert torch.equal(federation(**EXAMPLE, size_noise=0.0).sizes, true)

    class Loud:
        def normal(self, count: int) -> Tensor:
            return torch.full((count,), -100.0)

        def chosen(self, count: int, rate: float) -> Tensor:
            raise AssertionError("a size is told without choosing anybody")

    assert told_size(Privacy(privacy="example", size_noise=2.0), 30, Loud()) == 1
    fed = federation()
    drawn = [
        told_size(Privacy(privacy="example", size_noise=4.0), 1000, noise_of(fed, 0, f"size {trial}")) - 1000
        for trial in range(400)
    ]
    assert float(np.std(drawn)) == pytest.approx(4.0, rel=0.15)


REFUSED = {
    "client": {
        "apfl": "measures 'alpha'",
        "apple": "measures 'relations'",
        "fedap": "measures 'channel_statistics'",
        "fedas": "measures 'class_means'",
        "fedcac": "measures 'critical'",
        "feddbe": "measures 'mean_features'",
        "feddistill": "measures 'class_logits'",
        "fedem": "measures 'model_shares'",
        "fedfomo": "validation",
        "fedgen": "samples of each class",
        "fedgh": "measures 'class_means'",
        "fedpac": "samples of each class",
        "fedproto": "measures 'class_means'",
        "fedselect": "measures 'own_elements'",
        "ifca": "measures 'centre'",
        "pfedfda": "measures 'feature_distribution'|class counts",
    },
    "example": {
        "fedala": "a rule of its own",
        "fedcp": "a batch as a whole",
        "fedrod": "class counts",
        "gpfl": "class counts",
        "per-fedavg": "a rule of its own",
        "pfedme": "a rule of its own",
    },
}
REFUSED["example"] |= REFUSED["client"]


@UNITS
@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_accounted_for_is_refused_before_training(unit: str, method: str) -> None:
    options = {"validation": 0.2} if method == "fedfomo" else {}
    if method == "fedfomo":
        options |= {"partition": Iid(clients=3)}
    experiment = tiny(method, privacy=unit, **options)
    if (why := REFUSED[unit].get(method)) is None:
        experiment.prepare()
        return
    with pytest.raises(CoterieError, match=why) as caught:
        experiment.prepare()
    assert "\n" not in str(caught.value)


@UNITS
def test_validation_quarantine_and_early_stopping_are_refused(unit: str) -> None:
    with pytest.raises(CoterieError, match="validation = 0"):
        tiny(privacy=unit, partition=Iid(clients=3), validation=0.2).prepare()
    with pytest.raises(CoterieError, match="quarantine = 6"):
        tiny(privacy=unit, quarantine=6.0)
    with pytest.raises(CoterieError, match="stops the run"):
        RoundReport(1, cohort=[0], hides_results=True).stop("good enough")
    report = RoundReport(2, cohort=[0], hides_results=True)
    StopAfter(2).round(report)
    assert report.stopped


def test_batch_norm_statistics_are_not_sent() -> None:
    with pytest.raises(CoterieError, match="norm = group, or stats = local"):
        tiny("fedavg", model="norm", **CLIENT).prepare()
    tiny("fedavg", model="norm", stats="local", **CLIENT).prepare()
    tiny("fedavg", model="norm", norm="group", **CLIENT).prepare()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"privacy_noise": 2.0}, "privacy_noise = 2.0: is for privacy = client or example"),
        ({"epsilon": 1.0}, "epsilon = 1.0: is for privacy"),
        ({"privacy": "client", "privacy_clip": 0.0}, "privacy_clip, which must be above 0"),
        ({"privacy": "client", "privacy_noise": -1.0}, "privacy_noise = -1.0: must not be negative"),
        ({"privacy": "client", "delta": 0.0}, "delta = 0.0: must lie between 0 and 1"),
        ({"privacy": "client", "epsilon": 0.0}, "epsilon = 0.0: must be above 0"),
        ({"privacy": "example", "delta": 0.5}, "delta = 0.5: must be below 1 / "),
    ],
)
def test_settings_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError) as caught:
        tiny(**options).prepare()
    assert words in str(caught.value)


def test_a_method_that_sends_what_it_trained_unseen_is_refused() -> None:
    @dataclass(frozen=True)
    class LateHeads(FedPer):
        """Sends classifiers in the last round only."""

        def uploads(self, federation: Federation) -> dict[str, str]:
            """All at last."""
            return {"model": "all" if federation.round == federation.rounds else "extractor"}

    with pytest.raises(CoterieError, match="trained unseen before"):
        tiny(LateHeads(), **CLIENT).prepare()
    tiny(LateHeads(), **EXAMPLE).prepare()


def test_without_noise_and_clip_uploads_are_those_of_a_plain_run() -> None:
    same = {"partition": Iid(clients=3), "rounds": 2}
    fed = federation(**same)
    assert len(set(fed.sizes.tolist())) == 1, "clients weigh the same with and without a promise"
    silent = tiny("fedavg", **same, **CLIENT, privacy_noise=0.0, privacy_clip=0.0)
    rows = []
    for experiment in (silent, tiny("fedavg", **same)):
        rounds, _ = stepwise(experiment)
        rounds.listeners = type(rounds.listeners)()  # the account would load Opacus
        rounds.run()
        rows.append(rows_of(rounds.federation))
    assert torch.equal(*rows)


def test_without_noise_and_clip_training_on_whole_batches_is_plain_training() -> None:
    silent = tiny("fedavg", batch=1000, **EXAMPLE, privacy_noise=0.0, privacy_clip=0.0, size_noise=0.0)
    rows = []
    for experiment in (silent, tiny("fedavg", batch=1000)):
        rounds, _ = stepwise(experiment)
        rounds.listeners = type(rounds.listeners)()
        rounds.run()
        rows.append(rows_of(rounds.federation))
    assert torch.allclose(*rows, atol=1e-6)


def test_relabelled_clients_have_the_same_noise() -> None:
    fed = federation(**CLIENT)
    other = federation(**CLIENT)
    other.keys = fed.keys.flip(0)
    assert torch.equal(noise_of(fed, 0, "upload").normal(5), noise_of(other, fed.clients - 1, "upload").normal(5))


# From here on Opacus is loaded, which takes seconds.


@pytest.mark.thorough
def test_what_is_spent_by_hand() -> None:
    promise = Privacy(privacy="client", privacy_noise=6.0)
    assert spent(promise, 1, 4, batch=10) == epsilon_of([Release(3.0, 4)], 1e-5)
    promise = Privacy(privacy="example", privacy_noise=1.5, size_noise=8.0)
    # 95 examples in batches of 10 are 10 batches an epoch; 3 epochs are 30 steps, each of which draws a tenth.
    wanted = epsilon_of([Release(1.5, 30, rate=0.1), Release(8.0, 1)], 1e-5)
    assert spent(promise, 95, 3, batch=10) == wanted


@pytest.mark.thorough
@UNITS
def test_every_round_tells_what_is_spent_and_who_rests_spends_nothing(unit: str, tmp_path: Path) -> None:
    experiment = tiny("fedper", privacy=unit, privacy_noise=8.0, join=0.5, rounds=4, size_noise=20.0)
    result = experiment.run(out=tmp_path / "run")
    lines = open_run(tmp_path / "run", experiment).lines
    times = np.zeros(4, int)
    sizes = result.federation.sizes.tolist()
    for line in lines:
        times[line.cohort] += 1
        wanted = [spent(experiment.promise, sizes[k], int(times[k]), 10) if times[k] else 0.0 for k in range(4)]
        assert line.parts[PRIVACY]["clients"] == [wanted[client] for client in line.cohort]
        assert line.parts[PRIVACY]["epsilon"] == max(wanted)
    told = result.summary[PRIVACY]
    assert list(told["clients"].values()) == wanted
    assert told["epsilon"] == max(wanted)
    assert told["delta"] == 1e-5
    assert all(told[word] for word in ("unit", "neighbours", "adversary", "accountant"))
    assert open_run(tmp_path / "run").summary == json.loads(json.dumps(result.summary))


@pytest.mark.thorough
def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    experiment = tiny("fedavg", **EXAMPLE, privacy_noise=2.0, rounds=4)
    whole = experiment.run()
    experiment.run(out=tmp_path / "run", listeners=[StopAfter(2)])
    resumed = coterie.resume(tmp_path / "run", experiment=experiment)
    assert resumed.summary[PRIVACY] == whole.summary[PRIVACY]
    assert torch.equal(final_rows(resumed), final_rows(whole))


@pytest.mark.thorough
@UNITS
def test_a_budget_that_cannot_hold_is_refused_with_the_noise_that_would(unit: str) -> None:
    settings = {"privacy": unit, "privacy_noise": 1.0, "size_noise": 40.0, "rounds": 5}
    with pytest.raises(CoterieError, match=r"epsilon = 2: 5 rounds spend .*privacy_noise = (\S+) would keep") as caught:
        tiny(**settings, epsilon=2.0).prepare()
    noise = float(str(caught.value).split("privacy_noise = ")[1].split()[0])
    assert noise == float(f"{noise:.2g}")  # two digits are said
    enough = tiny(**{**settings, "privacy_noise": noise}, epsilon=2.0)
    assert enough.run().summary[PRIVACY]["epsilon"] <= 2.0
    with pytest.raises(CoterieError, match="epsilon = 2"):
        tiny(**{**settings, "privacy_noise": 0.9 * noise}, epsilon=2.0).prepare()


@pytest.mark.thorough
@UNITS
def test_a_budget_holds_up_to_what_a_run_spends(unit: str) -> None:
    settings = {"privacy": unit, "privacy_noise": 2.0, "size_noise": 40.0, "rounds": 2, "epochs": 3}
    spends = tiny(**settings).run().summary[PRIVACY]["epsilon"]
    tiny(**settings, epsilon=1.001 * spends).prepare()
    with pytest.raises(CoterieError, match="2 rounds spend"):
        tiny(**settings, epsilon=0.999 * spends).prepare()


@pytest.mark.thorough
def test_a_budget_that_only_the_size_breaks_says_so() -> None:
    with pytest.raises(CoterieError, match="raise size_noise"):
        tiny(**EXAMPLE, epsilon=1.0, size_noise=1.0).prepare()
    # One release of the size keeps this budget, two would not.
    one, two = (epsilon_of([Release(4.0, times)], 1e-5) for times in (1, 2))
    with pytest.raises(CoterieError, match=r"privacy_noise = .* would keep it"):
        tiny(**EXAMPLE, epsilon=(one + two) / 2, size_noise=4.0, privacy_noise=0.5).prepare()
    with pytest.raises(CoterieError, match="set privacy_clip and privacy_noise above 0"):
        tiny(**CLIENT, epsilon=1.0, privacy_noise=0.0, privacy_clip=0.0).prepare()


@pytest.mark.thorough
def test_without_noise_there_is_no_bound() -> None:
    result = tiny(**CLIENT, privacy_noise=0.0).run()
    assert result.summary[PRIVACY]["epsilon"] is None
    assert result.lines[-1].parts[PRIVACY]["epsilon"] is None


@pytest.mark.thorough
def test_who_uploads_nothing_spends_nothing() -> None:
    assert tiny("local", **CLIENT).run().summary[PRIVACY]["epsilon"] == 0.0


@pytest.mark.thorough
def test_a_listener_that_stops_a_private_run_is_an_error() -> None:
    class GoodEnough(Listener):
        def round(self, report: RoundReport) -> None:
            report.stop("good enough")

    with pytest.raises(CoterieError, match="is not accounted for"):
        tiny(**CLIENT).run(listeners=[GoodEnough()])


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["pfedcs", "pfedsim", "fedtc", "ditto", "moon"])
def test_methods_train_privately(method: str) -> None:
    result = tiny(method, **EXAMPLE, privacy_noise=1.0).run()
    plain = tiny(method).run()
    assert bool(final_rows(result).isfinite().all())
    assert not torch.allclose(final_rows(result), final_rows(plain))


@pytest.mark.thorough
def test_the_stacked_engine_trains_private_examples_one_by_one() -> None:
    one, other = (tiny(**EXAMPLE, engine=engine).run() for engine in ("serial", "stacked"))
    assert torch.equal(final_rows(one), final_rows(other))
    one, other = (tiny(**CLIENT, engine=engine).run() for engine in ("serial", "stacked"))
    assert torch.allclose(final_rows(one), final_rows(other), atol=1e-4)


@pytest.mark.slow
def test_other_processes_draw_the_same_noise(one_thread: None) -> None:
    one = tiny(**EXAMPLE, rounds=2, threads=1).run()
    other = tiny(**EXAMPLE, rounds=2, engine="processes", workers=1).run()
    assert torch.equal(final_rows(one), final_rows(other))


def test_columns_that_nobody_sends_are_left_alone() -> None:
    fed = federation(**CLIENT)
    held = {"model": moved(fed, 1.0)}
    assert sent_of(fed, held, {"model": Columns()})["model"] is held["model"]


@pytest.mark.thorough
def test_who_is_late_may_have_sent_all_the_same() -> None:
    result = tiny(**CLIENT, rounds=6, presence="dropout:probability=0.5").run()
    told = list(result.summary[PRIVACY]["clients"].values())
    asked = np.zeros(4, int)
    for line in result.lines:
        asked[[*line.cohort, *line.missing]] += 1
    assert told == [spent(Privacy(privacy="client"), 1, int(times), 10) for times in asked]
    assert any(line.missing for line in result.lines)
