"""Odd models: each trains as it would by itself, or is refused in a line that names the layer and the way out."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import odd_models
from coterie.client.model import check_split
from coterie.client.rehearsal import rehearse
from coterie.core.layout import Layout
from coterie.engines import Work
from coterie.engines.base import do_work, empty_rows
from coterie.errors import CoterieError
from coterie.models import MODELS, build
from coterie.rng import stream_seed, torch_stream
from coterie.runs.experiment import Experiment
from coterie.testing.toys import CLASSES, FEATURES, seeded, toy_data, toy_partition
from support import final_rows, seat, tiny

SAMPLES = torch.linspace(-1, 1, 4 * FEATURES).view(4, FEATURES)


class Net(nn.Module):
    """What the odd ones are made from."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, 8)
        self.classifier = nn.Linear(8, CLASSES)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.hidden(x))
        return out


class Tied(Net):
    """The classifier's weight is also that of a layer in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(8, CLASSES)
        self.classifier.weight = self.middle.weight

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.middle(super().hidden(x)) @ self.middle.weight)


class TiedToFirst(Tied):
    """The same; the classifier is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = self._modules.pop("middle")


class FunctionalDropout(Net):
    def hidden(self, x: Tensor) -> Tensor:
        return F.dropout(super().hidden(x), 0.5, self.training)


class Masked(Net):
    """A causal mask, and a frozen parameter that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((8, 8), -math.inf).triu(1))
        self.unknown = nn.Parameter(torch.tensor(math.nan), requires_grad=False)
        self.places = nn.Parameter(torch.arange(8), requires_grad=False)
        self.register_buffer("turns", torch.polar(torch.ones(8), torch.arange(8.0)))

    def hidden(self, x: Tensor) -> Tensor:
        h = super().hidden(x)[:, self.places] * self.turns.real
        return (self.mask.softmax(1) @ h[:, :, None])[:, :, 0]


class WeightNormed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.utils.parametrizations.weight_norm(self.body)


class SpectralNormed(Net):
    """The older kind, which keeps its weight as a plain attribute and power iteration in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.utils.spectral_norm(self.body)


