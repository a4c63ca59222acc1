from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


def requires_data(name: str) -> pytest.MarkDecorator:
    """Skip a test of real data unless COTERIE_DATA names a folder that holds the data set's sub-folder."""
    root = os.environ.get("COTERIE_DATA", "")
    present = bool(root) and (Path(root) / name).is_dir()
    return pytest.mark.skipif(not present, reason=f"needs COTERIE_DATA with a sub-folder '{name}'")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For bits that are promised on one thread alone: where workers have one thread, so must the main process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small models run fastest on one thread, and rounding then does not depend on the machine's cores.

    `make numerics` asks for more, to see that nothing but what is promised on one thread depends on it.
    """
    torch.set_num_threads(int(os.environ.get("COTERIE_TEST_THREADS", "1")))
