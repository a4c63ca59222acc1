"""FedGen: the server learns to generate features for every class, and clients train on them too."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from coterie.client.recipe import Phase, Recipe
from coterie.client.terms import Term, task_loss
from coterie.client.views import BatchView
from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.core.mixing import by_size
from coterie.core.task import Loss
from coterie.errors import require
from coterie.methods.base import Method, require_classes
from coterie.rng import stream_seed, torch_stream


class FeatureGenerator(nn.Module):
    """G(y, ε): one-hot label and noise through a hidden layer (batch norm, ReLU) to a feature.

    >>> FeatureGenerator(classes=3, noise=4, hidden=8, features=5)(torch.tensor([0, 2]), torch.rand(2, 4)).shape
    torch.Size([2, 5])
    """

    def __init__(self, classes: int, noise: int, hidden: int, features: int) -> None:
        super().__init__()
        self.classes = classes
        # A bias before batch norm has no gradient but for rounding errors, which Adam would blow up to whole steps.
        linear = nn.Linear(classes + noise, hidden, bias=False)
        self.body = nn.Sequential(linear, nn.BatchNorm1d(hidden), nn.ReLU())
        self.feature = nn.Linear(hidden, features)

    def forward(self, labels: Tensor, noise: Tensor) -> Tensor:
        """Features `[n, d]` for `labels [n]` and `noise [n, noise]`."""
        one_hot = nn.functional.one_hot(labels, self.classes).to(noise)
        out: Tensor = self.feature(self.body(torch.cat([one_hot, noise], 1)))
        return out

    def forget_common_label(self, labels: Tensor) -> None:
        """After a backward pass: where all `labels [n]` were alike, the weights from labels have no gradient.

        What the same label adds to every sample of a batch, batch norm takes away again. What is left are rounding
        errors, as with a bias there.
        """
        weights = self.body.get_parameter("0.weight")
        if weights.grad is not None and bool((labels == labels[0]).all()):
            weights.grad[:, : self.classes] = 0


@dataclass(frozen=True)
class GeneratorShape:
    """The sizes of a generator, which say how to read its row.

    >>> shape = GeneratorShape(classes=3, noise=4, hidden=8, features=5)
    >>> shape.generate(shape.initial(seed=0), torch.tensor([0, 2]), torch.Generator()).shape
    torch.Size([2, 5])
    """

    classes: int
    noise: int
    hidden: int
    features: int

    def build(self) -> FeatureGenerator:
        """A generator of this shape."""
        return FeatureGenerator(self.classes, self.noise, self.hidden, self.features)

    @property
    def layout(self) -> Layout:
        """The columns of the generator's tensors, running statistics included."""
        return _reader(self)[1]

    def initial(self, seed: int) -> Tensor:
        """A row of initial weights: `[G]`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.layout.row(self.build())

    def draw(self, count: int, stream: torch.Generator) -> Tensor:
        """Noise for `count` features, uniform: `[count, noise]`."""
        return torch.rand(count, self.noise, generator=stream)

    def generate(self, row: Tensor, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Features `[n, d]` for `labels [n]` by the generator with the tensors `row [G]`, in evaluation mode."""
        module, layout = _reader(self)
        noise = self.draw(len(labels), stream).to(row.device)
        out: Tensor = torch.func.functional_call(module, layout.views(row), (labels, noise))
        return out


@functools.lru_cache(maxsize=8)
def _reader(shape: GeneratorShape) -> tuple[FeatureGenerator, Layout]:
    """A module to read rows with, whose own weights nobody looks at, and its layout."""
    with torch.random.fork_rng(devices=[]):
        module = shape.build().eval()
    return module, Layout(module, classifier="feature")


