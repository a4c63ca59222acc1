from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import gzipped, idx_bytes, pixels, scaled

from coterie.data import DATASETS, archives
from coterie.data.archives import Remote, download
from coterie.data.layouts import MNIST_PARTS
from coterie.errors import CoterieError


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and its address on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_right_checksum_is_accepted(served: tuple[Path, str], tmp_path: Path, kind: Any) -> None:
    folder, address = served
    content = np.random.default_rng(0).bytes(600_000)
    (folder / "file.bin").write_bytes(content)
    digest = hashlib.new(kind, content).hexdigest()
    target = download(Remote(f"{address}/file.bin", kind, digest), tmp_path / "to" / "here")
    assert target == tmp_path / "to" / "here" / "file.bin"
    assert target.read_bytes() == content
    assert list(target.parent.iterdir()) == [target]


def test_a_wrong_checksum_leaves_nothing_behind(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    (folder / "file.bin").write_bytes(b"something else")
    with pytest.raises(CoterieError, match=r"has sha256 .*, not the published 000"):
        download(Remote(f"{address}/file.bin", "sha256", "0" * 64), tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_an_absent_file_and_a_closed_port_are_one_line(served: tuple[Path, str], tmp_path: Path) -> None:
    _, address = served
    for url, reason in ((f"{address}/absent.bin", "404"), ("http://127.0.0.1:9/x", "refused")):
        with pytest.raises(CoterieError, match=reason) as caught:
            download(Remote(url, "md5", "0" * 32), tmp_path / "to")
        assert "\n" not in str(caught.value)
        assert list((tmp_path / "to").iterdir()) == []


def test_other_protocols_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="must be http or https"):
        download(Remote(f"file://{tmp_path}/x", "md5", "0" * 32), tmp_path)


def test_a_file_beyond_the_limit_is_refused(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    (folder / "file.bin").write_bytes(bytes(1000))
    monkeypatch.setattr(archives, "MOST_BYTES", 999)
    with pytest.raises(CoterieError, match="is larger than"):
        download(Remote(f"{address}/file.bin", "md5", "0" * 32), tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_missing_files_of_a_known_set_are_fetched_once(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    images = pixels(4, 1, 28)
    labels = np.array([0, 1, 2, 3], dtype=np.uint8)
    remotes = []
    for part, array in zip(MNIST_PARTS, (images[:3, 0], labels[:3], images[3:, 0], labels[3:]), strict=True):
        content = gzipped(idx_bytes(array))
        (folder / f"{part}.gz").write_bytes(content)
        remotes.append(Remote(f"{address}/{part}.gz", "md5", hashlib.md5(content).hexdigest()))
    known = replace(DATASETS["mnist"], remotes=tuple(remotes))
    data = known.load(tmp_path / "root", progress=False)
    np.testing.assert_allclose(data.inputs.numpy(), scaled(images), atol=1e-7)
    assert data.train_size == 3
    for file in folder.iterdir():
        file.unlink()
    assert len(known.load(tmp_path / "root")) == 4


def test_without_a_network_the_error_names_files_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    closed = Remote("http://127.0.0.1:9/cifar-10-binary.tar.gz", "md5", "0" * 32)
    known = replace(DATASETS["cifar10"], remotes=(closed,))
    with pytest.raises(CoterieError) as caught:
        known.load(tmp_path, progress=False)
    message = str(caught.value)
    assert "\n" not in message
    assert "place cifar-10-binary.tar.gz, or train.parquet and test.parquet" in message
    assert str(tmp_path / "cifar10") in message


def test_a_set_without_known_checksums_only_says_what_to_place(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"no files found; place <domain>\.zip") as caught:
        DATASETS["domainnet"].load(tmp_path)
    assert str(tmp_path / "domainnet") in str(caught.value)
