"""Odd models, put together from pieces: refused in a line, or trained as they would be by themselves."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from tests.fuzz.trial import Case, Target, must, refused
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from coterie.client.trainer import train
from coterie.client.worker import Worker
from coterie.rng import stream_seed, torch_stream
from coterie.runs.experiment import Experiment
from coterie.setup.prepared import Prepared
from coterie.testing.toys import CLASSES, FEATURES, toy_data, toy_partition

WIDTH, RATE, BATCH = 4, 0.05, 6
DATA = toy_data(48)
PARTITION = toy_partition(DATA, clients=3)


class Piece(nn.Module):
    """A layer that may do something odd before it goes on: `[B, WIDTH]` to `[B, WIDTH]`."""

    def __init__(self, odd: Callable[[Any, Tensor], Tensor], **held: Any) -> None:
        super().__init__()
        self.odd = odd
        self.layer = nn.Linear(WIDTH, WIDTH)
        for name, value in held.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        """The layer, and what is odd."""
        return self.odd(self, torch.tanh(self.layer(x)))


def _counted(piece: Any, x: Tensor) -> Tensor:
    if piece.training:
        piece.steps += 1
    return x / (1 + 0.1 * piece.steps)


def _replaced(piece: Any, x: Tensor) -> Tensor:
    if piece.training:
        piece.mean = 0.9 * piece.mean + 0.1 * x.detach().mean(0)
    return x - piece.mean


def _moved(piece: Any, x: Tensor) -> Tensor:
    if piece.training:
        piece.mean.lerp_(x.detach().mean(0), 0.1)
    return x - piece.mean


def _remembered(piece: Any, x: Tensor) -> Tensor:
    if piece.first is None:
        piece.first = x.detach().mean()
    return x - piece.first


def _written(piece: Any, x: Tensor) -> Tensor:
    piece.size, piece.last = len(x), x
    return x


def _drawn(piece: Any, x: Tensor) -> Tensor:
    stream = torch.Generator()
    stream.set_state(piece.state[0])
    noise = torch.rand(WIDTH, generator=stream)
    piece.state[0] = stream.get_state()
    return x + noise


def _attended(piece: Any, x: Tensor) -> Tensor:
    h = x[:, :, None]
    scores = h @ h.transpose(1, 2) + piece.mask
    out: Tensor = (scores.softmax(-1) @ h)[:, :, 0]
    return out


def _with_layer(change: Callable[[nn.Module], nn.Module]) -> Callable[[], Piece]:
    """A piece whose layer is changed by something of PyTorch's."""

    def make() -> Piece:
        piece = Piece(_same)
        piece.layer = change(piece.layer)
        return piece

    return make


def _same(_piece: Any, x: Tensor) -> Tensor:
    return x


def _causal() -> Tensor:
    return torch.full((WIDTH, WIDTH), -math.inf).triu(1)


