"""A site on a device of its own sends what it would send without one; nobody else can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from tests import pretend

from coterie.deployment.inspection import look_here
from coterie.deployment.resident import Resident, SiteSettings
from coterie.deployment.site import Site
from coterie.deployment.store import Store
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.testing.together import SITES, SIZES, Together, agreed, site_data
from support import every_method

DEVICE = os.environ.get("COTERIE_TEST_DEVICE", pretend.NAME)
TOLERANCE = 0.0 if pretend.NAME == DEVICE else 2e-4

pytestmark = pytest.mark.usefixtures("one_thread")


class OneOnADevice(Together):
    """The first site trains on the device, the others do not."""

    def site(self, name: str) -> Site:
        if name != SITES[0]:
            return super().site(name)
        store = Store(self.folder, self.agreement.name, name, self.agreement.fingerprint)
        return Site(self.agreement, name, site_data(0, SIZES[0], self.agreement.shape), store, DEVICE)


@pytest.mark.thorough
@pytest.mark.parametrize("name", every_method())
def test_every_method_sends_the_same(name: str, tmp_path: Path) -> None:
    agreement = agreed(METHODS[name](), validation=0.2 if name == "fedfomo" else 0.0)
    ours, theirs = OneOnADevice(agreement, tmp_path / "ours"), Together(agreement, tmp_path / "theirs")
    told, expected = ours.run(), theirs.run()
    assert ours.sites[SITES[0]].worker.device.type == torch.device(DEVICE).type
    assert ours.sites[SITES[0]].worker.model("model").row.device.type == torch.device(DEVICE).type
    for site in SITES:
        assert told[site]["received"]["correct"] == expected[site]["received"]["correct"]
        assert told[site]["received"]["loss"] == pytest.approx(expected[site]["received"]["loss"], abs=TOLERANCE)
    found, wanted = dict(ours.server.federation.state()), dict(theirs.server.federation.state())
    for part, value in wanted.items():
        torch.testing.assert_close(found[part], value, atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True, msg=part)
    if TOLERANCE == 0.0:
        journals = [one.sites[SITES[0]].assessment.journal.entries() for one in (ours, theirs)]
        timeless = [[{**entry, "time": "", "seconds": {}} for entry in journal] for journal in journals]
        assert timeless[0] == timeless[1]


def test_privacy_of_examples_is_kept_on_a_device_too(tmp_path: Path) -> None:
    agreement = agreed("fedavg", privacy="example", privacy_clip=1.0, privacy_noise=1.0, rounds=1)
    together = OneOnADevice(agreement, tmp_path)
    together.run()
    rows = together.server.federation["model"].shared
    assert not torch.equal(rows[0], together.server.federation.initial)
    assert bool(torch.isfinite(rows).all())


def test_a_resident_trains_where_its_settings_say(tmp_path: Path) -> None:
    given = SiteSettings(SITES[0], "nowhere", str(tmp_path), device=DEVICE)
    assert Resident(given)._settings.device == DEVICE
    assert SiteSettings(SITES[0], "nowhere", str(tmp_path)).device == "cpu"


def test_a_device_that_is_not_there_is_said_before_a_site_connects(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(agreed("fedavg").toml(), encoding="utf-8")
    assert look_here(path, device=DEVICE).device == DEVICE
    assert look_here(path, device="auto").device in ("cpu", "cuda", "mps")
    assert look_here(path).device == ""
    with pytest.raises(CoterieError, match=r"^device = gpu: PyTorch knows no such device"):
        look_here(path, device="gpu")