@dataclass(frozen=True)
class GeneratedSamples:
    """α·CE(φ(G(ŷ)), ŷ): the classifier learns classes that the client may not have, ŷ drawn by everybody's shares."""

    weight: float
    shape: GeneratorShape
    shares: Tensor = field(compare=False)  # [C], how frequent labels are among the clients seen so far

    def __call__(self, batch: BatchView) -> Tensor:
        """One generated sample for each real one: `[B]`."""
        stream = batch.stream("generated samples")
        labels = torch.multinomial(self.shares, len(batch.labels), replacement=True, generator=stream)
        labels = labels.to(batch.labels.device)
        features = self.shape.generate(batch.value("generator"), labels, stream)
        return self.weight * batch.task.loss(batch.head(batch.slot, features), labels)


@dataclass(frozen=True)
class GeneratedTeacher:
    """β·KL(softmax φ(G(y)) ‖ p(x)): what the classifier says to a feature generated for y teaches what it says to x."""

    weight: float
    shape: GeneratorShape

    def __call__(self, batch: BatchView) -> Tensor:
        """The term for every sample: `[B]`."""
        stream = batch.stream("generated teacher")
        features = self.shape.generate(batch.value("generator"), batch.labels, stream)
        teacher = log_softmax(batch.head(batch.slot, features), 1).detach()
        divergence = kl_div(log_softmax(batch.logits, 1), teacher, reduction="none", log_target=True).sum(1)
        return self.weight * divergence


@dataclass(frozen=True)
class FedGen(Method):
    """Data-free knowledge distillation for heterogeneous federated learning (Zhu et al., 2021).

    Server: FedAvg on the model; then `steps` steps of Adam on the generator G(y, ε) → feature, which is to please
    the classifiers of this round's clients, each as far as it knows the label:

        E_{y, ε} Σ_k n_ky/Σ_j n_jy · CE(φ_k(G(y, ε)), y) + `diversity` · exp(−mean_ij |ε_i − ε_j|·|G_i − G_j|),

    y drawn by their label counts, ε uniform. Clients, from round 2: CE(w) + α·CE(φ(G(ŷ)), ŷ) + β·KL(softmax φ(G(y)) ‖
    p(x)), ŷ drawn by the label counts of all clients that have taken part, both weights times `decay`^(t−1). The
    target of the KL has no gradient. Tested: the global model; α = β = 0 is FedAvg.

    The paper's G is judged by the mean of the clients' logits; here, as in the published code, by the mean of their
    losses, each weighted by the client's share of the label. Sizes, steps, α and β are those of the pFedSim comparison,
    which has no diversity term (`diversity=0`); its weight 1 is the published code's. Clients run G in evaluation mode.
    Adam starts anew each round (the published code keeps its state). A batch of labels that are all alike, as where the
    cohort has one class, does not move the weights from labels to the hidden layer: batch norm leaves them no gradient
    but rounding errors, which Adam would make whole steps of. Label counts are known to the server as data sizes are.

    >>> FedGen(alpha=1.0, beta=1.0).alpha
    1.0
    """

    alpha: float = 10.0
    beta: float = 10.0
    decay: float = 0.98
    noise: int = 32
    hidden: int = 32
    steps: int = 5
    server_lr: float = 3e-4
    server_batch: int = 32
    diversity: float = 1.0

    paper: ClassVar[str] = "Zhu et al., ICML 2021"
    extra_cost: ClassVar[str] = "two passes through generator and classifier a batch; training the generator"

    def __post_init__(self) -> None:
        for option in ("alpha", "beta", "diversity"):
            require(getattr(self, option) >= 0, f"{option} = {getattr(self, option)}: must not be negative")
        for option in ("noise", "hidden", "steps"):
            require(getattr(self, option) >= 1, f"{option} = {getattr(self, option)}: must be at least 1")
        require(0 < self.decay <= 1, f"decay = {self.decay}: must lie in (0, 1]")
        require(0 < self.server_lr <= 1e30, f"server_lr = {self.server_lr}: must be above 0 and at most 1e30")
        require(self.server_batch >= 2, f"server_batch = {self.server_batch}: must be at least 2 (batch norm)")

    def check(self, federation: Federation) -> None:
        """Features are generated by class."""
        require_classes(federation, "fedgen")

    def init(self, federation: Federation) -> None:
        """The generator's tensors, and how frequent labels are among the clients seen so far."""
        federation.ask_class_counts()
        federation.add_value("generator", self.shape(federation).initial(stream_seed(federation.seed, "generator")))
        federation.add_value("label_shares", torch.full((federation.classes,), 1 / federation.classes))

    def shape(self, federation: Federation) -> GeneratorShape:
        """The generator's sizes for this federation's classes and features."""
        return GeneratorShape(federation.classes, self.noise, self.hidden, federation.feature_width)

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training, with the generator's samples and teaching once it has been trained."""
        terms: list[Term] = [task_loss]
        if federation.round > 1:
            factor, shape = self.decay ** (federation.round - 1), self.shape(federation)
            if self.alpha:
                terms.append(GeneratedSamples(factor * self.alpha, shape, federation.values["label_shares"]))
            if self.beta:
                terms.append(GeneratedTeacher(factor * self.beta, shape))
        return (Phase(terms=tuple(terms)),)

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mix whole models by data size; train the generator on this round's classifiers."""
        federation = uploads.federation
        seen = federation.class_counts[federation.taken_part].sum(0)
        yield Mix(by_size(uploads))
        yield Put("generator", self.trained_generator(uploads))
        yield Put("label_shares", (seen / seen.sum()).float())

    def trained_generator(self, uploads: Uploads) -> Tensor:
        """The generator's row after this round's steps."""
        federation = uploads.federation
        shape = self.shape(federation)
        with torch.random.fork_rng(devices=[]):  # building draws weights, which are replaced at once
            module = shape.build()
        shape.layout.load(module, federation.values["generator"]).train()
        heads, counts = uploads.rows("classifier").cpu(), federation.class_counts[uploads.cohort].float()
        optimiser = torch.optim.Adam(module.parameters(), lr=self.server_lr)
        stream = torch_stream(federation.seed, "generator training", federation.round)
        for _ in range(self.steps):
            labels = torch.multinomial(counts.sum(0), self.server_batch, replacement=True, generator=stream)
            noise = shape.draw(self.server_batch, stream)
            optimiser.zero_grad()
            features = module(labels, noise)
            logits = [federation.head_output(head, features) for head in heads]
            loss = ensemble_loss(federation.task.loss, logits, labels, counts)
            (loss + self.diversity * sameness(noise, features)).backward()
            module.forget_common_label(labels)
            optimiser.step()
        trained = shape.layout.row(module)
        # Classifiers about to diverge may overflow on its features: then it stays as it was.
        return trained if bool(trained.isfinite().all()) else federation.values["generator"]