PIECES: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: Piece(_same),
    "functional dropout": lambda: Piece(lambda piece, x: F.dropout(x, 0.3, piece.training)),
    "noise in training": lambda: Piece(lambda piece, x: x + torch.rand_like(x) if piece.training else x),
    "dropout": lambda: nn.Dropout(0.3),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "batch norm without momentum": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "batch norm without statistics": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
    "whole counter": lambda: Piece(_counted, steps=torch.tensor(0)),
    "float counter": lambda: Piece(_counted, steps=torch.tensor(0.0)),
    "attribute counter": lambda: Piece(_counted, steps=0),
    "replaced buffer": lambda: Piece(_replaced, mean=torch.zeros(WIDTH)),
    "moved buffer": lambda: Piece(_moved, mean=torch.zeros(WIDTH)),
    "unregistered buffer": lambda: Piece(_replaced, mean=nn.Identity()),
    "remembered": lambda: Piece(_remembered, first=None),
    "written down": lambda: Piece(_written),
    "own random numbers": lambda: Piece(_drawn, state=[torch.Generator().manual_seed(0).get_state()]),
    "attention mask": lambda: Piece(_attended, mask=_causal()),
    "frozen mask": lambda: Piece(_attended, mask=nn.Parameter(_causal(), requires_grad=False)),
    "complex table": lambda: Piece(lambda piece, x: x * piece.turns.real, turns=torch.ones(WIDTH, dtype=torch.cfloat)),
    "complex parameter": lambda: Piece(
        lambda piece, x: x * piece.turns.real, turns=nn.Parameter(torch.ones(WIDTH, dtype=torch.cfloat))
    ),
    "not a number": lambda: Piece(_same, unused=torch.tensor(math.nan)),
    "weight norm": _with_layer(nn.utils.parametrizations.weight_norm),
    "old weight norm": _with_layer(nn.utils.weight_norm),
    "spectral norm": _with_layer(nn.utils.parametrizations.spectral_norm),
    "old spectral norm": _with_layer(nn.utils.spectral_norm),
    "orthogonal": _with_layer(nn.utils.parametrizations.orthogonal),
    "lazy": lambda: nn.LazyLinear(WIDTH),
    "double": lambda: Piece(_same).double(),
    "half": lambda: Piece(_same).half(),
    "frozen": lambda: Piece(_same).requires_grad_(False),
    "squeeze": lambda: Piece(lambda _, x: x.squeeze()),
    "sparse": lambda: Piece(lambda piece, x: x + piece.table((x > 0).long()).sum((1, 2))[:, None], table=_table()),
    "recurrent": lambda: Piece(lambda piece, x: piece.cell(x), cell=nn.GRUCell(WIDTH, WIDTH)),
    "fails in training": lambda: Piece(lambda piece, x: {False: x}[piece.training]),
}
TIES = ("none", "none", "weight", "numbers", "views", "module", "middle")
OUTPUTS = ("tensor", "tensor", "tensor", "tensor", "tuple", "dict", "detached", "scaled", "sequence")


def _table() -> nn.Module:
    return nn.Embedding(2, WIDTH, sparse=True)


class Odd(nn.Module):
    """A model of pieces, with a classifier that may be tied to what comes before."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        self.pieces = nn.Sequential(*(PIECES[name]() for name in case["pieces"]))
        self.middle, self.classifier = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)
        self.output = case["output"]
        tie, made = case["tie"], self.classifier.weight
        if tie == "weight":
            self.classifier.weight = self.middle.weight
        elif tie == "numbers":
            self.classifier.weight = nn.Parameter(self.middle.weight.data)
        elif tie == "views":
            numbers = torch.rand(2 * made.numel() - 3) - 0.5
            self.middle.weight = nn.Parameter(numbers[: made.numel()].view(made.shape))
            self.classifier.weight = nn.Parameter(numbers[-made.numel() :].view(made.shape))
        elif tie == "module":
            self.again = self.classifier
        elif tie == "middle":
            self.middle = self.classifier

    def forward(self, x: Tensor) -> Any:
        """The outputs, or what passes for them."""
        h = self.pieces(torch.tanh(self.first(x)))
        h = torch.tanh(self.middle(h) @ self.middle.weight) if "middle" in self._modules else h
        out = (self.again if hasattr(self, "again") else self.classifier)(h)
        others = {"tuple": (out, h), "dict": {"out": out}, "sequence": out[:, None]}
        others |= {"detached": out.detach(), "scaled": 2 * out}
        return others.get(self.output, out)


@st.composite
def odd_models(draw: st.DrawFn) -> Case:
    """Up to three pieces, a tie, a kind of outputs."""
    pieces = draw(st.lists(st.sampled_from(sorted(PIECES)), max_size=3))
    output, tie = draw(st.sampled_from(OUTPUTS)), draw(st.sampled_from(TIES))
    paths = ("classifier", "classifier", "classifier", "classifier", "again", "middle", "pieces.0", "first.weight", "")
    return {"pieces": pieces, "tie": tie, "output": output, "classifier": draw(st.sampled_from(paths))}


def check_model(case: Case, _folder: Path) -> None:
    """Refused in a line; or a client trains like a plain loop, rows stay finite, and what is personal stays."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        module = Odd(case)
    why = refused(lambda: _experiment("fedavg", module, case).prepare())
    if why is not None:
        must("\n" not in why, f"more than one line: {why}")
        return
    _must_train_alike(_experiment("fedavg", module, case).prepare(), module)
    found = _experiment("fedavg", module, case).run()
    rows = found.federation["model"].rows(found.federation.everyone)
    must(bool(rows.isfinite().all()) and not any(line.diverged for line in found.lines), "diverged")
    why = refused(lambda: _experiment("fedper", module, case).run())
    if why is not None:
        must("\n" not in why and "parts" in why, f"refused by FedPer alone: {why}")
        return
    _must_keep_personal(_experiment("fedper", module, case).prepare(), module, case["classifier"])


