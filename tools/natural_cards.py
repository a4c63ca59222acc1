"""`python -m tools.natural_cards`: write `docs/natural.md`, a card for every natural set; `--check` only looks.

What a card says of leaks is computed here from the arrays that a run would get. The packages that hold the tables have
to be installed; the card of a set whose package is missing is kept as it stands.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import KFold, cross_val_score
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from coterie.data import DATASETS, Dataset
from coterie.data.catalogue import NATURAL
from coterie.data.natural.declared import NaturalSet

PAGE = Path(__file__).parents[1] / "docs" / "natural.md"
TABLE_BEGIN, TABLE_END = "<!-- table: written by tools/natural_cards.py -->", "<!-- end of table -->"
CARDS = "<!-- cards: written by tools/natural_cards.py, to the end of the page -->"

TITLE = (
    "| name | owners | samples | fewest / median / most of an owner | inputs | task | licence |",
    "|---|---|--:|--:|--:|---|---|",
)
FOLDS, LEAVES = 5, 32
DISGUISED = 0.95
"""A single input that explains so much of the target is the target in disguise."""
MANY_VALUES = 0.2
"""Where some column has so many values, as a share of the rows, equal rows are copies; else they recur by chance."""
COPIES = 0.01
TELLING = 0.9


@dataclass(frozen=True)
class Leaks:
    """What was found in a set's arrays.

    `alone` and `together` are shares of the target's variation that the best single input and all inputs explain, by
    trees on samples they have not seen: 0 is the most frequent class or the mean, 1 is everything.
    """

    best: str
    alone: float
    together: float
    constant: tuple[str, ...]
    """Inputs that have one value in all rows of every owner."""
    owner_told: float
    """The share of rows whose owner a tree finds by the inputs."""
    largest_owner: float
    unlike: bool
    """Whether rows are unlike each other by nature (`MANY_VALUES`)."""
    alone_of_kind: float
    """The share of rows that occur once."""
    elsewhere: float
    """The share of rows that another owner has too, input by input, with the same label."""
    again: float
    """The share of rows that the same owner has more than once."""

    @property
    def faults(self) -> tuple[str, ...]:
        """What a set must not have, in words."""
        return tuple(
            words
            for words, found in (
                (f"'{self.best}' is the target in disguise", self.alone >= DISGUISED),
                ("all inputs together give the target away", self.together >= DISGUISED),
                (f"inputs name the owner: {', '.join(self.constant)}", bool(self.constant)),
                ("inputs tell whose a row is", self.owner_told >= TELLING),
                ("owners have rows of each other", self.unlike and self.elsewhere > COPIES),
                ("owners have rows twice", self.unlike and self.again > COPIES),
            )
            if found
        )


def leaks_of(data: Dataset) -> Leaks:
    """Check a set with owners for leaks.

    >>> import torch
    >>> from coterie.data import from_arrays
    >>> x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> y, owners = (x[:, 1] > 0).long(), torch.arange(400) % 8
    >>> leaks_of(from_arrays(x, y, owners=owners, feature_names=["a", "b", "c"])).faults
    ("'b' is the target in disguise", 'all inputs together give the target away')
    """
    assert data.owners is not None
    inputs, labels, owners = np.asarray(data.inputs), data.labels.numpy(), data.owners.numpy()
    alone = [_explained(inputs[:, [column]], labels, data.classes) for column in range(inputs.shape[1])]
    best = int(np.argmax(alone))
    constant = tuple(
        name
        for column, name in enumerate(data.feature_names)
        if all(len(np.unique(inputs[owners == owner, column])) == 1 for owner in np.unique(owners))
    )
    rows = np.column_stack([inputs, labels])
    _, kinds, sizes = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    kinds = kinds.reshape(-1)
    owned = np.column_stack([kinds, owners])
    pairs, places, of_owner = np.unique(owned, axis=0, return_inverse=True, return_counts=True)
    owners_of_kind = np.bincount(pairs[:, 0])
    shares = np.bincount(owners) / len(owners)
    return Leaks(
        data.feature_names[best],
        max(alone[best], 0.0),
        max(_explained(inputs, labels, data.classes), 0.0),
        constant,
        _score(DecisionTreeClassifier(max_leaf_nodes=4 * len(shares), random_state=0), inputs, owners),
        float(shares.max()),
        max(len(np.unique(column)) for column in rows.T) > MANY_VALUES * len(rows),
        float((sizes[kinds] == 1).mean()),
        float((owners_of_kind[kinds] > 1).mean()),
        float((of_owner[places.reshape(-1)] > 1).mean()),
    )


def _explained(inputs: np.ndarray, labels: np.ndarray, classes: int) -> float:
    if not classes:
        return _score(DecisionTreeRegressor(max_leaf_nodes=LEAVES, random_state=0), inputs, labels)
    usual = np.bincount(labels).max() / len(labels)
    found = _score(DecisionTreeClassifier(max_leaf_nodes=LEAVES, random_state=0), inputs, labels)
    return float((found - usual) / (1 - usual))


def _score(tree: BaseEstimator, inputs: np.ndarray, labels: np.ndarray) -> float:
    """R² or accuracy on samples that a tree has not seen, mean over folds."""
    return float(cross_val_score(tree, inputs, labels, cv=KFold(FOLDS, shuffle=True, random_state=0)).mean())


def row_of(declared: NaturalSet, data: Dataset) -> str:
    """A set's row in the table."""
    assert data.owners is not None
    sizes = np.bincount(data.owners.numpy())
    task = f"{data.classes} classes" if data.classes else "regression"
    rows = f"{sizes.min():,} / {int(np.median(sizes)):,} / {sizes.max():,}"
    return (
        f"| `{declared.name}` | {len(sizes)} {declared.owners} | {len(data):,} | {rows} | {data.shape[0]} | {task} | "
        f"{declared.licence} |"
    )


