"""pFedSim's table 2: do classifiers of clients with similar labels look alike? Four clients train alone, nobody mixes.

The paper deals CIFAR-10 to four clients by labels (0-4, 0-4, 2-6, 5-9), starts them with one LeNet5 and trains each for
"20 iterations", which may mean steps or epochs: both are run. Then clients are compared in five ways:

- their data: the share of samples whose label both clients hold (eq. 1);
- WDB: 1 / d of f-FedAP, the distance of what their convolutions make of their own data;
- MDB: the cosine of their models' updates;
- LDB: by how much the other's model does better on a client's training samples, divided by the distance of the two
  models, as in FedFomo; the mean of both directions;
- their classifiers: the mean cosine of the rows (eq. 2).

Of WDB, MDB and LDB the paper gives no formulas; these are those of the methods that it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.worker import Worker
from coterie.core.machine import machine
from coterie.core.numbers import Number
from coterie.data import Dataset, load
from coterie.files import write_whole
from coterie.maths.channels import ChannelStatistics, channel_distances
from coterie.maths.similarity import class_cosines, cosines
from coterie.methods.fedfomo import helpfulness
from coterie.partition import Partition
from coterie.reproduce.cells import PINNED
from coterie.reproduce.page import OURS, PAPER, as_svg, machines_of, plain_axes
from coterie.reproduce.store import Record, content_of, write_content
from coterie.rng import numpy_stream
from coterie.runs.experiment import Experiment
from coterie.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KEY = "pfedsim-table2"
LABELS = {"i": range(5), "i'": range(5), "j": range(2, 7), "k": range(5, 10)}
PAIRS = (("i", "i'"), ("i", "j"), ("j", "k"), ("i", "k"))
READINGS: Mapping[str, dict[str, Any]] = {
    "20 steps": {"rounds": 1, "epochs": 1, "steps": 20},
    "20 epochs": {"rounds": 20, "epochs": 1},
}
BATCH, RATE = 32, 0.01
KEPT = frozenset({"reading", "seed", "similarities", "partition", "machine"})
"""What a record of a run has."""


def dealt(data: Dataset, seed: int, most: int | None = None) -> Partition:
    """The four clients: a class is shared evenly among those who hold it; with `most`, only so many samples each."""
    stream = numpy_stream(seed, "pfedsim-table2")
    pools: dict[str, list[np.ndarray]] = {name: [] for name in LABELS}
    for label in range(data.classes):
        samples = stream.permutation(np.flatnonzero(data.labels.numpy() == label))
        holders = [name for name, labels in LABELS.items() if label in labels]
        for name, share in zip(holders, np.array_split(samples, len(holders)), strict=True):
            pools[name].append(share)
    whole = [stream.permutation(np.concatenate(parts)) for parts in pools.values()]
    train = tuple(pool[: len(pool) - 1][:most] for pool in whole)
    # Nobody is tested here; a run wants a test sample of each client all the same.
    return Partition(train=train, test=tuple(pool[-1:] for pool in whole), names=tuple(LABELS), rule="by hand")


def data_similarity(counts: np.ndarray) -> np.ndarray:
    """Eq. (1): of the samples of two clients, the share whose label both hold; of `counts [K, C]`: `[K, K]`.

    >>> data_similarity(np.array([[2, 2, 0], [0, 1, 3]])).tolist()
    [[1.0, 0.375], [0.375, 1.0]]
    """
    held = counts > 0
    both = (held[:, None] & held[None]).astype(np.int64)  # [K, K, C]
    together = counts[:, None] + counts[None]
    return np.asarray((both * together).sum(-1) / together.sum(-1))


def measured(reading: Mapping[str, Any], partition: Partition, seed: int, data: Dataset) -> dict[str, list[float]]:
    """The similarities of all pairs, by measure, after four clients trained alone."""
    experiment = Experiment(
        method="local",
        data=data,
        partition=partition,
        model="lenet5",
        batch=BATCH,
        lr=RATE,
        seed=seed,
        rounds=reading["rounds"],
        epochs=reading["epochs"],
        evaluate_every=reading["rounds"],
        engine=str(PINNED["engine"]),
        threads=1,
    )
    compared_by = compared(experiment.run(progress=True))
    compared_by["data"] = torch.from_numpy(data_similarity(dealt(data, seed).class_counts(data)))
    return {name: _by_pair(matrix) for name, matrix in compared_by.items()}


def compared(result: Run) -> dict[str, Tensor]:
    """How alike the clients' models are, by measure: `[K, K]` each, symmetric."""
    federation, problem = result.federation, result.prepared.problem()
    layout, rows = federation.layout, federation["model"].rows(federation.everyone)
    matrix, parameters = layout.classifier_weights[-1], layout.columns("parameters")
    classifiers = matrix.columns.take(rows).view(len(rows), *matrix.shape)
    # A client judges others' models on the samples it trained on: it has no others.
    worker = Worker(replace(problem, validation=problem.train), result.prepared.method, federation.seed)
    statistics, gains = [], []
    for client in federation.everyone.tolist():
        worker.seat(federation, client)
        statistics.append(ChannelStatistics()(worker))
        gains.append(helpfulness(worker, rows[client], rows))
    gain = torch.stack(gains)
    return {
        "outputs": 1 / channel_distances(torch.stack(statistics), layout),
        "updates": cosines(parameters.take(rows) - parameters.take(federation.initial)),
        "losses": (gain + gain.T) / 2,
        "classifiers": sum(class_cosines(classifiers), torch.tensor(0.0)) / matrix.shape[0],
    }


