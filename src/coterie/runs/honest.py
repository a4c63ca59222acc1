"""What a run with hostile clients did to the others: the numbers of the honest ones alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from coterie.runs.history import History, by_client, plain_number
from coterie.partition import Partition
from coterie.rounds.evaluate import MOMENTS, Evaluation, mean_over_clients, over_rounds


def hostile_rows(config: Mapping[str, Any], partition: Partition, participants: Sequence[int]) -> list[int]:
    """Which of the participants are hostile in the run of a configuration, by their places among them."""
    if not config.get("attack"):
        return []
    from coterie.scenarios.hostile import Hostile

    keys = torch.from_numpy(partition.keys)[list(participants)]
    hostile = Hostile.drawn(str(config["attack"]), keys, int(config["seed"]))
    return [] if hostile is None else hostile.clients.tolist()


def honest_numbers(history: History, names: Sequence[str], hostile: Sequence[int]) -> dict[str, Any]:
    """Who is hostile, and by moment the honest clients' mean over rounds and their worst decile in the last one."""
    if not hostile:
        return {}
    honest = [row for row in range(len(names)) if row not in set(hostile)]
    scale, sizes = history.task.primary.scale, np.array(history.test_sizes)[honest]
    found: dict[str, Any] = {}
    for moment in MOMENTS:
        tests = [by_client(line, scale.name, len(names))[honest] for line in history.evaluations(moment)]
        if tests:
            means = over_rounds(scale, [mean_over_clients(values) for values in tests])
            worst = Evaluation(scale, {scale.name: tests[-1]}, sizes).worst_decile
            found[moment] = {
                "mean": {at: plain_number(value) for at, value in means.items()},
                "worst_decile": plain_number(worst),
            }
    return {"hostile": [names[row] for row in hostile], "honest": found}
