"""What a server learns from uploads: which classes a client holds, and images. `python tools/uploads_tell.py PICTURE`.

Prints the tables of docs/privacy.md as Markdown and draws its picture. The attacks are simple ones: they show what is
there to be had, not the most that somebody could get.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot as plt
from rich.progress import track
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from coterie.core.federation import Federation
from coterie.data import load
from coterie.engines.base import Trained, Work
from coterie.partition import Dirichlet
from coterie.privacy.stage import clipped
from coterie.rng import torch_stream
from coterie.rounds.collect import declared_columns
from coterie.rounds.listeners import Listener, RoundReport, Start
from coterie.rounds.stages import Incoming
from coterie.runs.experiment import Experiment
from coterie.setup.prepared import initial_model

METHODS = ("pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc")
CLIENTS, ROUNDS = 20, 5
IMAGES, STEPS, LR = 4, 300, 0.01
NOISES = (None, 0.01, 1.0)  # of a promise to clients with clip 1; none: no promise


class ClassGuesses(Listener):
    """Guesses the classes that each client holds from its upload: those whose bias went up in training."""

    def __init__(self) -> None:
        self.guessed: list[Tensor] = []  # a round each: [m, C] bool
        self.held: list[Tensor] = []

    def begin(self, start: Start) -> None:
        """Know the truth, to compare with."""
        self._federation: Federation = start.federation
        self._method, self._stages = start.prepared.method, start.prepared.stages
        self._truth = torch.from_numpy(start.prepared.class_counts) > 0

    def delivered(self, report: RoundReport, work: Work) -> None:
        """What the server knows of the biases before."""
        federation = self._federation
        entry = next(one for one in federation.layout.entries if one.name == f"{federation.layout.classifier}.bias")
        self._bias = entry.columns
        self._before = federation["model"].rows(torch.tensor(report.cohort), self._bias)

    def trained(self, report: RoundReport, trained: Trained) -> None:
        """What it is sent."""
        federation, cohort = self._federation, torch.tensor(report.cohort)
        declared = declared_columns(federation, self._method.uploads(federation))
        if not self._bias <= declared.get("model", self._bias - self._bias):
            return
        incoming = Incoming(cohort, trained.rows, declared, {})
        for stage in self._stages:
            incoming = stage.client(federation, incoming)
        sent = incoming.held["model"]
        self.guessed.append(self._bias.take(sent) > self._before)
        self.held.append(self._truth[cohort])


def label_inference(method: str, **privacy: Any) -> tuple[float, float]:
    """Precision and recall of the guesses over all rounds in which classifiers are sent."""
    guesses = ClassGuesses()
    Experiment(
        method=method,
        data="digits",
        partition=Dirichlet(clients=CLIENTS, alpha=0.1),
        rounds=ROUNDS,
        lr=0.05,
        evaluate_every=ROUNDS,
        engine="serial",
        threads=1,
        **privacy,
    ).run(listeners=[guesses])
    guessed, held = torch.cat(guesses.guessed), torch.cat(guesses.held)
    right = float((guessed & held).sum())
    return right / float(guessed.sum()), right / float(held.sum())


def update_of(module: torch.nn.Module, x: Tensor, y: Tensor, batch: int) -> list[Tensor]:
    """What plain SGD on the images in batches makes of the weights, as a change divided by the learning rate."""
    first = [p.detach().clone() for p in module.parameters()]
    for part in torch.arange(len(x)).split(batch):
        module.zero_grad()
        cross_entropy(module(x[part]), y[part]).backward()
        with torch.no_grad():
            for p in module.parameters():
                assert p.grad is not None
                p -= LR * p.grad
    changes = [(begin - p.detach()) / LR for begin, p in zip(first, module.parameters(), strict=True)]
    with torch.no_grad():
        for p, begin in zip(module.parameters(), first, strict=True):
            p.copy_(begin)
    return changes


def noisy(changes: list[Tensor], noise: float | None) -> list[Tensor]:
    """The same as an upload under a promise to clients with clip 1."""
    if noise is None:
        return changes
    sent = clipped(torch.cat([one.flatten() for one in changes]) * LR, 1.0)
    sent = sent + noise * torch.randn(len(sent), generator=torch_stream(0, f"leak {noise}"))
    parts = sent.split([one.numel() for one in changes])
    return [part.view_as(one) / LR for part, one in zip(parts, changes, strict=True)]


def reconstructed(module: torch.nn.Module, target: list[Tensor], y: Tensor, shape: torch.Size, sent: slice) -> Tensor:
    """Images whose gradient points where the update does (Geiping et al., 2020); the labels are known."""
    guess = (0.1 * torch.randn(shape, generator=torch_stream(0, "guess"))).requires_grad_()
    optimiser = torch.optim.Adam([guess], lr=0.1)
    weights = list(module.parameters())[sent]
    wanted = torch.cat([one.flatten() for one in target[sent]])
    for _ in range(STEPS):
        optimiser.zero_grad()
        gradients = torch.autograd.grad(cross_entropy(module(guess), y), weights, create_graph=True)
        found = torch.cat([one.flatten() for one in gradients])
        rough = (guess[..., 1:, :] - guess[..., :-1, :]).abs().mean() + (guess[..., 1:] - guess[..., :-1]).abs().mean()
        (1 - cosine_similarity(found, wanted, dim=0) + 1e-3 * rough).backward()
        optimiser.step()
        with torch.no_grad():
            guess.clamp_(-1, 1)
    return guess.detach()


def psnr(found: Tensor, true: Tensor) -> tuple[float, Tensor]:
    """The mean peak signal-to-noise ratio in dB with images paired as well as they can be, and the images in order."""
    errors = (found[:, None] - true[None]).square().flatten(2).mean(2)
    rows, columns = linear_sum_assignment(errors.numpy())
    best = errors[rows, columns]
    return float((10 * torch.log10(4 / best.clamp(min=1e-12))).mean()), found[rows][torch.tensor(columns).argsort()]


def classes_held() -> None:
    """Print the table of classes."""
    print("| method | precision | recall | with noise 1: precision | recall |\n|---|---|---|---|---|")
    for method in track(METHODS, "labels"):
        plain = label_inference(method)
        cells = [f"{value:.2f}" for value in plain]
        if method == "fedcac":
            cells += ["refused", "refused"]
        else:
            promise = label_inference(method, privacy="client", privacy_noise=1.0)
            cells += [f"{value:.2f}" for value in promise]
        print(f"| `{method}` | {' | '.join(cells)} |", flush=True)


def images_rebuilt(picture: Path) -> None:
    """Print the table of images, and draw them."""
    data = load("fashion_mnist")
    x, y = data.inputs[:IMAGES], data.labels[:IMAGES]
    module, _ = initial_model("mlp", "last", data.shape, 10, seed=0)
    cases = [
        (f"{what}, {sent}", batch, part)
        for what, batch in (("one step", IMAGES), ("one epoch", 1))
        for sent, part in (("full model", slice(None)), ("extractor only", slice(0, 2)))
    ]
    print("\n| upload | " + " | ".join("no noise" if one is None else f"noise {one:g}" for one in NOISES) + " |")
    print("|---" * (len(NOISES) + 1) + "|")
    figure, axes = plt.subplots(1 + len(cases) * len(NOISES), IMAGES, figsize=(4.6, 12.5))
    rows = [("the client's images", x)]
    for name, batch, part in track(cases, "images"):
        values = []
        for noise in NOISES:
            target = noisy(update_of(module, x, y, batch), noise)
            value, images = psnr(reconstructed(module, target, y, x.shape, part), x)
            values.append(f"{value:.1f}")
            rows.append((f"{name}\n{'no noise' if noise is None else f'noise {noise:g}'}: {value:.1f} dB", images))
        print(f"| {name} | {' | '.join(values)} |", flush=True)
    for line, (label, images) in zip(axes, rows, strict=True):
        for axis, image in zip(line, images, strict=True):
            axis.imshow(image[0], cmap="gray", vmin=-1, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=7)
    figure.subplots_adjust(wspace=0.05, hspace=0.15)
    figure.savefig(picture, dpi=90, bbox_inches="tight")


if __name__ == "__main__":
    classes_held()
    images_rebuilt(Path(sys.argv[1]))
