"""How long a run will take, roughly: enough to begin with the longest, and to know what is worth a process."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from coterie.client.recipe import Recipe, phases
from coterie.setup.prepared import Prepared

# Of an ordinary core, to the nearest round number: small models are bound by the first, large ones by the second.
SECONDS_A_LAYER_AND_STEP = 2e-4
MULTIPLICATIONS_A_SECOND = 1e10
# A training step passes forward once and backward with twice the work.
PASSES = 3
# The layers of stacked clients are batched products, which take longer to get going.
STACKED_LAYER = 4


def expected_seconds(prepared: Prepared) -> float:
    """The seconds that the local training of a whole run takes on one core, as a guess from sizes alone.

    >>> from coterie.runs.experiment import Experiment
    >>> short, long = (expected_seconds(Experiment(rounds=rounds).prepare()) for rounds in (2, 20))
    >>> round(long / short)
    10
    """
    experiment, federation = prepared.experiment, prepared.federation()
    federation.round = 1
    recipe = prepared.method.recipe(federation)
    epochs = epochs_of(recipe, experiment.epochs)
    sizes = [int(prepared.partition.sizes[client]) for client in prepared.participants]
    steps = [-(-size // experiment.batch) for size in sizes]
    layers, multiplications = _cost_of_model(prepared.problem_base.module, prepared.problem_base.inputs[:1])
    dispatch = STACKED_LAYER * max(steps) if experiment.engine == "stacked" else experiment.join * sum(steps)
    arithmetic = experiment.join * sum(sizes) * PASSES * multiplications / MULTIPLICATIONS_A_SECOND
    return experiment.rounds * epochs * (SECONDS_A_LAYER_AND_STEP * layers * dispatch + arithmetic)


def epochs_of(recipe: Recipe, usual: int) -> int:
    """The epochs of all phases of a recipe; those that do not say have the usual ones."""
    return sum(usual if phase.epochs is None else phase.epochs for phase in phases(recipe))


def _cost_of_model(module: nn.Module, sample: Tensor) -> tuple[int, int]:
    """How many layers have weights, and the multiplications of one `sample [1, ...]` on its way through them."""
    counts: list[int] = []

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        weights = sum(weight.numel() for weight in layer.parameters(recurse=False))
        # Each output is a sum over the weights of its channel.
        channels = output.shape[1] if output.ndim > 1 else 1
        counts.append(weights // channels * output.numel())

    copied = copy.deepcopy(module).eval()
    for layer in copied.modules():
        if next(layer.parameters(recurse=False), None) is not None:
            layer.register_forward_hook(count)
    with torch.no_grad():
        copied(sample)
    return len(counts), sum(counts)
