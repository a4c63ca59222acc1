"""New clients: what the method gives a newcomer, before and after it personalises."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import Tensor

from coterie.client.scores import TUNING_DIVERGED, Score
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.engines import Work
from coterie.rounds.evaluate import Evaluation
from coterie.setup.prepared import Prepared

log = logging.getLogger("coterie")


def welcome(prepared: Prepared, trained: Federation) -> Federation:
    """A federation of the held-out clients, as the trained one receives them.

    Shared columns and values are the newest. Personal columns that clients upload are the mean of those of
    the clients that took part; personal columns that never leave a client are the initial ones.
    """
    newcomers = prepared.federation(list(prepared.partition.held_out))
    newcomers.round = trained.round
    usual = usual_uploads(trained, prepared.method.uploads(trained))
    for name, slot in newcomers.slots.items():
        slot.shared.copy_(trained[name].shared)
        if name in usual:
            columns, mean = usual[name]
            slot.write_own(newcomers.everyone, columns, mean.expand(newcomers.clients, -1))
    for name, value in trained.values.items():
        # What is about all clients, such as their shares of the data, newcomers have of their own.
        if not trained.kinds[name].per_client and not trained.kinds[name].told:
            newcomers.values[name] = value.clone()
    return newcomers


def usual_uploads(trained: Federation, uploads: Mapping[str, str]) -> dict[str, tuple[Columns, Tensor]]:
    """What clients that took part upload of their personal columns on average: the columns and `[1, |columns|]`."""
    veterans, means = trained.everyone[trained.taken_part], {}
    for name, group in uploads.items():
        columns = trained[name].own_columns & trained.layout.columns(group)
        if columns and len(veterans):
            means[name] = (columns, trained[name].rows(veterans, columns).mean(0, keepdim=True))
    return means


def onboard(prepared: Prepared, trained: Federation) -> dict[str, Evaluation]:
    """Score the held-out clients as received and after one round of local training of their own."""
    newcomers = welcome(prepared, trained)
    problem = prepared.problem(list(prepared.partition.held_out))
    method = prepared.method
    engine = prepared.engine(problem)
    try:
        received = engine.test(newcomers, newcomers.everyone)
        work = Work(method.recipe(newcomers), test=True)
        personalised = engine.train(newcomers, work, newcomers.everyone).scores
    finally:
        engine.close()
    _warn_of_untuned(prepared, received, personalised)
    moments = {"received": received, "trained": personalised}
    return {moment: Evaluation.of(newcomers.task, scores) for moment, scores in moments.items()}


def _warn_of_untuned(prepared: Prepared, *moments: list[Score]) -> None:
    for client, *scores in zip(prepared.partition.held_out, *moments, strict=True):
        if any(score.untuned for score in scores):
            log.warning("newcomer %s: %s", prepared.partition.names[client], TUNING_DIVERGED)