class UsedTwice(Net):
    """A layer, and the classifier, under two names each; buffers in common."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.fc = nn.Linear(8, 8), self.classifier
        self.again = self.inner
        moved = torch.zeros(8)
        self.inner.register_buffer("moved", moved)
        self.register_buffer("the_same", moved)

    def hidden(self, x: Tensor) -> Tensor:
        h = self.again(torch.tanh(self.inner(super().hidden(x))))
        if self.training:
            self.the_same.lerp_(h.detach().mean(0), 0.1)
        return h - self.inner.moved

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.hidden(x))
        return out


class Notes(Net):
    """What it writes down of a pass, nobody reads in the next."""

    def forward(self, x: Tensor) -> Tensor:
        self.size, self.last = len(x), super().forward(x)
        return self.last


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(1, 8, batch_first=True)

    def hidden(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x[:, :, None])[0]
        return out[:, -1]


class MaskOnce(Net):
    """What is made at the first call and stays as it is may be kept for all objects, and for everybody."""

    masks: ClassVar[dict[int, Tensor]] = {}

    def hidden(self, x: Tensor) -> Tensor:
        z = super().hidden(x)
        mask = self.masks.setdefault(z.shape[1], torch.linspace(0, 1, z.shape[1]))
        return z * mask


@functools.cache
def slope(width: int) -> Tensor:
    return torch.linspace(0, 1, width)


class MaskFromACache(Net):
    """Remembers more and more, but nothing of it changes."""

    def hidden(self, x: Tensor) -> Tensor:
        slope(int(x.abs().sum() * 1e6))
        return super().hidden(x) * slope(8)


EXACT = (
    *(Net, Tied, TiedToFirst, FunctionalDropout, Masked, WeightNormed, SpectralNormed, UsedTwice, Notes, Recurrent),
    *(MaskOnce, MaskFromACache),
)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", EXACT)
def test_a_client_trains_what_plain_pytorch_trains(kind: type[Net]) -> None:
    """A round of one client against a loop that knows no rows: every tensor of the module, constants included."""
    module = seeded(kind)
    experiment = tiny(model=module, epochs=2, lr=0.3)
    prepared = experiment.prepare()
    worker, federation = seat(prepared, client=1), prepared.federation()
    federation.round = 1
    work = Work(prepared.method.recipe(federation))
    rows = empty_rows(federation, work, 1)
    do_work(worker, federation, 0, work, [(slot, row[0]) for slot, row in rows.items()])  # somebody was there before
    do_work(worker, federation, 1, work, [(slot, row[0]) for slot, row in rows.items()])
    ours = prepared.problem_base.layout.load(copy.deepcopy(module), rows["model"][0])

    key, own = int(federation.keys[1]), prepared.problem().train[1]
    plain = copy.deepcopy(module).train()
    optimiser = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.3)
    torch.manual_seed(stream_seed(experiment.seed, "dropout", 1, key))
    stream = torch_stream(experiment.seed, "batches:0", 1, key)
    for _ in range(2):
        for part in torch.randperm(len(own), generator=stream).split(experiment.batch):
            optimiser.zero_grad()
            inputs, labels = prepared.data.inputs[own[part]], prepared.data.labels[own[part]]
            F.cross_entropy(plain(inputs), labels).backward()
            optimiser.step()
    expected = plain.state_dict()
    assert not all(torch.equal(expected[name], before) for name, before in module.state_dict().items())
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("method", ["fedper", "fedrep", "lg-fedavg", "fedbabu", "fedgh", "pfedsim", "fedrod", "pfedcs"])
def test_methods_that_part_tied_tensors_refuse_them(method: str) -> None:
    with pytest.raises(CoterieError, match=r"parts 'classifier.weight' and 'middle.weight'.*fedavg") as caught:
        tiny(method, model=seeded(Tied)).run()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["serial", "stacked", "processes"])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedbn"])
def test_methods_that_treat_tied_tensors_alike_keep_them_tied(method: str, engine: str) -> None:
    result = tiny(method, model=seeded(Tied), rounds=2, engine=engine).run()
    model = result.model(0)
    assert model.classifier.weight is model.middle.weight
    assert torch.equal(final_rows(result), final_rows(tiny(method, model=seeded(Tied), rounds=2).run()))


def test_tied_tensors_get_private_gradients_from_both_sides() -> None:
    """DP-SGD without noise, and with nothing clipped, is SGD on the same batches: the clip alone must not part ties."""
    rows = []
    for kind in (Tied, TiedToFirst):
        options = {"privacy": "example", "privacy_clip": 1e6, "privacy_noise": 1e-12, "rounds": 1}
        result = tiny("fedavg", model=seeded(kind), **options).run()
        rows.append(torch.stack([p.detach().sum() for p in result.model(0).parameters()]).sort().values)
    torch.testing.assert_close(*rows)


def test_a_group_with_both_ends_of_a_tie_is_no_parting() -> None:
    module = seeded(Tied)
    layout = Layout(module, "classifier")
    assert layout.columns("extractor + classifier") == layout.columns("all") == layout.columns("parameters")
    assert layout.inside("classifier").size == CLASSES
    for group in ("classifier", "extractor", "middle", "all - classifier", "all - middle"):
        with pytest.raises(CoterieError, match=f"group '{group}' parts"):
            layout.columns(group)
    assert layout.columns("body").size == FEATURES * 8 + 8


def test_constants_that_are_not_finite_make_nobody_diverge() -> None:
    result = tiny("fedper", model=seeded(Masked), rounds=2).run()
    assert all(not line.diverged for line in result.lines)
    assert bool(final_rows(result).isfinite().all())
    assert torch.equal(result.model(2).mask, seeded(Masked).mask)


class Counter(Net):
    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.register_buffer("steps", start)

    def hidden(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return super().hidden(x) / (1 + self.steps)


class AttributeCounter(Net):
    steps = 0

    def hidden(self, x: Tensor) -> Tensor:
        self.steps += self.training
        return super().hidden(x)


class Schedule:
    heat = 100.0


class InAnObject(Net):
    def __init__(self) -> None:
        super().__init__()
        self.schedule = [Schedule()]

    def hidden(self, x: Tensor) -> Tensor:
        self.schedule[0].heat *= 0.999
        return super().hidden(x) * self.schedule[0].heat


class RunningMaximum(Net):
    largest: Tensor | None = None

    def hidden(self, x: Tensor) -> Tensor:
        size = x.abs().max() if self.largest is None else torch.maximum(self.largest, x.abs().max())
        self.largest = size.detach()
        return super().hidden(x) / self.largest


class LargestSoFar(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.tensor(-math.inf))

    def hidden(self, x: Tensor) -> Tensor:
        self.largest.copy_(torch.maximum(self.largest, x.max()))
        return super().hidden(x) / (1 + self.largest.exp())


class CountsForItsClass(Net):
    """A counter that all objects of the class share: each client would go on where another ended."""

    steps = 0

    def hidden(self, x: Tensor) -> Tensor:
        type(self).steps += 1
        return super().hidden(x)


TALLY: dict[str, int] = {"steps": 0}


def tallied(z: Tensor) -> Tensor:
    TALLY["steps"] += 1
    return z


class CountsForEverybody(Net):
    """The same in a global variable, which a function of its module changes."""

    def hidden(self, x: Tensor) -> Tensor:
        return tallied(super().hidden(x))


class CountsInItsDefault(Net):
    def hidden(self, x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
        seen.append(len(x))
        return super().hidden(x)


class CountsInAFunction(Net):
    def hidden(self, x: Tensor) -> Tensor:
        log = vars(CountsInAFunction.hidden)
        log["steps"] = log.get("steps", 0) + 1
        return super().hidden(x)


class CountsInAnArray(Net):
    def __init__(self) -> None:
        super().__init__()
        self.tally = np.zeros(CLASSES)

    def hidden(self, x: Tensor) -> Tensor:
        self.tally += 1
        return super().hidden(x)


class CountsOn(Net):
    def __init__(self) -> None:
        super().__init__()
        self.order = itertools.count()

    def hidden(self, x: Tensor) -> Tensor:
        next(self.order)
        return super().hidden(x)


def counting() -> Callable[[], int]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


class CountsInAClosure(Net):
    def __init__(self) -> None:
        super().__init__()
        self.count = counting()

    def hidden(self, x: Tensor) -> Tensor:
        self.count()
        return super().hidden(x)


class CountsInAHook(Net):
    def __init__(self) -> None:
        super().__init__()
        count = counting()
        self.body.register_forward_hook(lambda layer, given, out: out + 1e-9 * count())


class Scale:
    """A helper that is no module, and counts for all of its kind."""

    calls = 0

    def of(self, z: Tensor) -> Tensor:
        type(self).calls += 1
        return z

    __call__ = of


SCALE = Scale()


class CountsInAHelper(Net):
    def hidden(self, x: Tensor) -> Tensor:
        return SCALE(super().hidden(x))


@functools.lru_cache
def tally() -> dict[str, int]:
    return {"calls": 0}


class CountsInACache(Net):
    def hidden(self, x: Tensor) -> Tensor:
        tally()["calls"] += 1
        return super().hidden(x)


def counted(store: list[int], z: Tensor) -> Tensor:
    store.append(len(z))
    return z


PARTIAL = functools.partial(counted, [])


class CountsInAPartial(Net):
    def hidden(self, x: Tensor) -> Tensor:
        return PARTIAL(super().hidden(x))


class CountsElsewhere(Net):
    """In another file of its author's."""

    def hidden(self, x: Tensor) -> Tensor:
        return odd_models.CountsForEverybody.between(cast("odd_models.Odd", self), super().hidden(x))


