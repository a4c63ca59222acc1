"""The pages of a server and a site in a real browser: they draw, complain of nothing, and ask nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_coordinator import Trial
from test_status import served, server_status

from coterie.deployment.site_status import SiteStatus, site_journal
from coterie.testing.together import agreed
from report.browser import CHROMIUM, browser

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]


def test_both_pages(tmp_path: Path) -> None:
    trial = Trial(tmp_path, agreed("ditto", rounds=3, deadline=30.0, gather=10.0, patience=200.0))
    trial.run()
    journal = site_journal(tmp_path / "sites", "trial", "site-a")
    connected = [True]
    site = SiteStatus("site-a", "trial", "example.org:8000", "ditto", 3, journal, lambda: connected[0])
    with served(server_status(trial)) as of_server, served(site) as of_site, browser(tmp_path / "profile") as tab:
        for scheme in ("light", "dark"):
            tab.prefer(scheme)
            tab.visit(of_server.address)
            tab.until("document.querySelectorAll('figure svg').length >= 2")
            assert tab.ask("document.querySelectorAll('table.sites tbody tr').length") == 3
            assert tab.ask("document.querySelector('h1').textContent") == "trial finished"
            assert all(address.startswith(of_server.address) for address in tab.requests())
            assert tab.complaints() == []
            tab.visit(of_site.address)
            tab.until("document.querySelectorAll('figure svg').length >= 3")
            entry = journal.entries()[-1]
            assert f"{entry['gain']['samples']} held-out samples" in tab.ask(
                "document.querySelector('.verdict').innerText"
            )
            assert tab.ask("document.querySelectorAll('table.rounds tbody tr').length") == 4
            assert all(address.startswith(of_site.address) for address in tab.requests())
            assert tab.complaints() == []
        # What changes is drawn anew, without a visit.
        journal.path.unlink()
        journal.add({"round": 1, "time": "2026-01-01T00:00:00+00:00"})
        connected[0] = False
        tab.until("document.querySelector('h1').textContent === 'site-a not connected'")
