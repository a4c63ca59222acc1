"""What a site would have without the others: a model that trains beside the federation's, alone, with equal steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from coterie.client.scores import Score
from coterie.core.privacy import Privacy
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.workplace import workplace
from coterie.devices import PROCESSOR
from coterie.engines.base import Trained, Work, do_work, empty_rows, tuned_score
from coterie.methods import Local
from coterie.rounds.collect import collect

ROW = "baseline.model"
"""The name of its row among what a site keeps after a round."""


class Baseline:
    """The model of a client that trains alone: in the rounds in which the client trains, and just as `Local` would.

    The first weights, the samples, the batches and their order are those of a simulation of `Local` in which the client
    takes part in the same rounds, and so are the weights after each of them, bit for bit.
    """

    def __init__(self, agreement: Agreement, client: int, data: Dataset, device: str = PROCESSOR) -> None:
        # It never leaves its site, and needs no noise.
        alone = replace(agreement, method=Local(), **vars(Privacy()))
        self._place = workplace(alone, client, data, device=device)
        self._first = self._row.clone()

    @property
    def _row(self) -> Tensor:
        return self._place.federation["model"].own  # [1, P]

    def restore(self, kept: Mapping[str, Tensor] | None) -> bool:
        """Go on from what was kept after a round (none: from the first weights); False if it was not among that."""
        if kept is not None and ROW not in kept:
            return False
        self._row.copy_(self._first if kept is None else kept[ROW])
        return True

    def state(self) -> dict[str, Tensor]:
        """What outlives a round."""
        return {ROW: self._row}

    def train(self, round: int, rounds_taken: int) -> bool:
        """Do a round's local work; False if that diverged, and the model is as it was."""
        federation, client = self._place.federation, self._place.client
        federation.round = round
        federation.rounds_taken[client] = rounds_taken
        work = Work(Local().recipe(federation))
        rows = empty_rows(federation, work, 1)
        do_work(self._place.worker, federation, client, work, [(slot, matrix[0]) for slot, matrix in rows.items()])
        return not collect(federation, work.recipe, {}, torch.tensor([client]), Trained(rows)).diverged

    def score(self) -> Score:
        """How good it is on the site's test samples."""
        self._place.worker.seat(self._place.federation, self._place.client)
        return tuned_score(self._place.worker, keep_scores=True).on_processor()