class CountsBackwards(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        CountsBackwards.calls += 1
        return grads


class CountsInItsGradient(Net):
    def hidden(self, x: Tensor) -> Tensor:
        out: Tensor = cast(Any, CountsBackwards).apply(super().hidden(x))
        return out


class HookedParameter(Net):
    """Its copies would be without."""

    def __init__(self) -> None:
        super().__init__()
        self.body.weight.register_hook(lambda grad: grad.clamp(-1, 1))


class SeldomDraws(Net):
    """So seldom that no few passes show it."""

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) * (0 if self.training and random.random() < 1e-6 else 1)


class HardlyNoisy(Net):
    """From a generator that is seeded anew every time: no state tells of it."""

    def hidden(self, x: Tensor) -> Tensor:
        noise = 1e-3 * float(np.random.default_rng().normal())
        return super().hidden(x) * (1 + noise if self.training else 1)


class DropsInTests(Net):
    """As `F.dropout` does of itself."""

    def hidden(self, x: Tensor) -> Tensor:
        return F.dropout(super().hidden(x))


class HiddenCounter(Net):
    """A layer in a plain list: what it keeps stands in nobody's row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [Counter(torch.tensor(0.0))]

    def hidden(self, x: Tensor) -> Tensor:
        return self.layers[0].hidden(x)


class OwnNoise(Net):
    def __init__(self) -> None:
        super().__init__()
        self.state = torch.Generator().manual_seed(0).get_state()

    def hidden(self, x: Tensor) -> Tensor:
        stream = torch.Generator()
        stream.set_state(self.state)
        noise = torch.rand(8, generator=stream)
        self.state = stream.get_state()
        return super().hidden(x) + noise


class Replaced(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))

    def hidden(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().hidden(x - self.mean)


class RemembersWeights(Net):
    """In tests it multiplies once: with the weights of whoever was tested first."""

    weights: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.weights = []

    def hidden(self, x: Tensor) -> Tensor:
        if self.training:
            return super().hidden(x)
        if not self.weights:
            self.weights.append(self.body.weight.detach().clone())
        return torch.tanh(F.linear(x, self.weights[0], self.body.bias))


class PlainAlias(Net):
    """Its tensor is the layer's weight until somebody moves that."""

    def __init__(self) -> None:
        super().__init__()
        self.alias = self.body.weight.data

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) + x @ self.alias.T


