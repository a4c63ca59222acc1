"""Models that do in training what nobody can tell from their layers: noise, counts, hooks, dropout within a function.

All are made for the toy data. `ODD_MODELS` says why the stacked engine does not stack one, in words of its log line;
nothing if it does.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from coterie.testing.toys import CLASSES, FEATURES

WIDTH = 16


class Odd(nn.Module):
    """An extractor and a classifier; in between, whatever a model is odd in."""

    def __init__(self) -> None:
        super().__init__()
        self.body: nn.Module = nn.Linear(FEATURES, WIDTH)
        self.classifier: nn.Module = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.between(torch.tanh(self.body(x))))
        return out

    def between(self, z: Tensor) -> Tensor:
        return z


class FunctionalDropout(Odd):
    def between(self, z: Tensor) -> Tensor:
        return F.dropout(z, 0.5, self.training)


class FeatureDropout(Odd):
    def between(self, z: Tensor) -> Tensor:
        return F.dropout1d(z[:, None], 0.3, self.training)[:, 0]


class Noise(Odd):
    def between(self, z: Tensor) -> Tensor:
        return z + 0.1 * torch.randn_like(z) if self.training else z


class SameNoiseForAll(Odd):
    def between(self, z: Tensor) -> Tensor:
        return z + 0.1 * torch.randn(WIDTH) if self.training else z


class NumpyNoise(Odd):
    def between(self, z: Tensor) -> Tensor:
        return z + float(np.random.normal()) if self.training else z


class FreshNoise(Odd):
    """From a generator that is seeded anew every time: no state tells of it."""

    def between(self, z: Tensor) -> Tensor:
        return z + float(np.random.default_rng().normal()) if self.training else z


class RarelySkipped(Odd):
    """So rarely that a step or two do not show it."""

    def between(self, z: Tensor) -> Tensor:
        return 0 * z if self.training and random.random() < 1e-6 else z


class OwnStream(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.stream = np.random.default_rng(3)

    def between(self, z: Tensor) -> Tensor:
        return 0 * z if self.training and self.stream.random() < 1e-6 else z


class Attention(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)

    def between(self, z: Tensor) -> Tensor:
        seen = z.unflatten(1, (4, 4))
        out: Tensor = self.attend(seen, seen, seen, need_weights=False)[0]
        return out.flatten(1)


class ScaledAttention(Odd):
    def between(self, z: Tensor) -> Tensor:
        seen = z.unflatten(1, (1, 4, 4))
        out = F.scaled_dot_product_attention(seen, seen, seen, dropout_p=0.3 if self.training else 0.0)
        return out.flatten(1)


class PlainAttention(Odd):
    def between(self, z: Tensor) -> Tensor:
        seen = z.unflatten(1, (1, 4, 4))
        return F.scaled_dot_product_attention(seen, seen, seen).flatten(1)


class Transformer(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)

    def between(self, z: Tensor) -> Tensor:
        out: Tensor = self.layer(z.unflatten(1, (4, 4)))
        return out.flatten(1)


class Recurrent(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(4, 4, num_layers=2, dropout=0.3, batch_first=True)

    def between(self, z: Tensor) -> Tensor:
        out: Tensor = self.cells(z.unflatten(1, (4, 4)))[0]
        return out.flatten(1)


class RandomSlope(Odd):
    def between(self, z: Tensor) -> Tensor:
        return F.rrelu(z, training=self.training)


class Gumbel(Odd):
    def between(self, z: Tensor) -> Tensor:
        return F.gumbel_softmax(z) if self.training else z.softmax(1)


class WarmUp(Odd):
    """Trains differently from its hundredth call on: no trial takes so many steps."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def between(self, z: Tensor) -> Tensor:
        self.calls += self.training
        return z if self.calls < 100 else 2 * z


