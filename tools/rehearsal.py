"""A rehearsal: a whole federation on this machine, by its commands alone, and what it took.

`python tools/rehearsal.py --sites 20 --rounds 6` prints seconds per round, processor seconds of a site and of the
server per round, and memory. `--source` runs another tree of the same project, to compare two versions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from sklearn.datasets import load_digits

TICK = os.sysconf("SC_CLK_TCK")
PATIENCE = 1800.0  # seconds that any one wait may last


class Tree:
    """A command and all processes that it started."""

    def __init__(self, words: list[str], source: Path, log: IO[bytes]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "coterie", *words]
        self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def pids(self) -> list[int]:
        """The processes that are alive now."""
        children: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(stat[1]), []).append(int(path.name))
        found, left = [], [self.process.pid]
        while left:
            found.append(left.pop())
            left += children.get(found[-1], [])
        return found

    def seconds(self) -> float:
        """The processor time of all of them, those that ended included."""
        return sum(sum(map(int, fields[11:15])) / TICK for fields in self._stats())

    def _stats(self) -> Iterator[list[str]]:
        for pid in self.pids():
            try:
                yield Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue

    def memory(self) -> dict[str, float]:
        """MB of each process, what is shared counted once."""
        found: dict[str, float] = {}
        for pid in self.pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                size = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
            except OSError:
                continue
            name = _spoken(b" ".join(words[:4]).decode())
            found[name] = found.get(name, 0.0) + int(size[1] if size else 0) / 1024
        return found


def _spoken(command: str) -> str:
    signs = {
        "guard.py": "guards",
        "resident": "resident",
        "forkserver": "forkserver",
        "relay": "relay",
        "gateway": "gateway",
    }
    signs |= {f"flower-{name}": name for name in ("supernode", "superexec", "superlink")}
    signs |= {"flwr-serverapp": "server app", "flwr-clientapp": "client app", "coterie federation": "launcher"}
    return next((name for sign, name in signs.items() if sign in command), "other")


def prepare(folder: Path, given: argparse.Namespace) -> list[str]:
    """Write data, agreement and keys; the sites' names."""
    from coterie.deployment.agreement import Agreement
    from coterie.deployment.flower.folder import write_folder
    from coterie.deployment.flower.keys import Keys, accept_key, make_keys, make_site_key

    digits = load_digits()
    names = [f"site-{number:02d}" for number in range(given.sites)]
    options = {"method": given.method, "model": given.model, "rounds": given.rounds, "epochs": 1}
    waiting = {"gather": PATIENCE, "hello": PATIENCE, "deadline": PATIENCE, "least_sites": given.sites}
    agreed = Agreement(name="rehearsal", sites=tuple(names), shape=(1, 8, 8), classes=10, **options, **waiting)
    write_folder(folder / "federation", agreed)
    make_keys(folder / "federation" / "keys")
    for number, name in enumerate(names):
        index = np.arange(number * 7, number * 7 + 120) % len(digits.target)
        pictures = (digits.images[index, None] / 16).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=pictures, y=digits.target[index].astype(np.int64))
        accept_key(Keys(folder / "federation" / "keys"), name, make_site_key(folder / f"{name}.key"))
    return names


def rehearse(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Run the federation to its end; what it took."""
    source = given.source.resolve()
    names, home = prepare(folder, given), folder / "federation"
    with (folder / "output").open("wb") as log:
        begin = time.monotonic()
        server = Tree(["federation", "server", str(home), "--port", str(given.port)], source, log)
        trees = {}
        try:
            opened = wait_for(lambda: "the gateway is open" in (folder / "output").read_text(), server)
            for number, name in enumerate(names):
                words = ["federation", "client", str(home), "--name", name, "--data", str(folder / f"{name}.npz")]
                words += ["--server", f"127.0.0.1:{given.port}", "--key", str(folder / f"{name}.key")]
                # Elsewhere they would not share two cores while they start.
                earlier = number + 1 - given.at_once
                wait_for(lambda: connected(folder / "output") >= earlier, server)  # noqa: B023
                trees[name] = Tree(words, source, log)
            wait_for(lambda: connected(folder / "output") >= len(names), server)
            there = {"registered and open": opened - begin, "all sites connected": time.monotonic() - opened}
            return there | follow(home / "server", server, trees, given.rounds)
        except BaseException:
            print((folder / "output").read_text()[-5000:], file=sys.stderr)
            raise
        finally:
            for tree in (*trees.values(), server):
                tree.process.terminate()
            for tree in (*trees.values(), server):
                tree.process.wait()


def connected(output: Path) -> int:
    """How many sites have said that they are connected."""
    return output.read_text(errors="replace").count(" connected to 127.0.0.1")


def wait_for(done: Any, server: Tree) -> float:
    """Wait until something is so; when that was."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert server.process.poll() is None, "the server has ended"
        assert time.monotonic() < end, "nothing happens any more"
        time.sleep(0.02)
    return time.monotonic()


def follow(folder: Path, server: Tree, trees: dict[str, Tree], rounds: int) -> dict[str, Any]:
    """Measure from the end of the first round to that of the last but one."""
    lines = folder / "rounds.jsonl"
    ends: list[float] = []
    before: dict[str, float] = {}
    for number in range(1, rounds):
        wanted = number
        ends.append(
            wait_for(lambda: lines.is_file() and len(lines.read_text().splitlines()) >= wanted, server)  # noqa: B023
        )
        if number == 1:
            before = {name: tree.seconds() for name, tree in trees.items()} | {"server": server.seconds()}
    after = {name: tree.seconds() for name, tree in trees.items()} | {"server": server.seconds()}
    spent = {name: (after[name] - before[name]) / (rounds - 2) for name in after}
    times = [later - earlier for earlier, later in pairwise(ends)]
    ours = spent.pop("server")
    sizes = next(iter(trees.values())).memory()
    return {
        "seconds a round": {"median": statistics.median(times), "all": times},
        "processor seconds": {"a site and round": statistics.mean(spent.values()), "the server's a round": ours},
        "idle and working MB of a site": {**sizes, "all": sum(sizes.values())},
        "MB of the server": server.memory(),
        "database MB": (folder / "superlink.db").stat().st_size / 1e6,
    }


def main() -> None:
    """Rehearse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--method", default="fedper")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--port", type=int, default=18000)
    parser.add_argument("--at-once", type=int, default=4, help="sites that start at the same time")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    given = parser.parse_args()
    sys.path.insert(0, str(given.source.resolve()))
    with tempfile.TemporaryDirectory() as folder:
        found = rehearse(Path(folder), given)
    print(json.dumps(found, indent=1, default=str))


if __name__ == "__main__":
    main()
