"""A server that is cut off while Flower's own state and ours change together begins anew with neither behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.deployment.flower.keys import Keys, accept_key, make_keys, make_site_key
from coterie.deployment.flower.server_processes import CONNECTION, ServerProcesses

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = [pytest.mark.real, pytest.mark.slow]

SITES = ["site-a", "site-b"]


def test_a_registration_that_was_cut_off_is_done_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower takes no key twice: it must not have one of which nobody has written down that it has it."""
    make_keys(tmp_path / "keys")
    keys = Keys(tmp_path / "keys")
    for site in SITES:
        accept_key(keys, site, make_site_key(tmp_path / site))
    link = ServerProcesses(tmp_path / "server", keys)
    write_down = link._keep

    def cut_off(known: dict[str, dict[str, str]]) -> None:
        if len(known) == len(SITES):
            raise SystemExit
        write_down(known)

    link.start()
    monkeypatch.setattr(link, "_keep", cut_off)
    try:
        with pytest.raises(SystemExit):
            link.admit(keys.accepted(SITES))
    finally:
        link.kill()
    with ServerProcesses(tmp_path / "server", keys) as again:
        assert again.stopped == []
        assert again.admit(keys.accepted(SITES)) == (SITES, [])
        listed = again.flower("supernode", "list", CONNECTION)["nodes"]
        assert [node["status"] for node in listed] == ["registered"] * len(SITES)