class CountsInABuffer(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def between(self, z: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return z


class CountsInAList(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[dict[str, Any]] = [{}]

    def between(self, z: Tensor) -> Tensor:
        self.log[0]["last"] = self.log[0].get("last", 0) + 1
        return z


class CountsForItsClass(Odd):
    calls: int = 0

    def between(self, z: Tensor) -> Tensor:
        type(self).calls += 1
        return z


CALLS = [0]


class CountsForEverybody(Odd):
    def between(self, z: Tensor) -> Tensor:
        CALLS[0] += 1
        return z


class Average(Odd):
    """Keeps a mean of its features, as batch norm does, and takes it away."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def between(self, z: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(0)
        return z - self.mean


class InstanceNorm(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(4, track_running_stats=True)

    def between(self, z: Tensor) -> Tensor:
        out: Tensor = self.norm(z.unflatten(1, (4, 4)))
        return out.flatten(1)


class Centred(Odd):
    def between(self, z: Tensor) -> Tensor:
        return z - z.mean(0)


class FewAreDifferent(Odd):
    def between(self, z: Tensor) -> Tensor:
        return 2 * z if len(z) < 5 else z


class LooksAtItsInputs(Odd):
    def between(self, z: Tensor) -> Tensor:
        return z if z.mean() > 0 else 2 * z


class Reversal(torch.autograd.Function):
    """Turns gradients round."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return -grad


class OwnFunction(Odd):
    def between(self, z: Tensor) -> Tensor:
        out: Tensor = Reversal.apply(z)  # type: ignore[no-untyped-call]
        return out


class Forgetful(torch.autograd.Function):
    """Turns gradients round, but not those of many clients."""

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return -grad

    @staticmethod
    def vmap(info: Any, in_dims: Any, z: Tensor) -> Any:  # type: ignore[override]
        return z * 1, in_dims[0]


class WrongRule(Odd):
    def between(self, z: Tensor) -> Tensor:
        out: Tensor = Forgetful.apply(z)  # type: ignore[no-untyped-call]
        return out


class RightRule(Odd):
    """The same with a rule that PyTorch makes."""

    def between(self, z: Tensor) -> Tensor:
        out: Tensor = Generated.apply(z)  # type: ignore[no-untyped-call]
        return out


class Generated(Forgetful):
    generate_vmap_rule = True
    vmap = torch.autograd.Function.vmap


class Hooked(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.body.register_forward_hook(lambda layer, given, out: 2 * out)


class HookedBefore(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.body.register_forward_pre_hook(lambda layer, given: (2 * given[0],))


class HookedBackwards(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh())
        self.body[1].register_full_backward_hook(lambda layer, grads, given: (2 * grads[0],))


class HookedTensor(Odd):
    def between(self, z: Tensor) -> Tensor:
        if z.requires_grad:
            z.register_hook(lambda grad: 3 * grad)
        return z


class HookedChain(nn.Sequential):
    """Of layers whose passes are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh())
        self.classifier = nn.Linear(WIDTH, CLASSES)
        self.body[1].register_forward_hook(lambda layer, given, out: 2 * out)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + super().forward(x)
        return out


class ResidualChain(nn.Sequential):
    """A sequence that does more than its parts, among layers whose passes are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, WIDTH), Residual(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
        self.classifier = nn.Linear(WIDTH, CLASSES)


class PatchedChain(nn.Sequential):
    """A layer whose pass somebody has replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh())
        self.classifier = nn.Linear(WIDTH, CLASSES)
        self.body[1].forward = torch.sin


class Spectral(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.utils.parametrizations.spectral_norm(self.body)


class OldSpectral(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.utils.spectral_norm(self.body)


class WeightNorm(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.utils.parametrizations.weight_norm(self.body)


class LouderInTraining(Odd):
    def between(self, z: Tensor) -> Tensor:
        return 3 * z if self.training else z


class LouderClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.last(3 * z if self.training else z)
        return out


class LouderHead(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = LouderClassifier()


class NoisyClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.last(F.dropout(z, 0.5, self.training))
        return out


class NoisyHead(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = NoisyClassifier()


class FrozenNorm(Odd):
    """Keeps batch norm in evaluation mode, as is done where models are tuned."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self

    def between(self, z: Tensor) -> Tensor:
        out: Tensor = self.norm(z)
        return out


class SwitchesItself(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def between(self, z: Tensor) -> Tensor:
        if self.training:
            self.drop.train(not self.drop.training)
        out: Tensor = self.drop(z)
        return out


RANDOM, TOGETHER, KEEPS, DRAWS = "random operation", "otherwise together", "changes as it runs", "draws random numbers"
NO_RULE, HOOK = "does not run for many clients", "a hook"
ODD_MODELS: dict[type[nn.Module], str | None] = {
    FunctionalDropout: RANDOM,
    FeatureDropout: RANDOM,
    Noise: RANDOM,
    SameNoiseForAll: RANDOM,
    NumpyNoise: DRAWS,
    FreshNoise: TOGETHER,
    RarelySkipped: DRAWS,
    OwnStream: KEEPS,
    Attention: RANDOM,
    ScaledAttention: RANDOM,
    PlainAttention: None,
    Transformer: RANDOM,
    Recurrent: NO_RULE,
    RandomSlope: NO_RULE,
    Gumbel: RANDOM,
    WarmUp: KEEPS,
    CountsInABuffer: KEEPS,
    CountsInAList: KEEPS,
    CountsForItsClass: KEEPS,
    CountsForEverybody: KEEPS,
    Average: TOGETHER,
    InstanceNorm: NO_RULE,
    Centred: TOGETHER,
    FewAreDifferent: TOGETHER,
    LooksAtItsInputs: NO_RULE,
    OwnFunction: NO_RULE,
    WrongRule: TOGETHER,
    RightRule: None,
    Hooked: HOOK,
    HookedBefore: HOOK,
    HookedBackwards: HOOK,
    HookedTensor: TOGETHER,
    HookedChain: HOOK,
    ResidualChain: None,
    PatchedChain: None,
    Spectral: NO_RULE,
    OldSpectral: HOOK,
    WeightNorm: None,
    LouderInTraining: None,
    LouderHead: None,
    NoisyHead: RANDOM,
    FrozenNorm: TOGETHER,
    SwitchesItself: KEEPS,
}
