"""A site's own disk: files of another format are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coterie.deployment.store import Store
from coterie.errors import CoterieError
from coterie.runs.tensors import load_tensors, save_tensors
from coterie.serve.model import export_model


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (None, "was written by an older version of Coterie (this one reads format 1); remove the site's folder"),
        ("2", "was written by a newer version of Coterie (format 2, this one reads 1)"),
    ],
)
def test_files_of_another_format_are_refused(tmp_path: Path, written: str | None, message: str) -> None:
    store = Store(tmp_path, "trial", "a", "fingerprint")
    store.save(1, {"row": torch.ones(2)}, since=0)
    kept = store.snapshot(1)
    assert kept is not None
    path = store.path / "round-00001.safetensors"
    tensors, about = load_tensors(path)
    assert about.pop("format") == "1"
    save_tensors(path, tensors, about if written is None else {**about, "format": written})
    for read in (lambda: store.snapshot(1), lambda: export_model(store, tmp_path / "model.safetensors")):
        with pytest.raises(CoterieError) as caught:
            read()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
