"""What the sites of a federation agree on, as it is given. Free of PyTorch: the command line's help is made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.errors import require
from coterie.options import same_setting, setting
from coterie.setup.features import JointTraining
from coterie.setup.run_options import RunOptions

# Results do not depend on these, so that they may change at any time.
CHANGEABLE = ("deadline", "least_sites", "hello", "gather", "patience", "checkpoints", "baseline")
# What 'federation extend' writes about the versions before; nobody gives them, and a first version has none.
LINEAGE = ("version", "former", "numbers")
# What 'federation keys' writes; nobody gives it.
WRITTEN = (*LINEAGE, "server_key")
USUAL = -1.0  # a quarantine that follows from the other terms


@dataclass(frozen=True, kw_only=True)
class FederationTerms(JointTraining):
    """The terms of an agreement, each with its default, its meaning and its check."""

    name: str = setting("", "The federation's name.", "sites", shown="the folder's")
    sites: tuple[str, ...] = setting(
        (), "The sites' names, separated by commas.", "sites", "--sites", "--site", shown="none"
    )
    shape: tuple[int, ...] = setting(
        (), "The shape of one input, such as 3,32,32 (or 12 for 12 columns).", "sites", shown="none"
    )
    classes: int = setting(0, "The number of classes to tell apart.", "sites", shown="as many as names")
    class_names: tuple[str, ...] = setting(
        (), "The classes' names, separated by commas; sites' labels are matched with them.", "sites", shown="none"
    )
    test: float = setting(0.25, "The share of its data that a site sets aside for tests.", "sites")
    validation: float = setting(0.0, "The share of its other data that a site sets aside to judge models.", "sites")
    method: Any = same_setting(RunOptions, "method")
    model: Any = same_setting(RunOptions, "model")
    most_samples: int = setting(1_000_000, "A site that says it has more training samples is refused.", "sites")
    most_weight: float = setting(
        2.5, "A site weighs at most this many times as much as the median site (0: as its samples say).", "defence"
    )
    norm_limit: float = setting(
        10.0,
        "An answer is set aside if its rows are this many times as large as usual in the round (0: never).",
        "defence",
    )
    quarantine: float = setting(
        USUAL,
        "Set answers aside whose norm or loss jumps by so many robust deviations (0: never).",
        "defence",
        shown="6 from three sites on, 0 where privacy is promised",
    )
    halvings: int = setting(
        0,
        "How often all rates may be halved where training diverges at too many sites (0: the server stops then).",
        "defence",
    )
    largest_input: float = setting(
        1000.0, "Data with larger numbers than this are refused at their site: they are not scaled.", "sites"
    )
    scale: str = setting(
        "",
        "Columns of tables, before round 1: standard (mean 0, deviation 1, from what sites tell of theirs).",
        "sites",
        shown="as they are",
    )
    baseline: bool = setting(
        True,
        "Each site also trains a model alone, and sees what taking part gains it: as much training again.",
        "sites",
    )
    checkpoints: int = setting(3, "Rounds that server and sites keep, to go back to.", "defence")
    hello: float = setting(300.0, "Seconds that a site has to read its data and say who it is.", "waiting")
    gather: float = setting(60.0, "Seconds that the first round waits for all sites.", "waiting")
    least_sites: int = setting(
        0,
        "A round needs the answers of at least this many sites.",
        "waiting",
        shown="a majority, at least 2, and enough for share_limit",
    )
    deadline: float = setting(
        600.0, "Seconds after which, at the latest, a round goes on without sites that are late.", "waiting"
    )
    patience: float = setting(3600.0, "Seconds that the server waits for enough sites before it gives up.", "waiting")
    fresh_data: int = setting(
        0, "How often, in rounds, sites may bring other data (0: only with a new agreement).", "sites"
    )
    version: int = setting(1, "Counts the agreement's changes.", "sites")
    former: tuple[str, ...] = setting((), "The fingerprints of the versions before, the oldest first.", "sites")
    server_key: str = setting("", "The public key by which the server signs tasks.", "sites")
    numbers: tuple[int, ...] = setting((), "Each site's number, which it keeps when others leave.", "sites")

    def __post_init__(self) -> None:
        if getattr(self, "quarantine", 0) == USUAL:
            object.__setattr__(
                self, "quarantine", usual_quarantine(len(self.sites), bool(getattr(self, "privacy", "")))
            )
        super().__post_init__()
        require(self.most_samples >= 1, f"most_samples = {self.most_samples}: must be at least 1")
        require(
            self.most_weight == 0 or self.most_weight >= 1,
            f"most_weight = {self.most_weight:g}: must be at least 1, or 0 for no bound",
        )
        require(
            self.norm_limit == 0 or self.norm_limit > 1,
            f"norm_limit = {self.norm_limit:g}: must be greater than 1, or 0 for no bound",
        )
        require(0 <= self.halvings <= 20, f"halvings = {self.halvings}: must lie in 0..20")
        require(
            self.scale in ("", "standard"),
            f"scale = {self.scale}: must be standard, or left out; lowest and highest values would tell of single "
            "samples",
        )
        require(self.largest_input > 0, f"largest_input = {self.largest_input}: must be greater than 0")
        require(self.checkpoints >= 1, f"checkpoints = {self.checkpoints}: must be at least 1")
        require(self.fresh_data >= 0, f"fresh_data = {self.fresh_data}: must be a number of rounds, or 0")
        require(
            self.version == len(self.former) + 1,
            f"version = {self.version}: follows {len(self.former)} others; 'coterie federation extend' counts it",
        )
        require(
            self.version > 1 or not self.numbers,
            f"numbers = {list(self.numbers)}: are given from the second version on",
        )
        for waiting in ("deadline", "hello", "gather", "patience"):
            seconds = getattr(self, waiting)
            require(seconds > 0, f"{waiting} = {seconds}: must be greater than 0 seconds")


def usual_quarantine(sites: int, promises_privacy: bool) -> float:
    """The quarantine of a federation that does not name one; where privacy is promised, nobody tells what it needs.

    >>> [usual_quarantine(*terms) for terms in ((2, False), (3, False), (3, True))]
    [0.0, 6.0, 0.0]
    """
    return 6.0 if sites >= 3 and not promises_privacy else 0.0