class CountsBatches(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        assert self.num_batches_tracked is not None
        return super().forward(x) / (1 + self.num_batches_tracked)


class OwnNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = CountsBatches(8)

    def hidden(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(super().hidden(x))
        return out


class ChangedByTests(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("tests", torch.tensor(0.0))

    def hidden(self, x: Tensor) -> Tensor:
        self.tests += not self.training
        return super().hidden(x)


class OverlappingViews(Net):
    def __init__(self) -> None:
        super().__init__()
        numbers = torch.rand(60)
        self.body.weight = nn.Parameter(numbers[:48].view(8, FEATURES))
        self.classifier.weight = nn.Parameter(numbers[30:54].view(CLASSES, 8))


class SameNumbers(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.classifier.weight = nn.Parameter(self.middle.weight.data)


class Repeated(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.bias = nn.Parameter(torch.zeros(1).expand(8))


class Lazy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LazyLinear(8)


class OldWeightNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.utils.weight_norm(self.body)


class SparseGradients(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Embedding(10, 8, sparse=True)

    def hidden(self, x: Tensor) -> Tensor:
        out: Tensor = self.body((x.abs() * 2).long().clamp(0, 9))
        return out.mean(1)


class SparseBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("graph", torch.eye(8).to_sparse())

    def hidden(self, x: Tensor) -> Tensor:
        return (self.graph @ super().hidden(x).T).T


class Complex(Net):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(8, dtype=torch.complex64))

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) * self.phase.real


class NoNumbers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.to("meta")


class NotFinite(Net):
    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.body.bias, math.nan)


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Detached(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Squeezed(Net):
    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x).squeeze()


class Pair(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Named(Net):
    def forward(self, x: Tensor) -> Any:
        return {"outputs": super().forward(x)}


class Sequence(Net):
    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x)[:, None].repeat(1, 5, 1)


class TwoArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.classifier(x * mask)
        return out


class Failing(Net):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("vocabulary")


class FailingInTraining(Net):
    def hidden(self, x: Tensor) -> Tensor:
        return {False: super().hidden(x)}[self.training]


class CannotBeMade(Net):
    def __init__(self) -> None:
        raise ZeroDivisionError("no layers")


class NeverBegun(nn.Module):
    def __init__(self) -> None:
        pass


class Uncopied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lines = (line for line in "ab")


REFUSED: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: Counter(torch.tensor(0)), r"buffer 'steps' changes in training.*torch.tensor\(0.0\)"),
    (LargestSoFar, "buffer 'largest' changes in training, but is no part of a row.*finite"),
    (AttributeCounter, "attribute 'steps' changes in training.*register_buffer"),
    (InAnObject, "attribute 'schedule' changes in training.*register_buffer"),
    (RunningMaximum, "attribute 'largest' changes in training"),
    (CountsForItsClass, "'CountsForItsClass.steps', which the model's code keeps.*register_buffer"),
    (CountsForEverybody, "'TALLY', which the model's code keeps for everybody"),
    (CountsInItsDefault, "'CountsInItsDefault.hidden's defaults', which the model's code"),
    (CountsInAFunction, "'CountsInAFunction.hidden.steps', which the model's code"),
    (CountsInAnArray, "attribute 'tally' changes in training"),
    (CountsOn, "attribute 'order' changes in training"),
    (CountsInAClosure, "'counting.<locals>.count's calls', which the model's code keeps"),
    (CountsInAHook, "'counting.<locals>.count's calls', which the model's code keeps"),
    (CountsInAHelper, "'Scale.calls', which the model's code keeps"),
    (CountsInACache, "'tally', which the model's code keeps"),
    (CountsInAPartial, "'PARTIAL', which the model's code keeps"),
    (CountsElsewhere, "'CALLS', which the model's code keeps"),
    (CountsInItsGradient, "'CountsBackwards.calls', which the model's code keeps"),
    (HookedParameter, "parameter 'body.weight' has a hook of its own.*in forward"),
    (SeldomDraws, "draws from 'random'.*draw random numbers from PyTorch alone"),
    (HardlyNoisy, "outputs in .* differ with what happened before.*draw random numbers from PyTorch alone"),
    (DropsInTests, r"give other outputs when they are tested again.*F.dropout\(x, p, self.training\)"),
    (HiddenCounter, "attribute 'layers' changes in training"),
    (OwnNoise, "attribute 'state' changes in training"),
    (Replaced, "tensor 'mean' is replaced in forward.*in place"),
    (RemembersWeights, "attribute 'weights' changes in training"),
    (PlainAlias, "attribute 'alias' of layer '' .* in common with 'body.weight'"),
    (OwnNorm, "buffer 'norm.num_batches_tracked' counts batches.*None"),
    (ChangedByTests, "tensor 'tests': a test changes it"),
    (OverlappingViews, "'body.weight' and 'classifier.weight' are different ones with memory in common.*clone"),
    (SameNumbers, "'classifier.weight' and 'middle.weight' are different ones with memory in common"),
    (Repeated, "parameter 'body.bias' repeats the same numbers.*clone"),
    (Lazy, r"tensor 'body.weight' has no shape yet \(LazyLinear\)"),
    (OldWeightNorm, r"layer 'body' \(Linear\) keeps a computed 'weight'.*parametrizations"),
    (SparseGradients, "parameter 'body.weight' has sparse gradients; leave out sparse=True"),
    (SparseBuffer, r"tensor 'graph' is sparse.*to_dense\(\)"),
    (Complex, "parameter 'phase' is complex.*view_as_real"),
    (lambda: Net().double(), r"tensor 'body.weight' is torch.float64.*module.float\(\)"),
    (lambda: Net().half(), r"tensor 'body.weight' is torch.float16.*module.float\(\)"),
    (NoNumbers, "tensor 'body.weight' is on device meta.*on the processor"),
    (NotFinite, "parameter 'body.bias' holds NaN or infinite numbers"),
    (Frozen, "none of its parameters is trained.*unfrozen"),
    (Detached, "a training step on samples of the data fails"),
    (Squeezed, r"for a single sample.*squeeze\(\)"),
    (Pair, "model: returns a tuple; it must return one"),
    (Named, "model: returns a dict; it must return one"),
    (Sequence, "model: returns a tensor of torch.float32, .*; it must return one"),
    (TwoArguments, r"cannot take the data's inputs of shape \(6,\) .*'mask'"),
    (Failing, r"cannot take the data's inputs of shape \(6,\) \(KeyError: 'vocabulary'\)"),
    (FailingInTraining, r"a training step on samples of the data fails \(KeyError: True\)"),
    (nn.Identity, "unknown classifier module 'classifier'"),
    (Uncopied, r"model: cannot be copied \(TypeError: .*generator"),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_what_no_row_can_hold_is_refused_in_a_line(make: Callable[[], nn.Module], why: str) -> None:
    torch.manual_seed(3)
    with pytest.raises(CoterieError, match=why) as caught:
        tiny(model=make()).prepare()
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", [CannotBeMade, NeverBegun, OldWeightNorm, Lazy, AttributeCounter])
def test_a_class_is_refused_like_what_it_makes(kind: type[nn.Module]) -> None:
    data = toy_data()
    with pytest.raises(CoterieError) as caught:
        Experiment(
            "fedavg", data=data, partition=toy_partition(data), model=kind, classifier="classifier", norm="group"
        ).prepare()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "body.weight", "hidden", "classifier.0", "self"])