def _by_pair(matrix: Tensor) -> list[float]:
    place = {name: number for number, name in enumerate(LABELS)}
    return [float(matrix[place[first], place[second]]) for first, second in PAIRS]


def run_missing(results: Path, seeds: Sequence[int]) -> dict[str, Record]:
    """Run what has not been run yet, keep each run in `pfedsim-table2.json`, and give all of them."""
    runs = runs_of(results)
    data: Dataset | None = None
    for seed in seeds:
        for name, reading in READINGS.items():
            if f"{name}, seed {seed}" not in runs:
                data = load("cifar10") if data is None else data
                steps = reading.get("steps")
                partition = dealt(data, seed, None if steps is None else BATCH * int(steps))
                runs[f"{name}, seed {seed}"] = {
                    "reading": name,
                    "seed": seed,
                    "similarities": measured(reading, partition, seed, data),
                    "partition": partition.hash,
                    "machine": machine(),
                }
                write_content(_file(results), "runs", runs)
    return runs


def _file(results: Path) -> Path:
    return results / f"{KEY}.json"


def runs_of(results: Path) -> dict[str, Record]:
    """What has been run, as it is kept."""
    return content_of(_file(results), "runs", KEPT) if _file(results).is_file() else {}


TITLE = "pFedSim, table 2: do similar clients have similar classifiers?"
CLAIM = "The more alike their data, the more alike the classifiers of two clients."
BEST = "Classifiers show it better than WDB, MDB and LDB."
MEASURES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "data": ("data similarity", (1.0, 0.53, 0.32, 0.0)),
    "outputs": ("WDB: nearness of layers' outputs", (1.1e-3, 9e-4, 1.5e-3, 1.3e-3)),
    "updates": ("MDB: cosine of updates", (0.24, 0.11, 0.13, 0.08)),
    "losses": ("LDB: gain by the other's model", (8.6e-6, -3.7e-4, -3.3e-4, -4.5e-4)),
    "classifiers": ("classifier similarity", (0.92, 0.53, 0.41, 0.22)),
}
"""What each measure is called, and the paper's numbers of the pairs."""
SCALELESS = frozenset({"outputs", "losses"})
"""Measures whose size depends on how pixels are scaled: only the order of their numbers tells anything."""
PAIR_NAMES = tuple(f"({first}, {second})" for first, second in PAIRS)
COLOURS = {"20 steps": "#6baed6", "20 epochs": OURS}
PANEL, HEIGHT = 2.5, 2.9  # inches


def rebuild(results: Path, seeds: Sequence[int]) -> str:
    """Run what has not been run yet, write `pfedsim-table2.json`, `.md` and `.svg`, and give the page."""
    runs = run_missing(results, seeds)
    picture = drawn(runs)
    if picture is not None:
        write_whole(results / f"{KEY}.svg", picture)
    page = page_in(results, runs)
    write_whole(results / f"{KEY}.md", page.encode())
    return page


def command_of(runs: Mapping[str, Record]) -> str:
    """The command that runs these."""
    return " ".join(["coterie reproduce", KEY, "--seeds", *map(str, sorted({run["seed"] for run in runs.values()}))])


def page_in(folder: Path, runs: Mapping[str, Record]) -> str:
    """The page as it should stand in a folder: with the picture, if there is one."""
    picture = folder / f"{KEY}.svg"
    lines = [
        f"# {TITLE}",
        "",
        "Four clients hold CIFAR-10's labels 0-4, 0-4, 2-6 and 5-9, start with one LeNet5 and train alone. The paper "
        'says "20 iterations", which may mean steps or epochs. Ours are means over seeds, ± their standard deviation.',
        "",
        *([f"![Paper and ours]({picture.name})", ""] if picture.is_file() else []),
        *numbers_of(runs),
        "",
        "The paper gives no formulas for WDB, MDB and LDB but names the methods they come from: f-FedAP (ours: one by "
        "its distance), CFL and FedFomo (ours: on the client's own training samples, the mean of both directions). How "
        "large WDB and LDB are depends on the scale of the pixels: only their order tells anything. "
        f"{BATCH} samples a step and a rate of {RATE} are assumed.",
        "",
        "```console",
        f"$ {command_of(runs)}",
        "```",
        "",
        *(f"- {text}" for text in machines_of(runs.values())),
        "- partitions (SHA-256): " + "; ".join(f"{name}: {run['partition'][:12]}" for name, run in runs.items()),
    ]
    return "\n".join(lines) + "\n"


