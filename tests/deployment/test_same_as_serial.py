"""Federations of sites that exchange messages end with the rows of the serial engine.

That every method does is one of the promises of `coterie.testing`, checked in tests/methods.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coterie.deployment.agreement import Agreement
from coterie.methods import METHODS
from coterie.rounds.delivery import as_delivered
from coterie.runs.record import Travelled
from coterie.testing.together import SITES, Together, agreed, simulated

pytestmark = pytest.mark.thorough

# PFedCS's teachers have served their purpose at the end: nobody is sent the one that it has missed.
DROPPED = ("teacher",)


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc"])
def test_batch_norm_ends_with_the_serial_rows(name: str, tmp_path: Path) -> None:
    assert_same(agreed(METHODS[name](), join=0.67, model="resnet8", shape=(1, 8, 8), epochs=1), tmp_path)


@pytest.mark.parametrize("name", ["fedavg", "fedamp", "pfedsim"])
def test_bounded_shares_end_with_the_serial_rows(name: str, tmp_path: Path) -> None:
    agreement = agreed(METHODS[name](), share_limit=0.4, least_sites=3)
    assert_same(agreement, tmp_path)
    unbounded = Together(agreed(METHODS[name]()), tmp_path / "unbounded")
    unbounded.run()
    bounded = simulated(agreement).run().federation
    assert not torch.equal(
        bounded["model"].rows(bounded.everyone), unbounded.server.federation["model"].rows(bounded.everyone)
    )


def test_a_site_that_never_took_part_ends_with_the_newest_model_of_pfedme(tmp_path: Path) -> None:
    """The server's copy of its personal row and the site's own are one and the same."""
    together = Together(agreed("pfedme", rounds=2), tmp_path)
    together.admit()
    while not together.server.finished:
        together.round("site-a", "site-b")
    together.finish()
    newest = together.server.federation["model"].rows(torch.tensor([2]))
    assert not torch.equal(newest[0], together.server.federation.initial)
    for federation in (together.server.federation, together.sites["site-c"].federation):
        assert torch.equal(federation["personal"].rows(torch.tensor([2])), newest)


def test_a_site_that_joins_late_is_tested_with_the_newest_model_of_pfedme(tmp_path: Path) -> None:
    together = Together(agreed("pfedme", rounds=3), tmp_path)
    together.admit()
    early = [together.round("site-a", "site-b") for _ in range(2)]
    newest = together.server.federation["model"].rows(torch.tensor([2]))
    task = together.server.open_round(list(SITES))["site-c"]
    assert torch.equal(task.tensors["slot.personal"], newest[0])
    late = together.server.close_round()
    # A model for each of three sites, and once more for the one that is new.
    assert late.bytes["down"] == 2 * early[1].bytes["down"]


def assert_same(agreement: Agreement, tmp_path: Path) -> None:
    """Rows, bytes and final accuracies agree with the serial engine's."""
    together = Together(agreement, tmp_path)
    last = together.run()
    serial = simulated(agreement).run()

    everyone = serial.federation.everyone
    with as_delivered(agreement.kind, serial.federation, everyone):
        for slot, theirs in serial.federation.slots.items():
            ours = together.server.federation[slot]
            torch.testing.assert_close(ours.shared, theirs.shared, atol=1e-6, rtol=0)
            if theirs.held_by == "server":
                torch.testing.assert_close(ours.own, theirs.own, atol=1e-6, rtol=0, msg=slot)
                continue
            # A site holds its own columns of every slot; shared ones only where it needs them.
            columns = theirs.columns if slot == agreement.kind.tested else theirs.own_columns
            for client, site in enumerate(SITES):
                if slot in DROPPED and int(serial.federation.last_round[client]) < agreement.rounds:
                    continue
                mine = together.sites[site].federation[slot].rows(everyone[client : client + 1], columns)
                row = theirs.rows(everyone[client : client + 1], columns)
                torch.testing.assert_close(mine, row, atol=1e-6, rtol=0, msg=f"{site}, {slot}")

    lines = serial.lines
    for report, line in zip(together.reports, lines, strict=True):
        assert [SITES.index(site) for site in report.asked] == line.cohort
        assert Travelled(**report.bytes) == line.bytes
    for client, site in enumerate(SITES):
        ours = last[site]["received"]
        assert ours["correct"] / ours["samples"] == pytest.approx(lines[-1].received.values["accuracy"][client])
