"""Ports of the machine's own that somebody else takes first: another is tried, and nobody is blamed for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

from coterie.deployment.flower.site_processes import HOPELESS, PORT_TAKEN, SiteProcesses
from coterie.errors import UnwelcomeError

STRANGER = next(iter(HOPELESS))  # what the SuperExec says to whoever has the port now


def node_that_said(folder: Path, *words: str) -> SiteProcesses:
    node = SiteProcesses(folder, "127.0.0.1:9", {"name": "site-a"})
    supernode, relay = SimpleNamespace(said=lambda: "\n".join(words)), SimpleNamespace(said=lambda: "")
    vars(node)["_processes"] = {"supernode": supernode, "relay": relay}
    return node


@pytest.mark.parametrize("sign", PORT_TAKEN)
def test_somebody_else_s_certificate_at_a_taken_port_is_no_reason_to_give_up(sign: str, tmp_path: Path) -> None:
    node_that_said(tmp_path, sign, STRANGER)._require_hope()


def test_elsewhere_it_is(tmp_path: Path) -> None:
    with pytest.raises(UnwelcomeError, match="certificate is not the one expected"):
        node_that_said(tmp_path, STRANGER)._require_hope()
