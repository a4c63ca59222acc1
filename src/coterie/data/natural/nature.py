"""Sounds and animals: speakers of vowels, and plots in which rodents were caught."""

from __future__ import annotations

from coterie.data.natural.declared import NaturalSet, RowsWith
from coterie.data.natural.packages import KEEL

VOWEL = NaturalSet(
    name="natural/vowel",
    description="vowels by British speakers, each said six times: which of eleven?",
    classes=11,
    table="vowel",
    package=KEEL,
    licence="none stated",
    origin="Deterding (Cambridge, 1989) and Robinson (Cambridge, 1989), as KEEL distributes it",
    owner="c1",
    owners="speakers",
    target="c13",
    numbers=tuple(f"c{place}" for place in range(3, 13)),
    left_out={"the same in all rows of a speaker: whether for testing, and sex": ("c0", "c2")},
    digest="cd574fad05e3d8bf0b05410cc72a0a9a0998654e6a42b612a762a9c12ecb7d74",
)
PORTAL = NaturalSet(
    name="natural/portal",
    description="rodents caught in plots of a desert in Arizona over 25 years: which of twelve species?",
    classes=12,
    table="ratdat/complete",
    licence="CC0",
    origin="Portal Project Teaching Database, doi:10.6084/m9.figshare.1314459",
    owner="plot_id",
    owners="plots",
    target="species_id",
    numbers=("hindfoot_length", "weight", "month", "year"),
    categories=("sex",),
    keep=(
        RowsWith(
            "species_id",
            ("DM", "PP", "DO", "PB", "RM", "DS", "OT", "PF", "PE", "NL", "OL", "PM"),
            "not of one of the twelve species caught most often",
        ),
    ),
    left_out={
        "the number of the record": ("record_id",),
        "the day of the month": ("day",),
        "the target under other names": ("genus", "species", "taxa"),
        "the same in all rows of a plot": ("plot_type",),
    },
    note="An animal that was caught twice is two rows: the table does not number animals.",
    digest="5ff803185246ee1be58860177d9194fb5b5522f87b8c5891836e6f6cc7799873",
)
