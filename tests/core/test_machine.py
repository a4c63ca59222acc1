"""More clients than a method's numbers for pairs of clients can hold: refused in a line, before anything is done."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.core.applying import apply
from coterie.core.exchange import Mix, Uploads
from coterie.core.machine import require_pairs
from coterie.methods import METHODS
from coterie.testing.toys import toy_data

COMPARING = ("apple", "cfl", "fedamp", "fedap", "fedfomo", "fedrema", "fesem", "pfedcs", "pfedsim")


def test_the_figure_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.core.machine.memory_bytes", lambda: 32 * 10**9)
    require_pairs("pfedsim", 31_622, "similarities", each=16)
    with pytest.raises(ct.CoterieError) as caught:
        require_pairs("pfedsim", 100_000, "similarities", each=16)
    assert str(caught.value) == (
        "pfedsim: similarities of 100,000 clients with each other take 160.0 GB, more than 50% of this machine's "
        "memory; use at most 31,622 clients, or a method that compares nobody, such as fedavg, fedper or ditto"
    )


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_that_compare_all_clients_say_so_before_the_first_round(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.core.machine.memory_bytes", lambda: 100)
    experiment = ct.Experiment(name, toy_data(60), ct.Iid(clients=6), rounds=2, validation=0.2)
    if name in COMPARING:
        with pytest.raises(ct.CoterieError, match=f"{name}: .* of 6 clients with each other take"):
            experiment.prepare()
    else:
        experiment.prepare()


def test_a_mix_may_name_whose_rows_it_is_made_of() -> None:
    prepared = ct.Experiment("local", toy_data(60), ct.Iid(clients=6), rounds=2).prepare()
    mixed = []
    for sources in (torch.tensor([1, 4]), None):
        federation = prepared.federation()
        own = federation["model"].own
        own.copy_(torch.randn(own.shape, generator=torch.Generator().manual_seed(0)))
        weights = np.zeros((2, 6))
        weights[:, [1, 4]] = [[0.25, 0.75], [0.0, 1.0]]
        given = torch.from_numpy(weights if sources is None else weights[:, [1, 4]])
        uploads = Uploads(federation.as_seen_by_server(), torch.tensor([0]), {}, {})
        (applied,) = apply(
            [Mix(given, source="model", sources=sources, to=torch.tensor([1, 4]))], federation, uploads, mark=2
        )
        assert applied.columns.tolist() == ([1, 4] if sources is not None else [0, 1, 2, 3, 4, 5])
        # Client 4 would get its own row back: nothing is written for it.
        assert federation["model"].tracks.owed_counts(torch.arange(6), torch.zeros(6)).bool().tolist() == [
            client == 1 for client in range(6)
        ]
        mixed.append(own)
    assert torch.equal(*mixed)


def test_uploads_are_the_cohorts() -> None:
    federation = ct.Experiment("local", toy_data(60), ct.Iid(clients=6), rounds=2).prepare().federation()
    uploads = Uploads(federation.as_seen_by_server(), torch.tensor([0]), {}, {})
    mix = Mix(torch.ones(1, 1), sources=torch.tensor([0]))
    with pytest.raises(ct.CoterieError, match="mix of 'all': uploads are the cohort's; leave sources out"):
        apply([mix], federation, uploads, mark=2)
