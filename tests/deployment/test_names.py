"""One name, one node: whoever comes second is refused, and let in when the first has gone."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_coordinator import Behaviour, Pretence, Trial

from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.coordinator import Coordinator
from coterie.deployment.flower.server import FlowerTransport
from coterie.deployment.messages import Packed, Purpose
from coterie.testing.together import SITES, Together, agreed

DOUBLE = len(SITES)
WANTED = SITES.index("site-b")


class WithDouble(Pretence):
    """A network without keys, on which another node says that it is site-b."""

    def __init__(self, together: Together, behaviours: dict[str, Behaviour], comes: float) -> None:
        super().__init__(together, behaviours)
        self._comes = comes
        self.tasks_of_double = 0

    def nodes(self) -> dict[int, str]:
        busy = {answer.node for _, answer in self._coming}
        double = [DOUBLE] if self.now >= self._comes and DOUBLE not in busy else []
        return dict.fromkeys([*super().nodes(), *double], "")

    def send(self, node: int, purpose: Purpose, content: Packed, seconds: float) -> None:
        if node != DOUBLE:
            super().send(node, purpose, content, seconds)
            return
        self.tasks_of_double += purpose == "work"
        there, self.behaviours["site-b"].goes = self.behaviours["site-b"].goes, float("inf")
        owed = [coming for coming in self._coming if coming[1].node == WANTED]
        super().send(WANTED, purpose, content, seconds)
        self.behaviours["site-b"].goes = there
        time, answer = self._coming.pop()
        self._coming += [*owed, (time, type(answer)(DOUBLE, answer.purpose, answer.content))]


def run(folder: Path, agreement: Agreement, comes: float, **behaviours: Behaviour) -> tuple[Trial, WithDouble]:
    trial = Trial(folder, agreement, **behaviours)
    network = WithDouble(trial.together, trial.network.behaviours, comes)
    Coordinator(trial.server, network, trial.logbook, clock=network.clock, sleep=network.sleep).run()
    return trial, network


@pytest.mark.thorough
@pytest.mark.parametrize("comes", [0.0, 3.0, 4.0])
def test_a_second_node_under_a_live_name_is_refused(
    comes: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agreement = agreed("fedper", rounds=4, deadline=30.0, gather=10.0)
    with caplog.at_level(logging.INFO, logger="coterie"):
        trial, network = run(tmp_path, agreement, comes, site_b=Behaviour(slow={2: 10.0}))
    assert [note_of(line).answered for line in trial.lines] == [list(SITES)] * 4
    assert "a site is refused: site site-b is here already, as another node; only one may be" in caplog.text
    asked = [name for name, _ in network.asked].count("site-b")
    assert asked == 4, "one of the two was asked, never both"


@pytest.mark.thorough
def test_a_name_becomes_free_when_its_node_has_gone(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=40, deadline=30.0, gather=10.0, least_sites=2)
    trial, network = run(tmp_path, agreement, 2.0, site_b=Behaviour(goes=12.0))
    assert network.tasks_of_double > 0
    assert note_of(trial.lines[-1]).answered == list(SITES)
    assert set(json.loads((tmp_path / "server" / "summary.json").read_text())["finished"]) == set(SITES)


@pytest.mark.parametrize(("sites", "expected"), [(SITES, {1: "site-a"}), (None, {1: "site-a", 2: "", 3: "evil"})])
def test_a_node_whose_key_has_no_name_of_ours_is_not_asked(sites: Any, expected: dict[int, str]) -> None:
    infos = [SimpleNamespace(node_id=node, name=name) for node, name in ((1, "site-a"), (2, ""), (3, "evil"))]
    grid = cast(Any, SimpleNamespace(get_nodes=lambda: infos))
    assert FlowerTransport(grid, 1000, sites).nodes() == expected
