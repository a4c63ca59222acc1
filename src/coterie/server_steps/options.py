"""How the server moves what all share towards its mean: settings of a run and of a federation. Free of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from coterie.errors import require, unknown
from coterie.options import setting
from coterie.typed import TypedOptions, shown

SERVERS = ("sgd", "adagrad", "adam", "yogi")


@dataclass(frozen=True, kw_only=True)
class ServerSteps(metaclass=TypedOptions):
    """The server's optimiser and its numbers; without one, shared rows become the mean itself.

    >>> ServerSteps(server="yogi").server_rate, ServerSteps(server="adagrad").server_momentum
    (0.1, 0.0)
    >>> ServerSteps(server_lr=0.5)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: server_lr = 0.5: is for a server's optimiser; name one of them (server = sgd, …)
    """

    server: str = setting(
        "",
        "The server's optimiser for what all share: sgd (FedAvgM), adagrad, adam or yogi.",
        "training",
        shown="the mean itself",
    )
    server_lr: float | None = setting(None, "Its rate.", "training", shown="1 of sgd, else 0.1")
    server_beta1: float | None = setting(
        None, "The share of its momentum that it keeps.", "training", shown="0 of adagrad, else 0.9"
    )
    server_beta2: float = setting(0.99, "The same of the squares of adam and yogi.", "training")
    server_tau: float = setting(1e-3, "What adagrad, adam and yogi add to the root of these.", "training")

    def __post_init__(self) -> None:
        if not self.server:
            for item in fields(ServerSteps):
                value = getattr(self, item.name)
                require(
                    value == item.default,
                    f"{item.name} = {shown(value)}: is for a server's optimiser; name one of them (server = sgd, …)",
                )
            return
        if self.server not in SERVERS:
            raise unknown("server", self.server, SERVERS)
        require(self.server_rate > 0, f"server_lr = {self.server_rate:g}: must be greater than 0")
        for option, value in (("server_beta1", self.server_momentum), ("server_beta2", self.server_beta2)):
            require(0 <= value < 1, f"{option} = {value:g}: must lie in [0, 1)")
        require(self.server_tau > 0, f"server_tau = {self.server_tau:g}: must be greater than 0")
        for option, takers in (("server_beta2", SERVERS[2:]), ("server_tau", SERVERS[1:])):
            value, usual = getattr(self, option), getattr(ServerSteps, option)
            require(
                value == usual or self.server in takers,
                f"{option} = {value:g}: server '{self.server}' takes none ({', '.join(takers)} do)",
            )
        require(
            not getattr(self, "reduces", False),
            f"server = '{self.server}': a step depends on all rounds before, so that nobody's share of it can be "
            "bounded; leave it out, or defence and share_limit",
        )

    def asked_for(self) -> Iterator[str]:
        """The stage that is asked for, by its place."""
        if self.server:
            yield "coterie.server_steps.stage:ServerOptimiser"

    @property
    def server_rate(self) -> float:
        """η_s."""
        usual = 1.0 if self.server == "sgd" else 0.1
        return usual if self.server_lr is None else self.server_lr

    @property
    def server_momentum(self) -> float:
        """β₁."""
        usual = 0.0 if self.server == "adagrad" else 0.9
        return usual if self.server_beta1 is None else self.server_beta1