def numbers_of(runs: Mapping[str, Record]) -> list[str]:
    """The paper's numbers and ours by reading of "20 iterations", and what became of the paper's claims."""
    lines = [
        f"| | measure | {' | '.join(PAIR_NAMES)} | order as in the data |",
        "|---|---|" + "---:|" * (len(PAIR_NAMES) + 1),
    ]
    for title, values in MEASURES.values():
        lines.append(_line("paper", title, [f"{value:g}" for value in values], _order([values])))
    for reading, its_runs in _by_reading(runs).items():
        seeds = f"ours, {reading} ({len(its_runs)} seed{'s' if len(its_runs) > 1 else ''})"
        for name, (title, _) in MEASURES.items():
            shown = [_number(number, name) for number in _of_pairs(its_runs, name)]
            lines.append(_line(seeds, title, shown, _order([run["similarities"][name] for run in its_runs])))
    lines += ["", "| claim | verdict |", "|---|---|"]
    lines += [f"| {CLAIM} | {answer_of(runs)} |", f"| {BEST} | {comparison_of(runs)} |"]
    return lines


def _line(who: str, title: str, values: Sequence[str], order: str) -> str:
    return f"| {who} | {title} | {' | '.join(values)} | {order} |"


def _number(number: Number, measure: str) -> str:
    mean, spread = (".2g", ".1g") if measure in SCALELESS else (".2f", ".2f")
    return f"{number.mean:{mean}}" + ("" if number.std is None else f" ± {number.std:{spread}}")


def _order(by_seed: Sequence[Sequence[float]]) -> str:
    """Whether similarities fall from pair to pair as those of the data do, with every seed."""
    falling = _falling(by_seed)
    return {0: "no", len(by_seed): "yes"}.get(falling, f"with {falling} of {len(by_seed)} seeds")


def _falling(by_seed: Sequence[Sequence[float]]) -> int:
    """With how many seeds."""
    return sum(all(value > later for value, later in pairwise(values)) for values in by_seed)


def answer_of(runs: Mapping[str, Record]) -> str:
    """What became of the claim, by reading: it is seen if every seed shows it.

    >>> run = {"reading": "20 steps", "similarities": {"classifiers": [0.9, 0.5, 0.6, 0.1]}}
    >>> answer_of({"20 steps, seed 0": run})
    'not seen after 20 steps'
    """
    orders = {
        reading: _order([run["similarities"]["classifiers"] for run in its_runs])
        for reading, its_runs in _by_reading(runs).items()
    }
    words = {"yes": "seen", "no": "not seen"}
    return ", ".join(f"{words.get(order, f'seen {order}')} after {reading}" for reading, order in orders.items())


def comparison_of(runs: Mapping[str, Record]) -> str:
    """Whether classifiers are in the data's order with more seeds than any other measure, by reading."""
    answers = []
    for reading, its_runs in _by_reading(runs).items():
        seeds = {name: _falling([run["similarities"][name] for run in its_runs]) for name in MEASURES if name != "data"}
        best = seeds.pop("classifiers")
        answers.append(f"{'seen' if best > max(seeds.values()) else 'not seen'} after {reading}")
    return ", ".join(answers)


def _by_reading(runs: Mapping[str, Record]) -> dict[str, list[Record]]:
    by_reading = {reading: [run for run in runs.values() if run["reading"] == reading] for reading in READINGS}
    return {reading: its_runs for reading, its_runs in by_reading.items() if its_runs}


def _of_pairs(runs: Sequence[Record], measure: str) -> list[Number]:
    """A measure of each pair."""
    return [Number({run["seed"]: run["similarities"][measure][pair] for run in runs}) for pair in range(len(PAIRS))]


def drawn(runs: Mapping[str, Record]) -> bytes | None:
    """The picture as SVG, a panel for each measure; nothing without matplotlib (the extra 'plots')."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(MEASURES))
        for axes, (name, (title, paper)) in zip(panels, MEASURES.items(), strict=True):
            if name not in SCALELESS:
                axes.plot(PAIR_NAMES, paper, "o--", color=PAPER, fillstyle="none", linewidth=1, label="paper")
            for reading, its_runs in _by_reading(runs).items():
                numbers = _of_pairs(its_runs, name)
                means, spreads = [number.mean for number in numbers], [number.std or 0.0 for number in numbers]
                axes.errorbar(PAIR_NAMES, means, spreads, fmt="o-", color=COLOURS[reading], capsize=2, label=reading)
            axes.set_title(title, fontsize=9)
            plain_axes(axes, "y")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        figure.suptitle(TITLE, fontsize=10)

    return as_svg(draw, (PANEL * len(MEASURES), HEIGHT), KEY)
