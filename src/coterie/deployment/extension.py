"""A new version of an agreement: more rounds, other sites, other terms. Every site accepts it, or leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.deployment.agreement import Agreement
from coterie.deployment.terms import LINEAGE
from coterie.errors import CoterieError, require, unknown

# What models, splits and messages are made of: with another one it is another federation.
FIXED = (
    "name",
    "shape",
    "classes",
    "class_names",
    "test",
    "validation",
    "method",
    "set",
    "model",
    "classifier",
    "stats",
    "norm",
    "seed",
)
OWN_OPTIONS = {"sites": "--add and --remove", "rounds": "--rounds"}


def extended(
    agreement: Agreement,
    *,
    rounds: int | None = None,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    terms: Mapping[str, Any] | None = None,
) -> Agreement:
    """The next version of an agreement.

    Sites keep their numbers, and with these their splits and random streams, whoever else comes or goes.

    >>> two = Agreement(name="trial", sites=("a", "b"), shape=(4,), classes=2, rounds=3)
    >>> three = extended(two, rounds=5, add=["c"], remove=["a"])
    >>> three.version, three.sites, three.keys, three.former == (two.fingerprint,)
    (2, ('b', 'c'), (1, 2), True)
    """
    for site in remove:
        if site not in agreement.sites:
            raise unknown(f"site of {agreement.name}", site, agreement.sites)
    for site in add:
        require(site not in agreement.sites, f"add = {site}: is one of the sites already")
    given = dict(terms or {})
    for name in given:
        require(name not in OWN_OPTIONS, f"term = {name}: has an option of its own, {OWN_OPTIONS.get(name)}")
        if name in FIXED or name in LINEAGE:
            raise CoterieError(f"term = {name}: cannot change in the course of a federation; begin another one")
    stay = [place for place, site in enumerate(agreement.sites) if site not in remove]
    first = max(agreement.keys) + 1
    changed: dict[str, Any] = {
        "sites": [*(agreement.sites[place] for place in stay), *add],
        "numbers": [*(agreement.keys[place] for place in stay), *range(first, first + len(add))],
        "rounds": agreement.rounds if rounds is None else rounds,
        "version": agreement.version + 1,
        "former": [*agreement.former, agreement.fingerprint],
        **given,
    }
    plain = agreement.plain() | changed
    if "least_sites" not in given and (add or remove):
        # A majority of those who were there becomes one of those who are; a number that was chosen stays.
        usual = replace(agreement, least_sites=0).least_sites
        plain["least_sites"] = (
            0 if agreement.least_sites == usual else min(agreement.least_sites, len(changed["sites"]))
        )
    after = type(agreement).parse(plain)
    require(bool(differences(agreement, after)), "nothing changes; name --rounds, --add, --remove or --term")
    return after


def differences(before: Agreement, after: Agreement) -> list[str]:
    """What a new version changes, a line each.

    >>> two = Agreement(name="trial", sites=("a", "b"), shape=(4,), classes=2, rounds=3)
    >>> differences(two, extended(two, rounds=5, add=["c"]))
    ['c is a new site', 'rounds: 3 becomes 5']
    """
    old, new = before.plain(), after.plain()
    found = [f"{site} is a new site" for site in after.sites if site not in before.sites]
    found += [f"{site} is no site any more" for site in before.sites if site not in after.sites]
    terms = [name for name in new.keys() | old.keys() if name not in (*LINEAGE, "sites")]
    return found + [
        f"{name}: {old.get(name)} becomes {new.get(name)}" for name in sorted(terms) if old.get(name) != new.get(name)
    ]


def accepted_terms(agreement: Agreement, path: str) -> Agreement:
    """At a site: the agreement of an app, with the terms of the site's own copy that may change, if there is one.

    That copy may be of the next version, which the site has accepted and the server not yet begun: the app's terms hold
    then. They are those of an app that the site agreed to, or its relay would not have let it in.
    """
    own = Agreement.read(Path(path)) if path else agreement
    return own if own.fingerprint == agreement.fingerprint else agreement
