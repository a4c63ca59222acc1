"""Poison from one of three real sites: it is set aside and named, and its site is let back in when it behaves.

Nobody has asked for that: three sites have a quarantine by default.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.runs.tensors import load_tensors
from support import eventually
from towns import Town, few_digits, tampered_library

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.xdist_group("poison")]

LIMIT = 1800.0
SITES = ("site-a", "site-b", "site-c")
POISONED = 5  # the round in which what site-c sends is a thousand times too large
BACK = POISONED + 4  # three answers that do not jump, then it counts again
POISON = f"""


def tampered(packed):
    import numpy as np

    note = json.loads(packed.text)["note"]
    if note.get("round") != {POISONED} or "seconds" not in note:
        return packed
    large = 1000 * np.frombuffer(packed.buffers["float32"], np.float32)
    return Packed({{**packed.buffers, "float32": large.tobytes()}}, packed.text)
"""


def test_a_site_that_sends_poison_is_set_aside_and_let_back_in(tmp_path: Path) -> None:
    town = Town(tmp_path, few_digits(*SITES))
    training = {"method": "fedavg", "model": "mlp", "rounds": BACK, "epochs": 1, "batch": 16, "lr": 0.05}
    waiting = {"least_sites": 3, "gather": LIMIT, "deadline": LIMIT}
    agreement = Agreement(name="fed", sites=SITES, shape=(1, 8, 8), classes=10, **training, **waiting)
    town.agree(agreement, ["127.0.0.1"])
    try:
        town.start("server", f"federation server fed --port {town.port}")
        for site in SITES[:-1]:
            town.connect(site)
        town.connect(SITES[-1], before=tampered_library(tmp_path / "library", POISON))
        assert eventually(lambda: town.ended("server") is not None, LIMIT), town.said("server")
        assert town.ended("server") == 0, town.said("server")
    finally:
        town.close()
    aside = {line.round: sorted(note_of(line).set_aside) for line in town.rounds()}
    out = range(POISONED, BACK)
    assert aside == {round: [SITES[-1]] if round in out else [] for round in range(1, BACK + 1)}
    assert SITES[-1] in (town.server / "log.txt").read_text()
    rows, _ = load_tensors(town.server / "checkpoint.safetensors")
    assert float(rows["slot.model.shared"].abs().max()) < 100
