from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before PyTorch is loaded, here and in every process that a test starts: small models run fastest on one thread,
# rounding then does not depend on the machine's cores, and tests that run side by side do not fight for them.
os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis
import pytest
import torch

# A busy machine is slow: how long an example takes proves nothing.
hypothesis.settings.register_profile("coterie", deadline=None)
hypothesis.settings.load_profile("coterie")

if TYPE_CHECKING:
    from grounds import Ground

# Tests that start several processes themselves: one worker runs them all, one after the other.
CROWDED = ("real", "ray", "processes")
CACHE = "COTERIE_TEST_CACHE"


def requires_data(name: str) -> pytest.MarkDecorator:
    """Skip a test of real data unless COTERIE_DATA names a folder that holds the data set's sub-folder."""
    root = os.environ.get("COTERIE_DATA", "")
    present = bool(root) and (Path(root) / name).is_dir()
    return pytest.mark.skipif(not present, reason=f"needs COTERIE_DATA with a sub-folder '{name}'")


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test whose run is long enough for a trial would depend on the machine's mood: it has to name its engine."""

    def refuse(*_: object) -> None:
        pytest.fail("this run is long enough to have its engine chosen by trial: name engine= and memory=")

    monkeypatch.setattr("coterie.setup.trials.measure", refuse)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For bits that are promised on one thread alone: where workers have one thread, so must the main process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A server and three sites, which all tests of real processes share: starting them is what takes long."""
    from grounds import built

    with built(tmp_path_factory.mktemp("ground")) as found:
        yield found


def pytest_configure(config: pytest.Config) -> None:
    """What is cached goes to a folder of this session, which its workers share: never to the user's own caches."""
    # Tests that are run in the background of a shell would hand down that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if CACHE not in os.environ:
        made = tempfile.mkdtemp(prefix="coterie-tests-")
        os.environ[CACHE] = os.environ["XDG_CACHE_HOME"] = made
        os.environ.pop("COTERIE_CACHE", None)
        config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))
        config.add_cleanup(lambda: os.environ.pop(CACHE))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Crowded tests are one group unless they name another, before pytest-xdist looks for groups; examples that check
    methods are long.
    """
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name.startswith("coterie.testing"):
            item.add_marker(pytest.mark.thorough)
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            named = item.get_closest_marker("xdist_group") is not None
            if not named and any(item.get_closest_marker(name) for name in CROWDED):
                item.add_marker(pytest.mark.xdist_group("crowded"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Whatever PyTorch makes of the environment.

    `make numerics` asks for more threads, to see that nothing but what is promised on one thread depends on it.
    """
    torch.set_num_threads(int(os.environ.get("COTERIE_TEST_THREADS", "1")))
