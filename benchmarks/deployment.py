"""What Coterie adds to a round of a federation on Flower: packing, checking, mixing, checkpointing.

Ten sites with a model of about 2.5 MB. Messages are packed and unpacked as on the network, and the server's state is
written to disk, but nobody trains and nothing travels: what is left is our side of a round.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.harness import Figure
from coterie.deployment.agreement import Agreement
from coterie.deployment.logbook import Logbook
from coterie.deployment.messages import Packed, read_text
from coterie.deployment.server import Server
from coterie.deployment.wire import KINDS, Expected, Parcel, pack, unpack
from coterie.errors import require

SITES = 10
BAR = 0.2  # seconds
METHODS = ("fedavg", "pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc")


class OurSide:
    """A server whose sites answer at once with what they received, slightly changed."""

    def __init__(self, method: str, folder: Path, rounds: int = 100) -> None:
        sites = tuple(f"site-{number}" for number in range(SITES))
        self.agreement = Agreement(
            name="bench", sites=sites, shape=(1, 28, 28), classes=10, method=method, model="cnn", rounds=rounds
        )
        self.server = Server(self.agreement)
        self.logbook = Logbook(folder, self.agreement)
        blueprint = self.agreement.build()
        for name in sites:
            self.server.admit(
                {
                    "site": name,
                    "fingerprint": self.agreement.fingerprint,
                    "first_weights": blueprint.fingerprint,
                    **{"samples": 100, "validation": 0, "test": 25, "class_counts": [10] * 10, "snapshots": []},
                    "facts": {"columns": "", "classes": [0, 9], "magnitudes": []},
                }
            )

    def round(self) -> float:
        """The seconds of our side in one round: the server's work for all sites, and one site's own wire work."""
        begin = time.perf_counter()
        tasks = {name: pack(task) for name, task in self.server.open_round(list(self.agreement.sites)).items()}
        seconds = time.perf_counter() - begin
        answers = {name: self._answer(number) for number, name in enumerate(tasks)}
        seconds += self._site_seconds(next(iter(tasks.values())), next(iter(answers.values())))
        begin = time.perf_counter()
        for name, answer in answers.items():
            self.server.receive(name, pack(answer))
        report = self.server.close_round()
        require(len(report.answered) == SITES, f"answers were refused: {report.refused}")
        self.logbook.add(report)
        self.logbook.checkpoint(self.server)
        return seconds + time.perf_counter() - begin

    def _answer(self, number: int) -> Parcel:
        """Uploads as a site would send them."""
        stream = torch.Generator().manual_seed(1000 * self.server.federation.round + number)
        tensors = {name: _noise(expected, stream) for name, expected in self.server.expected_answer().items()}
        score = {"correct": 20, "loss": 1.0, "samples": 25}
        note = {"round": self.server.federation.round, "diverged": False, "received": score, "trained": score}
        return Parcel(tensors, note)

    def _site_seconds(self, task: Packed, answer: Parcel) -> float:
        """What one site spends on unpacking its task and packing its answer; sites do that at the same time."""
        begin = time.perf_counter()
        listed = read_text(task.text)["tensors"]
        unpack(task, {name: Expected(tuple(shape), KINDS[kind]) for name, kind, shape in listed})
        pack(answer)
        return time.perf_counter() - begin


def _noise(expected: Expected, stream: torch.Generator) -> torch.Tensor:
    values = 0.05 * torch.randn(expected.shape, generator=stream)
    return values > 0 if expected.dtype == torch.bool else values.to(expected.dtype)


def our_side(repeats: int = 7, methods: tuple[str, ...] = METHODS) -> Iterator[Figure]:
    """Seconds a round of our side, for FedAvg and the five methods."""
    for method in methods:
        with tempfile.TemporaryDirectory() as folder:
            side = OurSide(method, Path(folder))
            side.round()
            seconds = [side.round() for _ in range(repeats)]
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        name = f"{method}: our side of a round, {SITES} sites, cnn 28 × 28 (seconds)"
        yield Figure(name, "our side", "1 s", statistics.median(seconds), low, high, BAR)