def card_of(declared: NaturalSet, data: Dataset, dropped: Mapping[str, int], found: Leaks) -> str:
    """A set's section: what it is, what was left out and why, what was checked."""
    beside = "; ".join(f"{_listed(columns)} ({why})" for why, columns in declared.left_out.items()) or "none"
    rows = "; ".join(f"{count:,} ({why})" for why, count in dropped.items()) or "none"
    task = "R²" if declared.regression else "gain over the most frequent class, of what is possible"
    usual = "" if declared.regression else f" The most frequent class has {_usual(data):.1%} of the rows."
    faults = "; ".join(found.faults) or "no leak found"
    return "\n".join(
        _wrapped(part)
        for part in (
            f"### {declared.name}",
            "",
            f"{declared.description[0].upper()}{declared.description[1:]}{'' if '?' in declared.description else '.'}"
            f" Table `{declared.table}` of {declared.package.name} {declared.package.version}; {declared.origin}."
            f"{usual}{' ' + declared.note if declared.note else ''}",
            "",
            f"- **Target** `{declared.target}`, **owner** `{declared.owner}`. **Inputs**: "
            f"{_listed((*declared.numbers, *declared.categories))}"
            f"{'; as logarithms: ' + _listed(declared.logged) if declared.logged else ''}.",
            f"- **Columns left out**: {beside}.",
            f"- **Rows left out**: {rows}.",
            f"- **Leaks**: {faults}. The best input alone (`{found.best}`) explains {found.alone:.2f} of the target, "
            f"all together {found.together:.2f} ({task}). By the inputs a tree finds {found.owner_told:.2f} of the "
            f"owners; always naming the largest finds {found.largest_owner:.2f}. {found.alone_of_kind:.2f} of the rows "
            f"are the only ones of their kind; {found.elsewhere:.2f} occur with another owner too, {found.again:.2f} "
            "with the same owner again.",
            f"- **SHA-256**: `{declared.digest}`",
            "",
        )
    )


def _wrapped(part: str) -> str:
    return textwrap.fill(
        part,
        120,
        subsequent_indent="  " if part.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _usual(data: Dataset) -> float:
    return float(np.bincount(data.labels.numpy()).max() / len(data))


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(f"`{column}`" for column in columns)


def names() -> list[str]:
    """Every natural set, in the catalogue's order.

    >>> names()[0]
    'natural/azpro'
    """
    return [f"natural/{name}" for known in NATURAL.values() for name in known]


def told(name: str) -> tuple[str, str]:
    """A set's row and card."""
    declared = DATASETS[name]
    assert isinstance(declared, NaturalSet)
    chosen = declared.chosen(declared.package.table(name, declared.table))
    data = declared.load()
    return row_of(declared, data), card_of(declared, data, chosen.left_out, leaks_of(data))


def shown(text: str, name: str) -> tuple[str, str] | None:
    """What the page says of a set now: its row and card; None if it has none."""
    row = re.search(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
    card = re.search(rf"^### {name}\n.*?(?=^### |\Z)", text, re.MULTILINE | re.DOTALL)
    return (row[0], card[0].rstrip("\n") + "\n") if row and card else None


def with_cards(text: str, cards: Mapping[str, tuple[str, str]]) -> str:
    """The page with these rows and cards."""
    head, rest = text.split(TABLE_BEGIN)
    middle = rest.split(TABLE_END)[1].split(CARDS)[0]
    table = "\n".join((*TITLE, *(row for row, _ in cards.values())))
    bodies = "\n".join(card for _, card in cards.values())
    return f"{head}{TABLE_BEGIN}\n\n{table}\n\n{TABLE_END}{middle}{CARDS}\n\n{bodies}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or say whether it is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.natural_cards", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if the page is out of date")
    check = parser.parse_args(arguments).check
    text = PAGE.read_text(encoding="utf-8")
    cards = {}
    for name in names():
        missing = DATASETS[name].missing()
        card = shown(text, name) if missing else told(name)
        if card is None:
            print(missing, file=sys.stderr)
            return 1
        cards[name] = card
    new = with_cards(text, cards)
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    print("up to date" if new == text else "out of date" if check else "written")
    return int(check and new != text)


if __name__ == "__main__":
    sys.exit(main())
