"""Server optimisers against numbers worked out by hand, a plain oracle, and the plain mean to which they collapse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deployment.test_same_as_serial import assert_same

from coterie.cli import main
from coterie.core.applying import apply
from coterie.core.exchange import Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.tracks import exchange_mark
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.rounds.listeners import StopAfter
from coterie.runs.resume import resume
from coterie.server_steps.options import SERVERS, ServerSteps
from coterie.server_steps.stage import MOMENTUM, SQUARES
from coterie.testing.together import agreed
from support import final_rows, rows_of, stepwise, tiny

ADAPTIVE = SERVERS[1:]


def begun(method: str = "fedavg", **options: Any) -> Federation:
    """A federation before its first round, in which all parameters are 0."""
    federation = tiny(method, clients=2, **options).prepare().federation()
    slot = federation["model"]
    slot.write_shared(slot.shared_columns, torch.zeros(1, slot.shared_columns.size))
    return federation


def exchanged(federation: Federation, first: float, second: float, share: float = 0.25) -> float:
    """A round in which two clients send rows of one number each; what everybody then has."""
    federation.round += 1
    rows = torch.tensor([[first], [second]]).expand(-1, federation.layout.width)
    everything, cohort = federation.layout.everything, torch.tensor([0, 1])
    uploads = Uploads(federation.as_seen_by_server(), cohort, {"model": rows}, {"model": everything})
    apply([Mix(torch.tensor([[share, 1 - share]]))], federation, uploads, exchange_mark(federation.round))
    (value,) = federation["model"].shared.unique().tolist()
    return float(value)


# Worked out by hand: means of 1 and 3 by a quarter and three quarters are 2.5


def test_sgd_keeps_momentum() -> None:
    """Δ = 2.5, m = 2.5, x = 1.25; then Δ = 2.25 − 1.25 = 1, m = 0.9 · 2.5 + 1 = 3.25, x = 1.25 + 1.625."""
    federation = begun(server="sgd", server_lr=0.5)
    assert exchanged(federation, 1.0, 3.0) == pytest.approx(1.25)
    assert exchanged(federation, 0.0, 3.0) == pytest.approx(2.875)
    assert list(federation.slots) == ["model", f"{MOMENTUM}model"]


def test_adagrad_adds_squares_up() -> None:
    """v = 1 + 0.75² = 1.25², x = 0.3 · 0.75 / 2.25 = 0.1; then Δ = 3, v = 1.25² + 9 = 3.25², x = 0.1 + 0.9 / 4.25."""
    federation = begun(server="adagrad", server_lr=0.3, server_tau=1.0)
    assert exchanged(federation, 0.75, 0.75) == pytest.approx(0.1)
    assert exchanged(federation, 3.1, 3.1) == pytest.approx(0.1 + 0.9 / 4.25)


def test_adam_worked_out_by_hand() -> None:
    """Δ = 7: v = (1 + 49) / 2 = 25, m = 3.5, x = 0.6 · 3.5 / 6; then Δ = 5: v = 25, m = 1.75 + 2.5 = 4.25."""
    federation = begun(server="adam", server_lr=0.6, server_beta1=0.5, server_beta2=0.5, server_tau=1.0)
    assert exchanged(federation, 7.0, 7.0) == pytest.approx(0.35)
    assert exchanged(federation, 5.35, 5.35) == pytest.approx(0.775)


def test_yogi_worked_out_by_hand() -> None:
    """Δ = 4: v = 1 + 16 / 2 = 9, m = 2, x = 0.8 · 2 / 4; then Δ = 2: v = 9 − 4 / 2 = 7, m = 1 + 1 = 2."""
    federation = begun(server="yogi", server_lr=0.8, server_beta1=0.5, server_beta2=0.5, server_tau=1.0)
    assert exchanged(federation, 4.0, 4.0) == pytest.approx(0.4)
    assert exchanged(federation, 2.4, 2.4) == pytest.approx(0.4 + 1.6 / (math.sqrt(7) + 1))


def test_defaults_are_the_papers() -> None:
    assert [ServerSteps(server=name).server_rate for name in SERVERS] == [1.0, 0.1, 0.1, 0.1]
    assert [ServerSteps(server=name).server_momentum for name in SERVERS] == [0.9, 0.0, 0.9, 0.9]
    assert (ServerSteps.server_beta2, ServerSteps.server_tau) == (0.99, 1e-3)
    federation = begun(server="adam")
    assert federation[f"{SQUARES}model"].shared.unique().tolist() == pytest.approx([1e-6])


# A plain oracle


def plain_step(
    server: str, before: list[float], mean: list[float], m: list[float], v: list[float], settings: ServerSteps
) -> list[float]:
    """One round of Algorithm 2 of the paper, number by number; m and v are changed in place."""
    beta, keeps, after = settings.server_momentum, settings.server_beta2, []
    for i, (x, target) in enumerate(zip(before, mean, strict=True)):
        change = target - x
        if server == "sgd":
            m[i] = beta * m[i] + change
            after.append(x + settings.server_rate * m[i])
            continue
        m[i] = beta * m[i] + (1 - beta) * change
        if server == "adagrad":
            v[i] = v[i] + change**2
        elif server == "adam":
            v[i] = keeps * v[i] + (1 - keeps) * change**2
        elif v[i] > change**2:
            v[i] = v[i] - (1 - keeps) * change**2
        elif v[i] < change**2:
            v[i] = v[i] + (1 - keeps) * change**2
        after.append(x + settings.server_rate * m[i] / (math.sqrt(v[i]) + settings.server_tau))
    return after


@pytest.mark.parametrize("server", SERVERS)
def test_real_rounds_are_those_of_the_oracle(server: str) -> None:
    """FedPer with batch norm and half of the clients: classifiers stay, and statistics are plain means."""
    given = {"server": server, "server_lr": 0.3, "server_beta1": 0.6}
    rounds, engine = stepwise(tiny("fedper", "norm", stats="mean", join=0.5, rounds=4, **given))
    federation, layout = rounds.federation, rounds.federation.layout
    statistics = layout.columns("stats")
    shared = layout.columns("extractor") - statistics
    m, v = [0.0] * shared.size, [1e-6] * shared.size
    for _ in range(4):
        before = rows_of(federation)
        rounds.run_round()
        after, rows = rows_of(federation), engine.trained.rows["model"]
        weights = federation.sizes[engine.cohort].double() / federation.sizes[engine.cohort].sum()
        mean = weights @ rows.double()
        expected = plain_step(
            server, shared.take(before)[0].tolist(), shared.take(mean).tolist(), m, v, ServerSteps(**given)
        )
        torch.testing.assert_close(shared.take(after)[0], torch.tensor(expected), atol=3e-5, rtol=0)
        close = {"atol": 1e-6, "rtol": 1e-6}
        torch.testing.assert_close(statistics.take(after)[0], statistics.take(mean).float(), **close)
        own = layout.columns("classifier")
        assert torch.equal(own.take(after[engine.cohort]), own.take(rows))


# Collapses


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_sgd_without_momentum_at_rate_1_is_the_mean_to_the_bit(model: str) -> None:
    stepped = tiny("fedavg", model, server="sgd", server_beta1=0.0).run()
    assert torch.equal(final_rows(stepped), final_rows(tiny("fedavg", model).run()))


@pytest.mark.parametrize("server", ADAPTIVE)
def test_without_momentum_a_large_tau_leaves_a_scaled_mean(server: str) -> None:
    """x + η Δ / (√v + τ): √v is |Δ| of adam without memory, and τ, at which v starts, of the others."""
    tau, rate = 1e6, 0.5
    scale = tau if server == "adam" else 2 * tau
    options = {"server_beta2": 0.0} if server == "adam" else {"server_beta2": 0.999999} if server == "yogi" else {}
    federation = begun(server=server, server_lr=rate * scale, server_beta1=0.0, server_tau=tau, **options)
    assert exchanged(federation, 1.0, 3.0) == pytest.approx(1.25, rel=1e-4)
    assert exchanged(federation, 3.0, 3.0) == pytest.approx(1.25 + 0.5 * 1.75, rel=1e-4)
    whole = {"server": server, "server_lr": scale, "server_beta1": 0.0, "server_tau": tau, **options}
    close = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(final_rows(tiny(**whole).run()), final_rows(tiny().run()), **close)


def test_nobody_is_moved_where_nothing_is_mixed() -> None:
    """Who keeps its columns to itself does not have them moved, nor is anything sent that would not be otherwise."""
    stepped, plain = tiny("fedper", server="yogi").run(), tiny("fedper").run()
    assert [line.bytes for line in stepped.lines] == [line.bytes for line in plain.lines]
    for ours, theirs in zip(stepped.lines, plain.lines, strict=True):
        assert ours.cohort == theirs.cohort


# What is kept, and where it goes


def test_a_resumed_run_ends_bit_equal(tmp_path: Path) -> None:
    whole = tiny(server="yogi", rounds=4, checkpoint_every=2)
    expected = whole.run(out=tmp_path / "whole")
    tiny(server="yogi", rounds=4, checkpoint_every=2).run(out=tmp_path / "parts", listeners=[StopAfter(3)])
    found = resume(tmp_path / "parts", experiment=whole)
    assert torch.equal(final_rows(found), final_rows(expected))
    for name in (f"{MOMENTUM}model", f"{SQUARES}model"):
        assert torch.equal(found.federation[name].shared, expected.federation[name].shared)


def test_blocks_and_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = final_rows(tiny(server="adam").run())
    monkeypatch.setattr("coterie.core.applying.BLOCK", 64)
    assert torch.equal(final_rows(tiny(server="adam").run()), whole)


@pytest.mark.thorough
@pytest.mark.parametrize("server", ["sgd", "yogi"])
def test_a_federation_of_sites_ends_with_the_same_rows(server: str, tmp_path: Path) -> None:
    assert_same(agreed("fedper", join=0.67, server=server), tmp_path)


def test_a_step_that_is_not_finite_leaves_what_is_there(caplog: pytest.LogCaptureFixture) -> None:
    federation = begun(server="sgd", server_lr=1e30)
    assert exchanged(federation, 1e10, 1e10) == 0.0
    assert "server = 'sgd': its step is not finite" in caplog.text
    assert federation[f"{MOMENTUM}model"].shared.unique().tolist() == [0.0]


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server": "adamw"}, "unknown server 'adamw'; did you mean 'adam'? (allowed: adagrad, adam, sgd, yogi)"),
        ({"server_lr": 0.5}, "server_lr = 0.5: is for a server's optimiser; name one of them (server = sgd, …)"),
        ({"server": "adam", "server_lr": 0.0}, "server_lr = 0: must be greater than 0"),
        ({"server": "adam", "server_beta1": 1.0}, "server_beta1 = 1: must lie in [0, 1)"),
        ({"server": "yogi", "server_beta2": -0.1}, "server_beta2 = -0.1: must lie in [0, 1)"),
        ({"server": "yogi", "server_tau": 0.0}, "server_tau = 0: must be greater than 0"),
        ({"server": "sgd", "server_tau": 0.1}, "server_tau = 0.1: server 'sgd' takes none (adagrad, adam, yogi do)"),
        ({"server": "adagrad", "server_beta2": 0.5}, "server_beta2 = 0.5: server 'adagrad' takes none (adam, yogi do)"),
        ({"server": "adam", "defence": "median"}, "server = 'adam': a step depends on all rounds before"),
        ({"server": "adam", "share_limit": 0.5}, "server = 'adam': a step depends on all rounds before"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError) as caught:
        tiny(**options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


REFUSED = {
    "local": "Local makes no mean of rows that all share",
    "fedproto": "FedProto makes no mean of rows that all share",
    "fedgh": "FedGH makes no mean of rows that all share",
    "pfedcs": "PFedCS mixes what each client has of its own",
    "fedamp": "FedAMP mixes what each client has of its own",
    "feddyn": "FedDyn has a step of its own, which needs its 'server_dual'",
}


@pytest.mark.parametrize("name", REFUSED)
def test_methods_without_a_shared_mean_are_refused_before_the_first_round(name: str) -> None:
    with pytest.raises(CoterieError, match="server = 'yogi': ") as caught:
        tiny(METHODS[name](), server="yogi").prepare()
    assert REFUSED[name] in str(caught.value)
    assert "leave server out, or use" in str(caught.value)


def test_what_counts_is_what_is_sent_in_the_rounds_that_there_are() -> None:
    """FedDBE sends no model in round 1; LG-FedAvg whole ones in its warm-up alone, which before round 1 is none."""
    for name in ("feddbe", "lg-fedavg"):
        stepped, plain = (tiny(METHODS[name](), server=server).run() for server in ("yogi", ""))
        assert not torch.equal(final_rows(stepped), final_rows(plain))
    with pytest.raises(CoterieError, match="LGFedAvg mixes what each client has of its own"):
        tiny(METHODS["lg-fedavg"](warmup=1), server="yogi").prepare()


def test_a_step_of_a_methods_own_is_refused_when_it_is_made() -> None:
    federation = begun(server="yogi")
    nothing = Uploads(federation.as_seen_by_server(), torch.tensor([], dtype=torch.int64), {}, {})
    own = Put("model", torch.zeros(1, 27), group="classifier")
    with pytest.raises(CoterieError, match="server = 'yogi': Mine has a step of its own, which writes 'model'"):
        apply([own], federation, nothing, exchange_mark(1), "Mine")


def test_a_mix_for_some_is_refused_when_it_is_made() -> None:
    federation = begun("fedper", server="yogi")
    rows = torch.zeros(2, federation.layout.width)
    uploads = Uploads(
        federation.as_seen_by_server(), torch.tensor([0, 1]), {"model": rows}, {"model": federation.layout.everything}
    )
    with pytest.raises(CoterieError, match="server = 'yogi': the mix of 'classifier' into 'model' is no mean that all"):
        apply([Mix(torch.eye(2), "classifier")], federation, uploads, exchange_mark(1))


def test_it_stands_on_the_command_line_and_in_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--clients", "3", "--rounds", "1", "--epochs", "1", "--share", "0.2", "--threads", "1"]
    assert main(["run", "fedavg", *few, "--server", "yogi", "--server-lr", "0.05", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    written = (tmp_path / "run" / "config.toml").read_text()
    assert 'server = "yogi"' in written
    assert "server_lr = 0.05" in written
    assert main(["run", "--config", str(tmp_path / "run" / "config.toml"), "--out", str(tmp_path / "again")]) == 0
    capsys.readouterr()
    assert main(["run", "fedamp", *few, "--server", "yogi", "--out", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
