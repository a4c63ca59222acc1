"""Images seen shifted and mirrored: by hand, against a plain oracle, and the same with every engine and at sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deployment.test_same_as_serial import assert_same
from tests.engines.test_effort import reports
from torch import Tensor, nn

from coterie.client.recipe import Phase
from coterie.client.trainer import Trainer
from coterie.core.pixels import Views
from coterie.core.training import Training
from coterie.data import Dataset
from coterie.engines.serial import Serial
from coterie.engines.stacked.engine import Stacked
from coterie.errors import CoterieError
from coterie.methods.fedrep import FedRep
from coterie.partition import Partition
from coterie.rng import torch_stream
from coterie.runs.experiment import Experiment
from coterie.testing.together import agreed
from support import final_rows, rows_of, seat, tiny

SIDE, SIZES = 5, (23, 11, 6)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten())
        self.classifier = nn.Linear(4 * (SIDE - 2) ** 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


def images(method: Any = "fedavg", **options: Any) -> Experiment:
    """Three clients of images that are all different."""
    count = 2 * sum(SIZES)
    stream = torch.Generator().manual_seed(0)
    data = Dataset("images", torch.randn(count, 2, SIDE, SIDE, generator=stream), torch.arange(count) % 3, 3)
    own = torch.arange(count).split([2 * size for size in SIZES])
    parts = [(part[::2].numpy(), part[:0].numpy(), part[1::2].numpy()) for part in own]
    train, validation, test = zip(*parts, strict=True)
    partition = Partition(train=train, validation=validation, test=test)
    settings = {"rounds": 2, "epochs": 2, "batch": 10, "lr": 0.05, "classifier": "classifier", "threads": 1, **options}
    return Experiment(method, data, partition=partition, model=Small(), **settings)


def plainly_seen(image: Tensor, number: int, padding: int) -> Tensor:
    """What `torch` makes of one image: padded by its mirrored edge, cut out again, perhaps turned round."""
    side = 2 * padding + 1
    wide = nn.functional.pad(image, (padding,) * 4, mode="reflect") if padding else image
    down, right = number % side, number // side % side
    cut = wide[:, down : down + image.shape[1], right : right + image.shape[2]]
    return cut.flip(-1) if number >= side**2 else cut


@pytest.mark.parametrize(
    ("padding", "flips", "shape"), [(2, True, (3, 4, 6)), (3, False, (1, 5, 4)), (0, True, (2, 3, 3))]
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_images_are_those_of_padding_and_cutting(
    padding: int, flips: bool, shape: tuple[int, ...], channels_last: bool
) -> None:
    views = Views(padding, flips)
    ways = (2 * padding + 1) ** 2 * (1 + flips)
    batch = torch.randn(ways, *shape)
    given = batch.contiguous(memory_format=torch.channels_last) if channels_last else batch
    seen = views.seen(given, torch.arange(ways))
    expected = torch.stack([plainly_seen(image, number, padding) for number, image in enumerate(batch)])
    assert torch.equal(seen, expected)
    assert seen.stride() == given.stride()
    drawn = views.drawn(2000, torch.Generator().manual_seed(1))
    assert set(drawn.tolist()) == set(range(ways)), "every way is drawn"


def test_whoever_draws_for_several_batches_at_once_draws_the_same() -> None:
    views = Views(4, True)
    apart, at_once = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    batches = [views.drawn(count, apart) for count in (10, 10, 3, 40, 1)]
    assert torch.equal(torch.cat(batches), views.drawn(64, at_once))


def batches_of(augment: str, client: int = 1, round: int = 1, phase: Phase | None = None) -> list[Tensor]:
    worker = seat(images(augment=augment).prepare(), client, round)
    return [batch.inputs for batch in Trainer(worker, phase or Phase(), 0).batches()]


def test_batches_are_a_function_of_seed_round_and_client() -> None:
    """By hand: the numbers come from the stream of that purpose, and each image is seen as its number says."""
    plain, seen = batches_of(""), batches_of("crop:2+flip")
    stream, views = torch_stream(0, "augment:0", 1, 1), Views(2, True)
    for before, after in zip(plain, seen, strict=True):
        numbers = torch.randint(50, (len(before),), generator=stream).tolist()
        expected = [plainly_seen(image, number, 2) for image, number in zip(before, numbers, strict=True)]
        assert torch.equal(after, torch.stack(expected))
    assert len({number for batch in seen for number in batch.flatten().tolist()}) > 100
    assert not torch.equal(batches_of("flip", round=2)[0], batches_of("flip")[0])
    assert views.padding == 2


def test_pieces_and_other_models_see_the_same() -> None:
    worker = seat(images(augment="crop:2+flip").prepare(), 0)
    batch = next(iter(Trainer(worker, Phase(), 0).batches()))
    whole = batch.inputs
    assert torch.equal(batch.under("model").inputs, whole)
    fresh = next(iter(Trainer(seat(images(augment="crop:2+flip").prepare(), 0), Phase(), 0).batches()))
    assert torch.equal(torch.cat([piece.inputs for piece in fresh.split(3)]), whole)


def test_tests_and_measurements_see_images_as_they_are() -> None:
    plain, seen = (images(augment=augment).prepare() for augment in ("", "flip"))
    ours, theirs = (seat(one, 0).test(one.problem().test[0]).quantities for one in (plain, seen))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert torch.equal(seat(plain, 0).train_features(), seat(seen, 0).train_features())


@pytest.mark.parametrize("make", [Serial, Stacked])
def test_a_classifier_alone_trains_on_features_of_what_is_seen(make: Any) -> None:
    """The head's two epochs go through the frozen extractor each time: n more passes for each, none are kept."""
    (report,) = reports(make, images(FedRep(head_epochs=2, body_epochs=1), rounds=1, augment="flip"))
    assert report.efforts["forward"] == [3 * size for size in SIZES]
    (report,) = reports(make, images(FedRep(head_epochs=2, body_epochs=1), rounds=1))
    assert report.efforts["forward"] == [2 * size for size in SIZES]


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "moon"])
def test_stacked_sees_the_same(method: str) -> None:
    settings = {"augment": "crop:1+flip", "join": 0.67}
    ours, theirs = (images(method, engine=engine, **settings).run() for engine in ("stacked", "serial"))
    torch.testing.assert_close(final_rows(ours), final_rows(theirs), atol=1e-4, rtol=1e-3)
    assert not torch.allclose(final_rows(images(method, join=0.67).run()), final_rows(theirs), atol=1e-3)


