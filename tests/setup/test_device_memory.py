"""How much memory a run needs on its device, worked out by hand for a small one."""

from __future__ import annotations

from coterie.setup.memory import MemoryNeeds, memory_needs, remembered_bytes
from support import tiny


def test_what_a_model_remembers_of_a_sample() -> None:
    """Linear(6, 8), Tanh, Linear(8, 8), ReLU, Linear(8, 3): the input and both activations, as float32."""
    assert remembered_bytes(tiny(model="plain").prepare()) == 4 * (6 + 8 + 8)


def test_what_a_run_needs() -> None:
    prepared = tiny("ditto", clients=4, momentum=0.9, engine="serial").prepare()
    federation, problem = prepared.federation(), prepared.problem()
    row = 4 * federation.layout.width
    assert set(federation.slots) == {"model", "personal"}
    alone = memory_needs(prepared, federation, "serial", batch=10)
    assert alone.samples == problem.inputs.nbytes + problem.labels.nbytes
    assert alone.rows == 0  # they lie on the processor here
    assert alone.training == 2 * 2 * row + row + 10 * 88
    assert memory_needs(prepared, federation, "stacked", batch=10).training == 4 * alone.training
    adam = tiny("fedavg", clients=4, optimizer="adam", engine="serial").prepare()
    assert memory_needs(adam, adam.federation(), "serial", batch=5).training == 2 * row + 2 * row + 5 * 88


def test_needs_are_told_in_words() -> None:
    assert str(MemoryNeeds(2_000_000, 0, 1_000_000_000, 10)) == "about 1 GB (samples 2 MB, 10 clients in training 1 GB)"
    assert str(MemoryNeeds(1_000_000, 1_000_000, 1_000_000, 1)) == (
        "about 3 MB (samples 1 MB, rows 1 MB, a client in training 1 MB)"
    )
