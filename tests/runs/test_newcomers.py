"""Clients kept apart from training: what a method gives to those who join later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import identity
from coterie.errors import CoterieError
from coterie.methods import Method
from coterie.partition import Partition
from coterie.runs.newcomers import onboard, welcome
from coterie.testing.toys import toy_data, toy_partition
from support import final_rows, rows_of, tiny


def held_out() -> Partition:
    """Five clients, of which 1 and 3 do not take part."""
    whole = toy_partition(toy_data(), 5)
    return Partition(train=whole.train, test=whole.test, held_out=(1, 3))


def test_held_out_clients_take_no_part() -> None:
    data = toy_data()
    partition = held_out()
    result = tiny("fedavg", "norm", data=data, partition=partition).run()
    kept = [0, 2, 4]
    assert result.federation.clients == 3
    assert [entry["client"] for entry in result.summary["clients"]] == ["0", "2", "4"]
    others = Partition(
        train=tuple(partition.train[k] for k in kept),
        test=tuple(partition.test[k] for k in kept),
        keys=np.array(kept),
    )
    alone = tiny("fedavg", "norm", data=data, partition=others).run()
    assert torch.equal(final_rows(result), final_rows(alone))


def test_held_out_clients_are_drawn_by_the_experiment() -> None:
    result = tiny("fedavg", clients=5, held_out=2, lr=0.3).run()
    assert len(result.prepared.partition.held_out) == 2
    assert result.federation.clients == 3
    assert len(result.summary["newcomers"]["received"]["accuracy"]) == 2
    with pytest.raises(CoterieError, match="held_out"):
        tiny("fedavg", clients=5, held_out=5).prepare()


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedbn", "local"])
def test_newcomers_get_the_newest_shared_part_and_the_initial_personal_part(method: str) -> None:
    result = tiny(method, "norm", data=toy_data(), partition=held_out()).run()
    newcomers = welcome(result.prepared, result.federation)
    slot, trained = newcomers["model"], result.federation["model"]
    assert newcomers.clients == 2
    rows, veterans = rows_of(newcomers), final_rows(result)
    for row in rows:
        assert torch.equal(slot.shared_columns.take(row), slot.shared_columns.take(veterans[0]))
        assert torch.equal(slot.own_columns.take(row), slot.own_columns.take(result.federation.initial))
    assert trained.shared_columns == slot.shared_columns
    if method != "local":
        assert not torch.allclose(rows[0], result.federation.initial, atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "fedper", "local"])
def test_personalisation_improves_the_loss(method: str) -> None:
    experiment = tiny(method, "plain", data=toy_data(300), clients=5, held_out=2, lr=0.3, epochs=5)
    result = experiment.run()
    found = onboard(result.prepared, result.federation)
    assert found["trained"].loss.mean() < found["received"].loss.mean()
    for moment in ("received", "trained"):
        assert result.summary["newcomers"][moment]["accuracy"] == found[moment].judged.tolist()
        assert result.summary["newcomers"][moment]["mean"] == pytest.approx(found[moment].judged.mean())


def test_onboarding_does_not_touch_the_trained_federation() -> None:
    result = tiny("fedper", "norm", data=toy_data(), partition=held_out()).run()
    before = {name: tensor.clone() for name, tensor in result.federation.state()}
    onboard(result.prepared, result.federation)
    for name, tensor in result.federation.state():
        assert torch.equal(tensor, before[name]), name


@dataclass(frozen=True)
class Stored(Method):
    """Personal models that are uploaded, a value for everybody and a value per client."""

    shared: ClassVar[str] = ""

    def init(self, federation: Federation) -> None:
        federation.add_value("count", torch.zeros(1))
        federation.add_value("own", torch.zeros(federation.clients, 1), per_client=True)

    def uploads(self, federation: Federation) -> dict[str, str]:
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        yield Mix(identity(len(uploads.cohort)))
        yield Put("count", uploads.federation.values["count"] + 1)
        yield Put("own", torch.ones(uploads.federation.clients, 1))


def test_uploaded_personal_columns_are_the_mean_of_those_who_took_part() -> None:
    data, partition = toy_data(), held_out()
    result = tiny(Stored(), "plain", data=data, partition=partition, join=0.67, rounds=1).run()
    took_part = result.federation.taken_part
    assert int(took_part.sum()) == 2
    newcomers = welcome(result.prepared, result.federation)
    expected = final_rows(result)[took_part].mean(0)
    assert torch.allclose(rows_of(newcomers), expected.expand(2, -1), atol=1e-6)
    assert newcomers.values["count"].tolist() == [1.0]
    assert newcomers.values["own"].tolist() == [[0.0], [0.0]]


def test_values_per_client_are_not_taken_for_shared_ones_if_one_client_was_trained() -> None:
    whole = toy_partition(toy_data(), 3)
    partition = Partition(train=whole.train, test=whole.test, held_out=(0, 2))
    result = tiny(Stored(), "plain", data=toy_data(), partition=partition).run()
    newcomers = welcome(result.prepared, result.federation)
    assert newcomers.values["own"].tolist() == [[0.0], [0.0]]
    assert newcomers.values["count"].tolist() == [3.0]
