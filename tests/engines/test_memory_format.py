"""The memory format is a matter of speed alone."""

from __future__ import annotations

import pytest
import torch

from coterie.errors import CoterieError
from coterie.partition import Iid
from coterie.runs.experiment import Experiment

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("method", ["fedavg", "fedper", "pfedcs", "moon", "scaffold"])
@pytest.mark.parametrize(("model", "engine"), [("lenet5", "serial"), ("cnn", "stacked")])
def test_models_are_the_same_in_both_formats(method: str, model: str, engine: str) -> None:
    contiguous, last = (
        Experiment(
            method, "digits", Iid(clients=4), model, rounds=2, epochs=1, batch=64, engine=engine, memory=memory
        ).run()
        for memory in ("contiguous", "channels_last")
    )
    expected = contiguous.model(1).state_dict()
    for name, tensor in last.model(1).state_dict().items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-4, rtol=0)


def test_batches_keep_the_format() -> None:
    prepared = Experiment("fedavg", "digits", Iid(clients=2), "lenet5", memory="channels_last").prepare()
    batch = prepared.problem_base.inputs[torch.tensor([3, 5])]
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(CoterieError, match="unknown memory 'chanels_last'; did you mean 'channels_last'"):
        Experiment(memory="chanels_last")
