"""What runs and federations settle together, feature by feature. Free of PyTorch: the help is made from it.

A feature stands in a folder of its own, and brings its settings and the parts of a round that they ask for. It is named
here and nowhere else: without its line, and without its folder, everything else runs as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import new_class
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.training import StatsPolicy, Training
from coterie.errors import require
from coterie.options import setting
from coterie.registry import named

NormPolicy = Literal["group"]

# The settings of each feature, in the order in which its stages stand on an upload's way.
FEATURES = {
    "topology": "coterie.topology.options:Neighbours",
    "server_steps": "coterie.server_steps.options:ServerSteps",
    "robust": "coterie.robust.options:Defence",
    "privacy": "coterie.privacy.promise:Privacy",
}
# Those of simulations alone.
SIMULATED = {
    "scenarios": "coterie.scenarios.options:Scenario",
}

# Where the things stand that settings of features name, loaded where one is named.
LISTS = {
    "defence": "coterie.robust.reducing:DEFENCES",
}


def settings_of(features: dict[str, str]) -> tuple[type[Any], ...]:
    """The settings of some features: dataclasses that a run's settings extend."""
    return tuple(named(text) for text in features.values())


def usual_settings() -> dict[str, Any]:
    """What the features' settings are where nobody asks for anything."""
    return {item.name: item.default for feature in settings_of(FEATURES) for item in fields(feature)}


def asked_for(settings: object) -> Iterator[Any]:
    """The parts of a round that settings ask for, feature by feature: classes of stages and samplers."""
    for feature in (*settings_of(FEATURES), *settings_of(SIMULATED)):
        if isinstance(settings, feature):
            yield from map(named, feature.asked_for(settings))


if TYPE_CHECKING:
    from coterie.privacy.promise import Privacy
    from coterie.robust.options import Defence
    from coterie.scenarios.options import Scenario
    from coterie.server_steps.options import ServerSteps
    from coterie.topology.options import Neighbours

    class JointFeatures(Privacy, Defence, ServerSteps, Neighbours, Training):
        """The settings of all features, and of local training."""

    class SimulatedFeatures(Scenario):
        """Those of simulations alone."""

else:
    JointFeatures = new_class("JointFeatures", (*reversed(settings_of(FEATURES)), Training))
    SimulatedFeatures = new_class("SimulatedFeatures", settings_of(SIMULATED))


@dataclass(frozen=True, kw_only=True)
class JointTraining(JointFeatures):
    """What a run of simulated clients and a federation of sites both settle besides local training."""

    classifier: str = setting(
        "last",
        "What counts as the classifier: 'last', 'all' fully connected layers, or the path of a module.",
        "data",
    )
    stats: StatsPolicy | None = setting(
        None, "Batch-norm statistics: 'mean' (averaged) or 'local' (they stay).", "data", shown="the method's"
    )
    norm: NormPolicy | None = setting(
        None, "'group': group norm takes the place of every batch-norm layer.", "data", shown="the model's"
    )
    rounds: int = setting(20, "Rounds of training and mixing.", "training")
    join: float = setting(1.0, "The share of clients that take part in a round.", "training")
    sampler: str = setting(
        "", "Who takes part in a round: count:10, or one of your own (see docs/plugins.md).", "training", shown="join"
    )
    stages: str = setting(
        "",
        "What uploads go through besides: stages of your own (see docs/plugins.md), joined by +.",
        "training",
        shown="nothing",
    )
    seed: int = setting(0, "The seed of everything random.", "running")

    def __post_init__(self) -> None:
        Training.__post_init__(self)
        for feature in settings_of(FEATURES):
            feature.__post_init__(self)
        require(self.rounds >= 1, f"rounds = {self.rounds}: must be at least 1")
        require(0 < self.join <= 1, f"join = {self.join}: must be greater than 0 and at most 1")
        require(
            not self.sampler or self.join == 1,
            f"join = {self.join}: sampler = '{self.sampler}' says who takes part; leave one of the two out",
        )
        require(self.seed >= 0, f"seed = {self.seed}: must not be negative")
