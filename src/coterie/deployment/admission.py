"""What a site says of itself when it connects: read, checked, and believed only as far as the agreement goes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.deployment.agreement import Agreement
from coterie.deployment.facts import DataFacts, checked_facts
from coterie.deployment.packed import Note, RefusedError, one_line


@dataclass
class Standing:
    """What the server knows of a site."""

    samples: int = 0
    validation: int = 0
    test: int = 0
    period: str = ""  # in which it said so
    facts: DataFacts = field(default_factory=dict)


def said_name(hello: Note, agreement: Agreement, registered: str, first_weights: str) -> str:
    """Who it is, if its key is that site's, and both have the same agreement and begin with the same weights."""
    name = hello.get("site")
    if not isinstance(name, str) or name not in agreement.sites:
        raise RefusedError(f"'{one_line(name)}' is not among the federation's sites")
    if registered and registered != name:
        raise RefusedError(f"the node with the key of {registered} says it is {name}")
    if hello.get("fingerprint") in agreement.former:
        accepted = agreement.former.index(str(hello["fingerprint"])) + 1
        raise RefusedError(
            f"site {name} has accepted version {accepted} of the agreement and not yet version {agreement.version} "
            "('coterie federation join … --changed' there)"
        )
    if hello.get("fingerprint") != agreement.fingerprint:
        raise RefusedError(f"site {name} has another agreement; give it the server's federation.toml")
    if hello.get("first_weights") != first_weights:
        raise RefusedError(
            f"site {name} begins with other weights (its PyTorch is {one_line(hello.get('torch'))}, here it is "
            f"{torch.__version__}); install the same release"
        )
    return name


def said_standing(name: str, hello: Note, agreement: Agreement, period: str) -> Standing:
    """What it has, in a period."""
    sizes = [hello.get(key) for key in ("samples", "validation", "test")]
    if not all(type(size) is int and 0 <= size < 1 << 40 for size in sizes) or not sizes[0]:
        raise RefusedError(f"site {name} says it has {sizes} samples")
    samples, validation, test = (int(size or 0) for size in sizes)
    return Standing(samples, validation, test, period, checked_facts(hello.get("facts"), agreement.classes))


def said_counts(name: str, hello: Note, agreement: Agreement, samples: int) -> Tensor:
    """How many samples of each class it has."""
    counts = hello.get("class_counts")
    whole = isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts)
    if not whole or len(counts or ()) != agreement.classes or sum(counts or ()) != samples:
        raise RefusedError(f"site {name} does not say how many samples of each class it has")
    return torch.tensor(counts)


def said_snapshots(name: str, hello: Note) -> list[int]:
    """The rounds that are on its disk."""
    kept = hello.get("snapshots")
    if not isinstance(kept, list) or not all(type(round) is int for round in kept):
        raise RefusedError(f"site {name} does not say which rounds are on its disk")
    return kept
