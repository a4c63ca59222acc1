"""`python -m tools.guide`: what learning together is worth on five kinds of clients; writes `results/guide.md`.

The decision guide (`docs/howto/pick-a-method.md`) rests on it. Small data on purpose: it runs in minutes on a laptop.
Runs are kept in `runs/guide` and never run twice; `--only SITUATION` runs one, `--write` just writes the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import coterie as ct
from coterie.experiment.kept import SUMMARY

REPOSITORY = Path(__file__).parents[1]
RESULTS, RUNS = REPOSITORY / "results", REPOSITORY / "runs" / "guide"
SEEDS = (0, 1, 2)
SAME: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "test": 0.75,
    "rounds": 20,
    "epochs": 5,
    "lr": 0.05,
    "engine": "stacked",
    "threads": 1,
}
METHODS: dict[str, ct.Method] = {
    "local": ct.Local(),
    "fedavg": ct.FedAvg(),
    "fedprox": ct.FedProx(),
    "fedper": ct.FedPer(),
    "fedrep": ct.FedRep(),
    "fedrod": ct.FedRod(),
    "pfedcs": ct.PFedCS(),
    "fedrema": ct.FedReMa(),
    "fedcac": ct.FedCAC(beta=10),  # of 20 rounds; the default suits hundreds
    "pfedsim": ct.PFedSim(),
    "ditto": ct.Ditto(),
    "fedala": ct.FedALA(),
}


@dataclass(frozen=True)
class Situation:
    """Clients of a kind: what a reader would say of them, and the rule that makes them."""

    words: str
    partition: Any


SITUATIONS = {
    "groups": Situation("groups: two of ten classes, three others hold the same", ct.Pathological(clients=20)),
    "skewed": Situation("labels very uneven, Dirichlet(0.1)", ct.Dirichlet(clients=20, alpha=0.1)),
    "mild": Situation("labels somewhat uneven, Dirichlet(1)", ct.Dirichlet(clients=20, alpha=1.0)),
    "alike": Situation("alike: samples drawn at random", ct.Iid(clients=20)),
    "forms": Situation("inputs differ: a client is a form", ct.ByClient()),
}


def run(name: str, methods: Sequence[str]) -> None:
    """Compare methods on clients of a kind; what has run before is not run again."""
    experiments = {key: ct.Experiment(METHODS[key], partition=SITUATIONS[name].partition, **SAME) for key in methods}
    ct.compare(experiments, seeds=SEEDS, out=RUNS / name, jobs=1)


def measured(name: str) -> dict[str, Any]:
    """What is kept of a comparison: scores of every method and seed at both moments, and bytes."""
    found: dict[str, Any] = {}
    for method in METHODS:
        summaries = [json.loads((RUNS / name / f"{method}-s{seed}" / SUMMARY).read_text("utf-8")) for seed in SEEDS]
        found[method] = {
            **{m: [round(one["accuracy"][m]["mean"]["last"], 4) for one in summaries] for m in ("received", "trained")},
            "worst": [round(one["worst_decile"]["trained"], 4) for one in summaries],
            "bytes": round(fmean(sum(one["bytes"]["per_client_round"].values()) for one in summaries)),
        }
    return found


def gain(scores: dict[str, Any], method: str, moment: str) -> str:
    """Points over Local's model, mean ± spread over seeds; bold where every seed says the same and the mean exceeds it.

    >>> gain({"local": {"trained": [0.9, 0.8]}, "fedavg": {"trained": [0.92, 0.81]}}, "fedavg", "trained")
    '**+1.5 ± 0.7**'
    """
    pairs = zip(scores[method][moment], scores["local"]["trained"], strict=True)
    points = [100 * (ours - alone) for ours, alone in pairs]
    mean, spread = fmean(points), stdev(points)
    clear = (min(points) > 0 or max(points) < 0) and abs(mean) > spread
    text = f"{mean:+.1f} ± {spread:.1f}".replace("-", "−")
    return f"**{text}**" if clear else text


def page(results: dict[str, Any]) -> Iterator[str]:
    """The page, line by line."""
    situations = results["situations"]
    heads = [SITUATIONS[name].words.partition(":")[0].partition(",")[0] for name in situations]
    yield "# What learning together is worth, on five kinds of clients"
    yield ""
    yield "Accuracy in points above training alone (`local`), on each client's own test samples: mean over clients,"
    yield "last round, mean ± standard deviation over seeds 0, 1 and 2. Bold: all seeds have one sign and the mean"
    yield "exceeds the spread."
    yield ""
    yield results["setting"]
    yield "Nothing was tuned: options are the defaults but `fedcac:beta=10`, which suits few rounds. So this shows what"
    yield "kind of clients gain from what kind of sharing, on small data; it ranks no methods. FedBN is not here since"
    yield "the model has no batch norm."
    yield ""
    yield "| clients | made by | alone, % |"
    yield "|---|---|---:|"
    for name, scores in situations.items():
        alone = 100 * fmean(scores["local"]["trained"])
        yield f"| {SITUATIONS[name].words} | `{SITUATIONS[name].partition}` | {alone:.1f} |"
    for moment, words in (("trained", "after local training, as a client would use it"), ("received", "as downloaded")):
        yield ""
        yield f"## `{moment}`: {words}"
        yield ""
        yield "| method | " + " | ".join(heads) + " | bytes, client and round |"
        yield "|---|" + "---:|" * (len(heads) + 1)
        for method in METHODS:
            cells = [gain(scores, method, moment) for scores in situations.values()]
            moved = fmean(scores[method]["bytes"] for scores in situations.values())
            yield f"| [{method}](../docs/methods/{method}.md) | " + " | ".join(cells) + f" | {moved / 1000:.1f} kB |"
    yield ""
    yield "Made by `python -m tools.guide`; the numbers by seed are in `results/guide.json`."


def write() -> None:
    """Write what has run."""
    training = (
        f"a quarter of the samples for training, {SAME['rounds']} rounds of {SAME['epochs']} epochs, lr {SAME['lr']}"
    )
    results = {
        "setting": f"Data `digits`, model `mlp`, {training}.",
        "seeds": list(SEEDS),
        "situations": {name: measured(name) for name in SITUATIONS if (RUNS / name / "comparison.json").is_file()},
    }
    (RESULTS / "guide.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "guide.md").write_text("\n".join(page(results)) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write."""
    parser = argparse.ArgumentParser(prog="python -m tools.guide", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=SITUATIONS, help="run this situation alone")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="run these alone")
    parser.add_argument("--write", action="store_true", help="run nothing, and write what has run in full")
    options = parser.parse_args(arguments)
    for name in () if options.write else (options.only,) if options.only else SITUATIONS:
        run(name, options.methods)
    if options.write or options.methods == list(METHODS):
        write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