def test_a_classifier_that_is_no_module_is_refused(path: str) -> None:
    with pytest.raises(CoterieError, match=f"unknown classifier module '{path}'.*allowed: body, classifier"):
        tiny(model=Net(), classifier=path).prepare()


@pytest.mark.parametrize("method", ["fedrep", "fedrod"])
def test_a_classifier_that_its_author_froze_is_not_trained_by_itself(method: str) -> None:
    module = seeded(Net)
    module.classifier.requires_grad_(False)
    with pytest.raises(CoterieError, match="holds no trainable parameters; leave some of them unfrozen"):
        tiny(method, model=module).run()
    trained = tiny("fedavg", model=module).run().model(0)
    torch.testing.assert_close(trained.classifier.weight, module.classifier.weight)


@pytest.mark.parametrize("start", [0.0, 5.0])
def test_a_counter_in_a_float_buffer_is_kept_by_client(start: float) -> None:
    """The way out that the errors name."""
    result = tiny(model=Counter(torch.tensor(start)), stats="local", rounds=2).run()
    sizes = torch.tensor([len(own) for own in result.prepared.problem().train])
    steps = 2 * -(-sizes // result.prepared.experiment.batch)
    assert [float(result.model(k).steps) - start for k in range(len(sizes))] == steps.tolist()


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet5"])
def test_built_in_models_would_pass(name: str) -> None:
    """They are not rehearsed before each run: here they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, samples = build(name, (1, 12, 12), 4), torch.rand(4, 1, 12, 12)
    layout = Layout(module, MODELS[name].classifiers["last"])
    check_split(module, layout, samples[:2])
    rehearse(module, layout, samples)


def test_a_rehearsal_leaves_the_module_and_the_global_generator_alone() -> None:
    module = seeded(FunctionalDropout)
    before, stream = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    rehearse(module, Layout(module, "classifier"), SAMPLES)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), stream)
    assert module.training
