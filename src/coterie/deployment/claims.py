"""What sites say of themselves, their data and their work: told here by a site, checked here by its server.

A claim is read, checked, and believed only as far as the agreement goes.

Of data, what is told makes it comparable before the first round. None of it is data. A table whose columns stand in
another order, or are in other units, ruins everybody's model without a word. So every site tells a hash of its columns'
names in their order, its lowest and highest class, and of which order of magnitude its inputs are: powers of ten, in
halves. Shape and class names need no comparison: they stand in the agreement, and data that does not fit is refused at
its site.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.pixels import whole
from coterie.core.task import Task
from coterie.data import Dataset
from coterie.data.scaling import Moments
from coterie.deployment.agreement import Agreement
from coterie.deployment.bounds import LARGEST
from coterie.deployment.messages import Note, RefusedError, one_line

MOST_COLUMNS = 1000  # of which each has its order of magnitude; more are summed up in one
FARTHEST = 38.5  # powers of ten that float32 holds
APART = 1.0  # powers of ten: ten times as large

DataFacts = dict[str, Any]


def facts_of(data: Dataset) -> DataFacts:
    """The facts about a site's data.

    >>> import torch
    >>> columns = ("age", "weight")
    >>> inputs = torch.tensor([[30.0, 0.5], [40.0, 0.7]])
    >>> facts = facts_of(Dataset("own", inputs, torch.tensor([1, 2]), 3, feature_names=columns))
    >>> facts["classes"], facts["magnitudes"]
    ([1, 2], [1.5, 0.0])
    """
    names = json.dumps(data.feature_names).encode()
    lowest, highest = (int(end) for end in data.labels.aminmax())
    return {
        "columns": hashlib.sha256(names).hexdigest() if data.feature_names else "",
        "classes": [lowest, highest],
        "magnitudes": _magnitudes(whole(data.inputs)),
    }


def unsaid(facts: DataFacts, classes: int) -> DataFacts:
    """The same where privacy is promised: the columns' names, which are no data, and nothing that data decide.

    >>> unsaid({"columns": "x", "classes": [1, 2], "magnitudes": [1.5]}, classes=5)
    {'columns': 'x', 'classes': [0, 4], 'magnitudes': []}
    """
    return {"columns": facts["columns"], "classes": [0, classes - 1], "magnitudes": []}


def _magnitudes(inputs: Tensor) -> list[float | None]:
    """The order of magnitude of each column of a table, or of all inputs; none where all are 0."""
    if not inputs.is_floating_point():
        return []
    columns = inputs if inputs.ndim == 2 and inputs.shape[1] <= MOST_COLUMNS else inputs.reshape(-1, 1)
    sizes = columns.double().square().mean(0).sqrt().tolist()
    return [round(2 * math.log10(size)) / 2 if size > 0 else None for size in sizes]


def checked_facts(facts: object, classes: int) -> DataFacts:
    """What a site told, if it can be meant."""
    if not isinstance(facts, dict) or set(facts) != {"columns", "classes", "magnitudes"}:
        raise RefusedError("it does not tell what is compared of its data")
    ends, sizes = facts["classes"], facts["magnitudes"]
    ranged = isinstance(ends, list) and len(ends) == 2 and all(type(end) is int for end in ends)
    if not ranged or not 0 <= ends[0] <= ends[1] < classes:
        raise RefusedError("its lowest and highest class are none")
    known = isinstance(sizes, list) and len(sizes) <= MOST_COLUMNS and all(map(_is_magnitude, sizes))
    if not known or not isinstance(facts["columns"], str) or len(facts["columns"]) > 64:
        raise RefusedError("what it tells of its columns is malformed")
    return dict(facts)


def _is_magnitude(size: object) -> bool:
    return size is None or (type(size) in (int, float) and abs(float(str(size))) <= FARTHEST)


def other_columns(facts: Mapping[str, DataFacts]) -> str:
    """Which sites' columns are not the same, in the same order; nothing if all are.

    >>> table = {"classes": [0, 1], "magnitudes": [0.0]}
    >>> print(other_columns({"a": {"columns": "x", **table}, "b": {"columns": "y", **table}}))
    the sites' tables have other columns, or the same in another order: a / b
    """
    groups: dict[str, list[str]] = {}
    for site, told in facts.items():
        if told["columns"]:
            groups.setdefault(told["columns"], []).append(site)
    if len(groups) < 2:
        return ""
    spoken = " / ".join(", ".join(sites) for sites in groups.values())
    return f"the sites' tables have other columns, or the same in another order: {spoken}"


def unlike(facts: Mapping[str, DataFacts]) -> list[str]:
    """What is odd about sites' data beside that of the others, a line each: other units perhaps, or other classes.

    >>> told = {"columns": "", "classes": [0, 2]}
    >>> three = {site: {**told, "magnitudes": [size]} for site, size in (("a", 0.0), ("b", 3.0), ("c", 0.5))}
    >>> unlike(three)
    ['input 0 of b is 10^2.8 times as large as at the other sites: are its units the same?']
    """
    oddities = []
    for site, told in facts.items():
        others = [facts[other] for other in facts if other != site]
        if len(others) < 2:
            continue
        for column, size in enumerate(told["magnitudes"]):
            usual = [other["magnitudes"][column] for other in others if column < len(other["magnitudes"])]
            known = [one for one in usual if one is not None]
            if size is None or not known:
                continue
            if all(abs(size - one) >= APART for one in known):
                away = size - median(known)
                oddities.append(
                    f"input {column} of {site} is 10^{away:.2g} times as large as at the other sites: are its units "
                    "the same?"
                )
        low, high = told["classes"]
        if all(high < other["classes"][0] or low > other["classes"][1] for other in others):
            oddities.append(
                f"{site} has classes {low}..{high}, of which no other site has any: are they numbered alike?"
            )
    return oddities


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


FEWEST_SAMPLES = 10
"""Of fewer training samples a site tells no means: they would be about persons. It is scaled like the others."""


def told_moments(inputs: Tensor) -> Note | None:
    """What a site tells of its training samples `[n, columns]` where a scale is agreed on.

    >>> told_moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]).repeat(5, 1))
    {'means': [2.0, 5.0], 'deviations': [1.0, 0.0]}
    >>> told_moments(torch.zeros(9, 2)) is None
    True
    """
    if len(inputs) < FEWEST_SAMPLES:
        return None
    moments = Moments.of(inputs)
    return {"means": moments.means.tolist(), "deviations": moments.deviations.tolist()}


def said_moments(name: str, hello: Note, agreement: Agreement, samples: int) -> Moments | None:
    """What it tells of its columns; none where it has too few samples."""
    told, columns = hello.get("moments"), agreement.shape[0]
    if told is None and samples < FEWEST_SAMPLES:
        return None
    values = [told.get(part) for part in ("means", "deviations")] if isinstance(told, dict) else []
    lists = [part for part in values if isinstance(part, list) and len(part) == columns and all(map(_is_bounded, part))]
    if len(lists) != 2:
        raise RefusedError(f"site {name} does not say what the means and deviations of its columns are")
    means, deviations = (np.array(part, np.float64) for part in lists)
    if (deviations < 0).any():
        raise RefusedError(f"site {name} says that a deviation is negative")
    return Moments(samples, means, np.square(deviations) * samples)


def _is_bounded(number: object) -> bool:
    return type(number) in (int, float) and abs(float(str(number))) <= LARGEST


def said_snapshots(name: str, hello: Note) -> list[int]:
    """The rounds that are on its disk."""
    kept = hello.get("snapshots")
    if not isinstance(kept, list) or not all(type(round) is int for round in kept):
        raise RefusedError(f"site {name} does not say which rounds are on its disk")
    return kept


def fault_of(error: Exception) -> str:
    """Why a message is refused, in a line: what was wrong with it, or which error it made."""
    return one_line(error) if isinstance(error, RefusedError) else f"it cannot be read ({type(error).__name__})"


def says_why(note: Note) -> bool:
    """Whether an answer says why it carries no tensors: training diverged, or what the site kept is lost."""
    return note.get("diverged") is True or note.get("lost") is True


def check_answer(note: Note, round: int, task: Task) -> None:
    """Refuse an answer whose note is malformed or of another round."""
    if note.get("round") != round or type(note.get("diverged")) is not bool:
        raise RefusedError(f"it answers round {note.get('round')}, not {round}")
    epsilon = note.get("epsilon")
    if epsilon is not None and (type(epsilon) is not float or not 0 <= epsilon < math.inf):
        raise RefusedError("its account of privacy is malformed")
    for moment in ("received", "trained"):
        score = note.get(moment)
        if score is not None and not task.accepts(score):
            raise RefusedError(f"its result '{moment}' is malformed")
