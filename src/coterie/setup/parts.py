"""The parts of a round that settings name: who takes part, what uploads go through, who is tested."""

from __future__ import annotations

from collections.abc import Iterator

from coterie.core.federation import Federation
from coterie.engines import Engine
from coterie.methods import Method
from coterie.options import made
from coterie.rounds.judge import JUDGES, Judge
from coterie.rounds.sampler import SAMPLERS, Sampler, Share
from coterie.rounds.stages import STAGES, Clients, Stage, coding_of
from coterie.setup.features import JointTraining, asked_for
from coterie.setup.run_options import RunOptions


def sampler_of(settings: JointTraining, clients: Clients) -> Sampler:
    """Who takes part in a round.

    >>> import torch
    >>> sampler_of(RunOptions(join=0.5), Clients(torch.arange(3), ("a", "b", "c")))
    Share(join=0.5)
    """
    sampler = made(SAMPLERS, settings.sampler) if settings.sampler else Share(settings.join)
    for part in asked_for(settings):
        if issubclass(part, Sampler):
            sampler = part.around(sampler, settings, clients)
    return sampler


def stages_of(settings: JointTraining, clients: Clients) -> tuple[Stage, ...]:
    """What uploads go through, in the order of client halves: those of features, then those that are named."""
    asked = (part.of(settings, clients) for part in asked_for(settings) if issubclass(part, Stage))
    stages = (*(stage for stage in asked if stage is not None), *_named(settings))
    coding_of(stages)
    return stages


def judge_of(
    settings: RunOptions, method: Method, federation: Federation, engine: Engine, validated: bool = False
) -> Judge:
    """Who is tested, by the judge that is named; where few are to be, by a sample of so many."""
    every, few = settings.evaluate_every, settings.evaluate_clients
    name = "sample" if 0 < few < federation.clients else settings.judge or "everybody"
    return JUDGES.find(name)(method, federation, engine, every, validated, few)


def things_in(settings: JointTraining) -> Iterator[object]:
    """What the settings name that may be somebody's own; an error if it is not what it is named for."""
    if isinstance(settings, RunOptions) and settings.judge:
        yield JUDGES.find(settings.judge)
    if settings.sampler:
        yield made(SAMPLERS, settings.sampler)
    for part in asked_for(settings):
        yield from part.things(settings)
    yield from _named(settings)


def _named(settings: JointTraining) -> list[Stage]:
    return [made(STAGES, text) for text in settings.stages.split("+")] if settings.stages else []
