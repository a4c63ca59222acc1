"""`python tools/hostile_table.py`: what attacks do to honest clients, and what defences save of it.

Every method × attack × defence is a run of 20 clients of 200 Fashion-MNIST samples, of whom 20 % belong to all classes
evenly and the others to three dominant ones; `mlp`, 30 rounds, the stacked engine. What the honest clients score with
the models that they receive after the last round is kept in `results/hostile-clients.json`, cell by cell: a table that
was broken off goes on where it stopped. `results/hostile-clients.md` is made of it. With `--minutes` it stops in time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.progress import track

import coterie as ct
from coterie.data import load
from coterie.errors import CoterieError
from coterie.files import write_whole
from coterie.methods import METHODS as REGISTRY
from coterie.partition import Dominant, Rule
from coterie.runs.protocols import OF_PAPERS
from coterie.scenarios.hostile import Hostile

REPOSITORY = Path(__file__).resolve().parents[1]
METHODS = ("fedavg", "fedper", "pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc")
ATTACKS = (
    "",
    "sign-flip:0.2",
    "scaling:0.2",
    "copycat:0.2",
    "label-flip:0.2",
    "noise:0.2",
    "free-rider:0.2",
    "nan:0.2",
)
DEFENCES = ("", "quarantine:6", "multi-krum:4", "krum:4", "clip:1", "median", "trimmed-mean:0.2", "influence:0.1")
SETTINGS: dict[str, Any] = {
    "model": "mlp",
    "rounds": 30,
    "epochs": 2,
    "batch": 32,
    "lr": 0.05,
    "engine": "stacked",
    "evaluate_every": 30,
    "record_every": 0,
    "threads": 1,
    "seed": 0,
}
CLIENTS, SAMPLES = 20, 200
HOSTILE = "copycat:0.2"  # whose clients are left out of the numbers where nobody is hostile: the same for all attacks


def cells() -> Iterator[tuple[str, str, str]]:
    """Method, attack and defence of every cell: first what attacks do, then what defences cost and save of each."""
    for attack in ATTACKS:
        yield from ((method, attack, "") for method in METHODS)
    for attack in ATTACKS:
        for defence in DEFENCES[1:]:
            yield from ((method, attack, defence) for method in METHODS)


def result_of(method: str, attack: str, defence: str, data: ct.Dataset) -> dict[str, Any]:
    """The honest clients' numbers in one cell, or why it is refused; and how much processor time it took."""
    begin = time.process_time()
    found = _numbers(method, attack, defence, data)
    return {**found, "seconds": round(time.process_time() - begin, 2)}


def _numbers(method: str, attack: str, defence: str, data: ct.Dataset) -> dict[str, Any]:
    rule = Dominant(clients=CLIENTS, samples=SAMPLES)
    try:
        made = REGISTRY[method](**OF_PAPERS.get(method, {}))
        found = ct.Experiment(made, data, rule, attack=attack, **_defended(defence), **SETTINGS).run()
    except CoterieError as error:
        return {"refused": str(error)}
    hostile = set(found.summary.get("hostile") or _hostile(rule, data))
    scores = sorted(one["received"] for one in found.summary["clients"] if one["client"] not in hostile)
    worst = scores[: max(1, len(scores) // 10)]
    return {"mean": sum(scores) / len(scores), "worst_decile": sum(worst) / len(worst), "honest": len(scores)}


def _defended(defence: str) -> dict[str, Any]:
    """The settings of a defence: a way to mix, or quarantine, as federations have it by default."""
    kind, _, threshold = defence.partition(":")
    return {"quarantine": float(threshold)} if kind == "quarantine" else {"defence": defence}


def _hostile(rule: Rule, data: ct.Dataset) -> list[str]:
    prepared = ct.Experiment("fedavg", data, rule, attack=HOSTILE, **SETTINGS).prepare()
    (hostile,) = (stage for stage in prepared.stages if isinstance(stage, Hostile))
    return [prepared.partition.names[client] for client in hostile.clients.tolist()]


def page(found: dict[str, Any]) -> str:
    """The table as Markdown: a part per defence, a line per attack, mean and worst tenth in percent."""
    lines = [
        "# What attacks do, and what defences save",
        "",
        "Accuracy in % of the 16 honest clients of 20, mean / worst tenth, with the models that they receive after",
        "round 30. Fashion-MNIST, 200 samples a client (a fifth of them of all classes, the others of three dominant",
        "ones), `mlp`, 2 epochs a round, batches of 32, rate 0.05, one seed. Four clients are hostile; in the line",
        "*nobody* the same four are left out of the numbers. *refused*: the defence is not defined for the method's",
        "mixes. Empty cells have not been run; the command runs what is missing. Options are the defaults, but phases",
        "that papers give a length or a rate of their own have that: PFedCS tunes teachers for one epoch, FedTC's own",
        "classifiers learn at 1e-4. `quarantine:6` is what federations of three sites or more have by default; all",
        "clients here are equally large, so that sites' other bound (`most_weight`) would change nothing.",
        *_timed(found),
        "",
        "```console no-run",
        "$ COTERIE_DATA=… python tools/hostile_table.py",
        "```",
    ]
    for defence in DEFENCES:
        rows = [attack for attack in ATTACKS if any(_key(m, attack, defence) in found for m in METHODS)]
        if not rows:
            continue
        lines += ["", f"## {'No defence' if not defence else f'`{defence}`'}", ""]
        lines += ["| attack | " + " | ".join(METHODS) + " |", "|---|" + "---:|" * len(METHODS)]
        for attack in rows:
            cells = [_spoken(found.get(_key(method, attack, defence))) for method in METHODS]
            lines.append(f"| {f'`{attack}`' if attack else 'nobody'} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _timed(found: dict[str, Any]) -> list[str]:
    """What the cells took, in a sentence."""
    seconds = [cell["seconds"] for cell in found.values() if "seconds" in cell]
    if not seconds:
        return []
    mean, most = sum(seconds) / len(seconds), max(seconds)
    return [
        f"A cell took {mean:.1f} s of one processor's time on average ({len(seconds)} timed), the longest {most:.0f} s."
    ]


def _key(method: str, attack: str, defence: str) -> str:
    return f"{method} / {attack or 'nobody'} / {defence or 'none'}"


def _spoken(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    if "refused" in cell:
        return "*refused*"
    return f"{100 * cell['mean']:.1f} / {100 * cell['worst_decile']:.1f}"


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=REPOSITORY / "results")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further cell after so long")
    given = parser.parse_args()
    kept, end = given.out / "hostile-clients.json", time.monotonic() + 60 * given.minutes
    found = json.loads(kept.read_text()) if kept.is_file() else {}
    missing = [cell for cell in cells() if _key(*cell) not in found]
    data = load("fashion_mnist") if missing else None
    for cell in track(missing, "cells", disable=not sys.stderr.isatty()):
        if time.monotonic() > end:
            break
        assert data is not None
        found[_key(*cell)] = result_of(*cell, data)
        write_whole(kept, (json.dumps(found, indent=1) + "\n").encode())
    write_whole(given.out / "hostile-clients.md", page(found).encode())


if __name__ == "__main__":
    main()
