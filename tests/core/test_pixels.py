"""Images kept as bytes: the numbers that models take are the same, to the bit, whoever asks and in whatever order."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.core.pixels import MappedFile, Pixels, PixelScale, as_memory, samples_at, whole
from coterie.core.training import MemoryFormat
from coterie.data.dataset import fingerprint, part_of, rescaled
from support import normalise, without_times


def _bytes(count: int = 40, channels: int = 3, side: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, channels, side, side), dtype=np.uint8)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) and one.stride() == other.stride() and one.dtype == other.dtype


def test_every_byte_becomes_the_number_that_it_always_became() -> None:
    every = np.arange(256, dtype=np.uint8)
    plain = (every.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    assert (
        whole(Pixels(torch.from_numpy(every))).numpy().tobytes()
        == plain.tobytes()
        == normalise(every).numpy().tobytes()
    )


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("channels", [1, 3])
def test_batches_are_those_of_numbers_in_memory(memory: MemoryFormat, channels: int) -> None:
    images = _bytes(channels=channels)
    pixels, numbers = (as_memory(one, memory) for one in (Pixels.mapped(images), normalise(images)))
    assert pixels.shape == numbers.shape
    assert pixels.dtype == numbers.dtype
    for index in (torch.tensor([3, 1, 1, 39]), torch.tensor([7]), torch.tensor([[2, 5], [5, 0]])):
        assert _same(pixels[index], numbers[index])
    assert torch.equal(samples_at(pixels, torch.tensor([[2, 5]])), samples_at(numbers, torch.tensor([[2, 5]])))


def test_published_scales_are_the_same_from_bytes_and_from_numbers() -> None:
    images = _bytes(side=32)
    labels = torch.arange(len(images)) % 10
    kept, numbers = (
        rescaled(ct.Dataset("cifar10", inputs, labels, classes=10), "published")
        for inputs in (Pixels.mapped(images), normalise(images))
    )
    assert torch.equal(whole(kept.inputs), whole(numbers.inputs))
    assert kept.inputs.nbytes * 4 == numbers.inputs.nbytes


def test_bytes_of_a_mapped_file_stay_there_for_every_process(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", _bytes())
    data = ct.from_arrays(np.load(tmp_path / "images.npy", mmap_mode="r"), np.arange(40) % 4)
    assert isinstance(data.inputs, Pixels)
    assert data.inputs.file is not None
    sent = bytes(ForkingPickler.dumps(data.inputs))
    assert len(sent) < 1000  # a path, no samples
    again = pickle.loads(sent)
    assert torch.equal(whole(again), normalise(_bytes()))
    assert (again.scale, again.memory, again.file) == (data.inputs.scale, data.inputs.memory, data.inputs.file)
    (tmp_path / "images.npy").unlink()
    assert torch.equal(data.inputs[torch.tensor([2])], normalise(_bytes())[2:3])  # what is mapped stays
    with pytest.raises(ct.CoterieError, match=r"images.npy cannot be mapped any more .*; run it again"):
        pickle.loads(sent)


def test_only_bytes_that_every_process_can_read_count_as_shared(tmp_path: Path) -> None:
    """Otherwise they would be copied, and memory asked for that nobody needs."""
    np.save(tmp_path / "images.npy", _bytes())
    assert Pixels.mapped(np.load(tmp_path / "images.npy", mmap_mode="r")).is_shared()
    held = Pixels.mapped(_bytes())
    assert not held.is_shared()
    assert held.share_memory_().is_shared()


def test_parts_of_mapped_arrays_are_found_again(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", _bytes())
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    part = MappedFile.of(mapped[10:20])
    assert part is not None
    assert torch.equal(part.opened(), torch.from_numpy(_bytes()[10:20]))
    assert MappedFile.of(mapped[:, :, ::2]) is None
    assert MappedFile.of(_bytes()) is None


def test_what_the_caller_does_to_its_array_changes_nothing() -> None:
    images = _bytes()
    data = ct.from_arrays(images, np.arange(40) % 4)
    images[:] = 0
    assert torch.equal(whole(data.inputs), normalise(_bytes()))


def test_a_share_of_bytes_is_bytes() -> None:
    data = ct.from_arrays(_bytes(), np.arange(40) % 4)
    part = part_of(data, 0.5, seed=0)
    numbers = part_of(ct.Dataset("own", normalise(_bytes()), torch.arange(40) % 4, 4), 0.5, seed=0)
    assert isinstance(part.inputs, Pixels)
    assert torch.equal(whole(part.inputs), whole(numbers.inputs))


def test_fingerprints_tell_bytes_apart() -> None:
    data, numbers = (
        ct.Dataset("own", inputs, torch.arange(40) % 4, 4) for inputs in (Pixels.mapped(_bytes()), normalise(_bytes()))
    )
    other = _bytes()
    other[17, 2, 4, 4] ^= 1
    changed = ct.Dataset("own", Pixels.mapped(other), torch.arange(40) % 4, 4)
    scaled = ct.Dataset("own", Pixels(torch.from_numpy(_bytes()), PixelScale(1.0)), torch.arange(40) % 4, 4)
    assert len({fingerprint(one)["inputs"] for one in (data, numbers, changed, scaled)}) == 4


@pytest.mark.parametrize("engine", ["serial", "stacked", pytest.param("processes", marks=pytest.mark.processes)])
def test_a_run_on_bytes_is_the_run_on_numbers(engine: str) -> None:
    images, labels = _bytes(200, 1, 8), np.random.default_rng(1).integers(0, 4, 200)
    results = [
        ct.Experiment(
            "fedper",
            data,
            ct.Iid(clients=4),
            rounds=2,
            epochs=1,
            threads=1,
            engine=engine,
            workers=2 * (engine != "serial"),
        ).run()
        for data in (
            ct.from_arrays(images, labels),
            ct.Dataset("own", normalise(images), torch.from_numpy(labels), 4),
        )
    ]
    assert isinstance(results[0].prepared.data.inputs, Pixels)
    assert torch.equal(results[0].federation["model"].own, results[1].federation["model"].own)
    assert torch.equal(results[0].federation["model"].shared, results[1].federation["model"].shared)
    lines = [without_times(one.lines) for one in results]
    assert lines[0] == lines[1]
