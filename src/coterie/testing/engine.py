"""What every engine must do: give the results of the serial one, whatever a method asks of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from coterie.client.effort import EffortColumns
from coterie.client.problem import Problem
from coterie.core.federation import Federation
from coterie.engines.base import Engine
from coterie.engines.serial import Serial
from coterie.methods import FedAvg, FedBABU, FedCAC, FedFomo, FedPAC, FedPer, FedTC, Method, PFedCS, PFedMe
from coterie.rounds.evaluate import Evaluation
from coterie.testing.method import CheckFailedError
from coterie.testing.toys import ROUNDS, toy_experiment

# Each asks something else of an engine: shared and personal rows, measurements before and after, several slots, terms
# that look into other slots, step rules, peers, tuning.
ASKING: tuple[Method, ...] = (
    FedAvg(),
    FedPer(),
    FedCAC(),
    FedPAC(),
    PFedCS(),
    FedTC(),
    PFedMe(),
    FedFomo(),
    FedBABU(),
)


def check_engine(make: Callable[[Problem, Method, int], Engine], tolerance: float = 0.0) -> None:
    """Compare an engine with the serial one; an error says for which method and how they differ.

    `make(problem, method, seed)` gives a new engine, which is closed here. Rows may lie `tolerance` apart; 0 asks for
    the same bits, which holds for engines that do the same arithmetic with one thread on the same machine.

    >>> check_engine(Serial)
    """
    for method in ASKING:
        for model, join in (("plain", 1.0), ("norm", 0.5)):
            ours, ours_scores, ours_losses, ours_efforts = _run(make, method, model, join)
            theirs, theirs_scores, theirs_losses, theirs_efforts = _run(Serial, method, model, join)
            where = f"{type(method).__name__}, model '{model}', join {join:g}"
            for slot in theirs.slots:
                _compare(_rows(ours, slot), _rows(theirs, slot), f"{where}: slot '{slot}'", tolerance)
            for name, value in theirs.values.items():
                _compare(ours.values[name].nan_to_num(), value.nan_to_num(), f"{where}: value '{name}'", tolerance)
            if ours_losses.shape != theirs_losses.shape:
                raise CheckFailedError(f"{where}: nothing is told of training samples (Trained.training)")
            if ours_efforts != theirs_efforts:
                raise CheckFailedError(
                    f"{where}: gradients and forward passes are not told as counted (Trained.efforts)"
                )
            _compare(ours_losses, theirs_losses, f"{where}: loss on training samples", tolerance)
            apart = abs(ours_scores.mean - theirs_scores.mean)
            if apart > (0.1 if tolerance else 0.0):
                raise CheckFailedError(f"{where}: accuracies lie {apart:.2g} apart")


def _run(
    make: Callable[[Problem, Method, int], Engine], method: Method, model: str, join: float
) -> tuple[Federation, Evaluation, Tensor, list[EffortColumns]]:
    """The federation after a few rounds, its last scores, and losses on training samples and efforts of all rounds."""
    experiment = toy_experiment(method, model, join=join)
    prepared = experiment.prepare()
    engine = make(prepared.problem(), method, experiment.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            rounds = prepared.rounds(engine)
            reports = [rounds.run_round() for _ in range(ROUNDS)]
            trainings = [report.training for report in reports]
            losses = np.concatenate([np.zeros(0) if training is None else training.loss for training in trainings])
            efforts = [report.efforts for report in reports]
            return rounds.federation, rounds.judge.evaluate_received(), torch.from_numpy(losses).nan_to_num(), efforts
    finally:
        torch.set_num_threads(threads)
        engine.close()


def _rows(federation: Federation, slot: str) -> Tensor:
    return federation[slot].rows(federation.everyone)


def _compare(actual: Tensor, expected: Tensor, what: str, tolerance: float) -> None:
    apart = float((actual.double() - expected.double()).abs().max()) if expected.numel() else 0.0
    if apart > tolerance:
        raise CheckFailedError(f"{what} lies {apart:.2g} from the serial engine's (at most {tolerance:g})")
