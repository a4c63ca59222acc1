"""New clients: what the method gives a newcomer, before and after it personalises."""

from __future__ import annotations

from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.engines import Work
from coterie.experiment.prepared import Prepared
from coterie.rounds.evaluate import Evaluation


def welcome(prepared: Prepared, trained: Federation) -> Federation:
    """A federation of the held-out clients, as the trained one receives them.

    Shared columns and values are the newest. Personal columns that clients upload are the mean of those of
    the clients that took part; personal columns that never leave a client are the initial ones.
    """
    newcomers = prepared.federation(list(prepared.partition.held_out))
    newcomers.round = trained.round
    veterans = trained.everyone[trained.taken_part]
    declared = prepared.method.uploads(trained)
    for name, slot in newcomers.slots.items():
        source = trained[name]
        slot.shared.copy_(source.shared)
        uploaded = slot.own_columns & trained.layout.columns(declared[name]) if name in declared else Columns()
        if uploaded and len(veterans):
            mean = source.rows(veterans, uploaded).mean(0, keepdim=True)
            slot.write_own(newcomers.everyone, uploaded, mean.expand(newcomers.clients, -1))
    for name, value in trained.values.items():
        # One row is for everybody, unless it is the row of the only client and newcomers have theirs.
        if len(value) == 1 and len(newcomers.values.get(name, value)) == 1:
            newcomers.values[name] = value.clone()
    return newcomers


def onboard(prepared: Prepared, trained: Federation) -> dict[str, Evaluation]:
    """Score the held-out clients as received and after one round of local training of their own."""
    newcomers = welcome(prepared, trained)
    problem = prepared.problem(list(prepared.partition.held_out))
    method = prepared.method
    engine = prepared.engine(problem)
    try:
        received = Evaluation.of(newcomers.task, engine.test(newcomers, newcomers.everyone))
        work = Work(method.recipe(newcomers), test=True)
        personalised = Evaluation.of(newcomers.task, engine.train(newcomers, work, newcomers.everyone).scores)
    finally:
        engine.close()
    return {"received": received, "trained": personalised}