def ensemble_loss(loss: Loss, logits: Iterable[Tensor], labels: Tensor, counts: Tensor) -> Tensor:
    """mean_b Σ_k n_k,y_b/Σ_j n_j,y_b · loss of client k, from each client's `logits [n, C]` and `counts [m, C]`.

    >>> from coterie.core.task import CrossEntropy
    >>> agreed = torch.tensor([[0.0, 0.0]])
    >>> counts = torch.tensor([[1.0, 3.0], [5.0, 1.0]])
    >>> ensemble_loss(CrossEntropy(), [agreed, 9 * agreed + 9], torch.tensor([1]), counts)
    tensor(0.6931)
    """
    trust = (counts / counts.sum(0))[:, labels]  # [m, n]
    losses = torch.stack([loss(client_logits, labels) for client_logits in logits])
    return (trust * losses).sum(0).mean()


def sameness(noise: Tensor, features: Tensor) -> Tensor:
    """exp(−mean_ij |ε_i − ε_j|·|G_i − G_j|), mean absolute differences: near 1 if different noise makes equal features.

    >>> sameness(torch.rand(3, 2), torch.zeros(3, 5))
    tensor(1.)
    """
    apart_noise = (noise[:, None] - noise[None]).abs().mean(2)
    apart_features = (features[:, None] - features[None]).abs().mean(2)
    return torch.exp(-(apart_noise * apart_features).mean())
