"""`python -m tools.guide`: what learning together is worth on five kinds of clients; writes `results/guide.md`.

The decision guide (`docs/howto/pick-a-method.md`) rests on it. Small data on purpose: it runs in a quarter of an hour
on a laptop, although each method's rate is chosen by validation. Runs are kept in `runs/guide` and never run twice;
`--only SITUATION` runs one, `--write` just writes the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import coterie as ct
from coterie.compare.remarks import RISE, effort_text
from coterie.core.evidence import Evidence
from coterie.runs.store import SUMMARY

REPOSITORY = Path(__file__).parents[1]
RESULTS, RUNS = REPOSITORY / "results", REPOSITORY / "runs" / "guide"
SEEDS = (0, 1, 2)
RATES = (0.1, 0.2, 0.4, 0.8)
MOMENTS = ("trained", "received")
SAME: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "test": 0.75,
    "rounds": 20,
    "epochs": 5,
    "engine": "stacked",
    "threads": 1,
}
METHODS: dict[str, ct.Method] = {
    "local": ct.Local(),
    "fedavg": ct.FedAvg(),
    "fedavg-ft": ct.FedAvgFT(),
    "fedavg-ft:step=0.5": ct.FedAvgFT(step=0.5),
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


def experiment(name: str, method: str, rate: float, **more: Any) -> ct.Experiment:
    """A method on clients of a kind at a rate."""
    return ct.Experiment(METHODS[method], partition=SITUATIONS[name].partition, **{**SAME, "lr": rate, **more})


def run(name: str, methods: Sequence[str]) -> None:
    """Choose each method's rate for each moment, and compare; what has run before is not run again."""
    tried = {
        run_name(method, rate): experiment(name, method, rate, validation=0.2, evaluate_every=SAME["rounds"])
        for method in methods
        for rate in RATES
    }
    ct.compare(tried, seeds=SEEDS[:1], out=RUNS / name / "tuning", jobs=1)
    for method in methods:
        for rate in sorted(set(chosen(name, method).values())):
            ct.compare(
                {run_name(method, rate): experiment(name, method, rate)},
                seeds=SEEDS,
                out=RUNS / name / run_name(method, rate),
                jobs=1,
            )


def run_name(method: str, rate: float) -> str:
    """What the runs of a method at a rate are called."""
    return f"{method}-{rate}".replace(":", "-")


def chosen(name: str, method: str) -> dict[str, float]:
    """The rate by moment at which a method was best on validation samples in the end; the smallest of equals."""
    scores: dict[float, dict[str, float]] = {}
    for rate in RATES:
        path = RUNS / name / "tuning" / f"{run_name(method, rate)}-s{SEEDS[0]}" / SUMMARY
        held = json.loads(path.read_text("utf-8"))["validation"]["accuracy"]
        scores[rate] = {moment: held[moment]["weighted"]["last"] or 0.0 for moment in MOMENTS}
    return {moment: max(RATES, key=lambda rate: scores[rate][moment]) for moment in MOMENTS}


def measured(name: str) -> dict[str, Any]:
    """What is kept of a comparison: rates, scores of every method and seed at both moments, work and bytes."""
    found: dict[str, Any] = {}
    for method in METHODS:
        rates = chosen(name, method)
        runs = {moment: summaries(name, method, rate) for moment, rate in rates.items()}
        found[method] = {
            "lr": rates,
            **{m: [round(one["accuracy"][m]["mean"]["last"], 4) for one in runs[m]] for m in MOMENTS},
            "last5": {m: [round(one["accuracy"][m]["mean"]["last5"], 4) for one in runs[m]] for m in MOMENTS},
            "worst": [round(one["worst_decile"]["trained"], 4) for one in runs["trained"]],
            "effort": runs["trained"][0]["effort"],
            "bytes": round(fmean(sum(one["bytes"]["per_client_round"].values()) for one in runs["trained"])),
        }
    return found


def summaries(name: str, method: str, rate: float) -> list[dict[str, Any]]:
    """The summaries of a method's runs at a rate, seed by seed."""
    runs = run_name(method, rate)
    return [json.loads((RUNS / name / runs / f"{runs}-s{seed}" / SUMMARY).read_text("utf-8")) for seed in SEEDS]


