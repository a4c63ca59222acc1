"""How good a model is on test samples, one by one, and on those it trains on, from what training computed anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.task import Task
from coterie.core.task.base import LOSS, SAMPLES
from coterie.devices import PROCESSOR, exact

TUNING_DIVERGED = (
    "tuning its model for the test diverged (the tuned weights are not finite), so the model is tested untuned. "
    "A smaller lr or clip= may help."
)

# Large enough to be efficient, small enough that several workers share the samples of a single model.
TEST_BATCH = 128
# Samples of few numbers are tested more at a time, up to as many as this and as make so many numbers.
LARGEST_TEST_BATCH, TEST_NUMBERS = 1024, 1 << 17


@dataclass(frozen=True)
class Score:
    """A model's result on test data, sample by sample: the task's quantities by name.

    `untuned` says that the copy tuned for the test was not finite, `tuning` how many gradients that tuning took.

    >>> score = Score({"correct": torch.tensor([True, False]), "loss": torch.tensor([0.5, 2.0])})
    >>> score.sums()
    {'correct': 1, 'loss': 2.5, 'samples': 2}
    """

    quantities: Mapping[str, Tensor]  # name -> [n]
    kept: Tensor | None = None  # [n, ...], what final metrics need besides, where asked for
    untuned: bool = False
    tuning: int = 0

    @classmethod
    def joined(cls, parts: Sequence[Score]) -> Score:
        """The score of all samples of several parts, one after the other."""
        kept = [part.kept for part in parts if part.kept is not None]
        names = parts[0].quantities
        return cls(
            {name: torch.cat([part.quantities[name] for part in parts]) for name in names},
            torch.cat(kept) if kept else None,
        )

    def on_processor(self) -> Score:
        """The same, brought back from its device."""
        return Score.brought_back([self])[0]

    @staticmethod
    def brought_back(scores: Sequence[Score]) -> list[Score]:
        """The same on the processor: a device is asked once for each quantity, however many scores there are."""
        if not scores or scores[0].losses.device.type == PROCESSOR:
            return list(scores)
        whole = Score.joined(scores)
        kept = None if whole.kept is None else whole.kept.cpu()
        here = Score({name: values.cpu() for name, values in whole.quantities.items()}, kept)
        parts = here.split([len(score.losses) for score in scores])
        return [
            replace(part, untuned=score.untuned, tuning=score.tuning) for part, score in zip(parts, scores, strict=True)
        ]

    @property
    def losses(self) -> Tensor:
        """The loss of every sample: `[n]`."""
        return self.quantities[LOSS]

    def split(self, sizes: list[int]) -> list[Score]:
        """Cut into the scores of consecutive parts of the samples."""
        cut = {name: values.split(sizes) for name, values in self.quantities.items()}
        kept = [None] * len(sizes) if self.kept is None else self.kept.split(sizes)
        return [
            Score({name: parts[place] for name, parts in cut.items()}, outputs) for place, outputs in enumerate(kept)
        ]

    def sums(self) -> dict[str, int | float]:
        """Every quantity's sum, counts as whole numbers, and how many samples there are."""
        return sums_of([self])[0]


def sums_of(scores: Sequence[Score]) -> list[dict[str, int | float]]:
    """The sums of each of several scores, all added up together."""
    if not scores:
        return []
    sizes = [score.losses.shape[0] for score in scores]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    columns: list[list[int | float]] = []
    for name in scores[0].quantities:
        values = torch.cat([score.quantities[name] for score in scores])
        totals = np.bincount(owners, values.double().numpy(), len(sizes))
        columns.append((totals.astype(np.int64) if values.dtype == torch.bool else totals).tolist())
    names = (*scores[0].quantities, SAMPLES)
    return [dict(zip(names, sums, strict=True)) for sums in zip(*columns, sizes, strict=True)]


Seen = list[tuple[Tensor, Tensor]]
"""Outputs `[B, C]` and labels `[B]` of batches, as a client's steps came to them."""


TrainingSums = Mapping[str, int | float]
"""Sums of a task's quantities over training samples, and under `samples` how many those are."""


class TrainingScores:
    """Sums of a task's quantities over training samples, for every client of a cohort.

    A sample's outputs are those of its last epoch, by the weights just before the step that it was part of: no sample
    is run through a model once more.

    >>> from coterie.core.task import Classification
    >>> scores = TrainingScores(Classification(2), clients=2)
    >>> scores.take(1, [(torch.tensor([[0.0, 4.0], [0.0, 4.0]]), torch.tensor([1, 0]))])
    >>> first, second = scores.sums()
    >>> second["correct"], second["samples"], first["samples"]
    (1.0, 2, 0)
    """

    def __init__(self, task: Task, clients: int) -> None:
        self._task, self._clients = task, clients
        self._totals: dict[str, npt.NDArray[np.float64]] = {}
        self._samples = np.zeros(clients, np.int64)
        # Sums by client that are fetched together in the end, wherever they lie.
        self._waiting: dict[str, list[tuple[int, Tensor]]] = {}

    def take(self, client: int, seen: Seen) -> None:
        """Take what the client at a place of the cohort saw in its last epoch.

        Each client's outputs are scored by themselves: a sample's loss may differ in its last bit with the samples
        beside it, and which clients share a worker must not show in what is recorded.
        """
        if not seen:
            return
        outputs, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        self._samples[client] += len(labels)
        for name, values in self._scored(outputs, labels).items():
            self._waiting.setdefault(name, []).append((client, exact(values).sum()))

    def add(
        self,
        owners: npt.NDArray[np.int64],
        outputs: Tensor,
        labels: Tensor,
        real: npt.NDArray[np.bool_] | slice = slice(None),
    ) -> None:
        """Score samples at once: `owners [n]` are places in the cohort, `outputs [n, C]`, `labels [n]`.

        `real [n]` says which of them count; to leave the others out beforehand would take as long as scoring them.
        """
        owners = owners[real]
        self._samples += np.bincount(owners, minlength=self._clients)
        for name, values in self._scored(outputs, labels).items():
            total = self._total(name)
            total += np.bincount(owners, values.cpu().double().numpy()[real], self._clients)

    def _scored(self, outputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        with torch.no_grad():
            return self._task.scores(outputs, labels)

    def _total(self, name: str) -> npt.NDArray[np.float64]:
        return self._totals.setdefault(name, np.zeros(self._clients))

    def sums(self) -> list[TrainingSums]:
        """Every client's sums; `samples` is 0 for one whose steps put nothing out."""
        for name, waiting in self._waiting.items():
            clients, values = zip(*waiting, strict=True)
            np.add.at(self._total(name), list(clients), torch.stack(values).cpu().numpy())
        self._waiting = {}
        return [
            {**{name: float(totals[client]) for name, totals in self._totals.items()}, SAMPLES: int(samples)}
            for client, samples in enumerate(self._samples)
        ]