@pytest.mark.processes
def test_worker_processes_see_the_same_to_the_bit() -> None:
    settings = {"augment": "crop:1+flip", "join": 0.67}
    ours, theirs = (images("fedrep", engine=engine, **settings).run() for engine in ("processes", "serial"))
    assert torch.equal(rows_of(ours.federation), rows_of(theirs.federation))


@pytest.mark.thorough
def test_sites_see_the_same(tmp_path: Path) -> None:
    assert_same(agreed("fedper", join=0.67, shape=(1, 4, 4), augment="crop:1+flip"), tmp_path)


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ("flap", "augment = 'flap': must be crop:4 (so many pixels), flip, or crop:4+flip"),
        ("flip+flip", "augment = 'flip+flip': must be crop:4"),
        ("crop:1+crop:2", "augment = 'crop:1+crop:2': must be crop:4"),
        ("crop:0", "augment = 'crop:0': crop takes a number of pixels, such as crop:4"),
        ("crop:", "augment = 'crop:': crop takes a number"),
        ("crop:-1", "augment = 'crop:-1': crop takes a number"),
    ],
)
def test_wrong_words_are_refused_in_one_line(augment: str, message: str) -> None:
    with pytest.raises(CoterieError) as caught:
        Training(augment=augment)
    assert str(caught.value).startswith(message)


def test_tables_and_small_images_are_refused_before_the_first_round() -> None:
    with pytest.raises(CoterieError, match="augment = 'flip': is for images"):
        tiny(augment="flip").prepare()
    with pytest.raises(CoterieError, match="augment = 'crop:5': crops more than these images of shape"):
        images(augment="crop:5").prepare()
    with pytest.raises(CoterieError, match="augment = 'flip': is for images"):
        agreed("fedavg", augment="flip")
