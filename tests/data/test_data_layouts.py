"""Every published layout, on small files made here: exact pixels, labels, split, owners."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import decoded_jpeg, encode, gzipped, hub_table, idx_bytes, pixels, scaled, tar_of

from coterie.core.pixels import whole
from coterie.data import DATASETS, Dataset, layouts, load, published
from coterie.data.archives import tar_members
from coterie.data.catalogue import NATURAL
from coterie.errors import CoterieError

PARTS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)


def check(data: Dataset, images: np.ndarray, labels: list[int], train_size: int) -> None:
    np.testing.assert_allclose(data.inputs.numpy(), scaled(images), atol=1e-7)
    assert whole(data.inputs).is_contiguous()
    assert data.labels.tolist() == labels
    assert data.train_size == train_size


def test_the_registry_names_every_set_and_describes_it_in_one_line() -> None:
    small = {"digits", "diabetes", "mnist", "fashion_mnist", "emnist"}
    large = {"cifar10", "cifar100", "cinic10", "tiny_imagenet", "domainnet"}
    natural = {f"natural/{name}" for names in NATURAL.values() for name in names}
    assert set(DATASETS) == small | large | natural
    for name, known in DATASETS.items():
        assert known.name == name
        assert known.description
        assert "\n" not in known.description
        assert not known.class_names or len(known.class_names) == known.classes
        for remote in known.remotes:
            assert len(remote.digest) == {"md5": 32, "sha256": 64}[remote.kind]


def test_digits_are_embedded_and_scaled_to_minus_one_to_one() -> None:
    from sklearn.datasets import load_digits

    data = load("digits")
    assert (whole(data.inputs).min(), whole(data.inputs).max()) == (-1.0, 1.0)
    np.testing.assert_allclose((data.inputs[:, 0].numpy() + 1) * 8, load_digits().images)
    assert data.train_size == len(data) == 1797


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files(tmp_path: Path, name: str, compressed: bool) -> None:
    images = pixels(7, 1, 28)
    labels = np.array([3, 1, 4, 1, 5, 9, 2], dtype=np.uint8)
    folder = tmp_path / name
    folder.mkdir()
    for part, array in zip(PARTS, (images[:5, 0], labels[:5], images[5:, 0], labels[5:]), strict=True):
        if compressed:
            (folder / f"{part}.gz").write_bytes(gzipped(idx_bytes(array)))
        else:
            (folder / part).write_bytes(idx_bytes(array))
    check(load(name, tmp_path), images, labels.tolist(), 5)


def emnist_arrays() -> tuple[np.ndarray, list[np.ndarray]]:
    upright = pixels(5, 1, 28)
    labels = np.array([0, 10, 36, 61, 5], dtype=np.uint8)
    stored = upright[:, 0].transpose(0, 2, 1)
    return upright, [stored[:3], labels[:3], stored[3:], labels[3:]]


EMNIST = tuple(
    f"emnist-byclass-{split}-{kind}-ubyte.gz" for split in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)


def test_emnist_is_turned_upright_from_loose_files_and_from_the_archive(tmp_path: Path) -> None:
    upright, arrays = emnist_arrays()
    loose, packed = tmp_path / "a" / "emnist", tmp_path / "b" / "emnist"
    loose.mkdir(parents=True)
    packed.mkdir(parents=True)
    with zipfile.ZipFile(packed / "gzip.zip", "w") as archive:
        for part, array in zip(EMNIST, arrays, strict=True):
            content = gzipped(idx_bytes(np.ascontiguousarray(array)))
            (loose / part).write_bytes(content)
            archive.writestr(f"gzip/{part}", content)
    for root in (loose.parent, packed.parent):
        data = load("emnist", root)
        check(data, upright, [0, 10, 36, 61, 5], 3)
        assert (data.classes, data.class_names[10], data.class_names[61]) == (62, "A", "z")


def test_a_truncated_idx_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in PARTS:
        (folder / part).write_bytes(idx_bytes(np.zeros((2, 28, 28), dtype=np.uint8))[:-1])
    with pytest.raises(CoterieError, match="train-images-idx3-ubyte holds 1567 values; its header says 1568"):
        load("mnist", tmp_path)


def test_idx_images_of_two_sizes_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, side in zip(PARTS, (28, 0, 27, 0), strict=True):
        shape = (2, side, side) if side else (2,)
        (folder / part).write_bytes(idx_bytes(np.zeros(shape, dtype=np.uint8)))
    with pytest.raises(CoterieError, match="training images are 28 x 28, test images 27 x 27"):
        load("mnist", tmp_path)


def test_an_idx_file_without_values_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in PARTS:
        (folder / part).write_bytes(idx_bytes(np.zeros((2, 0, 28), dtype=np.uint8)))
    with pytest.raises(CoterieError, match=r"train-images-idx3-ubyte is empty \(its header says 2 x 0 x 28 values\)"):
        load("mnist", tmp_path)


def test_a_damaged_xz_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        about = tarfile.TarInfo("image")
        about.size = 100_000
        archive.addfile(about, io.BytesIO(np.random.default_rng(0).bytes(100_000)))
    whole = path.read_bytes()
    path.write_bytes(whole[:50_000] + bytes(16) + whole[50_016:])
    with pytest.raises(CoterieError, match=r"cannot read .*a\.tar\.xz .*fetch it again"):
        list(tar_members(path, lambda name: True, 1 << 20))


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in PARTS:
        (folder / f"{part}.gz").write_bytes(b"not gzip")
    with pytest.raises(CoterieError, match=r"cannot read .*train-images-idx3-ubyte\.gz"):
        load("mnist", tmp_path)


def test_cifar10_binary_archive(tmp_path: Path) -> None:
    images = pixels(12, 3, 32)
    labels = [*range(10), 4, 7]
    members = {"cifar-10-batches-bin/batches.meta.txt": "\n".join("abcdefghij").encode()}
    # The test batch stands before the training batches: the order in the archive must not matter.
    batches = {"test_batch": (10, 11)} | {f"data_batch_{i}": (2 * i - 2, 2 * i - 1) for i in range(1, 6)}
    for part, chosen in batches.items():
        records = [bytes([labels[i]]) + images[i].tobytes() for i in chosen]
        members[f"cifar-10-batches-bin/{part}.bin"] = b"".join(records)
    tar_of(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", members)
    data = load("cifar10", tmp_path)
    check(data, images, labels, 10)
    assert data.class_names == tuple("abcdefghij")


def test_cifar100_binary_archive_uses_the_fine_label(tmp_path: Path) -> None:
    images = pixels(4, 3, 32)
    records = [bytes([19, fine]) + image.tobytes() for fine, image in zip((99, 0, 42, 7), images, strict=True)]
    members = {"cifar-100-binary/train.bin": b"".join(records[:3]), "cifar-100-binary/test.bin": records[3]}
    tar_of(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", members)
    check(load("cifar100", tmp_path), images, [99, 0, 42, 7], 3)


def test_a_cifar_archive_without_a_batch_is_named(tmp_path: Path) -> None:
    tar_of(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": bytes(3074)})
    with pytest.raises(CoterieError, match=r"holds no cifar-100-binary/test\.bin"):
        load("cifar100", tmp_path)


def test_cinic10_archive_is_sorted_and_counts_validation_as_training(tmp_path: Path) -> None:
    images = pixels(5, 3, 32)
    wanted = [
        "train/cat/a.png",
        "train/dog/b.png",
        "valid/airplane/c.png",
        "test/airplane/d.png",
        "test/truck/e.png",
    ]
    scrambled = [3, 1, 4, 0, 2]
    tar_of(tmp_path / "cinic10" / "CINIC-10.tar.gz", {f"./{wanted[i]}": encode(images[i]) for i in scrambled})
    check(load("cinic10", tmp_path), images, [3, 5, 0, 0, 9], 3)


def test_an_unreadable_image_in_an_archive_is_named(tmp_path: Path) -> None:
    tar_of(tmp_path / "cinic10" / "CINIC-10.tar.gz", {"train/cat/broken.png": b"no image"})
    with pytest.raises(CoterieError, match=r"cannot read image train/cat/broken\.png in"):
        load("cinic10", tmp_path)


def test_tiny_imagenet_archive_uses_sorted_ids_and_the_validation_split(tmp_path: Path) -> None:
    images = pixels(4, 3, 64)
    base = "tiny-imagenet-200"
    (tmp_path / "tiny_imagenet").mkdir()
    with zipfile.ZipFile(tmp_path / "tiny_imagenet" / f"{base}.zip", "w") as archive:
        archive.writestr(f"{base}/wnids.txt", "n0009\nn0001\n")
        archive.writestr(f"{base}/train/n0009/images/n0009_0.JPEG", encode(images[1], "JPEG"))
        archive.writestr(f"{base}/train/n0001/images/n0001_0.JPEG", encode(images[0], "JPEG"))
        archive.writestr(f"{base}/val/images/val_1.JPEG", encode(images[3], "JPEG"))
        archive.writestr(f"{base}/val/images/val_0.JPEG", encode(images[2], "JPEG"))
        archive.writestr(
            f"{base}/val/val_annotations.txt",
            "val_0.JPEG\tn0009\t0\t0\t9\t9\nval_1.JPEG\tn0001\t0\t0\t9\t9\n",
        )
    data = load("tiny_imagenet", tmp_path)
    check(data, np.stack([decoded_jpeg(image) for image in images]), [0, 1, 1, 0], 2)
    assert data.classes == 200


def domainnet(folder: Path, domains: dict[str, int]) -> None:
    folder.mkdir()
    for domain, grey in domains.items():
        image = np.full((3, 40, 90), grey, dtype=np.uint8)
        with zipfile.ZipFile(folder / f"{domain}.zip", "w") as archive:
            for number in range(3):
                archive.writestr(f"{domain}/zebra/{domain}_{number}.png", encode(image))
        (folder / f"{domain}_train.txt").write_text(
            f"{domain}/zebra/{domain}_0.png 344\n{domain}/zebra/{domain}_1.png 5\n"
        )
        (folder / f"{domain}_test.txt").write_text(f"{domain}/zebra/{domain}_2.png 344\n")


def test_domainnet_owners_are_domains_and_images_are_resized(tmp_path: Path) -> None:
    domainnet(tmp_path / "domainnet", {"sketch": 255, "clipart": 0})
    data = load("domainnet", tmp_path)
    assert data.owner_names == ("clipart", "sketch")
    assert data.owners is not None
    assert data.owners.tolist() == [0, 0, 1, 1, 0, 1]
    assert data.labels.tolist() == [344, 5, 344, 5, 344, 344]
    assert (data.train_size, data.classes) == (4, 345)
    side = published.DOMAINNET_SIDE
    assert data.shape == (3, side, side)
    assert [float(image.mean()) for image in data.inputs] == [-1, -1, 1, 1, -1, 1]


def test_another_side_for_domainnet_is_not_served_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domainnet(tmp_path / "domainnet", {"real": 9})
    load("domainnet", tmp_path)
    monkeypatch.setattr(published, "DOMAINNET_SIDE", 16)
    assert load("domainnet", tmp_path).shape == (3, 16, 16)


def test_a_file_that_unpacks_to_an_absurd_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in PARTS:
        (folder / f"{part}.gz").write_bytes(gzipped(bytes(100_000)))
    monkeypatch.setattr(layouts, "MOST_ARRAY_BYTES", 99_999)
    with pytest.raises(CoterieError, match=r"train-images-idx3-ubyte\.gz holds more than 99,999 bytes"):
        load("mnist", tmp_path)


def test_domainnet_without_a_list_or_with_a_bad_line_or_member_is_named(tmp_path: Path) -> None:
    domainnet(tmp_path / "domainnet", {"real": 9})
    test_list = tmp_path / "domainnet" / "real_test.txt"
    test_list.write_text("real/zebra/real_2.png\n")
    with pytest.raises(CoterieError, match=r"line 1 of .*real_test\.txt is not"):
        load("domainnet", tmp_path)
    test_list.write_text("real/zebra/absent.png 1\n")
    with pytest.raises(CoterieError, match=r"holds no real/zebra/absent\.png"):
        load("domainnet", tmp_path)
    test_list.unlink()
    with pytest.raises(CoterieError, match=r"needs real_test\.txt beside it"):
        load("domainnet", tmp_path)


@pytest.mark.parametrize(
    ("name", "channels", "side", "image", "label", "test_split"),
    [
        ("mnist", 1, 28, "image", "label", "test"),
        ("fashion_mnist", 1, 28, "image", "label", "test"),
        ("emnist", 1, 28, "image", "label", "test"),
        ("cifar10", 3, 32, "img", "label", "test"),
        ("cifar100", 3, 32, "img", "fine_label", "test"),
        ("cinic10", 3, 32, "image", "label", "test"),
        ("tiny_imagenet", 3, 64, "image", "label", "valid"),
    ],
)
def test_hub_layout(
    tmp_path: Path, name: str, channels: int, side: int, image: str, label: str, test_split: str
) -> None:
    images = pixels(5, channels, side)
    labels = [2, 0, 1, 1, 9]
    hub_table(tmp_path / name / "train.parquet", images[:3], {label: labels[:3]}, image)
    hub_table(tmp_path / name / f"{test_split}.parquet", images[3:], {label: labels[3:]}, image)
    data = load(name, tmp_path)
    check(data, images, labels, 3)
    assert data.classes == DATASETS[name].classes


def test_hub_shards_in_a_data_folder_with_declared_class_names(tmp_path: Path) -> None:
    images = pixels(6, 3, 32)
    folder = tmp_path / "cifar10" / "data"
    names = {"label": list("jihgfedcba")}
    for shard in (1, 0):  # written in the wrong order
        part = slice(2 * shard, 2 * shard + 2)
        hub_table(
            folder / f"train-0000{shard}-of-00002-abc.parquet",
            images[part],
            {"label": [shard, 9]},
            "img",
            names,
        )
    hub_table(folder / "test-00000-of-00001.parquet", images[4:], {"label": [3, 4]}, "img", names)
    data = load("cifar10", tmp_path)
    check(data, images, [0, 9, 1, 9, 3, 4], 4)
    assert data.class_names == tuple("jihgfedcba")


def test_cinic10_on_the_hub_counts_validation_as_training(tmp_path: Path) -> None:
    images = pixels(3, 3, 32)
    for number, split in enumerate(("train", "validation", "test")):
        hub_table(tmp_path / "cinic10" / f"{split}.parquet", images[number : number + 1], {"label": [number]})
    check(load("cinic10", tmp_path), images, [0, 1, 2], 2)


def test_domainnet_on_the_hub_takes_owners_from_the_domain_column(tmp_path: Path) -> None:
    images = pixels(3, 3, 64)
    folder = tmp_path / "domainnet"
    hub_table(folder / "train.parquet", images[:2], {"label": [0, 344], "domain": ["sketch", "real"]})
    hub_table(folder / "test.parquet", images[2:], {"label": [7], "domain": ["sketch"]})
    data = load("domainnet", tmp_path)
    check(data, images, [0, 344, 7], 2)
    assert data.owners is not None
    assert (data.owners.tolist(), data.owner_names) == ([1, 0, 1], ("real", "sketch"))


def test_hub_mistakes_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10"
    images = pixels(2, 3, 32)
    hub_table(folder / "train-00001-of-00002.parquet", images, {"label": [0, 1]}, "img")
    with pytest.raises(CoterieError, match="shard 00000 of 2 of the split 'train' is missing"):
        load("cifar10", tmp_path)
    hub_table(folder / "train.parquet", images, {"label": [0, 1]}, "img")
    with pytest.raises(CoterieError, match=r"holds train\.parquet but no test"):
        load("cifar10", tmp_path)
    hub_table(folder / "test.parquet", pixels(1, 3, 30), {"label": [0]}, "img")
    with pytest.raises(CoterieError, match=r"row 1 of .*test\.parquet has 30 × 30 pixels, not 32 × 32"):
        load("cifar10", tmp_path)
    hub_table(folder / "test.parquet", images, {"labels": [0, 1]}, "img")
    with pytest.raises(CoterieError, match="did you mean 'labels'"):
        load("cifar10", tmp_path)
    hub_table(folder / "test.parquet", images, {"label": [0, 10]}, "img")
    with pytest.raises(CoterieError, match=r"labels lie in 0\.\.10; with 10 classes"):
        load("cifar10", tmp_path)
    (folder / "test.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(CoterieError, match=r"cannot read .*test\.parquet"):
        load("cifar10", tmp_path)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(CoterieError, match="unknown data set 'cifra10'; did you mean 'cifar10'"):
        load("cifra10")


def test_hyphens_and_capitals_are_accepted(tmp_path: Path) -> None:
    assert torch.equal(load("Digits").inputs, load("digits").inputs)
    with pytest.raises(CoterieError, match="label = y: is for your own tables"):
        load("digits", label="y")