def gain(scores: dict[str, Any], method: str, moment: str) -> str:
    """Points over Local's model, mean ± spread over seeds; bold where the difference is clear.

    >>> gain({"local": {"trained": [0.9, 0.8, 0.7]}, "fedavg": {"trained": [0.92, 0.82, 0.71]}}, "fedavg", "trained")
    '**+1.7 ± 0.6**'
    """
    pairs = zip(scores[method][moment], scores["local"]["trained"], strict=True)
    points = [100 * (ours - alone) for ours, alone in pairs]
    text = f"{fmean(points):+.1f} ± {stdev(points):.1f}".replace("-", "−")
    return f"**{text}**" if Evidence.of(points).sign else text


def page(results: dict[str, Any]) -> Iterator[str]:
    """The page, line by line."""
    situations = results["situations"]
    heads = [SITUATIONS[name].words.partition(":")[0].partition(",")[0] for name in situations]
    yield "# What learning together is worth, on five kinds of clients"
    yield ""
    yield "Accuracy in points above training alone (`local`), on each client's own test samples: mean over clients,"
    yield "last round, mean ± standard deviation over seeds 0, 1 and 2. Bold: the 95 % interval of the paired"
    yield "differences (Student's t) leaves out zero. Behind it the rate that was chosen."
    yield ""
    yield results["setting"]
    yield f"Each method's rate is that of {', '.join(map(str, RATES))} which was best, at the moment of the table, on"
    yield "a fifth of the training samples of seed 0, after the last round; the runs that count have all training"
    yield "samples again. Other options are the defaults, so that all phases last as long, but for `fedcac:beta=10`,"
    yield "which suits few rounds. Some ninety samples choose a rate (the smallest of equals): partly chance. So this"
    yield "shows what kind of clients gain from what kind of sharing, on small data; it ranks no methods. FedBN is not"
    yield "here since the model has no batch norm."
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
        yield "| method | " + " | ".join(heads) + " | gradients, client and round | bytes, client and round |"
        yield "|---|" + "---:|" * (len(heads) + 2)
        for method in METHODS:
            cells = [f"{gain(s, method, moment)} ({s[method]['lr'][moment]:g})" for s in situations.values()]
            moved = fmean(scores[method]["bytes"] for scores in situations.values())
            work = effort_text(situations["alike"][method]["effort"])
            link = f"[{method}](../docs/methods/{method.partition(':')[0]}.md)"
            yield f"| {link} | " + " | ".join(cells) + f" | {work} | {moved / 1000:.1f} kB |"
        yield ""
        yield from remarks(situations, moment)
    yield ""
    yield "Gradients are those among clients who are alike, where all have as many samples. `fedavg-ft` tunes the model"
    yield "that a client holds before each test: as received it is what the client would use."
    yield ""
    yield "Made by `python -m tools.guide`; the numbers by seed are in `results/guide.json`."


def remarks(situations: Mapping[str, Any], moment: str) -> Iterator[str]:
    """What stands below a table: who still rises, whose rate is the last of those tried, which rows are the same."""
    rising: dict[str, list[str]] = {}
    ends: dict[str, list[str]] = {}
    same: dict[str, list[str]] = {}
    for name, scores in situations.items():
        rows: dict[tuple[float, ...], list[str]] = {}
        for method in METHODS:
            own = scores[method]
            leads = [last - five for last, five in zip(own[moment], own["last5"][moment], strict=True)]
            if min(leads) > 0 and fmean(leads) >= RISE:
                rising.setdefault(name, []).append(method)
            if own["lr"][moment] in (RATES[0], RATES[-1]):
                ends.setdefault(name, []).append(f"{method} {own['lr'][moment]:g}")
            rows.setdefault(tuple(round(value, 3) for value in own[moment]), []).append(method)
        pairs = [" = ".join(methods) for methods in rows.values() if len(methods) > 1]
        if pairs:
            same[name] = pairs
    for words, found in (
        (f"Still rising (the last round lies {100 * RISE:g} points or more above the mean of the last five)", rising),
        ("The rate is the smallest or the largest of those tried, and one beyond may be better", ends),
        ("The same numbers, to a tenth of a point with every seed", same),
    ):
        told = "; ".join(f"{name}: {', '.join(methods)}" for name, methods in found.items())
        yield f"- {words}: {told or 'none'}."


def write() -> None:
    """Write what has run."""
    training = f"a quarter of the samples for training, {SAME['rounds']} rounds of {SAME['epochs']} epochs"
    results = {
        "setting": f"Data `digits`, model `mlp`, {training}.",
        "seeds": list(SEEDS),
        "situations": {name: measured(name) for name in SITUATIONS if (RUNS / name).is_dir()},
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
