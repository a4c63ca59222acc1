"""What a method's server has to see of single clients."""

from __future__ import annotations

import pytest

from coterie.methods import METHODS
from coterie.report.facts import facts

MEANS = ["ditto", "fedala", "fedavg", "fedbabu", "fedbn", "fedper", "fedprox", "fedrep", "fedrod", "fedtc", "lg-fedavg"]
MEANS += ["moon", "per-fedavg", "pfedme", "scaffold"]
SEEN = dict.fromkeys(MEANS, "means") | {
    "local": "nothing",
    "pfedcs": "classifiers",
    "fedrema": "classifiers",
    "pfedsim": "models",
    "fedcac": "models, masks",
    "fedamp": "models",
    "fedproto": "class means",
}


@pytest.mark.thorough
@pytest.mark.parametrize("method", SEEN)
def test_it_is_read_off_what_a_method_mixes_and_looks_at(method: str) -> None:
    assert facts(METHODS[method]()).sees == SEEN[method]
