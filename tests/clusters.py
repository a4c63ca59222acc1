"""Ray clusters of several nodes for tests: all of them on this machine, and listening on it alone."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.ray.session import LOCAL_ONLY, LOOPBACK, import_ray

STORE = 128 * 2**20


class NodesHere:
    """A cluster whose nodes come and go; the first is its head, where the main process belongs."""

    def __init__(self) -> None:
        import_ray(local=True)
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self._number = 0

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cpus: int = 1) -> Any:
        """A node, which is used from now on."""
        node = self._cluster.add_node(
            num_cpus=cpus, node_ip_address=LOOPBACK, include_dashboard=False, object_store_memory=STORE
        )
        self._number += 1
        return node

    def kill(self, node: Any) -> None:
        """A node is gone at once, as if its machine had lost its power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def shutdown(self) -> None:
        self._cluster.shutdown()


@contextmanager
def nodes_here() -> Iterator[NodesHere]:
    """A cluster without nodes, in a folder of its own; what runs on it finds what tests import."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "RAY_TMPDIR": str(folder),  # short, since sockets lie there
            "RAY_USAGE_STATS_ENABLED": "0",
            LOCAL_ONLY: "0",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }.items():
            patch.setenv(name, value)
        cluster = NodesHere()
        before = signal.getsignal(signal.SIGTERM)  # every node puts a handler of its own there
        try:
            yield cluster
        finally:
            cluster.shutdown()
            signal.signal(signal.SIGTERM, before)
            shutil.rmtree(folder, ignore_errors=True)
