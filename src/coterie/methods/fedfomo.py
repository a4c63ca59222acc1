"""FedFomo: clients download models of others and take those that help them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Measure, Phase, Recipe, plain_steps
from coterie.client.views import Batches, ClientView, TrainerView
from coterie.core.exchange import Action, Mix, Peers, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import require_pairs
from coterie.errors import require
from coterie.methods.base import Method
from coterie.rng import torch_stream

MOST = 1e9  # the largest gain that counts, either way


def mix_then_train(trainer: TrainerView, batches: Batches) -> None:
    """The step rule: start from the mix of the helpful models, then train as usual."""
    worker, network = trainer.worker, trainer.worker.model("model")
    peers, rows = worker.peers()
    gains = rows.new_zeros(worker.federation.clients)
    if peers:
        own_row = network.row.clone()
        gains[peers] = helpfulness(worker, own_row, rows)
        useful = gains[peers].clamp(min=0)
        network.row.copy_(useful / useful.sum() @ rows if bool(useful.any()) else own_row)
        network.mode(True)
    worker.notes["gains"] = gains
    plain_steps(trainer, batches)


def helpfulness(worker: ClientView, own_row: Tensor, rows: Tensor) -> Tensor:
    """(L(w_k) − L(w_n)) / (‖w_n − w_k‖ + 1e-5) of the models `rows [n, P]` on the client's validation data: `[n]`."""
    network, parameters = worker.model("model"), worker.problem.layout.columns("parameters")
    index = worker.problem.validation[worker.client]
    losses = []
    for row in (own_row, *rows):
        network.row.copy_(row)
        losses.append(worker.test(index).losses.mean())
    distances = parameters.take(rows - own_row).norm(dim=1)
    gains: Tensor = (losses[0] - torch.stack(losses[1:])) / (distances + 1e-5)
    # Losses may overflow: such gains stay comparable, and what cannot be compared does not count.
    return gains.nan_to_num(nan=0.0).clamp(-MOST, MOST)


@dataclass(frozen=True)
class Gains:
    """The measurement: how much each model that the client received would help it, `[K]`; 0 for the others."""

    name: ClassVar[str] = "gains"

    def __call__(self, worker: ClientView) -> Tensor:
        """As the step rule found them."""
        return worker.notes["gains"]


@dataclass(frozen=True)
class FedFomo(Method):
    """Personalized federated learning with first order model optimization (Zhang et al., 2021).

    Client k downloads up to M models of others and judges each on its validation data:
    ω_n = (L(w_k) − L(w_n)) / (‖w_n − w_k‖ + 1e-5), w_k its own last model. It starts from
    Σ_n ω⁺_n w_n / Σ_n ω⁺_n, ω⁺ = max(0, ω), or from w_k if no model helps, and trains as usual. The server keeps
    everybody's model and P (at first zero beside the diagonal), adds the ω that it is told to P_k, and sends k the
    models of the M highest P_kj among the clients that have taken part.

    Equal P are put in random order, and ω counts in P even if negative: models not yet tried come before harmful
    ones, which takes the place of the paper's ε-greedy exploration. Needs validation data; a client that has none
    downloads nothing. The mix happens at the client, so it is not among the recorded ones; P is.

    Tested: the client's own model as its last training left it, at both moments. In the first round there is
    nothing to download. A client that sits out keeps its model, which others may still download.

    >>> FedFomo(models=3)
    FedFomo(models=3)
    """

    models: int = 5

    paper: ClassVar[str] = "Zhang et al., ICLR 2021"
    learns_from_validation: ClassVar[bool] = True
    extra_cost: ClassVar[str] = "downloads M models and tests each on the validation data; server stores every model"
    shared: ClassVar[str] = ""

    def __post_init__(self) -> None:
        require(self.models >= 1, f"models = {self.models}: must be at least 1")

    def check(self, federation: Federation) -> None:
        """Models are judged on validation data."""
        require_pairs("fedfomo", federation.clients, "preferences", each=8)
        sizes = federation.validation_sizes
        require(
            sizes is not None and bool((sizes > 0).any()),
            "validation = 0: fedfomo judges models on validation data; set validation=0.2",
        )

    def init(self, federation: Federation) -> None:
        """Nobody has a preference yet."""
        federation.add_value("preference", torch.eye(federation.clients), per_client=True, held_by="server")

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training from the mix; then, how much the models helped."""
        return (Phase(rule=mix_then_train), Measure(Gains()))

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The whole model."""
        return {"model": "all"}

    def deliver(self, federation: Federation, clients: Tensor) -> Iterable[Mix | Peers]:
        """The models of those that a client prefers."""
        yield Peers(partial(self.preferred, federation))

    def preferred(self, federation: Federation, client: int) -> Sequence[int]:
        """The M others that the client prefers, in that order."""
        sizes = federation.validation_sizes
        if sizes is None or sizes[client] == 0:
            return ()
        stream = torch_stream(federation.seed, "peers", federation.round, int(federation.keys[client]))
        shuffled = torch.argsort(federation.keys)[torch.randperm(federation.clients, generator=stream)]
        candidates = shuffled[federation.taken_part[shuffled] & (shuffled != client)]
        ranking = federation.values["preference"][client, candidates].argsort(descending=True, stable=True)
        return [int(peer) for peer in candidates[ranking[: self.models]]]

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Add up what clients found."""
        preference = uploads.federation.values["preference"]
        gains = uploads.measured["gains"].clamp(-MOST, MOST)  # whatever a client says
        yield Put("preference", preference.index_add(0, uploads.cohort, gains))