def _experiment(method: str, module: nn.Module, case: Case) -> Experiment:
    return Experiment(
        method,
        data=DATA,
        partition=PARTITION,
        model=module,
        classifier=case["classifier"],
        rounds=2,
        epochs=1,
        batch=BATCH,
        lr=RATE,
        engine="serial",
    )


def _must_train_alike(prepared: Prepared, module: nn.Module) -> None:
    """A client trains after another one; then a loop that knows no rows trains a copy of the module in the same way."""
    problem, federation = prepared.problem(), prepared.federation()
    federation.round, layout, own = 1, problem.layout, problem.train[1]
    worker = Worker(problem, prepared.method, prepared.experiment.seed)
    with torch.random.fork_rng(devices=[]):
        for client in (0, 1):
            worker.seat(federation, client)
            train(worker, prepared.method.recipe(federation))
        plain, key = copy.deepcopy(module).train(), int(federation.keys[1])
        torch.manual_seed(stream_seed(prepared.experiment.seed, "dropout", 1, key))
        stream = torch_stream(prepared.experiment.seed, "batches:0", 1, key)
        optimiser = torch.optim.SGD([one for one in plain.parameters() if one.requires_grad], lr=RATE)
        for part in torch.randperm(len(own), generator=stream).split(BATCH):
            if len(part) == 1 and problem.skip_single_samples:
                continue
            optimiser.zero_grad()
            F.cross_entropy(plain(DATA.inputs[own[part]]), DATA.labels[own[part]]).backward()
            optimiser.step()
    ours, theirs = worker.model("model").row, layout.row(plain)
    apart = float((ours - theirs).abs().max())
    must(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4), f"trains otherwise than by itself, by {apart}")
    outside = copy.deepcopy(module).state_dict()
    held = {name for entry in layout.entries for name in entry.names}
    for name, tensor in plain.state_dict().items():
        moved = name not in held and not name.endswith("num_batches_tracked")
        must(not moved or torch.allclose(tensor, outside[name], equal_nan=True), f"'{name}' changes outside the row")


def _must_keep_personal(prepared: Prepared, module: nn.Module, classifier: str) -> None:
    """No tensor that the classifier has is among FedPer's uploads, by whatever name."""
    federation, layout = prepared.federation(), prepared.problem_base.layout
    personal = {id(tensor) for tensor in module.get_submodule(classifier).parameters()}
    named = {name for name, tensor in module.named_parameters(remove_duplicate=False) if id(tensor) in personal}
    sent = layout.columns(prepared.method.uploads(federation)["model"]) | federation["model"].shared_columns
    for entry in layout.entries:
        must(named.isdisjoint(entry.names) or not entry.columns & sent, f"'{entry.name}' is personal, and travels")


TARGETS = (Target("odd-models", odd_models(), check_model, share=20),)
